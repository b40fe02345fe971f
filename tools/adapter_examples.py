"""Examples for adapters of short windows: pieces of recordings, and what the model itself says of them offline.

The teacher transcribes each recording once, in windows of 30 s. A piece begins at one of its words. The teacher
computes the probabilities of the piece's words from clean sound that continues for some seconds behind it; the student
gets the same sound with noise, and only up to a cut (`Cutter`).
"""

import difflib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import signal
from torch import Tensor

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.audio.vad import SpeechDetector
from streamer.constants import N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.offline.recording import transcribe_segments
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.probabilities import log_softmax
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options
from streamer.whisper.result import TimedWord, is_mark
from streamer.whisper.tokens.tokenizer import Tokenizer

# Seconds of a piece, and of sound behind it that only the teacher gets.
PIECE_S = (2.5, 14.0)
AHEAD_S = (3.0, 6.0)

# How often a piece begins after a pause, and what counts as one; how often it has the words before it as a prompt.
AFTER_PAUSE, PAUSE_S = 0.6, 0.2
PROMPTED, PROMPT_WORDS = 0.4, 30

# Chances of what is done to a piece: noise from another recording or white, a room, a telephone's band, and no speech.
NOISE, ROOM, TELEPHONE, NO_SPEECH = 0.35, 0.2, 0.1, 0.1
SPEECH = 0.3  # probability of the speech detector, below which there is none

# Samples of a frame (20 ms); a frame with more than this share of the loudest one's power (-30 dB) is active; the level
# that silence counts as.
FRAME, ACTIVE_RANGE, SILENT_LEVEL = 320, 1e-3, 0.03

# A text that is less probable is not learned from: mean log-probability of a segment, and of a piece's words.
WORST_LOGPROB = -1.0

# A word is complete that ended this long before the cut, and not to be written of which less than that was said.
COMPLETE_S, LITTLE = 0.2, 0.6
SHORTEST_CUT_S = 1.0
AT_PAUSE, BEHIND_S = 0.35, (0.25, 1.0)  # how often the cut is in a pause, and how far

# How often the text begins with words that are given; how often a given word is wrong, missing or doubled.
GIVEN, NEAR_END, N_NEAR = 0.75, 0.8, 5
WRONG = 0.08

N_BEST = 48  # the teacher's probabilities that are kept of each token


class SpokenWord(NamedTuple):
    """A word of a recording; times in seconds."""

    tokens: tuple[int, ...]
    n_marks: int  # of its tokens, punctuation at its end
    start_s: float
    end_s: float


