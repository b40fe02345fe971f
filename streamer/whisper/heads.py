"""Which cross-attention heads of published models follow the audio, so that word times can be made of them.

Source: openai-whisper names them for its published models (`_ALIGNMENT_HEADS` in its `__init__.py`), and takes all of
the upper half of the layers for others (`model.py`). `tools/find_heads.py` measures them for any model.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamer.whisper.dims import Heads, ModelDimensions


@dataclass(frozen=True, slots=True)
class Preset:
    """The heads of a published model, and by which sizes it is known."""

    n_text_layer: int
    n_text_head: int
    n_vocab: int
    heads: tuple[tuple[int, int], ...]


# By name.
PRESETS = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=dict[str, Preset])


def known_heads(dims: ModelDimensions, name: str = "") -> Heads:
    """Return the heads of the published model of these sizes; for others all of the upper half of the layers.

    name : what the model is called, by which large-v1 and large-v2 are distinguished; if it does not say, the heads of
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
    return tuple(sorted(heads)) or _upper_heads(dims)


def are_known(heads: Heads, dims: ModelDimensions) -> bool:
    """Return whether heads were found out for a model, and are not all of its upper layers for want of knowledge."""
    return set(heads) != set(_upper_heads(dims))


def all_heads(dims: ModelDimensions) -> Heads:
    """Return every cross-attention head of a decoder, layer by layer."""
    return tuple((layer, head) for layer in range(dims.n_text_layer) for head in range(dims.n_text_head))


def _upper_heads(dims: ModelDimensions) -> Heads:
    return tuple((layer, head) for layer, head in all_heads(dims) if layer >= dims.n_text_layer // 2)
