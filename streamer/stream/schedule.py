"""Whose window is encoded next, which one waits to be decoded, and in which buffer. No I/O, no threads.

Between the encoder and the decoder is one slot: a newer window of the same session replaces the one that waits there.
Whose window is encoded next is a matter of deadlines; where there is not time enough for all, that comes to taking
turns.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from streamer.whisper.result import N_BUFFERS

Owner = TypeVar("Owner", bound=Hashable)
Work = TypeVar("Work")

# How long a window of a recording may wait while live sessions have windows that are due.
RECORDED_PATIENCE_S = 2.0


def deadline(due_since_s: float, *, recorded: bool, final_awaited: bool, pace_s: float) -> float:
    """Return by when a window should be encoded that has been due since a moment.

    A final that is awaited is late already, a partial may take as long as the pace has it, a recording longer.
    """
    if recorded:
        return due_since_s + RECORDED_PATIENCE_S
    return due_since_s + (0.0 if final_awaited else pace_s)


@dataclass(frozen=True, slots=True)
class Slotted(Generic[Owner, Work]):
    """Work in the slot, or in the decoder's hands, and the buffer that it lies in."""

    owner: Owner
    work: Work
    buffer: int


class Schedule(Generic[Owner, Work]):
    """The turns of some owners of windows, and the slot. Its user sees to it that one thread at a time calls it."""

    def __init__(self) -> None:
        # In the order in which they had their turns, longest ago first.
        self._owners: list[Owner] = []
        # What waits to be decoded, and what is being decoded.
        self._slot: Slotted[Owner, Work] | None = None
        self._decoding: Slotted[Owner, Work] | None = None

    @property
    def owners(self) -> tuple[Owner, ...]:
        return tuple(self._owners)

    @property
    def waits(self) -> bool:
        """Whether something waits in the slot."""
        return self._slot is not None

    def add(self, owner: Owner) -> None:
        """Let an owner have turns from now on."""
        self._owners.append(owner)

    def remove(self, owner: Owner) -> None:
        """Let an owner have no more turns; harmless the second time. What it has in the slot stays there."""
        if owner in self._owners:
            self._owners.remove(owner)

    def by_deadline(self, deadline_s: Callable[[Owner], float]) -> Iterable[Owner]:
        """Return who may encode a window now, the most urgent first; infinity stands for having none that is due.

        Of those that are equally urgent first who had no turn for longest. While a window waits in the slot, only a
        newer one of the same owner may take its place.
        """
        waiting = self._slot.owner if self._slot is not None else None
        urgent = {owner: deadline_s(owner) for owner in self._owners if waiting in (None, owner)}
        return sorted((owner for owner in urgent if urgent[owner] < math.inf), key=urgent.__getitem__)

    def take_turn(self, owner: Owner) -> tuple[int, Work | None]:
        """An owner's window is encoded now: return into which buffer, and the work in the slot that it replaces."""
        replaced, self._slot = self._slot, None
        if owner in self._owners:
            self._owners.remove(owner)
            self._owners.append(owner)
        decoding = self._decoding.buffer if self._decoding is not None else None
        return next(i for i in range(N_BUFFERS) if i != decoding), replaced.work if replaced is not None else None

    def put(self, owner: Owner, work: Work, buffer: int) -> None:
        """A window was encoded: it waits for the decoder."""
        assert self._slot is None, "the slot is taken"
        self._slot = Slotted(owner, work, buffer)

    def begin_decoding(self) -> Slotted[Owner, Work] | None:
        """Take what waits in the slot, None where nothing does; its buffer is not written to until `end_decoding`."""
        self._decoding, self._slot = self._slot, None
        return self._decoding

    def end_decoding(self) -> None:
        """The buffer of what was being decoded may be written to."""
        self._decoding = None
