"""The speech gate: finds where speech begins and ends, from its probability in each chunk. No I/O, no clock."""

from dataclasses import dataclass

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.settings.table import SpeechSettings

# Silence this long is a pause: the words before it are complete. (Stops, such as the t in "at ten", are shorter.)
PAUSE_SAMPLES = SAMPLE_RATE // 4

ASKED_S = 0.3  # a pause as long as this has been asked about: it is a chunk longer than PAUSE_SAMPLES

# Speech goes on while its probability is above the threshold less this: it flickers at word ends.
HYSTERESIS = 0.15


@dataclass(frozen=True, slots=True)
class SpeechStart:
    """Speech begins at a sample position."""

    position: int


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """Speech has ended at a sample position."""

    position: int


class GateState(msgspec.Struct, frozen=True, array_like=True):
    """A gate's memory, to continue with elsewhere."""

    open: bool = False
    run_start: int | None = None
    last_speech: int = 0
    floor: int = 0


CLOSED = GateState()


class SpeechGate:
    """Turns probabilities into starts and ends that alternate and never go back in time."""

    def __init__(self, settings: SpeechSettings, state: GateState = CLOSED) -> None:
        self.settings = settings
        # Whether speech has started and not ended.
        self.open = state.open
        # Start of the newest run of speech, which is a start of speech if it lasts; None in silence.
        self._run_start = state.run_start
        # End of the last chunk with speech.
        self.last_speech = state.last_speech
        # The last end, or where audio began: the next start is not before it.
        self.floor = state.floor
        # `last_speech` of the newest pause that a turn model was asked about; whether speech goes on through it.
        self._asked_after: int | None = None
        self._holds = False

    @property
    def state(self) -> GateState:
        return GateState(self.open, self._run_start, self.last_speech, self.floor)

    def feed(self, start: int, end: int, probability: float) -> SpeechStart | SpeechEnd | None:
        """Take the probability of speech in the next samples, from `start` to `end`."""
        settings = self.settings
        if probability >= settings.threshold - (HYSTERESIS if self._run_start is not None else 0.0):
            if self._run_start is None:
                self._run_start = start
            self.last_speech = end
            if not self.open and end - self._run_start >= round(settings.min_speech_s * SAMPLE_RATE):
                self.open = True
                return SpeechStart(max(self.floor, self._run_start - self._pad))
        elif not self.open:
            self._run_start = None
        elif end - self.last_speech >= round(self._patience_s * SAMPLE_RATE):
            return self.close(end)
        return None

    def ask(self, position: int) -> bool:
        """Return whether a turn model is to be asked about the pause up to a position: once for each.

        Until `answer`, and if the speaker has not finished, speech goes on for `turn_silence_s`.
        """
        new = self._asked_after != self.last_speech and position - self.last_speech >= PAUSE_SAMPLES
        if not (new and self.open and self.settings.turns):
            return False
        self._asked_after, self._holds = self.last_speech, True
        return True

    def answer(self, *, finished: bool) -> bool:
        """Note whether the speaker has finished: then `min_silence_s` ends speech. Returns whether the pause lasts."""
        lasts = self.open and self._asked_after == self.last_speech
        self._holds = lasts and not finished
        return lasts

    @property
    def _patience_s(self) -> float:
        """Silence that ends speech."""
        settings = self.settings
        if not settings.turns:
            return settings.min_silence_s
        if self._asked_after != self.last_speech:
            return max(settings.min_silence_s, ASKED_S)
        return max(settings.min_silence_s, settings.turn_silence_s) if self._holds else settings.min_silence_s

    @property
    def _pad(self) -> int:
        return round(self.settings.pad_s * SAMPLE_RATE)

    def skip_to(self, position: int) -> None:
        """Go on at a position after a gap, in silence."""
        assert not self.open, "speech has to be closed first"
        self._run_start = None
        self.floor = self.last_speech = position

    def close(self, position: int) -> SpeechEnd | None:
        """End speech because the audio ends, or is lost, at a position; None in silence."""
        self._run_start = None
        if not self.open:
            return None
        self.open = False
        self.floor = min(position, self.last_speech + self._pad)
        return SpeechEnd(self.floor)
