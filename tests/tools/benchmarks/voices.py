"""A voice that needs no synthesiser: each word is a tone of its own."""

import zlib

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.synthetic.speech import Speech, SynthesisError

WORD_S, GAP_S, COMMA_S = 0.25, 0.02, 0.4  # a word, what follows it, and what follows a comma


class ToneVoice:
    """Speaks words as tones whose pitch tells the word; `refuses` are words that it cannot speak."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        self.said: list[str] = []
        self._refuses = refuses

    def say(self, text: str, rate: float = 1.0) -> Speech:
        if any(word in self._refuses for word in text.split()):
            raise SynthesisError(f"{text!r} is refused")
        self.said.append(text)
        pieces = [np.zeros(SAMPLE_RATE // 5)]
        words = []
        for word in text.split():
            start = sum(map(len, pieces)) / SAMPLE_RATE
            t = np.arange(round(WORD_S / rate * SAMPLE_RATE)) / SAMPLE_RATE
            pieces.append(0.3 * np.sin(2 * np.pi * tone_hz(word) * t))
            words.append((start, start + len(t) / SAMPLE_RATE))
            pause_s = COMMA_S if word.endswith(",") else GAP_S
            pieces.append(np.zeros(round(pause_s / rate * SAMPLE_RATE)))
        return Speech((np.concatenate(pieces) * 32767).astype(np.int16), words)


def tone_hz(word: str) -> float:
    """The pitch of a word, in 100..3190 Hz."""
    return 100.0 + 10.0 * (zlib.crc32(word.encode()) % 310)
