"""What a synthesiser gives back: samples, and when each written word was spoken."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE


class SynthesisError(Exception):
    """A synthesiser is missing, or could not speak a text in a way that its words can be found again."""


@dataclass(frozen=True)
class Speech:
    """One text, spoken."""

    samples: NDArray[np.int16]  # mono, 16 kHz
    words: list[tuple[float, float]]  # start and end in seconds of each of text.split()


class Voice(Protocol):
    """A voice that can be asked again and again. Not for several threads at once: use one process each."""

    def say(self, text: str, rate: float = 1.0) -> Speech:
        """Speak `text` at `rate` times the usual speed.

        Raises SynthesisError where the words that were spoken cannot be matched to text.split().
        """
        ...


def resample(samples: NDArray[np.int16], rate: int) -> NDArray[np.int16]:
    """Mono samples of `rate` hertz, at 16 kHz."""
    if rate == SAMPLE_RATE:
        return samples
    converted: NDArray[np.int16] = soxr.resample(samples, rate, SAMPLE_RATE)
    return converted