class Transcript(NamedTuple):
    """What the teacher says of a recording; None is a passage that it is not sure of."""

    language: str
    words: list[SpokenWord | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Sound, the words in it, and the teacher's probabilities of their tokens."""

    samples: Tensor  # what the student gets; mono, 16 kHz, float16
    prompt: Tensor  # text that was said before, behind its special token; shape (n,)
    start: Tensor  # of the transcript; shape (n_start,)
    tokens: Tensor  # of all words; shape (n,)
    n_tokens: Tensor  # of each word; shape (n_words,)
    n_marks: Tensor  # of these, punctuation at the end; shape (n_words,)
    times: Tensor  # start and end of each word in seconds of the piece; shape (n_words, 2)
    best: Tensor  # the likeliest tokens after the first of `start`, and each of `tokens`; shape (1 + n, N_BEST)
    log_probs: Tensor  # their log-probabilities, float16
    states: Tensor  # the teacher's encoder's, of the piece, shape (n_positions, n_audio_state), float16


@dataclass(frozen=True, slots=True)
class Example:
    """A piece up to a cut, and what is to be written behind some given words."""

    piece: Piece
    n_samples: int  # of the piece, up to the cut
    given: tuple[int, ...]  # tokens that the text begins with
    first: int  # of the piece's tokens the first that is to be written, and the one behind the last
    end: int
    mark: int  # punctuation that may be written behind them
    stops: bool  # whether the text is to end there; else the next word is nearly complete


class Cutter:
    """Draws examples of pieces."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[tuple[int, ...]]) -> None:
        """Take the vocabulary that wrong words are chosen from."""
        self._full_stop = tokenizer.encode(".")[0]
        self._decode = tokenizer.decode
        self._words = words

    def draw(self, piece: Piece, rng: random.Random) -> Example:
        """Return the piece up to a random instant, in a pause or anywhere."""
        times = piece.times.tolist()
        cut_s = self._cut(times, len(piece.samples) / SAMPLE_RATE, rng)
        n = sum(end_s <= cut_s - COMPLETE_S for _, end_s in times)
        n_given = 0
        if n and rng.random() < GIVEN:
            n_given = max(0, n - rng.randint(0, N_NEAR)) if rng.random() < NEAR_END else rng.randint(0, n)
        tokens, words, end = piece.tokens.tolist(), [], 0
        for n_tokens, n_marks in zip(piece.n_tokens[:n].tolist(), piece.n_marks[:n].tolist(), strict=True):
            begin, end = end, end + n_tokens
            words.append((tokens[begin : end - n_marks], tokens[end - n_marks : end]))
        lengths = [len(word) + len(marks) for word, marks in words]
        return Example(
            piece=piece,
            n_samples=round(cut_s * SAMPLE_RATE),
            given=tuple(self._given(words[:n_given], rng)),
            first=sum(lengths[:n_given]) - (len(words[n_given - 1][1]) if n_given else 0),
            end=end - (len(words[-1][1]) if n else 0),
            mark=words[-1][1][0] if n and words[-1][1] else self._full_stop,
            stops=n == len(times) or cut_s - times[n][0] < LITTLE * (times[n][1] - times[n][0]),
        )

    def _cut(self, times: Sequence[tuple[float, float]], length_s: float, rng: random.Random) -> float:
        starts = [start_s for start_s, _ in times[1:]] + [length_s]
        shortest, longest = BEHIND_S
        pauses = [
            (end_s + shortest, min(start_s, end_s + longest))
            for (_, end_s), start_s in zip(times, starts, strict=False)
            if start_s - end_s > shortest
        ]
        if pauses and rng.random() < AT_PAUSE:
            return rng.uniform(*rng.choice(pauses))
        return rng.uniform(min(SHORTEST_CUT_S, length_s), length_s)

    def _given(self, words: Sequence[tuple[list[int], list[int]]], rng: random.Random) -> Iterator[int]:
        """Yield the tokens of words, of which some are wrong, missing or doubled, without the last punctuation."""
        for i, (word, marks) in enumerate(words, 1):
            kind = rng.choices("rwmd", (1 - WRONG, 0.6 * WRONG, 0.2 * WRONG, 0.2 * WRONG))[0]
            if kind == "m" and i < len(words):
                continue
            yield from self._similar(word, rng) if kind == "w" else word
            yield from word if kind == "d" else ()
            yield from marks if i < len(words) else ()

    def _similar(self, word: Sequence[int], rng: random.Random) -> Sequence[int]:
        """Return another word that is spelled like it."""
        text = self._decode(word)
        others = [other for other in rng.sample(self._words, min(30, len(self._words))) if other != tuple(word)]
        return max(others, key=lambda other: difflib.SequenceMatcher(None, text, self._decode(other)).ratio())


class Teacher:
    """Makes pieces of recordings, the same for the same number and seed."""

    def __init__(self, model: WhisperModel, recordings: Sequence[Path], seed: int) -> None:
        self._model = model
        self._seed = seed
        self._sounds = [np.concatenate(list(read_audio(path))) for path in recordings]
        self._transcripts = [self._transcript(sound) for sound in self._sounds]

    @property
    def words(self) -> list[tuple[int, ...]]:
        """The tokens of all different words, without the punctuation behind them."""
        words = (word for transcript in self._transcripts for word in transcript.words if word is not None)
        return sorted({word.tokens[: len(word.tokens) - word.n_marks] for word in words})

    def piece(self, number: int) -> Piece | None:
        """Return a piece; None if the teacher is not sure of its text."""
        rng = np.random.default_rng((self._seed, number))
        n_samples = round(math.exp(rng.uniform(*np.log(PIECE_S))) * SAMPLE_RATE)
        spoken = [i for i, transcript in enumerate(self._transcripts) if any(transcript.words)]
        if not spoken or rng.random() < NO_SPEECH:
            samples = _disturbed(self._noise(rng, n_samples), self._noise(rng, n_samples), rng)
            if max(SpeechDetector().process(samples), default=0.0) >= SPEECH:
                return None
            return self._answered(samples, samples, [], [], self._transcripts[0].language if spoken else "en")
        weights = np.sqrt([len(self._sounds[i]) for i in spoken])  # a long recording has no more speakers
        which = spoken[rng.choice(len(spoken), p=weights / weights.sum())]
        transcript = self._transcripts[which]
        first, begin_s = _beginning(transcript.words, rng)
        sound = self._sounds[which][round(begin_s * SAMPLE_RATE) :]
        n_samples = min(n_samples, len(sound))
        words: list[SpokenWord] = []
        for word in transcript.words[first:]:
            if word is None and words:  # the teacher is not sure of what is behind
                n_samples = min(n_samples, round(words[-1].end_s * SAMPLE_RATE))
            if word is None or word.start_s - begin_s >= n_samples / SAMPLE_RATE:
                break
            words.append(word._replace(start_s=word.start_s - begin_s, end_s=word.end_s - begin_s))
        prompt: list[int] = []
        if rng.random() < PROMPTED:
            said = transcript.words[max(0, first - int(rng.integers(1, PROMPT_WORDS))) : first]
            prompt = [token for word in said if word is not None for token in word.tokens]
        samples = _disturbed(sound[:n_samples], self._noise(rng, n_samples), rng)
        clean = sound[: n_samples + round(rng.uniform(*AHEAD_S) * SAMPLE_RATE)]
        return self._answered(clean, samples, words, prompt, transcript.language)

    def _answered(
        self, clean: Float32Array, samples: Float32Array, words: list[SpokenWord], prompt: list[int], language: str
    ) -> Piece | None:
        """Return a piece with what the teacher says of its clean sound, which goes on behind it."""
        runtime, tokenizer = self._model.runtime, self._model.tokenizer
        special = tokenizer.special
        decoder = runtime.decoder_of(runtime.encode(log_mel(clean, runtime.dims.n_mels), 0))
        prompt = [special.start_of_previous, *prompt] if prompt else []
        start = [*tokenizer.start_sequence(language, "transcribe"), special.no_timestamps]
        tokens = [token for word in words for token in word.tokens]
        decoder.begin()
        (logits,), _ = decoder.feed([*prompt, *start, *tokens], len(prompt))
        rows = [0, *range(len(start) - 1, len(start) + len(tokens) - 1)]
        log_probs = np.stack([log_softmax(logits[row]) for row in rows])
        if tokens and np.mean(log_probs[1 + np.arange(len(tokens)), tokens]) < WORST_LOGPROB:
            return None
        best = np.argpartition(-log_probs, N_BEST, axis=1)[:, :N_BEST]
        return Piece(
            samples=torch.from_numpy(samples).half(),
            prompt=torch.tensor(prompt, dtype=torch.long),
            start=torch.tensor(start),
            tokens=torch.tensor(tokens, dtype=torch.long),
            n_tokens=torch.tensor([len(word.tokens) for word in words], dtype=torch.long),
            n_marks=torch.tensor([word.n_marks for word in words], dtype=torch.long),
            times=torch.tensor([(word.start_s, word.end_s) for word in words]).reshape(-1, 2),
            best=torch.from_numpy(best),
            log_probs=torch.from_numpy(np.take_along_axis(log_probs, best, axis=1)).half(),
            states=torch.from_numpy(runtime.last_hidden_state[: len(samples) // N_SAMPLES_PER_TOKEN]).half(),
        )

    def _transcript(self, sound: Float32Array) -> Transcript:
        """Return what the teacher says of a recording."""
        words: list[SpokenWord | None] = []
        language = "en"
        for segment in transcribe_segments(self._model, sound, decode_options(DecodingSettings(), self._model)):
            language = segment.language
            if segment.avg_logprob < WORST_LOGPROB or segment.temperature > 0:
                words.append(None)
            else:
                words += [self._spoken_word(word) for word in segment.words if word.tokens]
        silent = max(SpeechDetector().process(sound), default=0.0) < SPEECH
        return Transcript(language, [] if silent else words)

    def _spoken_word(self, word: TimedWord) -> SpokenWord:
        marks = itertools.takewhile(
            lambda token: is_mark(self._model.tokenizer.decode([token])), reversed(word.tokens[1:])
        )
        seconds = (position / SAMPLE_RATE for position in (word.start_samples, word.end_samples))
        return SpokenWord(word.tokens, len(list(marks)), *seconds)

    def _noise(self, rng: np.random.Generator, n_samples: int) -> Float32Array:
        """Return a piece of any recording, one without speech half of the time, or white noise."""
        if rng.random() < NO_SPEECH:
            return (rng.standard_normal(n_samples) * 10 ** rng.uniform(-5, -1)).astype(np.float32)
        silent = [i for i, transcript in enumerate(self._transcripts) if not transcript.words]
        sound = self._sounds[rng.choice(silent or len(self._sounds))]
        begin = int(rng.integers(0, max(1, len(sound) - n_samples)))
        return np.resize(sound[begin : begin + n_samples], n_samples)


def _beginning(words: Sequence[SpokenWord | None], rng: np.random.Generator) -> tuple[int, float]:
    """Return the first word of a piece, and where the piece begins in seconds."""
    ends = [0.0, *(0.0 if word is None else word.end_s for word in words)]
    known = [i for i, word in enumerate(words) if word is not None]
    paused = [i for i in known if words[i].start_s - ends[i] >= PAUSE_S]  # type: ignore[union-attr]
    among = paused if paused and rng.random() < AFTER_PAUSE else known
    first = int(rng.choice(among))
    start_s = words[first].start_s  # type: ignore[union-attr]
    return first, max(start_s - rng.uniform(0.0, 0.4), min(ends[first], start_s))


def _disturbed(samples: Float32Array, noise: Float32Array, rng: np.random.Generator) -> Float32Array:
    """Return a copy of samples, in a room, with noise, or of a telephone, at another level."""
    if rng.random() < ROOM:
        samples = signal.oaconvolve(samples, room(rng.uniform(0.2, 0.9), rng))[: len(samples)].astype(np.float32)
    if rng.random() < NOISE and (level := active_level(noise)) > 0:
        target = (active_level(samples) or SILENT_LEVEL) * 10 ** (-rng.uniform(10, 30) / 20)
        samples = samples + noise * np.float32(target / level)
    if rng.random() < TELEPHONE:
        band = signal.butter(4, (300, 3400), "bandpass", fs=SAMPLE_RATE, output="sos")
        samples = signal.sosfilt(band, samples).astype(np.float32)
    samples = samples * np.float32(10 ** (rng.uniform(-20, 6) / 20))
    clipped: Float32Array = np.clip(samples, -1, 1)
    return clipped


def room(rt60_s: float, rng: np.random.Generator) -> Float32Array:
    """Return the impulse response of a generated room whose sound decays by 60 dB in `rt60_s` seconds.

    It is the direct sound at 0, 4 to 11 early reflections within 50 ms, and noise that decays exponentially. The ratio
    of direct to reverberant energy is -3 to 15 dB. The whole response has an energy of 1.
    """
    length = max(2, int(rt60_s * SAMPLE_RATE))
    tail = rng.standard_normal(length, dtype=np.float32)
    # Air and walls swallow high sounds: a first-order low-pass.
    pole = rng.uniform(0.0, 0.7)
    tail = signal.lfilter([1 - pole], [1, -pole], tail).astype(np.float32)
    tail[: min(int(rng.uniform(0.001, 0.01) * SAMPLE_RATE), length - 1)] = 0
    count = int(rng.integers(4, 12))
    at = rng.integers(min(16, length - 1), min(length, int(0.05 * SAMPLE_RATE)), count)
    tail[at] += rng.choice([-1.0, 1.0], count) * rng.uniform(1, 8, count)
    tail *= np.exp(np.arange(length, dtype=np.float32) * np.float32(-np.log(1000) / length))
    tail[0] = 0
    reverberant = 10 ** (-rng.uniform(-3, 15) / 10)  # energy, that of the direct sound being 1
    tail *= np.float32(np.sqrt(reverberant / (float(np.dot(tail, tail)) + 1e-12)))
    tail[0] = 1
    return tail * np.float32(1 / np.sqrt(float(np.dot(tail, tail))))


def active_level(samples: Float32Array) -> float:
    """Return the rms of those frames that are not silent beside the loudest frame; 0 for silence."""
    frames = np.pad(samples, (0, -len(samples) % FRAME)).reshape(-1, FRAME)
    power = np.square(frames).mean(axis=1)
    return float(np.sqrt(np.mean(power[power > ACTIVE_RANGE * power.max()]))) if power.any() else 0.0
