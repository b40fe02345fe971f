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


@pytest.mark.parametrize("name", sorted(whisper._ALIGNMENT_HEADS))
def test_the_presets_equal_openai_whispers(name: str) -> None:
    preset = PRESETS[ALIASES.get(name, name)]
    marked = np.frombuffer(gzip.decompress(base64.b85decode(whisper._ALIGNMENT_HEADS[name])), dtype=bool)
    layers, heads = marked.reshape(preset.n_text_layer, preset.n_text_head).nonzero()
    assert preset.heads == tuple(zip(layers.tolist(), heads.tolist(), strict=True))


def test_there_is_no_preset_that_openai_whisper_lacks() -> None:
    assert {ALIASES.get(name, name) for name in whisper._ALIGNMENT_HEADS} == set(PRESETS)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_published_model_is_known_by_its_sizes_and_its_name(name: str) -> None:
    assert known_heads(SIZES[name], f"openai/whisper-{name}") == PRESETS[name].heads


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"large-v1", "large-v2"}))
def test_a_fine_tuned_model_is_known_by_its_sizes(name: str) -> None:
    assert known_heads(SIZES[name], "somebody/whisper-large-v2-czech") == PRESETS[name].heads


@pytest.mark.parametrize("name", ["Large-V1.pt", "ggml-large-v1", "whisper_large_v1", "me/whisper-largev1-de"])
def test_the_first_two_large_models_are_told_apart_by_their_names(name: str) -> None:
    assert known_heads(SIZES["large-v1"], name) == PRESETS["large-v1"].heads
    assert known_heads(SIZES["large-v2"], name.replace("1", "2")) == PRESETS["large-v2"].heads


@pytest.mark.parametrize("name", ["", "model.pt", "large", "large-v3"])
def test_a_large_model_without_a_name_has_the_heads_of_both(name: str) -> None:
    both = {*PRESETS["large-v1"].heads, *PRESETS["large-v2"].heads}
    assert known_heads(SIZES["large-v1"], name) == tuple(sorted(both))


@pytest.mark.parametrize("name", [name for name in sorted(SIZES) if name.startswith("distil")])
def test_others_have_the_upper_half_of_the_layers(name: str) -> None:
    dims = SIZES[name]
    found = known_heads(dims, f"distil-whisper/{name}")
    assert found == tuple(h for h in all_heads(dims) if h[0] >= dims.n_text_layer // 2)
    assert len(found) == dims.n_text_layer // 2 * dims.n_text_head


@pytest.mark.parametrize("name", sorted(SIZES))
def test_heads_are_known_of_published_models_and_guessed_of_distilled_ones(name: str) -> None:
    heads = known_heads(SIZES[name], name)
    assert are_known(heads, SIZES[name]) == (not name.startswith("distil"))
    assert are_known(heads[:1], SIZES[name])
