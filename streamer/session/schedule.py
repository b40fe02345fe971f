"""Decides which window of speech is decoded next, and when. Sans-I/O, positions in absolute samples.

Only the oldest utterance is transcribed; later ones wait, or share its window. `SessionTranscript` sets where the
window begins: it also contains earlier speech, as far as there are stable words to begin it with.
"""

from dataclasses import replace
from typing import Self

import msgspec

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.session.coverage import DetectedSpeech, Spans
from streamer.session.gate import PAUSE_SAMPLES
from streamer.session.settings import SessionSettings
from streamer.session.task import MAX_SILENCE_SAMPLES, Span, Utterance, down_to_frame

HESITATION_SAMPLES = SAMPLE_RATE // 10  # after silence this long, wait and see whether it becomes a pause

# New audio from one pass to the next is at least this multiple of what a pass costs, up to EASY_SAMPLES: words appear
# sooner if passes are cheap, without keeping the machine busy.
EASE = 2.5
EASY_SAMPLES = SAMPLE_RATE

JOIN_OPEN_SAMPLES = 8 * SAMPLE_RATE  # if a pass costs this much, waiting speech shares a window with ongoing speech


class ScheduleState(msgspec.Struct, frozen=True, array_like=True):
    """The utterances that are not final, for another session; it issues windows that are not decoded yet again."""

    utterances: tuple[Utterance, ...] = ()
    received: int = 0
    last_speech: int = 0
    cost: int = 0
    window_start: int = 0
    speech: Spans = ()

    @classmethod
    def at(cls, position: int) -> Self:
        """Return the state at a position where nothing was said."""
        return cls(received=position, last_speech=position, window_start=down_to_frame(position))


SILENT = ScheduleState()


