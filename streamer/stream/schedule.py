"""Which window is encoded next, which one waits to be decoded, and in which buffer. No I/O, no threads.

Between the encoder and the decoder is one slot: a newer window of the same session replaces the one that waits there.
Windows are encoded by deadline, which comes to taking turns when there is not time enough for all.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from streamer.whisper.result import N_BUFFERS

Owner = TypeVar("Owner", bound=Hashable)
Work = TypeVar("Work")

RECORDED_PATIENCE_S = 2.0  # that a recording's window may wait while live sessions have windows that are due


def deadline(due_since_s: float, *, recorded: bool, final_awaited: bool, pace_s: float) -> float:
    """Return when a window should be encoded: at once for a final, else within the pace, later for a recording."""
    if recorded:
        return due_since_s + RECORDED_PATIENCE_S
    return due_since_s + (0.0 if final_awaited else pace_s)


@dataclass(frozen=True, slots=True)
class Slotted(Generic[Owner, Work]):
    """An encoded window, and the buffer that it lies in."""

    owner: Owner
    work: Work
    buffer: int


class Schedule(Generic[Owner, Work]):
    """The owners of windows, and the slot. Not thread-safe."""

    def __init__(self) -> None:
        # In the order of their turns, longest ago first.
        self._owners: list[Owner] = []
        # What waits to be decoded, and what is being decoded.
        self.slot: Slotted[Owner, Work] | None = None
        self._decoding: Slotted[Owner, Work] | None = None

    @property
    def owners(self) -> tuple[Owner, ...]:
        return tuple(self._owners)

    def add(self, owner: Owner) -> None:
        self._owners.append(owner)

    def remove(self, owner: Owner) -> None:
        """Give an owner no more turns; harmless the second time. Its window in the slot stays."""
        if owner in self._owners:
            self._owners.remove(owner)

    def by_deadline(self, deadline_s: Callable[[Owner], float]) -> Iterable[Owner]:
        """Return the owners whose window may be encoded now, most urgent first, of equals the longest without a turn.

        An infinite deadline means that no window is due. While a window waits in the slot, only its owner may encode.
        """
        urgent = {owner: deadline_s(owner) for owner in self._owners if self.slot is None or owner == self.slot.owner}
        return sorted((owner for owner in urgent if urgent[owner] < math.inf), key=urgent.__getitem__)

    def take_turn(self, owner: Owner) -> tuple[int, Work | None]:
        """Begin to encode an owner's window. Return the buffer for it, and the work in the slot that it replaces."""
        replaced, self.slot = self.slot, None
        if owner in self._owners:
            self._owners.remove(owner)
            self._owners.append(owner)
        decoding = self._decoding.buffer if self._decoding is not None else None
        return next(i for i in range(N_BUFFERS) if i != decoding), replaced.work if replaced is not None else None

    def put(self, owner: Owner, work: Work, buffer: int) -> None:
        """Let an encoded window wait for the decoder."""
        assert self.slot is None, "the slot is taken"
        self.slot = Slotted(owner, work, buffer)

    def begin_decoding(self) -> Slotted[Owner, Work] | None:
        """Take the window in the slot, if any. Its buffer is not given out until `end_decoding`."""
        self._decoding, self.slot = self.slot, None
        return self._decoding

    def end_decoding(self) -> None:
        self._decoding = None
