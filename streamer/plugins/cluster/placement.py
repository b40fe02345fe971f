"""Which worker takes a session: decided from what workers say of themselves. No I/O; the time is an argument."""

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from streamer.engine.load import MAX_LOAD
from streamer.plugins.cluster.messages import LOST_S, VERSION, WorkerAlive

# What a session is taken to add to the load of a worker that does not know it yet.
UNKNOWN_SHARE = 0.1

# By so much two workers' loads have to differ, beside the session itself, for one to be moved: loads waver.
MARGIN = 0.1

# After NATS reports that a worker has no subscription, until it counts as lost, unless it is alive.
MISSED_S = 0.4

# Without a sign of life, until a lost worker is forgotten.
FORGET_S = 60.0


@dataclass(slots=True)
class _Known:
    """What is known of one worker."""

    alive: WorkerAlive
    alive_s: float

    # Sessions that were sent there since, which it has not reported yet.
    n_placed: int = 0

    @property
    def room(self) -> bool:
        return has_room(self.alive, self.n_placed)


class Workers:
    """What is known of them from their signs of life. Times are seconds of one clock of the caller's."""

    def __init__(self, chance: random.Random | None = None) -> None:
        """Begin without workers. `chance` decides between them, so that many gateways do not all ask the same one."""
        self._chance = chance if chance is not None else random.Random()  # noqa: S311 - nothing is secret about it
        self._known: dict[str, _Known] = {}

    def take(self, alive: WorkerAlive, now_s: float) -> None:
        """Take a sign of life, unless its version is another, or its name cannot be part of a subject."""
        if alive.version == VERSION and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", alive.worker):
            self._known[alive.worker] = _Known(alive, now_s)
        for worker, known in list(self._known.items()):
            if now_s - known.alive_s > FORGET_S:
                del self._known[worker]

    def miss(self, worker: str, now_s: float) -> None:
        """Note that NATS no longer knows a worker: it has died, or is reconnecting to another server."""
        if known := self._known.get(worker):
            known.alive_s = min(known.alive_s, now_s - LOST_S + MISSED_S)

    def alive(self, now_s: float) -> list[WorkerAlive]:
        """Return the newest sign of life of each worker that is not lost, by name."""
        return [self._known[worker].alive for worker in sorted(self._known) if not self.is_lost(worker, now_s)]

    def is_lost(self, worker: str, now_s: float) -> bool:
        """Whether a worker has shown no sign of life for too long, or never has."""
        known = self._known.get(worker)
        return known is None or now_s - known.alive_s > LOST_S

    def model(self, worker: str) -> str:
        """Return the identity of a worker's model; empty if the worker is unknown."""
        known = self._known.get(worker)
        return known.alive.model if known is not None else ""

    def another(self, now_s: float, *, model: str, than: str, room: bool) -> bool:
        """Whether a worker with a model, other than one, could take a session; with `room`, in real time."""
        return any(
            _can_take(known.alive, model) and (not room or known.room)
            for worker, known in self._known.items()
            if worker != than and not self.is_lost(worker, now_s)
        )

    def choose(self, now_s: float, *, model: str | None, avoid: Collection[str] = ()) -> list[str]:
        """Return whom to ask for a place, best first; the first counts as asked until its next sign of life.

        model : that it must have; None: any
        avoid : workers that are not asked

        The first is the less loaded of two that chance picks ("the power of two choices", Mitzenmacher 2001). Workers
        without room come last: they may be asked to take what was going on elsewhere.
        """
        able = [
            known
            for worker, known in sorted(self._known.items())
            if not self.is_lost(worker, now_s) and worker not in avoid and _can_take(known.alive, model)
        ]
        able.sort(key=lambda known: (not known.room, load_with(known.alive, known.n_placed), self._chance.random()))
        n_with_room = sum(known.room for known in able)
        if n_with_room > 2:  # else the best of all is the best of two
            able.insert(0, able.pop(min(self._chance.sample(range(n_with_room), 2))))
        if able:
            able[0].n_placed += 1
        return [known.alive.worker for known in able]


def _can_take(alive: WorkerAlive, model: str | None) -> bool:
    return not alive.draining and not alive.failing and model in (None, alive.model)


def has_room(alive: WorkerAlive, n_placed: int = 0) -> bool:
    """Whether a worker has room, when `n_placed` sessions came since it said so."""
    return alive.room and (n_placed == 0 or load_with(alive, n_placed + 1) <= MAX_LOAD)


def load_with(alive: WorkerAlive, n_more: int) -> float:
    """Return the load that a worker has with more sessions, each speaking without a pause."""
    share = MAX_LOAD / alive.capacity if alive.capacity else UNKNOWN_SHARE
    return alive.load + n_more * share


def wants_to_give(own: WorkerAlive, others: Sequence[WorkerAlive]) -> bool:
    """Whether a worker is over its measure, and another has so much room that a session is better off there.

    others : workers that are alive; the own one among them does not matter
    """
    if own.load <= MAX_LOAD or own.sessions < 2:
        return False
    return any(
        other.worker != own.worker
        and _can_take(other, own.model)
        and has_room(other)
        and load_with(other, 1) + MARGIN <= own.load
        for other in others
    )
