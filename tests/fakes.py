"""A clock, a speaker, and an encoder and a decoder that know what the speaker said."""

import itertools
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.mel import LogMelStream
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import N_FRAMES, SAMPLE_RATE
from streamer.session.task import Request
from streamer.whisper.result import Hypothesis, TimedWord

# Tokens of word i: from i * TOKENS_PER_WORD on; of its k-th misspelling: beyond k * MISSPELT.
TOKENS_PER_WORD = 4
MISSPELT = 1_000_000

# Tokens from here on belong to no word that was said.
GARBAGE = 100_000_000

# How far a decoder's word times are off, at most.
JITTER_SAMPLES = SAMPLE_RATE // 10

# What a word sounds like.
LOUDNESS = 0.05


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word that was said, and when, in absolute samples."""

    index: int
    text: str
    tokens: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How badly a decoder hears: probabilities, a window each."""

    # A word is spelt otherwise (for each word).
    misspell: float = 0.0

    # The last settled word goes on: "President" becomes "President's".
    write_on: float = 0.0

    # Words that nobody said follow.
    garbage: float = 0.0

    # It gets into a loop.
    loop: float = 0.0

    # It hears nothing new.
    nothing: float = 0.0

    # It takes speech for silence.
    silence: float = 0.0


FAITHFUL = Manners()
NEVER_AGREES = Manners(misspell=1.0)
BAD = Manners(misspell=0.1, write_on=0.1, garbage=0.3, loop=0.05, nothing=0.05, silence=0.03)


