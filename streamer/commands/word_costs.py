"""What windows shorter than 30 s and weights of 8 bits cost in words, measured on the sample that comes with nano.en.

Whisper was trained on 30 s, and with whole weights. In less, or with less, it may hear other words; how many more of
them are wrong is a matter of the model.
"""

import json
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import CHUNK_LENGTH_S, FRAMES_PER_SECOND, SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.bench.text import Errors, errors, plain
from streamer.commands.timing import times_s
from streamer.whisper.check import Check
from streamer.whisper.decode.window import WindowOptions, decode_window, max_tokens_for
from streamer.whisper.measured import Measured
from streamer.whisper.model import WhisperModel
from streamer.whisper.shipped import SAMPLE_OF, shipped

# Audio kept before and behind a passage, in seconds, where nobody speaks in it.
PAD_S = 0.25

# Parts of a window that passages fill at most: several, so that each word is heard in more than one place.
FILLS = (1.0, 0.7)

# Of so many words one more may be wrong, and two may be others: less than that is chance.
PER_WORD = 200

# Audio of the passages that weights are compared on, in seconds.
PASSAGE_S = 10

# Runs of a graph, of which the fastest counts.
N_RUNS = 5


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the sample, or several, with the first and the last moment in seconds."""

    text: str
    start: float
    end: float


@dataclass(slots=True)
class Listener:
    """A model, and what it has heard in 30 s."""

    model: WhisperModel
    samples: Float32Array
    _heard: dict[Word, list[str]] = field(default_factory=dict)

    def hear(self, passage: Word, window_s: int = CHUNK_LENGTH_S) -> list[str]:
        """Return the words that are heard in a passage."""
        if window_s == CHUNK_LENGTH_S and passage in self._heard:
            return self._heard[passage]
        runtime, samples = self.model.runtime, self.samples
        samples = samples[round(passage.start * SAMPLE_RATE) : round(passage.end * SAMPLE_RATE)]
        mel = log_mel(samples, self.model.dims.n_mels)[:, : window_s * FRAMES_PER_SECOND]
        runtime.decoder.use(runtime.encode(mel, 0))
        options = WindowOptions(
            language="en", max_tokens=max_tokens_for(len(samples)), stop_at_loop=True, keep_attention=False
        )
        window = decode_window(runtime.decoder, self.model.tokenizer, self.model.generation, options)
        words = plain(self.model.tokenizer.decode(window.tokens)).split()
        if window_s == CHUNK_LENGTH_S:
            self._heard[passage] = words
        return words


def word_costs(
    model: WhisperModel, with_int8: Callable[[], WhisperModel] | None
) -> Generator[Check, None, Measured | None]:
    """Yield what each window shorter than 30 s costs in words and saves in time, and what weights of 8 bits cost.

    Returns what costs none; None where that cannot be measured, since the model knows no English.
    """
    shorter = model.runtime.windows_s[:-1]
    folder = shipped().get(SAMPLE_OF)
    if folder is None:
        return None
    samples: Float32Array = np.concatenate(list(read_audio(folder / "sample.flac")))
    words = sample_words(json.loads((folder / "sample.json").read_text(encoding="utf-8")))
    times = _times(model, samples)
    encode_s, step_s = times[CHUNK_LENGTH_S]
    english = "en" in (model.tokenizer.languages or ("en",))
    listener = Listener(model, samples)
    free: list[int] = []
    for window_s in shorter:
        name = f"window of {window_s} s"
        if english:
            short, whole = Errors(), Errors()
            for passage in passages(words, window_s):
                said = plain(passage.text).split()
                short += errors(said, listener.hear(passage, window_s))
                whole += errors(said, listener.hear(passage))
            if _no_more(short, whole):
                free.append(window_s)
            yield Check(f"{name}: wrong words", _compared(short, whole), "against 30 s for the same audio")
        encode, step = times[window_s]
        yield Check(
            f"{name}: time",
            f"encoding {encode / encode_s:.2f}, a decoder call {step / step_s:.2f}",
            "parts of that of 30 s",
        )
    if not english:
        return None
    same = False
    if with_int8 is not None:
        rounded, whole, other = Errors(), Errors(), Errors()
        rounded_listener = Listener(with_int8(), samples)
        for passage in passages(words, PASSAGE_S):
            said, heard, again = plain(passage.text).split(), listener.hear(passage), rounded_listener.hear(passage)
            rounded += errors(said, again)
            whole += errors(said, heard)
            other += errors(heard, again)
        same = _no_more(rounded, whole) and other.n_wrong <= 2 * other.n_reference // PER_WORD
        found = f"{_compared(rounded, whole)}, {other.n_wrong} words differ"
        yield Check("weights of 8 bits: wrong words", found, "against the weights as they are")
    # Windows may come in finer steps: where one costs words, shorter ones do not count either.
    return Measured(tuple(s for s in shorter if all(t in free for t in shorter if t >= s)), same)


def sample_words(told: Sequence[dict[str, Any]]) -> list[Word]:
    """Return the words of the sample; each ends where the next one begins, or its sentence ends."""
    found = []
    for line in told:
        texts, starts = line["text"].split(), line["words"]
        found += [Word(*word) for word in zip(texts, starts, [*starts[1:], line["end"]], strict=True)]
    return found


def passages(words: Sequence[Word], window_s: float) -> list[Word]:
    """Cut a text into passages of as many words as fit into a window, or into a part of it (FILLS).

    A passage reaches into the silence around it. A word that fits into no window is left out.
    """
    found: list[Word] = []
    for fill in FILLS:
        i = 0
        while i < len(words):
            start = max(words[i - 1].end if i else 0.0, words[i].start - PAD_S)
            last = i
            while last + 1 < len(words) and words[last + 1].end + PAD_S - start <= fill * window_s:
                last += 1
            end = min(words[last].end + PAD_S, words[last + 1].start if last + 1 < len(words) else math.inf)
            if end - start <= fill * window_s:
                found.append(Word(" ".join(word.text for word in words[i : last + 1]), start, end))
            i = last + 1
    return found


def _no_more(found: Errors, reference: Errors) -> bool:
    """Tell whether no more words are wrong, but for chance."""
    return found.n_wrong - reference.n_wrong <= reference.n_reference // PER_WORD


def _compared(found: Errors, reference: Errors) -> str:
    if found.rate is None or reference.rate is None:
        return "no word of the sample fits"
    difference = 100 * (found.rate - reference.rate)
    return f"{found.rate:.1%} of {found.n_reference}, {difference:+.1f} points"


def _times(model: WhisperModel, samples: Float32Array) -> dict[int, tuple[float, float]]:
    """Return how long encoding and a decoder call of one token take in each window, in seconds."""
    runtime = model.runtime
    mel = log_mel(samples, model.dims.n_mels)
    times = {}
    for window_s in runtime.windows_s:
        part = mel[:, : window_s * FRAMES_PER_SECOND]
        encode_s = min(times_s(lambda part=part: runtime.encode(part, 0), N_RUNS))  # type: ignore[misc]
        runtime.decoder.use(runtime.buffer(window_s))
        times[window_s] = encode_s, min(times_s(lambda: runtime.decoder.feed([0]), N_RUNS))
    return times
