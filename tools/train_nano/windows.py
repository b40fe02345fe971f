"""Windows to train on: sentences put one behind the other, cut, spoilt, and written down as Whisper writes them.

What a window teaches beside the words themselves:

- pauses between sentences, or none; silence, noise and music without a word;
- speech that begins before the window does, and speech that its end cuts off: only what was said in full is written;
- with timestamps and without; with the text before the window as a prompt and without;
- where in the thirty seconds the audio is: a short window stands anywhere in them.
"""

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano import sounds
from tools.train_nano.corpus import Corpus, Utterance
from tools.train_nano.degrade import degrade
from tools.train_nano.spectrogram import UNWARPED, WARPS

FRAME_S = 0.02  # of the encoder
UNCLEAR_S = 0.02  # a cut this little before a word's end is moved: nobody could tell whether the word was said in full
PROMPT_TOKENS = 220  # at most
MOST_TOKENS = 448
IGNORED = -100  # what the losses leave out

# ARPAbet as Flite and Festival use it; sounds that are not here train nothing.
_ARPABET = (
    "pau aa ae ah ao aw ax axr ay b ch d dh dx eh el em en er ey f g hh hv "
    "ih iy jh k l m n nx ng ow oy p r s sh t th uh uw v w y z zh"
)
PHONES = tuple(_ARPABET.split())
_PHONE = {name: number for number, name in enumerate(PHONES)} | dict.fromkeys(("h#", "brth", "sil", "_", "_:"), 0)


@dataclass(frozen=True)
class Lesson:
    """How hard the windows are."""

    seconds: float  # length of the audio, at most 30
    degraded: float = 0.0  # share of the windows that are spoilt
    strength: float = 0.0  # and how much, 0 to 1
    prompts: float = 0.0  # share with previous text
    timestamps: float = 0.5  # share with timestamps
    cuts: float = 0.0  # share whose end cuts speech off, and share that begin within a sentence
    padding: float = 0.0  # share with silence from somewhere to the end, as in a stream
    shifted: float = 0.0  # share that stands later than at the beginning of the thirty seconds
    no_speech: float = 0.05  # share without a word
    warped: float = 0.0  # share whose frequencies are stretched, as by another speaker
    masked: float = 0.0  # share with bands and moments blotted out (SpecAugment, Park et al. 2019)


@dataclass(frozen=True)
class Window:
    """One window, ready to be trained on. N tokens, T = 50 frames a second."""

    audio: NDArray[np.float32]  # (320 T,)
    mel_end: int  # from this frame of the spectrogram on, of 2 T, it is zero instead of what silence looks like
    blotted: bool  # whether parts of the spectrogram are to be blotted out
    warp: int  # number of one of WARPS
    position: int  # of the first frame among Whisper's 1500
    tokens: list[int]  # N, beginning with the prompt or the start of the transcript
    prompt: int  # so many of them are the prompt's
    labels: list[int]  # N: what is to be predicted after each token; IGNORED for the prompt
    times: list[float]  # N: seconds in the window at which each label is said; negative where nothing tells
    phones: NDArray[np.int64]  # (T,): numbers of PHONES, or IGNORED


@dataclass
class _Spoken:
    """A piece of one utterance as it stands in a window."""

    start: float  # of its samples
    words: list[str]
    times: list[tuple[float, float]]
    finished: bool  # not cut off by the window's end


@dataclass
class _Speech:
    """The speech of one window."""

    audio: NDArray[np.float32]
    heard: float  # where the audio ends, in seconds; silence from there
    pieces: list[_Spoken]
    phones: NDArray[np.int64]  # (T,)
    before: list[str]  # words that may have been said before the window


class Script:
    """The tokens of Whisper's transcripts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = ("endoftext", "startoftranscript", "en", "transcribe", "nospeech", "notimestamps", "startofprev")
        self.end, self.start, self.language, self.task, self.no_speech, self.no_timestamps, self.previous = (
            self._number(f"<|{name}|>") for name in names
        )
        self.translate = self._number("<|translate|>")
        self._first_timestamp = self._number("<|0.00|>")
        self.blank = self._tokenizer.encode(" ", add_special_tokens=False).ids[0]
        self.never_written = {
            self.start, self.translate, self.task, self.no_speech, self.previous, self._number("<|startoflm|>")
        }  # fmt: skip
        self.word = cache(self._word)

    def _number(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ValueError(f"the tokenizer lacks {token}; it is not one of Whisper")
        return int(number)

    def _word(self, word: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The tokens of a word after a space, and where in the word's time the middle of each is, 0 to 1."""
        encoded = self._tokenizer.encode(f" {word}", add_special_tokens=False)
        lengths = np.array([max(1, end - start) for start, end in encoded.offsets], dtype=float)
        middles = (np.cumsum(lengths) - lengths / 2) / lengths.sum()
        return tuple(encoded.ids), tuple(middles)

    def text(self, words: list[str]) -> list[int]:
        return [token for word in words for token in self.word(word)[0]]

    def timestamp(self, seconds: float) -> int:
        return self._first_timestamp + min(1500, max(0, round(seconds / 0.02)))


