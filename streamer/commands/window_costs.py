"""What windows shorter than 30 s cost and save: words and time, measured on the sample that comes with the program.

Whisper was trained on 30 s. In less it may hear other words; how many more of them are wrong is a matter of the model.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import soundfile

from streamer.arrays import Float32Array
from streamer.audio.constants import CHUNK_LENGTH_S, FRAMES_PER_SECOND, SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.bench.text import Errors, errors, plain
from streamer.whisper.check import Check
from streamer.whisper.decode.window import WindowOptions, decode_window, max_tokens_for
from streamer.whisper.model import WhisperModel
from streamer.whisper.shipped import SAMPLE_OF, shipped

# Audio kept before and behind a sentence, in seconds.
PAD_S = 0.25

# Runs of a graph, of which the fastest counts: whatever else the machine does only adds.
N_RUNS = 5


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the sample, with its first and its last moment in seconds."""

    text: str
    start: float
    end: float


def window_checks(model: WhisperModel) -> Iterator[Check]:
    """Yield what each window shorter than 30 s costs in words, and saves in time."""
    shorter = model.runtime.windows_s[:-1]
    folder = shipped().get(SAMPLE_OF)
    if not shorter or folder is None:
        return
    samples: Float32Array = soundfile.read(folder / "sample.flac", dtype="float32")[0]
    told = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
    sentences = [Sentence(line["text"], line["start"], line["end"]) for line in told]
    times = _times(model, samples)
    encode_s, step_s = times[CHUNK_LENGTH_S]
    for window_s in shorter:
        name = f"window of {window_s} s"
        if "en" in (model.tokenizer.languages or ("en",)):
            yield _words_check(model, samples, sentences, window_s, name)
        encode, step = times[window_s]
        yield Check(
            f"{name}: time",
            f"encoding {encode / encode_s:.2f}, a decoder call {step / step_s:.2f}",
            "parts of that of 30 s",
        )


def passages(sentences: Sequence[Sentence], window_s: float) -> list[Sentence]:
    """Join sentences that follow each other as long as they fit into a window; one that fits into none is left out."""
    room_s = window_s - 2 * PAD_S
    joined: list[Sentence] = []
    last = -1
    for i, sentence in enumerate(sentences):
        if joined and last == i - 1 and sentence.end - joined[-1].start <= room_s:
            before = joined.pop()
            joined.append(Sentence(f"{before.text} {sentence.text}", before.start, sentence.end))
        elif sentence.end - sentence.start <= room_s:
            joined.append(sentence)
        else:
            continue
        last = i
    return joined


def _words_check(
    model: WhisperModel, samples: Float32Array, sentences: Sequence[Sentence], window_s: int, name: str
) -> Check:
    """Compare the words that are wrong in a short window with those of the same audio in one of 30 s."""
    short, whole = Errors(), Errors()
    for passage in passages(sentences, window_s):
        heard = samples[round(max(0.0, passage.start - PAD_S) * SAMPLE_RATE) :]
        heard = heard[: round((passage.end - passage.start + 2 * PAD_S) * SAMPLE_RATE)]
        said = plain(passage.text).split()
        short += errors(said, plain(_transcribed(model, heard, window_s)).split())
        whole += errors(said, plain(_transcribed(model, heard, CHUNK_LENGTH_S)).split())
    found = "no sentence of the sample fits"
    if short.rate is not None and whole.rate is not None:
        found = f"{short.rate:.1%} of {short.n_reference}, {100 * (short.rate - whole.rate):+.1f} points"
    return Check(f"{name}: wrong words", found, "against 30 s for the same audio")


def _transcribed(model: WhisperModel, samples: Float32Array, window_s: int) -> str:
    runtime = model.runtime
    mel = log_mel(samples, model.dims.n_mels)[:, : window_s * FRAMES_PER_SECOND]
    runtime.decoder.use(runtime.encode(mel, 0))
    options = WindowOptions(
        language="en", max_tokens=max_tokens_for(len(samples)), stop_at_loop=True, keep_attention=False
    )
    window = decode_window(runtime.decoder, model.tokenizer, model.generation, options)
    return model.tokenizer.decode(window.tokens)


def _times(model: WhisperModel, samples: Float32Array) -> dict[int, tuple[float, float]]:
    """Return how long encoding and a decoder call of one token take in each window, in seconds, measured in turns."""
    runtime = model.runtime
    mel = log_mel(samples, model.dims.n_mels)
    fastest = dict.fromkeys(runtime.windows_s, (math.inf, math.inf))
    for _ in range(N_RUNS):
        for window_s, (encode_s, step_s) in fastest.items():
            part = mel[:, : window_s * FRAMES_PER_SECOND]
            encode_s = min(encode_s, _seconds(lambda part=part: runtime.encode(part, 0)))  # type: ignore[misc]
            runtime.decoder.use(runtime.buffer(window_s))
            for _ in range(N_RUNS):
                step_s = min(step_s, _seconds(lambda: runtime.decoder.feed([0])))
            fastest[window_s] = encode_s, step_s
    return fastest


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