def spoken(rng: random.Random, duration_s: float, *, pause: float = 0.15, start_s: float = 1.0) -> list[SpokenWord]:
    """Make up words for about this long; `pause` is how likely a pause follows each word."""
    words: list[SpokenWord] = []
    position = round(start_s * SAMPLE_RATE)
    while position < duration_s * SAMPLE_RATE:
        index = len(words)
        length = rng.randint(SAMPLE_RATE // 4, SAMPLE_RATE * 6 // 10)
        end = rng.choices(("", ",", "."), (8, 1, 1))[0]
        tokens = tuple(range(index * TOKENS_PER_WORD, index * TOKENS_PER_WORD + rng.randint(2, 3)))
        words.append(SpokenWord(index, f" w{index}{end}", tokens, position, position + length))
        position += length
        if rng.random() < pause:
            position += rng.choice((SAMPLE_RATE // 5, SAMPLE_RATE, 4 * SAMPLE_RATE))
    return words


def words_at(*starts_s: float) -> list[SpokenWord]:
    """Return words of half a second."""
    return [
        SpokenWord(i, f" w{i}", (4 * i, 4 * i + 1), round(start_s * SAMPLE_RATE), round((start_s + 0.5) * SAMPLE_RATE))
        for i, start_s in enumerate(starts_s)
    ]


def index_of(text: str) -> int | None:
    """Return which word of a speaker a text is, misspelt or not; None for garbage."""
    digits = text.strip().partition("~")[0].rstrip(".,").removeprefix("w")
    return int(digits) if digits.isdigit() else None


def audio_of(words: Sequence[SpokenWord], n_samples: int) -> Float32Array:
    """Return audio that `FakeDetector` takes for speech at the words."""
    samples = np.zeros(n_samples, dtype=np.float32)
    for word in words:
        samples[word.start : word.end] = LOUDNESS
    return samples


class Speaker:
    """Somebody who says words at known times, as heard by a decoder with certain manners. Deterministic."""

    def __init__(self, words: Sequence[SpokenWord], *, seed: int = 0, manners: Manners = FAITHFUL) -> None:
        self.words = list(words)
        self.manners = manners
        self._rng = random.Random(seed)
        self._ends = [word.end for word in self.words]
        self._garbage = itertools.count(GARBAGE)
        self._misspellings = itertools.count(1)

    def talks(self, start: int, end: int) -> bool:
        """Say whether some word is being said between two samples."""
        i = bisect_left(self._ends, start + 1)
        return i < len(self.words) and self.words[i].start < end

    def hypothesis(self, start: int, end: int, prefix: Sequence[int]) -> Hypothesis:
        """Return what the decoder makes of a window from sample `start` to `end`: the prefix and what follows."""
        rng, manners = self._rng, self.manners
        known = self._known(prefix)
        last = next((index for *_, index in reversed(known) if index is not None), None)
        words = [self._timed(text, tokens, index, start, end) for text, tokens, index in known]
        if words and rng.random() < manners.write_on:
            before, rest = words[-1], self._garbage_tokens(1)
            words[-1] = TimedWord(
                before.text + "'s", before.tokens + rest, before.start_samples, before.end_samples, 0.7
            )
        no_speech, avg_logprob = (0.9, -2.0) if rng.random() < manners.silence else (0.05, -0.2)
        if rng.random() < manners.nothing:
            return Hypothesis(tuple(words), "en", no_speech, avg_logprob, 1.2)
        words += self._new_words(start, end, -1 if last is None else last)
        looped = rng.random() < manners.loop
        if looped:
            words = words[: len(known) + rng.randint(0, max(0, len(words) - len(known)))]
        elif rng.random() < manners.garbage:
            position = words[-1].end_samples if words else 0
            for _ in range(rng.randint(1, 5)):
                to = min(position + SAMPLE_RATE // 4, end - start)
                tokens = self._garbage_tokens(2)
                words.append(TimedWord(f" g{tokens[0]}", tokens, position, to, 0.3))
                position = to
        return Hypothesis(tuple(words), "en", no_speech, avg_logprob, 1.2, looped)

    def _known(self, prefix: Sequence[int]) -> list[tuple[str, tuple[int, ...], int | None]]:
        """Return the words of a prefix: text, tokens, and which word it is."""
        groups: list[tuple[str, list[int], int | None]] = []
        for token in prefix:
            if token >= GARBAGE:
                # See _garbage_tokens: an odd number begins no word.
                if groups and token % 2 == 1:
                    text, tokens, index = groups[-1]
                    written_on = index is not None or len(tokens) > 1
                    groups[-1] = (text + "'s" * written_on, [*tokens, token], index)
                else:
                    groups.append((f" g{token}", [token], None))
                continue
            index = token % MISSPELT // TOKENS_PER_WORD
            if groups and groups[-1][2] == index:
                groups[-1][1].append(token)
            else:
                groups.append((self._spelling(index, token // MISSPELT), [token], index))
        return [(text, tuple(tokens), index) for text, tokens, index in groups]

    def _garbage_tokens(self, n_tokens: int) -> tuple[int, ...]:
        """Return tokens that were never seen: an even and an odd one for a word, an odd one for a continuation."""
        even = 2 * next(self._garbage)
        return (even, even + 1) if n_tokens == 2 else (even + 1,)

    def _spelling(self, index: int, misspelling: int) -> str:
        text = self.words[index].text
        return f"{text}~{misspelling}" if misspelling else text

    def _new_words(self, start: int, end: int, last: int) -> list[TimedWord]:
        rng = self._rng
        result: list[TimedWord] = []
        for word in self.words[max(last + 1, bisect_left(self._ends, start)) :]:
            if word.start >= end:
                break
            inside = min(word.end, end) - max(word.start, start)
            if inside * 2 <= word.end - word.start:
                continue
            cut_off = word.end > end
            misspelling = next(self._misspellings) if cut_off or rng.random() < self.manners.misspell else 0
            tokens = tuple(token + misspelling * MISSPELT for token in word.tokens)
            if misspelling * MISSPELT >= GARBAGE - MISSPELT:
                self._misspellings = itertools.count(1)
            result.append(self._timed(self._spelling(word.index, misspelling), tokens, word.index, start, end))
        return result

    def _timed(self, text: str, tokens: tuple[int, ...], index: int | None, start: int, end: int) -> TimedWord:
        length = end - start
        begin, until = (self.words[index].start - start, self.words[index].end - start) if index is not None else (0, 0)
        if until <= length:
            begin += self._rng.randint(-JITTER_SAMPLES, JITTER_SAMPLES)
            until += self._rng.randint(-JITTER_SAMPLES, JITTER_SAMPLES)
        begin = min(max(begin, 0), length)
        return TimedWord(text, tokens, begin, min(max(until, begin), length), round(self._rng.uniform(0.3, 1.0), 3))


class FakeDetector(SpeechDetector):
    """Takes what is not silent for speech."""

    def __init__(self) -> None:
        """Load no network."""

    def process(self, samples: Float32Array) -> list[float]:
        """See SpeechDetector."""
        return [0.9 if chunk.any() else 0.01 for chunk in samples.reshape(-1, CHUNK_SAMPLES)]


class FakeMel(LogMelStream):
    """A spectrogram that says where the window begins, how long it is and whose voice it holds."""

    def __init__(self, voice: int = 0) -> None:
        super().__init__(n_mels=1)
        self._voice = voice

    def window(self, samples: Float32Array, start_samples: int) -> Float32Array:
        """See LogMelStream."""
        mel = np.zeros((1, N_FRAMES), dtype=np.float32)
        mel[0, :3] = start_samples, len(samples), self._voice
        return mel


@dataclass(slots=True)
class FakeEncoded:
    """What `FakeEncoder` makes of a window."""

    buffer: int
    serial: int
    voice: int
    start: int
    end: int


class FakeEncoder:
    """Reads what `FakeMel` wrote. `before` is called first: it may wait, or fail."""

    def __init__(self) -> None:
        self.before: Callable[[FakeEncoded], None] = lambda encoded: None
        # Serial number of what lies in each buffer: older encodings in it are gone.
        self.buffers: dict[int, int] = {}
        self.encoded: list[FakeEncoded] = []

    def encode(self, mel: Float32Array, buffer: int, n_samples: int) -> FakeEncoded:
        """See engine.Encoder."""
        start, heard, voice = (int(value) for value in mel[0, :3])
        assert heard == n_samples
        serial = len(self.encoded)
        self.buffers[buffer] = serial
        encoded = FakeEncoded(buffer, serial, voice, start, start + n_samples)
        self.encoded.append(encoded)
        self.before(encoded)
        return encoded


@dataclass(slots=True)
class FakeDecoder:
    """Knows what each voice says. `before` is called first: it may wait, or fail. `answer` may be replaced."""

    encoder: FakeEncoder
    speakers: list[Speaker]
    before: Callable[[FakeEncoded], None] = lambda encoded: None
    answer: Callable[[FakeEncoded, Request], Hypothesis] = field(init=False)
    decoded: list[FakeEncoded] = field(default_factory=list)
    # Encodings that were overwritten while they were being decoded.
    overwritten: list[FakeEncoded] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.answer = self.hear

    def hear(self, encoded: FakeEncoded, request: Request) -> Hypothesis:
        """Return what a good decoder makes of a window."""
        return self.speakers[encoded.voice].hypothesis(encoded.start, encoded.end, request.prefix)

    def decode(
        self, encoded: FakeEncoded, request: Request, others_wait: Callable[[], bool] = lambda: False
    ) -> Hypothesis:
        """See engine.WindowDecoder."""
        with self.lock:
            self.decoded.append(encoded)
        self.before(encoded)
        assert request.n_samples == encoded.end - encoded.start
        hypothesis = self.answer(encoded, request)
        if self.encoder.buffers[encoded.buffer] != encoded.serial:
            self.overwritten.append(encoded)
        return hypothesis