class WindowSchedule:
    """The utterances that are not final yet, and their windows."""

    def __init__(self, settings: SessionSettings, state: ScheduleState = SILENT) -> None:
        self.settings = settings
        # Oldest first.
        self._utterances = [replace(utterance) for utterance in state.utterances]
        # End of the audio that was received, and of the newest speech in it.
        self.received, self.last_speech = state.received, state.last_speech
        # What the detector has found since the newest final or gap.
        self.speech = DetectedSpeech(state.speech)
        # Start of the next window, rounded down to a mel frame.
        self.window_start = state.window_start
        # What the last pass cost, in samples of real time.
        self.cost = state.cost

    @property
    def state(self) -> ScheduleState:
        utterances = tuple(
            replace(utterance, issued_end=min(utterance.issued_end, utterance.decoded_end) if utterance.open else 0)
            for utterance in self._utterances
        )
        speech = self.speech.spans
        return ScheduleState(utterances, self.received, self.last_speech, self.cost, self.window_start, speech)

    @property
    def current(self) -> Utterance | None:
        """The utterance that is being transcribed; None in silence."""
        return self._utterances[0] if self._utterances else None

    @property
    def newest(self) -> Utterance | None:
        return self._utterances[-1] if self._utterances else None

    @property
    def waiting_from(self) -> int | None:
        """Position of the oldest speech without text; None if all speech has text."""
        utterance = self.current
        return None if utterance is None else max(utterance.decoded_end, utterance.start)

    def advance(self, received: int, last_speech: int, *, detected: bool = False) -> None:
        """Note that audio was received up to a position, with speech up to another.

        detected : whether the detector finds speech in what is new
        """
        if detected:
            self.speech.add(self.received, received)
        self.received, self.last_speech = received, last_speech

    def begin(self, position: int, *, after_gap: bool) -> Utterance:
        utterance = Utterance(position, after_gap)
        self._utterances.append(utterance)
        return utterance

    def end(self, position: int) -> Utterance:
        """End the newest utterance at a position."""
        utterance = self._utterances[-1]
        assert utterance.open, "it has ended before"
        utterance.open, utterance.end = False, position
        utterance.words_end = min(self.last_speech + PAUSE_SAMPLES, position)
        return utterance

    def remove_first(self) -> None:
        """Remove the oldest utterance, which is final or given up."""
        del self._utterances[0]

    def resume_at(self, position: int) -> None:
        """Replace the oldest utterance by its rest, from a position on."""
        old = self._utterances[0]
        rest = Utterance(position, open=old.open, end=old.end, words_end=old.words_end, overdue=True)
        self._utterances[0] = rest

    def find(self, window: Span) -> Utterance | None:
        """Return the utterance of a window that was decoded; None if its text is no longer wanted.

        That is after a newer window was decoded. (The last window may be shorter than one before it, because the end
        of speech is known only after a silence.)
        """
        utterance = self.current
        if utterance is None or utterance is not window.utterance:
            return None
        return utterance if window.last or window.end > utterance.decoded_end else None

    def ends_in_next(self, utterance: Utterance) -> bool:
        """Return whether the next window contains all that is left of an utterance."""
        return not utterance.open and utterance.end <= self.window_start + N_SAMPLES

    def too_long(self, end: int) -> bool:
        """Return whether the window after one up to `end` would be longer than it should be."""
        return end + self._interval - self.window_start > round(self.settings.window_s * SAMPLE_RATE)

    def is_full(self, end: int) -> bool:
        """Return whether the window after one up to `end` would be longer than the model's 30 s."""
        return end - self.window_start > self._room

    @property
    def reach(self) -> int:
        """Most samples of earlier words to begin a window with: half of it, less if passes are costly."""
        return min(round(self.settings.window_s * SAMPLE_RATE / 2), self._room)

    @property
    def _room(self) -> int:
        """Samples of a window of 30 s that the audio until the next one leaves free."""
        return max(0, N_SAMPLES - max(self._interval, 2 * SAMPLE_RATE))

    def move_on(self, position: int) -> None:
        """Let the next window begin at a position, unless it begins later already."""
        self.window_start = max(self.window_start, down_to_frame(position))

    def due(self) -> bool:
        """Return whether `next_window` would return one."""
        utterance = self.current
        if utterance is None:
            return False
        end = self._window_end(utterance)
        if not utterance.open and end == utterance.end:
            return utterance.issued_end < utterance.words_end
        if end == self.window_start + N_SAMPLES:
            return end > utterance.issued_end
        if utterance.overdue and not utterance.issued_end:
            return True
        silence = self.received - self.last_speech
        if silence >= PAUSE_SAMPLES:
            return utterance.issued_end < self.last_speech + PAUSE_SAMPLES
        if silence > HESITATION_SAMPLES:
            return False  # either speech continues in a moment, or this becomes a pause
        return end - max(utterance.issued_end, utterance.start) >= self._interval

    @property
    def until_due(self) -> int | None:
        """Samples of audio that have to come before a window can be due; None without speech."""
        utterance, silence = self.current, self.received - self.last_speech
        if utterance is None or not utterance.open or silence >= PAUSE_SAMPLES:
            return None
        rest = self._interval - (self.received - max(utterance.issued_end, utterance.start))
        return max(0, min(rest, PAUSE_SAMPLES - silence))

    def next_window(self, first_word: int, now_s: float) -> Span | None:
        """Return the window to transcribe next, which begins with a stable word; None if none is due."""
        if not self.due():
            return None
        self._join_waiting()
        utterance = self._utterances[0]
        end = utterance.issued_end = self._window_end(utterance)
        return Span(
            utterance=utterance,
            start=self.window_start,
            end=end,
            last=not utterance.open and end == utterance.end,
            pause=end >= self.last_speech + PAUSE_SAMPLES,
            first_word=first_word,
            issued_s=now_s,
        )

    @property
    def _interval(self) -> int:
        """New audio from one pass to the next."""
        pace = round(self.settings.pace_s * SAMPLE_RATE)
        return max(pace, self.cost, min(EASY_SAMPLES, round(EASE * self.cost)))

    def _window_end(self, utterance: Utterance) -> int:
        return min(self.received if utterance.open else utterance.end, self.window_start + N_SAMPLES)

    def _join_waiting(self) -> None:
        """Let one window contain all speech that waits and fits, and ongoing speech if passes are costly."""
        first = self._utterances[0]
        while len(self._utterances) > 1 and not first.open:
            following = self._utterances[1]
            end = self.received if following.open else following.end
            if following.after_gap or (following.open and self.cost < JOIN_OPEN_SAMPLES):
                break
            if end > self.window_start + N_SAMPLES or following.start - first.end > MAX_SILENCE_SAMPLES:
                break
            first.open, first.end, first.words_end = following.open, following.end, following.words_end
            del self._utterances[1]