class Windows:
    """Makes windows from a corpus, for ever. Single-threaded; the same seed makes the same windows of one corpus."""

    def __init__(self, corpus: Corpus, shares: dict[str, float], script: Script, seed: int) -> None:
        """`shares` says how often each voice is heard; voices without speech yet are left out."""
        self._corpus = corpus
        self._shares = shares
        self._script = script
        self._random = random.Random(seed)
        self._numpy = np.random.default_rng(seed)

    def make(self, lesson: Lesson) -> Window:
        rng = self._random
        position = 0
        if rng.random() < lesson.shifted:
            position = rng.randrange(1500 - round(lesson.seconds / FRAME_S) + 1)
        with_times = rng.random() < lesson.timestamps
        if rng.random() < lesson.no_speech:
            return self._no_speech(lesson, position, with_times)
        speech = self._speech(lesson)
        audio, pieces = speech.audio, speech.pieces
        if rng.random() < lesson.degraded:
            audio = degrade(audio, self._numpy, strength=lesson.strength * rng.random() ** 0.5)
            if rng.random() < 0.7:  # what comes after the newest audio of a stream is silent, however noisy the room
                audio[round(speech.heard * SAMPLE_RATE) :] = 0.0
        offset = position * FRAME_S
        tokens, times = self._transcript(pieces, offset if with_times else None)
        script = self._script
        head = [script.start, script.language, script.task] + ([] if with_times else [script.no_timestamps])
        prompt = self._prompt(lesson, speech.before, MOST_TOKENS - len(head) - len(tokens) - 1)
        whole = [*prompt, *head, *tokens, script.end]
        skipped = len(prompt) + len(head) - 1
        labels = [IGNORED] * skipped + whole[skipped + 1 :]
        labels[len(prompt)] = script.language
        end = [pieces[-1].times[-1][1] if pieces and pieces[-1].times else -1.0]
        seen = self._seen(speech.heard, lesson)
        moments = [-1.0] * skipped + times + end
        return Window(audio, *seen, position, whole[:-1], len(prompt), labels, moments, speech.phones)

    def _prompt(self, lesson: Lesson, before: list[str], room: int) -> list[int]:
        """The end of the text before the window, or now and then of another text; empty where the lesson has none."""
        rng, script = self._random, self._script
        room = min(room, rng.choice((PROMPT_TOKENS, rng.randint(1, PROMPT_TOKENS))))  # a stream's are mostly full
        if rng.random() >= lesson.prompts or room < 1:
            return []
        if not before or rng.random() < 0.3:
            other = self._choose()
            before = f"{other.before} {other.text}".split()
        return [script.previous, *script.text(before)[-room:]]

    def _choose(self) -> Utterance:
        voices = self._corpus.voices
        names = [name for name in self._shares if voices.get(name)]
        (name,) = self._random.choices(names, [self._shares[name] for name in names])
        return self._random.choice(voices[name])

    def _speech(self, lesson: Lesson) -> _Speech:
        rng = self._random
        length = lesson.seconds
        heard_until = length
        if rng.random() < lesson.padding:
            # Most windows of a stream hold one sentence or two.
            heard_until *= rng.uniform(0.1, rng.choice((0.4, 0.4, 1.0)))
        cut = rng.random() < lesson.cuts
        audio = np.zeros(round(length * SAMPLE_RATE), dtype=np.float32)
        frames = round(length / FRAME_S)
        phones = np.zeros(frames, dtype=np.int64)
        pieces: list[_Spoken] = []
        before: list[str] = []
        at = rng.choice((0.0, rng.uniform(0.0, 0.5), rng.uniform(0.0, min(3.0, length / 4))))
        pause = rng.choice((0.15, 0.6, 2.0))  # how long pauses are in this window
        level = 10 ** (rng.uniform(-12, 3) / 20)
        while at < heard_until - 0.3:
            utterance = self._choose()
            first, begin = 0, 0.0
            words = utterance.text.split()
            if not pieces:
                before = utterance.before.split()
            if not pieces and len(words) > 2 and rng.random() < lesson.cuts:
                first = rng.randrange(1, len(words) - 1)
                begin = max(utterance.words[first - 1][1], utterance.words[first][0] - 0.05)
                before += words[:first]
                at = 0.0
            available = heard_until - at
            taken = utterance.seconds - begin
            times = [(start - begin + at, end - begin + at) for start, end in utterance.words[first:]]
            finished = taken <= available
            if not finished:
                if pieces and not cut:
                    break
                taken = self._cut(available, [end - at for _, end in times])
                heard_until = at + taken
                times = [(start, end) for start, end in times if end <= heard_until]
            a, n = round(begin * SAMPLE_RATE), round(taken * SAMPLE_RATE)
            sound = utterance.samples[a : a + n].astype(np.float32) / 32768 * level
            b = round(at * SAMPLE_RATE)
            audio[b : b + len(sound)] = sound[: len(audio) - b]
            self._place(phones, utterance, at - begin, at, at + taken)
            pieces.append(_Spoken(at, words[first : first + len(times)], times, finished))
            if not finished:
                break
            at += taken + rng.uniform(0.0, pause)
            if rng.random() < 0.1:
                at += rng.uniform(0.0, 3.0)
        return _Speech(audio, heard_until, [piece for piece in pieces if piece.words], phones, before)

    @staticmethod
    def _cut(available: float, ends: list[float]) -> float:
        for end in reversed(ends):
            if end - UNCLEAR_S < available < end:
                available = max(0.0, end - UNCLEAR_S)
        return available

    @staticmethod
    def _place(phones: NDArray[np.int64], utterance: Utterance, offset: float, begin: float, end: float) -> None:
        """Write an utterance's sounds into the frames between `begin` and `end`."""
        first, last = max(0, round(begin / FRAME_S)), min(len(phones), round(end / FRAME_S))
        if not utterance.phones:
            phones[first:last] = IGNORED
            return
        middles = (np.arange(first, last) + 0.5) * FRAME_S - offset
        ends = np.array([end for _, end in utterance.phones])
        numbers = np.array([_PHONE.get(name, IGNORED) for name, _ in utterance.phones])
        phones[first:last] = numbers[np.minimum(np.searchsorted(ends, middles), len(numbers) - 1)]

    def _transcript(self, pieces: list[_Spoken], offset: float | None) -> tuple[list[int], list[float]]:
        """Tokens and when each is said, with timestamps that count from `offset` unless it is None."""
        tokens: list[int] = []
        times: list[float] = []
        for piece in pieces:
            if offset is not None:
                tokens.append(self._script.timestamp(piece.times[0][0] + offset))
                times.append(piece.times[0][0])
            for word, (start, end) in zip(piece.words, piece.times, strict=True):
                numbers, middles = self._script.word(word)
                tokens += numbers
                times += [start + (end - start) * middle for middle in middles]
            if offset is not None and piece.finished:
                tokens.append(self._script.timestamp(piece.times[-1][1] + offset))
                times.append(piece.times[-1][1])
        return tokens, times

    def _no_speech(self, lesson: Lesson, position: int, with_times: bool) -> Window:
        rng, script = self._random, self._script
        samples = round(lesson.seconds * SAMPLE_RATE)
        audio = np.zeros(samples, dtype=np.float32)
        if rng.random() < 0.85:
            for _ in range(rng.choice((1, 1, 2))):
                audio += sounds.noise(rng.choice(sounds.KINDS), samples, self._numpy) * 10 ** rng.uniform(-3, 0.5)
            if rng.random() < 0.3:
                audio[round(rng.uniform(0.05, 1.0) * samples) :] = 0.0
        head = [script.start, script.language, script.task]
        head.append(script.timestamp(position * FRAME_S) if with_times else script.no_timestamps)
        prompt = self._prompt(lesson, [], PROMPT_TOKENS)
        labels = [IGNORED] * len(prompt) + [script.no_speech, IGNORED, head[3] if with_times else IGNORED, script.end]
        phones = np.zeros(round(lesson.seconds / FRAME_S), dtype=np.int64)
        seen = self._seen(lesson.seconds, lesson)
        moments = [-1.0] * len(labels)
        return Window(np.clip(audio, -1, 1), *seen, position, prompt + head, len(prompt), labels, moments, phones)

    def _seen(self, heard: float, lesson: Lesson) -> tuple[int, bool, int]:
        """Where the spectrogram ends, which the daemon does two ways, whether to blot it out, and how to warp it."""
        end = round(lesson.seconds * 100)
        if heard < lesson.seconds and self._random.random() < 0.3:
            end = min(end, round(heard * 100) + 2)
        warp = self._random.randrange(len(WARPS)) if self._random.random() < lesson.warped else UNWARPED
        return end, self._random.random() < lesson.masked, warp
