"""The speech gate: from speech probabilities, chunk by chunk, to where speech begins and ends. No I/O, no clock."""

from dataclasses import dataclass
from typing import Self

import msgspec

from streamer.audio.constants import SAMPLE_RATE

# Speech goes on while the probability stays above the threshold less this much: it flickers at word ends.
HYSTERESIS = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """When somebody counts as speaking."""

    threshold: float
    min_speech_s: float
    min_silence_s: float
    pad_s: float


@dataclass(frozen=True, slots=True)
class SpeechStart:
    """Speech begins at a sample position."""

    position: int


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """Speech has ended at a sample position."""

    position: int


class GateState(msgspec.Struct, frozen=True, array_like=True):
    """A gate's memory, to go on with elsewhere."""

    open: bool
    run_start: int | None
    last_speech: int
    floor: int


class SpeechGate:
    """Turns probabilities into starts and ends that alternate and never go back in time."""

    def __init__(self, settings: GateSettings, *, start: int = 0) -> None:
        """Begin to listen at a position."""
        self.change(settings)
        # Whether a start was given and no end yet.
        self.open = False
        # Where the run of speech began that may become a start; None in silence.
        self._run_start: int | None = None
        # End of the last chunk that held speech.
        self.last_speech = start
        # The last end: no start may be given before it.
        self.floor = start

    @property
    def state(self) -> GateState:
        return GateState(self.open, self._run_start, self.last_speech, self.floor)

    @classmethod
    def restored(cls, settings: GateSettings, state: GateState) -> Self:
        gate = cls(settings)
        gate.open, gate._run_start, gate.last_speech, gate.floor = msgspec.structs.astuple(state)
        return gate

    def change(self, settings: GateSettings) -> None:
        self._threshold = settings.threshold
        self._min_speech = round(settings.min_speech_s * SAMPLE_RATE)
        self._min_silence = round(settings.min_silence_s * SAMPLE_RATE)
        self._pad = round(settings.pad_s * SAMPLE_RATE)

    def feed(self, start: int, end: int, probability: float) -> SpeechStart | SpeechEnd | None:
        """Take the probability of speech of the samples from `start` to `end`, which follow those taken before."""
        speech = probability >= (self._threshold - HYSTERESIS if self._run_start is not None else self._threshold)
        if speech:
            if self._run_start is None:
                self._run_start = start
            self.last_speech = end
            if not self.open and end - self._run_start >= self._min_speech:
                self.open = True
                return SpeechStart(max(self.floor, self._run_start - self._pad))
        elif not self.open:
            self._run_start = None
        elif end - self.last_speech >= self._min_silence:
            return self.close(end)
        return None

    def skip_to(self, position: int) -> None:
        """Start afresh behind audio that was lost: no speech reaches back beyond `position`."""
        assert not self.open, "speech has to be closed first"
        self._run_start = None
        self.floor = self.last_speech = position

    def close(self, position: int) -> SpeechEnd | None:
        """End speech that is still going on, because the audio ends or is lost at `position`."""
        self._run_start = None
        if not self.open:
            return None
        self.open = False
        self.floor = min(position, self.last_speech + self._pad)
        return SpeechEnd(self.floor)
