"""Which audio is encoded next, and when. Pure, positions in absolute samples.

Only the oldest utterance is transcribed; later ones wait, or share its window. Where a window begins is part of the
text (`Text.begins`): it may contain earlier speech, as far as there are stable words to begin it with.
"""

from dataclasses import dataclass
from typing import Self

import msgspec
from msgspec.structs import replace

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.session.coverage import DetectedSpeech
from streamer.session.gate import PAUSE_SAMPLES
from streamer.session.settings import SessionSettings
from streamer.session.task import Span

HESITATION_SAMPLES = SAMPLE_RATE // 10  # after silence this long, wait and see whether it becomes a pause

# New audio from one pass to the next is at least this multiple of what a pass costs, up to EASY_SAMPLES: words appear
# sooner if passes are cheap, without keeping the machine busy.
EASE = 2.5
EASY_SAMPLES = SAMPLE_RATE

JOIN_OPEN_SAMPLES = 8 * SAMPLE_RATE  # if a pass costs this much, waiting speech shares a window with ongoing speech

MAX_SILENCE_SAMPLES = 5 * SAMPLE_RATE  # speech after a longer silence gets a window of its own

# How often the windows of an utterance are decoded again: this often, and once more for each second of it.
MAX_AGAIN = 4


class Utterance(msgspec.Struct, frozen=True, array_like=True):
    """Speech between two long silences, and how far it has been transcribed."""

    number: int
    start: int
    after_gap: bool = False  # whether no audio right before it was received: no window may span the gap
    open: bool = True  # whether speech goes on

    # Once it has ended: its end, and the least end of a window that contains all its words.
    end: int = 0
    words_end: int = 0

    # Whether it continues speech that was given up: its first window is due at once, whatever the pace.
    overdue: bool = False

    # How often a window was decoded again, for whatever reason; whether attempts at a better text were cut short.
    n_again: int = 0
    cut_short: bool = False

    # End of the newest window that was issued, and of the newest that was decoded; 0 before the first.
    issued_end: int = 0
    decoded_end: int = 0

    def complete_at(self, end: int) -> bool:
        """Return whether a window up to a position contains all words of the utterance."""
        return not self.open and end >= self.words_end

    def speech_until(self, end: int) -> int:
        """Return where the speech in a window ends."""
        return end if self.open else min(end, self.end)

    def again(self, decoded_end: int | None = None) -> Self | None:
        """Make the newest window due once more. None if that was done too often: then what is known counts.

        decoded_end : where decoded audio ends, if it no longer counts up to the end of that window
        """
        length = (self.issued_end if self.open else self.end) - self.start
        if self.n_again >= MAX_AGAIN + length // SAMPLE_RATE:
            return None
        decoded_end = self.decoded_end if decoded_end is None else decoded_end
        return replace(self, n_again=self.n_again + 1, issued_end=0, decoded_end=decoded_end)


