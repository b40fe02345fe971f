"""A large cluster, simulated: `python -m tools.simulate_cluster`.

Which worker is asked, who is lost, and what load and room there are, is real code (`placement`, `engine.load`).
Simulated are the clock, machines and clients. Machines are in cells, each with a NATS of its own, which share nothing.
"""

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamer.engine.load import ACTIVITY_S, MAX_LOAD, MIN_PASSES, LoadMeter, Pass
from streamer.plugins.cluster.messages import BEAT_S, LOST_S, VERSION, WorkerAlive
from streamer.plugins.cluster.placement import Workers, wants_to_give

GATEWAYS = 4  # of a cell
CAPACITIES = (60, 100, 140)  # sessions that speak all the time which a worker can do; as many machines of each
SPEECH = (0.4, 0.8)  # share of its time that a session speaks, between these
PACE_S = 2.0  # from one pass of a session to the next when a machine is full
MOST_ASKED = 4  # workers that are asked for a session before its client is turned away
STEP_S = 0.05

FIGURES = ("turned away", "refused", "without room", "moved")


@dataclass(eq=False)
class Session:
    """A client's stream."""

    speech: float
    gateway: Workers
    taken_s: float = 0.0

    def activity(self, now_s: float) -> float:
        """Return what `load.Activity` makes of it: a new session counts as one that speaks all the time."""
        return self.speech + (1.0 - self.speech) * math.exp((self.taken_s - now_s) / ACTIVITY_S)


@dataclass(eq=False)
class Worker:
    """A worker: it admits sessions as an engine does, and reports."""

    name: str
    capacity: int
    beat_s: float
    sessions: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._meter = LoadMeter(PACE_S)
        busy_s = PACE_S * (MAX_LOAD - 1e-6) / self.capacity  # less, so that rounding does not cost it one session
        for _ in range(MIN_PASSES):
            self._meter.take_pass(
                Pass(busy_s=busy_s, encode_s=0.0, decode_s=0.0, n_calls=0, n_tokens=0, window_s=1.0, new_s=0.0)
            )

    def alive(self, now_s: float) -> WorkerAlive:
        """Return the sign of life."""
        self.load = self._meter.load([session.activity(now_s) for session in self.sessions])
        return WorkerAlive(
            worker=self.name,
            version=VERSION,
            model="",
            load=self.load.ratio,
            capacity=self.load.capacity or 0,
            sessions=len(self.sessions),
            room=self.load.room,
        )


class Cell:
    """Workers, gateways, and the clock that they live by."""

    def __init__(self, n_workers: int, chance: random.Random) -> None:
        self.chance, self.now_s, self.count = chance, 0.0, Counter[str]()
        self.gateways = [Workers(chance) for _ in range(GATEWAYS)]
        sizes = [CAPACITIES[i % len(CAPACITIES)] for i in range(n_workers)]
        made = [Worker(f"w{i}", size, chance.uniform(0.0, BEAT_S)) for i, size in enumerate(sizes)]
        self.workers = {worker.name: worker for worker in made}
        self.run(2 * BEAT_S)

    def run(self, duration_s: float, arrivals: Sequence[float] = ()) -> None:
        """Let time pass; at these moments clients come."""
        until_s, due = self.now_s + duration_s, sorted(arrivals, reverse=True)
        while self.now_s < until_s:
            self.now_s += STEP_S
            for worker in self.workers.values():
                if self.now_s >= worker.beat_s:
                    worker.beat_s += BEAT_S
                    self._beat(worker)
            while due and due[-1] <= self.now_s:
                due.pop()
                self.place(Session(self.chance.uniform(*SPEECH), self.chance.choice(self.gateways)), must=False)

    def lose(self, n_workers: int) -> None:
        """Let workers go without a word: their sessions go on elsewhere once gateways count them as lost."""
        lost = [self.workers.pop(name) for name in self.chance.sample(sorted(self.workers), n_workers)]
        self.run(LOST_S + 2 * STEP_S)
        for session in [session for worker in lost for session in worker.sessions]:
            self.place(session, must=True)
        self.run(2 * BEAT_S)

    def place(self, session: Session, *, must: bool, avoid: Sequence[str] = ()) -> None:
        """Ask workers as a gateway does; one that goes on has to be taken by the first, in the end."""
        order = session.gateway.choose(self.now_s, model=None, avoid=avoid)[:MOST_ASKED]
        for name, forced in [*((name, False) for name in order), *((name, True) for name in order[:1] if must)]:
            worker = self.workers.get(name)
            if worker is not None and (forced or worker.alive(self.now_s).room):
                session.taken_s = self.now_s
                worker.sessions.append(session)
                self.count.update({"without room": forced, "moved": must})
                return
            self.count["refused"] += 1
        self.count["turned away"] += 1

    def loads(self) -> list[float]:
        """Return each worker's load, as a share of what it gives away."""
        return [worker.alive(self.now_s).load / MAX_LOAD for worker in self.workers.values()]

    def _beat(self, worker: Worker) -> None:
        alive = worker.alive(self.now_s)
        for gateway in self.gateways:
            gateway.take(alive, self.now_s)
        if wants_to_give(alive, self.gateways[0].alive(self.now_s)):
            session = worker.sessions.pop(self.chance.randrange(len(worker.sessions)))
            self.place(session, must=True, avoid=[worker.name])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how well cells are filled, and what becomes of their sessions if a fifth of the workers is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=10_000, help="workers of all cells")
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--cell", type=int, default=50, help="workers of a cell")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    n_cells = max(1, args.machines // args.cell)
    heads = ("", "load p1", "p50", "p99", "most", *FIGURES)
    print(f"| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    loads: dict[str, list[float]] = {"filled within 30 s": [], "a fifth of the workers lost": []}
    counts = {what: Counter[str]() for what in loads}
    for number in range(n_cells):
        cell = Cell(args.cell, random.Random(args.seed + number))
        cell.run(30.0, [cell.now_s + cell.chance.uniform(0.0, 30.0) for _ in range(args.sessions // n_cells)])
        for what in loads:
            if what.startswith("a fifth"):
                cell.lose(args.cell // 5)
            loads[what] += cell.loads()
            counts[what] += cell.count
            cell.count.clear()
    for what, found in loads.items():
        spread = (f"{share:.2f}" for share in np.percentile(found, (1, 50, 99, 100)))
        print(f"| {' | '.join([what, *spread, *(str(counts[what][figure]) for figure in FIGURES)])} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
