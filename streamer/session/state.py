"""A session's memory between two decisions: all that another machine needs to continue it, except its audio."""

import itertools
from dataclasses import dataclass
from typing import Self

import msgspec

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.errors import SessionStateError
from streamer.events import GapReason
from streamer.session.gate import CLOSED, GateState
from streamer.session.schedule import SILENT, ScheduleState
from streamer.session.task import up_to_frame
from streamer.session.transcript import TranscriptState

MAX_POSITION = 10 * 366 * 86_400 * SAMPLE_RATE  # ten years of audio


@dataclass(frozen=True, slots=True)
class Loss:
    """Audio that is not transcribed."""

    start: int
    end: int
    reason: GapReason


class SessionState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that another session needs to continue this one; by default a new session. Positions are absolute samples.

    Windows that are not decoded yet are not part of it: they are issued again.
    """

    needed_from: int = 0  # audio before this is no longer needed

    # See `Session.mark`.
    mark: int = 0
    gate: GateState = CLOSED
    schedule: ScheduleState = SILENT
    transcript: TranscriptState = msgspec.field(default_factory=TranscriptState)
    losses: tuple[Loss, ...] = ()
    flushes: tuple[int, ...] = ()
    missing: bool = False
    after_gap: bool = True
    published_until: int = 0
    paused_from: int | None = None
    retry_s: float = 0.0
    ended: bool = False

    @property
    def received(self) -> int:
        """Position up to which audio was received; audio after it has to be sent again."""
        return self.schedule.received

    @property
    def read(self) -> int:
        """Position up to which speech has been transcribed."""
        first = next(iter(self.schedule.utterances), None)
        return self.received if first is None else max(first.start, first.decoded_end)

    @classmethod
    def behind_loss(cls, published_until: int, position: int, segment: int, *, mark: int) -> Self:
        """Return the state of a session that continues at a position, knowing only what was published.

        published_until : the audio from there to `position` is lost
        segment : number of the next final
        """
        position = up_to_frame(position)
        lost = (Loss(published_until, position, "device"),) if published_until < position else ()
        return cls(
            needed_from=position,
            mark=mark,
            gate=GateState(last_speech=position, floor=position),
            schedule=ScheduleState.at(position),
            transcript=TranscriptState(position, segment, anything_said=segment > 1),
            losses=lost,
            published_until=published_until,
        )

    def check(self) -> None:
        """Raise SessionStateError if no session can be in this state."""
        utterances, text = self.schedule.utterances, self.transcript
        stable, tail = text.stable, text.tail
        words = [*stable.words, *tail.words, *(text.before.words if text.before is not None else ())]
        positions = [
            *(self.needed_from, self.received, self.gate.last_speech, self.gate.floor, self.published_until),
            *(self.schedule.last_speech, self.schedule.window_start, self.paused_from or 0, text.segment_start),
            *self.flushes,
            *(end for loss in self.losses for end in (loss.start, loss.end)),
            *(end for span in self.schedule.speech for end in span),
            *(end for word in words for end in (word.start_samples, word.end_samples)),
        ]
        for each in utterances:
            positions += [each.start, each.end, each.words_end, each.decoded_end, each.issued_end]
        possible = (
            all(0 <= position <= MAX_POSITION for position in positions)
            and self.needed_from <= self.received
            and self.schedule.window_start <= self.received + N_SAMPLES
            and all(not utterance.open for utterance in utterances[:-1])
            and all(a.start <= b.start for a, b in itertools.pairwise(utterances))
            and 0 <= stable.first <= text.n_final <= stable.end
            and stable.first <= text.first_word <= stable.end
            and 0 <= tail.n_new <= len(tail.words)
            and (not tail.continues or bool(tail.words and stable.words))
            and text.segment >= 1
            and (not self.gate.open or bool(utterances and utterances[-1].open))
            and (not utterances or self.needed_from <= self.schedule.window_start)
            and (text.earlier is None or stable.first <= text.earlier[0] <= text.n_final)
        )
        if not possible:
            raise SessionStateError(
                "a session's state contradicts itself: expected one that this version of streamer wrote; the session"
                " goes on behind a gap"
            )


NEW = SessionState()
