"""Generation settings: a model's own, else openai-whisper's, as its alignment heads are."""

import base64
import dataclasses
import gzip
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import whisper
import whisper.decoding
import whisper.model

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.generation import GenerationConfig, default_generation, read_generation
from streamer.whisper.heads import PRESETS, all_heads, are_known, known_heads
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, SIZES
from tests.unit.whisper.tokens.published import CASES, Case, load, reference

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
DIMS = ModelDimensions.from_huggingface(read_json(NANO / "config.json"), NANO)
UPPER_HALF = tuple((layer, head) for layer in (1, 2) for head in range(3))


def read(folder: Path, file: str = "generation_config.json", /, **settings: object) -> GenerationConfig:
    """Return what is read of a file that says this."""
    (folder / file).write_text(json.dumps(settings), encoding="utf-8")
    return read_generation(folder, DIMS, TOKENIZER)


def test_a_models_own_settings_are_read() -> None:
    assert read_generation(NANO, DIMS, TOKENIZER) == GenerationConfig(
        suppress_tokens=(513, 515, 516, 517, 518, 519),
        begin_suppress_tokens=(220,),
        max_initial_timestamp_index=50,
        alignment_heads=((2, 0), (2, 1)),
        multilingual=True,
        prompted=True,
        silent_padding=True,
        windows_s=(5, 10),
        stream_beams=4,
    )


NULL = {"is_multilingual": False, "suppress_tokens": None}
LEFT_OUT = GenerationConfig(
    suppress_tokens=(),
    begin_suppress_tokens=(),
    max_initial_timestamp_index=None,
    alignment_heads=UPPER_HALF,
    multilingual=False,
)


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ({}, {}),
        ({"alignment_heads": [[2, 1], [0, 0], [2, 1]]}, {"alignment_heads": ((2, 1), (0, 0))}),
        ({"suppress_tokens": [2021]}, {"suppress_tokens": (2021,)}),
        ({"begin_suppress_tokens": [2021]}, {"begin_suppress_tokens": (2021,)}),
        ({"max_initial_timestamp_index": 1500}, {"max_initial_timestamp_index": 1500}),
        ({"stream_windows_s": [2, 30], "condition_on_prev_tokens": False}, {"windows_s": (2, 30), "prompted": False}),
    ],
)
def test_settings_are_read_and_what_is_left_out_or_null_is_as_of_whispers_own_models(
    tmp_path: Path, says: dict[str, object], expected: dict[str, Any]
) -> None:
    assert read(tmp_path, **{**NULL, **says}) == dataclasses.replace(LEFT_OUT, **expected)


@pytest.mark.parametrize("says", [{}, {"lang_to_id": {"<|en|>": 514}}])
def test_a_model_that_says_nothing_of_languages_is_as_its_tokenizer(tmp_path: Path, says: dict[str, object]) -> None:
    read(tmp_path, **says)
    for multilingual in (False, True):
        found = read_generation(tmp_path, DIMS, TOKENIZER.as_multilingual(multilingual))
        assert found.multilingual == (multilingual or bool(says))


