"""Alignment heads of published models are openai-whisper's."""

import base64
import gzip

import numpy as np
import pytest
import whisper

from streamer.whisper.heads import PRESETS, all_heads, are_known, known_heads
from tests.unit.whisper.sizes import SIZES

# openai-whisper has two names for some models.
ALIASES = {"large": "large-v3", "turbo": "large-v3-turbo"}


def test_the_presets_equal_openai_whispers() -> None:
    found = set()
    for name, dumped in whisper._ALIGNMENT_HEADS.items():
        found.add(preset_name := ALIASES.get(name, name))
        preset = PRESETS[preset_name]
        marked = np.frombuffer(gzip.decompress(base64.b85decode(dumped)), dtype=bool)
        layers, heads = marked.reshape(preset.n_text_layer, preset.n_text_head).nonzero()
        assert preset.heads == tuple(zip(layers.tolist(), heads.tolist(), strict=True))
    assert found == set(PRESETS)


@pytest.mark.parametrize("name", sorted(SIZES))
def test_heads_are_known_of_published_models_and_guessed_of_distilled_ones(name: str) -> None:
    dims = SIZES[name]
    found = known_heads(dims, f"openai/whisper-{name}")
    assert are_known(found, dims) == (name in PRESETS)
    assert are_known(found[:1], dims)
    if name in PRESETS:
        assert found == PRESETS[name].heads
    else:
        assert found == tuple(head for head in all_heads(dims) if head[0] >= dims.n_text_layer // 2)
        assert len(found) == dims.n_text_layer // 2 * dims.n_text_head


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"large-v1", "large-v2"}))
def test_a_fine_tuned_model_is_known_by_its_sizes(name: str) -> None:
    assert known_heads(SIZES[name], "somebody/whisper-large-v2-czech") == PRESETS[name].heads


@pytest.mark.parametrize("name", ["Large-V1.pt", "ggml-large-v1", "whisper_large_v1", "me/whisper-largev1-de"])
def test_the_first_two_large_models_are_distinguished_by_their_names(name: str) -> None:
    assert known_heads(SIZES["large-v1"], name) == PRESETS["large-v1"].heads
    assert known_heads(SIZES["large-v2"], name.replace("1", "2")) == PRESETS["large-v2"].heads


@pytest.mark.parametrize("name", ["", "model.pt", "large", "large-v3"])
def test_a_large_model_without_a_name_has_the_heads_of_both(name: str) -> None:
    both = {*PRESETS["large-v1"].heads, *PRESETS["large-v2"].heads}
    assert known_heads(SIZES["large-v1"], name) == tuple(sorted(both))
