"""Finds the cross-attention heads that follow the audio, by measurement on the speech that comes with nano.en.

    python -m tools.find_heads MODEL

prints them as `generation_config.json` in the model's directory has them: for models that do not say which they are,
and have the sizes of none that is published.
"""

import json
import sys
from collections.abc import Sequence

import numpy as np

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.audio.sources.file import read_audio
from streamer.constants import N_SAMPLES, N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.errors import UsageError
from streamer.whisper.decode.timing import word_spans
from streamer.whisper.device.compile import compile_on_cpu
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.dims import Heads
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.heads import all_heads
from streamer.whisper.locate import find_or_pull
from streamer.whisper.shipped import SAMPLE_OF, shipped
from streamer.whisper.source import read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights.checkpoint import Checkpoint

# How far from where a token is said a head may look: at first, with every token of a sentence taken to be equally
# long, and then, with the places that the best heads give.
ROUGH_SAMPLES = SAMPLE_RATE // 2  # 0.5 s
FINE_SAMPLES = SAMPLE_RATE // 10  # 0.1 s

# Heads that the places are made of: those that look most at the right half second.
N_FIRST = 3

# A head is chosen where the part of its attention that lies at the right places is at least this much of the best's,
# and most heads that are: the published lists have 5 to 23.
NEARLY_BEST = 0.9
MOST_HEADS = 10

# Less of the best head's attention at the right places is chance: a head that does not follow has a few hundredths.
LEAST_SHARE = 0.2


def choose_heads(
    attention: FloatArray, n_prompt: int, sentences: Sequence[tuple[int, int, int]], n_samples: int
) -> list[int]:
    """Choose the heads that look where each token is said, best first.

    attention : shape = (n_heads, n_rows, n_audio_ctx), as `timing.word_spans` takes it
    n_prompt : rows before the first text token
    sentences : tokens, first and last sample of each
    """
    n_tokens = sum(length for length, _, _ in sentences)
    # Row i predicts token i + 1, and looks at it.
    rows = attention[:, n_prompt - 1 : n_prompt - 1 + n_tokens]
    middles = np.concatenate([first + (np.arange(n) + 0.5) / n * (last - first) for n, first, last in sentences])
    rough = _share_between(rows, middles - ROUGH_SAMPLES, middles + ROUGH_SAMPLES)
    best = np.argsort(-rough, kind="stable")[:N_FIRST]
    # Sentences say how long their tokens are on average; the heads that follow best say where each is.
    spans = np.array(word_spans(attention[best], n_prompt, [1] * n_tokens, n_samples))
    shares = _share_between(rows, spans[:, 0] - FINE_SAMPLES, spans[:, 1] + FINE_SAMPLES)
    order = np.argsort(-shares, kind="stable")[:MOST_HEADS]
    least = max(LEAST_SHARE, NEARLY_BEST * float(shares.max()))
    return [int(index) for index in order if shares[index] >= least]


def _share_between(rows: FloatArray, begins: FloatArray, ends: FloatArray) -> FloatArray:
    """Return the share of each head's attention between two places, of each row its own, shape (n_heads,)."""
    places = (np.arange(rows.shape[-1]) + 0.5) * N_SAMPLES_PER_TOKEN
    inside = (places >= begins[:, np.newaxis]) & (places < ends[:, np.newaxis])
    shares: FloatArray = np.where(inside, rows, 0).sum(axis=-1).mean(axis=-1)
    return shares


def find_heads(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Heads:
    """Return the heads that follow the shipped sample, best first; none in a model that knows no English."""
    folder = shipped().get(SAMPLE_OF)
    if folder is None:
        raise UsageError(f"{SAMPLE_OF}, on whose sample heads are measured, is missing: install streamer again")
    lines = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
    inside = [line for line in lines if line["end"] * SAMPLE_RATE < N_SAMPLES]
    # The middle of the pause behind the last whole sentence.
    n_samples = round((inside[-1]["end"] + lines[len(inside)]["start"]) / 2 * SAMPLE_RATE)
    samples = np.concatenate(list(read_audio(folder / "sample.flac")))[:n_samples]

    dims = checkpoint.dims
    runtime = Runtime(compile_on_cpu(ModelGraphs.of(checkpoint, all_heads(dims))), n_buffers=1)
    runtime.decoder.use(runtime.encode(log_mel(samples, dims.n_mels), 0))
    runtime.decoder.begin()
    start = [*tokenizer.start_sequence("en", "transcribe"), tokenizer.special.no_timestamps]
    spelled = [tokenizer.encode(f" {line['text']}") for line in inside]
    text = [token for tokens in spelled for token in tokens]
    (_,), (attention,) = runtime.decoder.feed([*start, *text, tokenizer.special.end_of_text])
    sentences = [
        (len(tokens), round(line["start"] * SAMPLE_RATE), round(line["end"] * SAMPLE_RATE))
        for tokens, line in zip(spelled, inside, strict=True)
    ]
    return tuple(all_heads(dims)[index] for index in choose_heads(attention, len(start), sentences, n_samples))


def main() -> int:
    """Measure the heads of the model that the command line names."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m tools.find_heads MODEL\n")
        return 2
    model = read_model(find_or_pull(sys.argv[1], lambda progress: None), sys.argv[1])
    heads = find_heads(model.checkpoint, model.tokenizer)
    if not heads:
        sys.stderr.write("no head of this model follows the English sample\n")
        return 1
    print(json.dumps({"alignment_heads": heads}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
