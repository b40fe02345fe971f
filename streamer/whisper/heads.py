"""Which cross-attention heads of published models follow the audio, so that word times can be made of them.

Source: openai-whisper names them for its published models (`_ALIGNMENT_HEADS` in its `__init__.py`), and takes all of
the upper half of the layers for others (`model.py`). `decode.alignment_heads` measures them for any model.
"""

import re
from dataclasses import dataclass

from streamer.whisper.dims import Heads, ModelDimensions


@dataclass(frozen=True, slots=True)
class Preset:
    """The heads of a published model, and by which sizes it is known."""

    n_text_layer: int
    n_text_head: int
    n_vocab: int
    heads: Heads


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
    # Fine-tuning hardly moves what a head does.
    sizes = (dims.n_text_layer, dims.n_text_head, dims.n_vocab)
    fitting = {
        published: preset.heads
        for published, preset in PRESETS.items()
        if (preset.n_text_layer, preset.n_text_head, preset.n_vocab) == sizes
    }
    version = re.search(r"large[-_. ]?(v[12])", name.lower())
    if version and f"large-{version[1]}" in fitting:
        return fitting[f"large-{version[1]}"]
    heads = {head for preset in fitting.values() for head in preset}
    return tuple(sorted(heads)) or tuple(
        (layer, head) for layer, head in all_heads(dims) if layer >= dims.n_text_layer // 2
    )


def all_heads(dims: ModelDimensions) -> Heads:
    """Return every cross-attention head of a decoder, layer by layer."""
    return tuple((layer, head) for layer in range(dims.n_text_layer) for head in range(dims.n_text_head))
