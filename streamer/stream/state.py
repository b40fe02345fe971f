"""A session's memory between two decisions: all that another machine needs to go on with it, but for its audio."""

import itertools
from dataclasses import dataclass
from typing import Self

import msgspec

from streamer.audio.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.errors import SessionStateError
from streamer.events import GapReason
from streamer.stream.gate import GateState
from streamer.stream.passes import PassesState
from streamer.stream.transcript import Text, TranscriptState

# A position of ten years of audio: none is beyond.
MAX_POSITION = 10 * 366 * 86_400 * SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Loss:
    """Audio that is not transcribed."""

    start: int
    end: int
    reason: GapReason


class SessionState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What `Session.state` returns and `Session.restored` goes on from. Positions are absolute samples.

    Windows that are on their way are none of it: they are handed out again.
    """

    # Audio before this is not looked at any more.
    needed_from: int

    # What the sender had said last of how far it is (`Session.mark`).
    mark: int
    gate: GateState
    passes: PassesState
    transcript: TranscriptState
    losses: tuple[Loss, ...] = ()
    flushes: tuple[int, ...] = ()
    missing: bool = False
    after_loss: bool = False
    told_until: int = 0
    paused_from: int | None = None
    retry_s: float = 0.0
    ended: bool = False

    @property
    def heard(self) -> int:
        """Position up to which audio was heard: what follows is heard anew."""
        return self.passes.heard

    @property
    def read(self) -> int:
        """Position up to which it is known what is said."""
        first = next(iter(self.passes.stretches), None)
        return self.heard if first is None else max(first.start, first.taken_end)

    @classmethod
    def new(cls) -> Self:
        """Return the state of a session that has heard nothing."""
        return cls.behind_loss(0, 0, 1, mark=0)

    @classmethod
    def behind_loss(cls, told_until: int, position: int, segment: int, *, mark: int) -> Self:
        """Return the state of a session of which nothing is known but what was told, and where it goes on.

        told_until, position : the audio between them is lost
        segment : number that the next final gets
        """
        position = -(-position // HOP_LENGTH) * HOP_LENGTH
        lost = (Loss(told_until, position, "device"),) if told_until < position else ()
        return cls(
            needed_from=position,
            mark=mark,
            gate=GateState(False, None, position, position),
            passes=PassesState((), position, position, 0, position),
            transcript=TranscriptState(segment, "", "", segment > 1, Text(position), ()),
            losses=lost,
            after_loss=bool(lost),
            told_until=told_until,
        )

    def check(self) -> None:
        """Raise SessionStateError where this is no state that a session can be in."""
        stretches, text = self.passes.stretches, self.transcript.text
        words = [*text.words, *text.tail]
        positions = [self.needed_from, self.heard, self.gate.last_speech, self.gate.floor, self.told_until]
        positions += [*self.flushes, *(end for loss in self.losses for end in (loss.start, loss.end))]
        positions += [
            self.passes.last_speech,
            self.passes.window_start,
            *([self.paused_from] if self.paused_from is not None else []),
        ]
        positions += [text.segment_start, *(word.start_samples for word in words), *(w.end_samples for w in words)]
        for stretch in stretches:
            positions += [stretch.start, stretch.end]
            positions += [stretch.heard_from, stretch.taken_end, stretch.issued_end]
        possible = (
            all(0 <= position <= MAX_POSITION for position in positions)
            and self.needed_from <= self.heard
            and self.passes.window_start <= self.heard + N_SAMPLES
            and all(not stretch.open for stretch in stretches[:-1])
            and _is_ascending([stretch.start for stretch in stretches])
            and 0 <= text.n_forgotten <= text.n_final <= text.n_settled
            and text.n_forgotten <= text.first_word <= text.n_settled
            and 0 <= text.n_new <= len(text.tail)
            and (not text.tail_writes_on or bool(text.tail and text.words))
            and self.transcript.segment >= 1
            and (not self.gate.open or bool(stretches and stretches[-1].open))
            and (not stretches or self.needed_from == self.passes.window_start)
        )
        if not possible:
            raise SessionStateError(
                "a session's state contradicts itself: expected one that this version of streamer wrote; the session"
                " goes on behind a gap"
            )


def _is_ascending(positions: list[int]) -> bool:
    return all(a <= b for a, b in itertools.pairwise(positions))
