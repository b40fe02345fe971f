"""Which cross-attention heads follow the audio, so that word times can be made of them.

Source: openai-whisper names them for its published models (`_ALIGNMENT_HEADS` in its `__init__.py`), and takes all of
the upper half of the layers for others (`model.py`). `measure_heads` finds them for any model, on speech whose text is
known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamer.arrays import FloatArray
from streamer.audio.constants import N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.whisper.decode.search import TokenDecoder
from streamer.whisper.decode.timing import word_spans
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.tokens.tokenizer import Tokenizer

# Layer and head of each.

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


@dataclass(frozen=True, slots=True)
class Preset:
    """The heads of a published model, and by which sizes it is known."""

    n_text_layer: int
    n_text_head: int
    n_vocab: int
    heads: Heads

    def fits(self, dims: ModelDimensions) -> bool:
        """Whether a model has these sizes: fine-tuning hardly moves what a head does."""
        mine = (self.n_text_layer, self.n_text_head, self.n_vocab)
        return mine == (dims.n_text_layer, dims.n_text_head, dims.n_vocab)


# fmt: off
PRESETS = {
    "tiny.en": Preset(4, 6, 51864, ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))),
    "tiny": Preset(4, 6, 51865, ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5))),
    "base.en": Preset(6, 8, 51864, ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7))),
    "base": Preset(6, 8, 51865, ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6))),
    "small.en": Preset(12, 12, 51864, (
        (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0), (10, 1),
        (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4),
    )),
    "small": Preset(12, 12, 51865, ((5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5))),
    "medium.en": Preset(24, 16, 51864, (
        (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14), (18, 7), (18, 10),
        (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12),
    )),
    "medium": Preset(24, 16, 51865, ((13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4))),
    "large-v1": Preset(32, 20, 51865, (
        (9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15),
    )),
    "large-v2": Preset(32, 20, 51865, (
        (10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11), (18, 19), (19, 11),
        (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7), (23, 13), (25, 5), (26, 1), (26, 12), (27, 15),
    )),
    "large-v3": Preset(32, 20, 51866, (
        (7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6),
    )),
    "large-v3-turbo": Preset(4, 20, 51866, ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14))),
}
# fmt: on


def known_heads(dims: ModelDimensions, name: str = "") -> Heads:
    """Return the heads of the published model of these sizes; for others all of the upper half of the layers.

    name : what the model is called, by which large-v1 and large-v2 are told apart; where it does not say, the heads of
        both are taken: those that follow are among them
    """
    fitting = {preset: known for preset, known in PRESETS.items() if known.fits(dims)}
    version = re.search(r"large[-_. ]?(v[12])", name.lower())
    if version and f"large-{version[1]}" in fitting:
        return fitting[f"large-{version[1]}"].heads
    heads = {head for preset in fitting.values() for head in preset.heads}
    return tuple(sorted(heads)) or tuple(
        (layer, head) for layer, head in all_heads(dims) if layer >= dims.n_text_layer // 2
    )


def all_heads(dims: ModelDimensions) -> Heads:
    """Return every cross-attention head of a decoder, in the order in which `measure_heads` expects their attention."""
    return tuple((layer, head) for layer in range(dims.n_text_layer) for head in range(dims.n_text_head))


def measure_heads(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    dims: ModelDimensions,
    sentences: Sequence[tuple[str, int, int]],
    n_samples: int,
    language: str = "en",
) -> Heads:
    """Find the heads that follow the audio, best first, on the window that the decoder holds.

    decoder : one that was built to give the attention of `all_heads`
    sentences : all that is said in the window, with the first and last sample of each
    n_samples : length of the window's audio

    Returns nothing where no head follows it, as in a model that does not understand the speech.
    """
    start = [*tokenizer.start_sequence(language, "transcribe"), tokenizer.special.no_timestamps]
    spelled = [tokenizer.encode(f" {text}") for text, _, _ in sentences]
    decoder.begin()
    text = [token for tokens in spelled for token in tokens]
    _, attention = decoder.feed([*start, *text, tokenizer.special.end_of_text])
    spans = [(len(tokens), first, last) for tokens, (_, first, last) in zip(spelled, sentences, strict=True)]
    return tuple(all_heads(dims)[index] for index in choose_heads(attention, len(start), spans, n_samples))


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
    """Return which part of each head's attention lies between two places, of each row its own, shape (n_heads,)."""
    places = (np.arange(rows.shape[-1]) + 0.5) * N_SAMPLES_PER_TOKEN
    inside = (places >= begins[:, np.newaxis]) & (places < ends[:, np.newaxis])
    shares: FloatArray = np.where(inside, rows, 0).sum(axis=-1).mean(axis=-1)
    return shares
