"""The speech gate: finds where speech begins and ends, from its probability in each chunk. No I/O, no clock."""

from dataclasses import dataclass
from typing import Self

import msgspec
from msgspec.structs import replace

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


class Gate(msgspec.Struct, frozen=True, array_like=True):
    """Whether somebody speaks, as of the audio so far. Starts and ends alternate and never go back in time."""

    # Whether speech has started and not ended.
    open: bool = False

    # Start of the newest run of speech, which is a start of speech if it lasts; None in silence.
    run_start: int | None = None

    # End of the last chunk with speech.
    last_speech: int = 0

    # The last end, or where audio began: the next start is not before it.
    floor: int = 0

    # `last_speech` of the newest pause that a turn model was asked about; whether speech goes on through it.
    asked_after: int | None = None
    holds: bool = False

    def feed(
        self, settings: SpeechSettings, start: int, end: int, probability: float
    ) -> tuple[Self, SpeechStart | SpeechEnd | None]:
        """Take the probability of speech in the next samples, from `start` to `end`."""
        if probability >= settings.threshold - (HYSTERESIS if self.run_start is not None else 0.0):
            run_start = start if self.run_start is None else self.run_start
            speaking = replace(self, run_start=run_start, last_speech=end)
            if self.open or end - run_start < round(settings.min_speech_s * SAMPLE_RATE):
                return speaking, None
            begin = max(self.floor, run_start - _pad(settings))
            return replace(speaking, open=True), SpeechStart(begin)
        if not self.open:
            return self if self.run_start is None else replace(self, run_start=None), None
        if end - self.last_speech >= round(self._patience_s(settings) * SAMPLE_RATE):
            return self.close(settings, end)
        return self, None

    def ask(self, settings: SpeechSettings, position: int) -> Self | None:
        """Have a turn model asked about the pause up to a position, once for each; None: it is not to be asked.

        Until `answer`, and if the speaker has not finished, speech goes on for `turn_silence_s`.
        """
        new = self.asked_after != self.last_speech and position - self.last_speech >= PAUSE_SAMPLES
        if not (new and self.open and settings.turns):
            return None
        return replace(self, asked_after=self.last_speech, holds=True)

    def answer(self, *, finished: bool) -> tuple[Self, bool]:
        """Note whether the speaker has finished: then `min_silence_s` ends speech. Returns whether the pause lasts."""
        lasts = self.open and self.asked_after == self.last_speech
        return replace(self, holds=lasts and not finished), lasts

    def unasked(self) -> Self:
        """Forget what a turn model was asked: the answer will not come."""
        return replace(self, asked_after=None, holds=False)

    def skip_to(self, position: int) -> Self:
        """Go on at a position after a gap, in silence."""
        assert not self.open, "speech has to be closed first"
        return replace(self, run_start=None, floor=position, last_speech=position)

    def close(self, settings: SpeechSettings, position: int) -> tuple[Self, SpeechEnd | None]:
        """End speech because of silence, or because audio ends or is lost at a position; None in silence."""
        if not self.open:
            return replace(self, run_start=None), None
        end = min(position, self.last_speech + _pad(settings))
        return replace(self, open=False, run_start=None, floor=end), SpeechEnd(end)

    def _patience_s(self, settings: SpeechSettings) -> float:
        """Return the silence that ends speech."""
        if not settings.turns:
            return settings.min_silence_s
        if self.asked_after != self.last_speech:
            return max(settings.min_silence_s, ASKED_S)
        return max(settings.min_silence_s, settings.turn_silence_s) if self.holds else settings.min_silence_s


def _pad(settings: SpeechSettings) -> int:
    return round(settings.pad_s * SAMPLE_RATE)
