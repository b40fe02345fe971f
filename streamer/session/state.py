"""All that a session knows, as one value: with the audio that it needs another machine can continue it."""

import itertools
from typing import Self

import msgspec

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.errors import SessionStateError
from streamer.session.gate import Gate
from streamer.session.losses import Loss, Losses
from streamer.session.task import down_to_frame, up_to_frame
from streamer.session.text import Beginning, Said, Text
from streamer.session.windows import OpenSpeech

MAX_POSITION = 10 * 366 * 86_400 * SAMPLE_RATE  # ten years of audio


class SessionState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """All that a session knows; by default of a new one. Positions are absolute samples."""

    needed_from: int = 0  # audio before this is no longer needed

    # See `Session.mark`.
    mark: int = 0
    gate: Gate = Gate()
    speech: OpenSpeech = OpenSpeech()
    text: Text = Text()
    losses: Losses = Losses()

    # Whether no speech began since the last gap, or the beginning of the audio.
    after_gap: bool = True

    # Position at which the client paused; None if not paused.
    paused_from: int | None = None

    # Seconds that the newest task left for a better text of a final.
    retry_s: float = 0.0

    # Whether the audio has ended.
    ended: bool = False

    @property
    def received(self) -> int:
        """Position up to which audio was received; audio after it has to be sent again."""
        return self.speech.received

    @property
    def paused(self) -> bool:
        return self.paused_from is not None

    @property
    def finished(self) -> bool:
        """Whether the audio has ended and all speech is final."""
        return self.ended and self.speech.current is None

    @property
    def final_awaited(self) -> bool:
        """Whether speech has ended and is not final yet."""
        return self.speech.current is not None and not self.speech.current.open

    @property
    def waiting_from(self) -> int | None:
        """Position of the oldest speech without text; None if all speech has text."""
        return None if self.speech.current is None else self.read

    @property
    def read(self) -> int:
        """Position up to which speech has been transcribed."""
        first = self.speech.current
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
            gate=Gate(last_speech=position, floor=position),
            speech=OpenSpeech(position),
            text=Text(
                segment=segment,
                start=position,
                begins=Beginning(0, down_to_frame(position)),
                said=Said(anything=segment > 1),
            ),
            losses=Losses(lost, published_until=published_until),
        )

    def check(self) -> None:
        """Raise SessionStateError if no session can be in this state."""
        utterances, text, losses = self.speech.utterances, self.text, self.losses
        stable, tail, before = text.stable, text.tail, text.search.before
        words = [*stable.words, *tail.words, *(before.words if before is not None else ())]
        positions = [
            *(self.needed_from, self.received, self.gate.last_speech, self.gate.floor, losses.published_until),
            *(text.begins.position, self.paused_from or 0, text.start, *losses.flushes, *self.speech.pauses),
            *(end for loss in losses.waiting for end in (loss.start, loss.end)),
            *(end for span in self.speech.detected.spans for end in span),
            *(end for word in words for end in (word.start_samples, word.end_samples)),
        ]
        for each in utterances:
            positions += [each.start, each.end, each.words_end, each.decoded_end, each.issued_end]
        possible = (
            all(0 <= position <= MAX_POSITION for position in positions)
            and self.needed_from <= self.received
            and text.begins.position <= self.received + N_SAMPLES
            and all(not utterance.open for utterance in utterances[:-1])
            and all(a.start <= b.start and a.number < b.number for a, b in itertools.pairwise(utterances))
            and all(utterance.number <= self.speech.n_begun for utterance in utterances)
            and 0 <= stable.first <= stable.n_final <= stable.end
            and stable.first <= text.begins.word <= stable.end
            and 0 <= tail.n_new <= len(tail.words)
            and (not tail.continues or bool(tail.words and stable.words))
            and text.segment >= 1
            and (not self.gate.open or bool(utterances and utterances[-1].open))
            and (not utterances or self.needed_from <= text.begins.position)
            and (text.earlier is None or stable.first <= text.earlier.word <= stable.n_final)
        )
        if not possible:
            raise SessionStateError(
                "a session's state contradicts itself: expected one that this version of streamer wrote; the session"
                " goes on behind a gap"
            )


NEW = SessionState()
