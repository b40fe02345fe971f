"""Sentences one after the other, at one level, with the time of each word: the recordings are made of them."""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.measure import SpokenWord
from tools.benchmarks.synthetic.acoustics import active_level
from tools.benchmarks.synthetic.sounds import Samples
from tools.benchmarks.synthetic.speech import SynthesisError, Voice

LEVEL_DBFS = -23.0  # rms of what is not a pause
MARGIN_S = 0.05  # what is kept before the first word of a sentence and after its last
FADE_S = 0.005
LONG_WORD_S = 0.2
MOST_REFUSED = 20  # sentences in turn, before a voice is taken to be broken


@dataclass(frozen=True, slots=True)
class Passage:
    """Speech: mono float32 at 16 kHz, and its words in order."""

    samples: Samples
    words: tuple[SpokenWord, ...]

    @property
    def text(self) -> str:
        return " ".join(word.word for word in self.words)


def say(voice: Voice, text: str, rate: float = 1.0) -> Passage:
    """One sentence at LEVEL_DBFS, cut to MARGIN_S before its first word and after its last.

    The same samples each time with Flite and Festival. Not so with eSpeak NG, which remembers what it said before: with
    it the same calls in a new process give the same samples. Raises SynthesisError.
    """
    _reseed()
    speech = voice.say(text, rate)
    samples = speech.samples.astype(np.float32) / np.float32(32768)
    level = active_level(samples)
    if level == 0:
        raise SynthesisError(f"nothing is to be heard of {text!r}")
    samples *= np.float32(10 ** (LEVEL_DBFS / 20) / level)
    begin = max(0, round((speech.words[0][0] - MARGIN_S) * SAMPLE_RATE))
    end = round((speech.words[-1][1] + MARGIN_S) * SAMPLE_RATE)
    offset = begin / SAMPLE_RATE
    words = (
        SpokenWord(word, start - offset, end - offset)
        for word, (start, end) in zip(text.split(), speech.words, strict=True)
    )
    return Passage(fade(samples[begin:end], FADE_S), tuple(words))


def say_next(voice: Voice, sentences: Iterator[str], rate: float = 1.0) -> Passage:
    """The next of the sentences that can be spoken with the time of each word.

    Raises SynthesisError where the voice refuses MOST_REFUSED in turn.
    """
    for text in islice(sentences, MOST_REFUSED):
        with suppress(SynthesisError):
            return say(voice, text, rate)
    raise SynthesisError(f"a voice refused {MOST_REFUSED} sentences in turn; see that its synthesiser works")


def shorten_pauses(passage: Passage, longest_s: float) -> Passage:
    """The passage with the middle of each pause between words left out that is longer than `longest_s`."""
    kept: list[Samples] = []
    words = list(passage.words[:1])
    position, removed = 0, 0
    for before, after in pairwise(passage.words):
        extra = round((after.start - before.end - longest_s) * SAMPLE_RATE)
        if extra > 0:
            cut = round((before.end + longest_s / 2) * SAMPLE_RATE)
            kept.append(fade(passage.samples[position:cut], FADE_S))
            position = cut + extra
            removed += extra
        shift = removed / SAMPLE_RATE
        words.append(SpokenWord(after.word, after.start - shift, after.end - shift))
    kept.append(fade(passage.samples[position:], FADE_S))
    return Passage(np.concatenate(kept), tuple(words))


def join(sentences: Sequence[Passage], pauses: Sequence[float]) -> Passage:
    """One passage of many. `pauses` are seconds from word to word: before each sentence, and after the last."""
    words: list[SpokenWord] = []
    placed: list[tuple[int, Samples]] = []
    end = 0.0
    for sentence, pause in zip(sentences, pauses[:-1], strict=True):
        # On a whole sample, so that the words lie where they are told to.
        position = max(0, round((end + pause - sentence.words[0].start) * SAMPLE_RATE))
        offset = position / SAMPLE_RATE
        words += [SpokenWord(word.word, word.start + offset, word.end + offset) for word in sentence.words]
        placed.append((position, sentence.samples))
        end = words[-1].end
    # Margins may lie over each other.
    samples = np.zeros(round((end + pauses[-1]) * SAMPLE_RATE), np.float32)
    for position, sound in placed:
        part = samples[position : position + len(sound)]
        part += sound[: len(part)]
    return Passage(samples, tuple(words))


def cut_within_words(passage: Passage) -> Passage:
    """The passage from the middle of a word to the middle of another; only the whole words between them are its words.

    They are the first and the last that are long enough for half of them to be plainly not the word. Raises ValueError
    for a passage of less than three words.
    """
    words = passage.words
    if len(words) < 3:
        raise ValueError(f"the passage {passage.text!r} has {len(words)} words; three at least are needed to cut two")
    long = [number for number, word in enumerate(words) if word.end - word.start >= LONG_WORD_S]
    first, last = (long[0], long[-1]) if long and long[-1] - long[0] > 1 else (0, len(words) - 1)
    begin, end = (round((words[number].start + words[number].end) / 2 * SAMPLE_RATE) for number in (first, last))
    offset = begin / SAMPLE_RATE
    whole = (SpokenWord(word.word, word.start - offset, word.end - offset) for word in words[first + 1 : last])
    return Passage(passage.samples[begin:end], tuple(whole))


def fade(samples: Samples, seconds: float) -> Samples:
    """The samples with `seconds` of rise at the beginning and fall at the end, or half their length where shorter."""
    n = min(round(seconds * SAMPLE_RATE), len(samples) // 2)
    ramp = (np.arange(n, dtype=np.float32) + np.float32(0.5)) / np.float32(max(n, 1))
    faded = samples.copy()
    faded[:n] *= ramp
    faded[len(faded) - n :] *= ramp[::-1]
    return faded


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)


def _reseed() -> None:
    """Start the C library's rand() anew: the statistical voices of Flite are excited by it."""
    _c_library().srand(1)