@pytest.mark.parametrize("heads", [[[3, 0]], [[0, 3]], [[0, 0], [25, 13]]])
def test_the_alignment_heads_of_a_distilled_models_teacher_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, heads: object
) -> None:
    assert read(tmp_path, alignment_heads=heads).alignment_heads == UPPER_HALF
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(("config", "n_warnings"), [(None, 0), ("{}", 0), ('{"model_type": "whisper"}', 1)])
def test_a_directory_without_settings_gets_the_default_and_warns_if_they_belong_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: str | None, n_warnings: int
) -> None:
    if config:
        (tmp_path / "config.json").write_text(config, encoding="utf-8")
    assert read_generation(tmp_path, DIMS, TOKENIZER) == default_generation(TOKENIZER, DIMS)
    assert len(caplog.records) == n_warnings


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))
def test_the_default_equals_openai_whisper(case: Case) -> None:
    dims = dataclasses.replace(DIMS, n_vocab=case.n_vocab)
    generation, theirs, options = default_generation(load(case), dims), reference(case), whisper.DecodingOptions()
    task = SimpleNamespace(options=options, tokenizer=theirs)
    assert generation.suppress_tokens == whisper.decoding.DecodingTask._get_suppress_tokens(task)
    logits = torch.zeros(1, case.n_vocab)
    whisper.decoding.SuppressBlank(theirs, sample_begin=0).apply(logits, torch.zeros(1, 0))
    assert sorted(generation.begin_suppress_tokens) == torch.isinf(logits[0]).nonzero()[:, 0].tolist()
    assert generation.max_initial_timestamp_index == options.max_initial_timestamp / 0.02
    assert (generation.multilingual, generation.prompted) == (case.multilingual, True)
    for n_layers in range(1, 5):
        dims = dataclasses.replace(dims, n_text_layer=n_layers)
        sizes = {**dataclasses.asdict(dims), "n_vocab": 8, "n_audio_layer": 1}
        model = whisper.model.Whisper(whisper.model.ModelDimensions(**sizes))
        found = [list(pair) for pair in default_generation(load(case), dims).alignment_heads]
        assert found == model.alignment_heads.indices().T.tolist()


def test_the_settings_that_ctranslate2_puts_into_config_json_are_read(tmp_path: Path) -> None:
    said = {"suppress_ids": [1, 2], "suppress_ids_begin": [220, 5], "lang_ids": [514], "alignment_heads": [[2, 1]]}
    assert read(tmp_path, "config.json", **said) == GenerationConfig(
        suppress_tokens=(1, 2),
        begin_suppress_tokens=(220, 5),
        max_initial_timestamp_index=50,  # which its decoder has unless it is told another
        alignment_heads=((2, 1),),
        multilingual=True,
    )
    with pytest.raises(ModelError):
        read(tmp_path, "config.json", **{**said, "suppress_ids": [2022]})
    # The first conversions had no heads.
    found = read(tmp_path, "config.json", suppress_ids=None, suppress_ids_begin=None)
    assert (found.suppress_tokens, found.begin_suppress_tokens, found.alignment_heads) == ((), (), UPPER_HALF)
    # A file of its own comes first.
    shutil.copy(NANO / "generation_config.json", tmp_path)
    assert read_generation(tmp_path, DIMS, TOKENIZER) == read_generation(NANO, DIMS, TOKENIZER)


def test_a_small_vocabulary_keeps_what_it_spells_other_text_with() -> None:
    """openai-whisper would suppress the space, and the first byte of every quotation mark, as beginnings of a sign."""
    suppressed = default_generation(TOKENIZER, DIMS).suppress_tokens
    for text in (" ", "“", "é", " the", "-", "'"):
        assert not {*TOKENIZER.encode(text)} & {*suppressed}
    assert {*TOKENIZER.encode("#*+"), TOKENIZER.special.start_of_transcript} <= {*suppressed}


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


@pytest.mark.parametrize(
    ("size", "name", "of"),
    [
        *((size, "somebody/whisper-large-v2-czech", [size]) for size in PRESETS if size != "large-v1"),
        *(("large-v1", name, ["large-v1"]) for name in ("Large-V1.pt", "ggml-large-v1", "me/whisper-largev1-de")),
        *(("large-v2", name, ["large-v2"]) for name in ("whisper_large_v2", "me/whisper-largev2-de")),
        *(("large-v1", name, ["large-v1", "large-v2"]) for name in ("", "model.pt", "large", "large-v3")),
    ],
)
def test_a_fine_tuned_model_is_known_by_its_sizes_and_the_first_two_large_ones_by_their_names(
    size: str, name: str, of: list[str]
) -> None:
    heads = {head for preset in of for head in PRESETS[preset].heads}
    assert known_heads(SIZES[size], name) == tuple(sorted(heads))