class OpenSpeech(msgspec.Struct, frozen=True, array_like=True):
    """The audio so far, and the speech in it that is not final."""

    received: int = 0  # end of the audio

    # Utterances that are not final, oldest first; how many have begun since the session did.
    utterances: tuple[Utterance, ...] = ()
    n_begun: int = 0

    # Positions of the silences in the newest of them.
    pauses: tuple[int, ...] = ()

    # What the detector has found since the newest final or gap.
    detected: DetectedSpeech = DetectedSpeech()

    # What the last pass cost, in samples of real time.
    cost: int = 0

    @property
    def current(self) -> Utterance | None:
        """The utterance that is being transcribed; None in silence."""
        return self.utterances[0] if self.utterances else None

    @property
    def newest(self) -> Utterance | None:
        return self.utterances[-1] if self.utterances else None

    @property
    def first_start(self) -> int | None:
        """Start of the oldest speech that is not final; None for none."""
        return self.utterances[0].start if self.utterances else None

    def find(self, span: Span) -> Utterance | None:
        """Return the utterance of a span that was encoded; None if its text is no longer wanted.

        That is after a newer span was decoded. (The last span may be shorter than one before it, because the end of
        speech is known only after a silence.)
        """
        current = self.current
        if current is None or current.number != span.utterance:
            return None
        return current if span.last or span.end > current.decoded_end else None

    def more(self, end: int, *, detected: bool) -> Self:
        """Take the next audio, with what the detector says of it."""
        found = self.detected.with_more(self.received, end) if detected else self.detected
        return replace(self, received=end, detected=found)

    def begin(self, position: int, *, after_gap: bool) -> Self:
        """Begin an utterance."""
        number = self.n_begun + 1
        utterances = (*self.utterances, Utterance(number, position, after_gap))
        return replace(self, utterances=utterances, n_begun=number, pauses=())

    def ended(self, position: int, *, words_end: int) -> Self:
        """End the newest utterance."""
        assert self.newest is not None, "speech ends that never began"
        assert self.newest.open, "it has ended before"
        ended = replace(self.newest, open=False, end=position, words_end=words_end)
        return replace(self, utterances=(*self.utterances[:-1], ended))

    def with_first(self, *first: Utterance) -> Self:
        """Replace the oldest utterance; with none it is removed."""
        return replace(self, utterances=(*first, *self.utterances[1:]))

    def resumed_at(self, position: int) -> Self:
        """Replace the oldest utterance by its rest, from a position on."""
        old = self.utterances[0]
        number = self.n_begun + 1
        rest = Utterance(number, position, open=old.open, end=old.end, words_end=old.words_end, overdue=True)
        return replace(self.with_first(rest), n_begun=number)

    def reissued(self) -> Self:
        """Have windows issued again that were issued and not decoded."""
        utterances = tuple(
            replace(each, issued_end=min(each.issued_end, each.decoded_end) if each.open else 0)
            for each in self.utterances
        )
        return replace(self, utterances=utterances)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long windows are, and how far apart, by what a pass costs. In samples."""

    interval: int  # new audio from one pass to the next
    longest: int  # that a window should be

    @classmethod
    def of(cls, settings: SessionSettings, cost: int) -> Self:
        pace = round(settings.pace_s * SAMPLE_RATE)
        interval = max(pace, cost, min(EASY_SAMPLES, round(EASE * cost)))
        return cls(interval, round(settings.window_s * SAMPLE_RATE))

    @property
    def room(self) -> int:
        """Of a window of 30 s, what the audio until the next one leaves free."""
        return max(0, N_SAMPLES - max(self.interval, 2 * SAMPLE_RATE))

    @property
    def reach(self) -> int:
        """Most of earlier words to begin a window with: half of it, less if passes are costly."""
        return min(round(self.longest / 2), self.room)

    def too_long(self, n_samples: int) -> bool:
        """Return whether the window after one of this length would be longer than it should be."""
        return n_samples + self.interval > self.longest

    def is_full(self, n_samples: int) -> bool:
        """Return whether the window after one of this length would be longer than the model's 30 s."""
        return n_samples > self.room


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows to come, from a position on: a view of the audio so far."""

    speech: OpenSpeech
    pace: Pace
    last_speech: int  # end of the newest audio with speech
    start: int

    @property
    def due(self) -> bool:
        """Whether a window is due."""
        utterance = self.speech.current
        if utterance is None:
            return False
        end = self.end_in(utterance)
        if not utterance.open and end == utterance.end:
            return utterance.issued_end < utterance.words_end
        if end == self.start + N_SAMPLES:
            return end > utterance.issued_end
        if utterance.overdue and not utterance.issued_end:
            return True
        silence = self.speech.received - self.last_speech
        if silence >= PAUSE_SAMPLES:
            return utterance.issued_end < self.last_speech + PAUSE_SAMPLES
        if silence > HESITATION_SAMPLES:
            return False  # either speech continues in a moment, or this becomes a pause
        return end - max(utterance.issued_end, utterance.start) >= self.pace.interval

    @property
    def until_due(self) -> int | None:
        """Samples of audio that have to come before a window can be due; None without speech."""
        utterance, silence = self.speech.current, self.speech.received - self.last_speech
        if utterance is None or not utterance.open or silence >= PAUSE_SAMPLES:
            return None
        rest = self.pace.interval - (self.speech.received - max(utterance.issued_end, utterance.start))
        return max(0, min(rest, PAUSE_SAMPLES - silence))

    def end_in(self, utterance: Utterance) -> int:
        """Return where the next window ends."""
        return min(self.speech.received if utterance.open else utterance.end, self.start + N_SAMPLES)

    def joined(self) -> OpenSpeech:
        """Let one window contain all speech that waits and fits, and ongoing speech if passes are costly."""
        first, *others = self.speech.utterances
        while others and not first.open:
            following = others[0]
            end = self.speech.received if following.open else following.end
            if following.after_gap or (following.open and self.speech.cost < JOIN_OPEN_SAMPLES):
                break
            if end > self.start + N_SAMPLES or following.start - first.end > MAX_SILENCE_SAMPLES:
                break
            first = replace(first, open=following.open, end=following.end, words_end=following.words_end)
            del others[0]
        return replace(self.speech, utterances=(first, *others))
