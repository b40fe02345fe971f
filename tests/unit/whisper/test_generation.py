"""Generation settings: a model's own, whole and broken, and openai-whisper's for models that bring none."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import whisper.decoding
import whisper.model

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import GenerationConfig, default_generation, read_generation
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO
from tests.unit.whisper.tokens.published import CASES, Case, load, reference
from tests.unit.whisper.weights import checks

TOKENIZER = Tokenizer.load(NANO, n_vocab=2022)
NAME = "generation_config.json"


@pytest.fixture(scope="module")
def dims() -> ModelDimensions:
    path = NANO / "config.json"
    return ModelDimensions.from_huggingface(json.loads(path.read_text(encoding="utf-8")), path)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(NANO / NAME, tmp_path)
    return tmp_path


def edit(path: Path, **changes: object) -> None:
    """Change keys of a JSON file."""
    data = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps(data), encoding="utf-8")


def refuse(directory: Path, dims: ModelDimensions, *parts: str) -> None:
    checks.refuse(lambda path: read_generation(path, dims, TOKENIZER), directory, NAME, *parts)


def test_the_shipped_models_own(dims: ModelDimensions) -> None:
    assert read_generation(NANO, dims, TOKENIZER) == GenerationConfig(
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


def test_what_may_be_left_out(copy: Path, dims: ModelDimensions) -> None:
    (copy / NAME).write_text('{"is_multilingual": false, "suppress_tokens": null}', encoding="utf-8")
    generation = read_generation(copy, dims, TOKENIZER)
    assert generation.suppress_tokens == generation.begin_suppress_tokens == ()
    assert generation.max_initial_timestamp_index is None
    # Of the layers, the upper half.
    assert generation.alignment_heads == tuple((layer, head) for layer in (1, 2) for head in range(3))
    assert not generation.multilingual
    # Whisper's own models continue what came before.
    assert generation.prompted


@pytest.mark.parametrize("says", [{}, {"lang_to_id": {"<|en|>": 514}}])
@pytest.mark.parametrize("multilingual", [False, True])
def test_who_says_nothing_of_languages_is_as_the_tokenizer(
    copy: Path, dims: ModelDimensions, multilingual: bool, says: dict[str, object]
) -> None:
    (copy / NAME).write_text(json.dumps(says), encoding="utf-8")
    tokenizer = TOKENIZER.as_multilingual(multilingual)
    assert read_generation(copy, dims, tokenizer).multilingual == (multilingual or bool(says))


def test_a_head_counts_once(copy: Path, dims: ModelDimensions) -> None:
    edit(copy / NAME, alignment_heads=[[2, 1], [0, 0], [2, 1]])
    assert read_generation(copy, dims, TOKENIZER).alignment_heads == ((2, 1), (0, 0))


def test_a_directory_without_them_gets_the_default_and_says_so(
    tmp_path: Path, dims: ModelDimensions, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_generation(tmp_path, dims, TOKENIZER) == default_generation(TOKENIZER, dims)
    assert not caplog.records  # other formats never have them
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}', encoding="utf-8")
    assert read_generation(tmp_path, dims, TOKENIZER) == default_generation(TOKENIZER, dims)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{tmp_path / NAME} is missing: ")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\0"])
def test_a_file_that_is_broken_is_refused(copy: Path, dims: ModelDimensions, text: str) -> None:
    (copy / NAME).write_text(text, encoding="utf-8")
    refuse(copy, dims, "fetch it again")


def test_a_directory_in_its_place_is_refused(tmp_path: Path, dims: ModelDimensions) -> None:
    (tmp_path / NAME).mkdir()
    refuse(tmp_path, dims, "is no file")


@pytest.mark.parametrize("found", [521, -1, "520", [520] * 999])
def test_settings_of_another_model(copy: Path, dims: ModelDimensions, found: object) -> None:
    edit(copy / NAME, no_timestamps_token_id=found)
    refuse(copy, dims, "has no_timestamps_token_id ", "tokenizer.json has 520", "different models")


@pytest.mark.parametrize("heads", [[[300, 0]], [[0, 0], [0]], [[True, 0]], {"0": 1}])
def test_alignment_heads_that_are_not_there(copy: Path, dims: ModelDimensions, heads: object) -> None:
    edit(copy / NAME, alignment_heads=heads)
    refuse(copy, dims, f"has alignment_heads {heads}: expected ")


@pytest.mark.parametrize("heads", [[[3, 0]], [[0, 3]], [[0, 0], [25, 13]]])
def test_the_alignment_heads_of_a_distilled_models_teacher(
    copy: Path, dims: ModelDimensions, caplog: pytest.LogCaptureFixture, heads: object
) -> None:
    edit(copy / NAME, alignment_heads=heads)
    tokenizer = Tokenizer.load(NANO, n_vocab=dims.n_vocab)
    generation = read_generation(copy, dims, tokenizer)
    assert generation.alignment_heads == default_generation(tokenizer, dims).alignment_heads
    assert "lists alignment heads that this model does not have" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("suppress_tokens", [2022]),
        ("begin_suppress_tokens", [2022]),
        ("begin_suppress_tokens", [-1]),
        ("suppress_tokens", 5),
        ("max_initial_timestamp_index", 1501),
        ("max_initial_timestamp_index", True),
        ("condition_on_prev_tokens", 0),
        ("stream_windows_s", [31]),
        ("stream_windows_s", 10),
        ("stream_beams", 17),
        ("stream_beams", 2.0),
    ],
)
def test_a_value_that_cannot_be_is_named(copy: Path, dims: ModelDimensions, key: str, value: object) -> None:
    edit(copy / NAME, **{key: value})
    refuse(copy, dims, f"has {key} {value!r}: expected ", "fetch it again")


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.n_vocab))
class TestDefault:
    def test_equals_openai_whisper(self, case: Case, dims: ModelDimensions) -> None:
        dims = dataclasses.replace(dims, n_vocab=case.n_vocab)
        generation = default_generation(load(case), dims)
        theirs = reference(case)
        task = SimpleNamespace(options=whisper.decoding.DecodingOptions(), tokenizer=theirs)
        assert generation.suppress_tokens == whisper.decoding.DecodingTask._get_suppress_tokens(task)
        blank = whisper.decoding.SuppressBlank(theirs, sample_begin=0)
        logits = torch.zeros(1, case.n_vocab)
        blank.apply(logits, torch.zeros(1, 0))
        assert sorted(generation.begin_suppress_tokens) == torch.isinf(logits[0]).nonzero()[:, 0].tolist()
        assert generation.max_initial_timestamp_index == whisper.decoding.DecodingOptions().max_initial_timestamp / 0.02
        assert generation.multilingual == case.multilingual
        assert generation.prompted

    @pytest.mark.parametrize("n_layers", [1, 2, 3, 4])
    def test_the_alignment_heads_equal_openai_whispers(self, case: Case, dims: ModelDimensions, n_layers: int) -> None:
        dims = dataclasses.replace(dims, n_vocab=case.n_vocab, n_text_layer=n_layers)
        sizes = {**dataclasses.asdict(dims), "n_vocab": 8, "n_audio_layer": 1}
        model = whisper.model.Whisper(whisper.model.ModelDimensions(**sizes))
        expected = model.alignment_heads.indices().T.tolist()
        assert [list(pair) for pair in default_generation(load(case), dims).alignment_heads] == expected


def test_a_small_vocabulary_keeps_what_it_spells_other_text_with(dims: ModelDimensions) -> None:
    """openai-whisper would suppress the space, and the first byte of every quotation mark, as beginnings of a sign."""
    suppressed = default_generation(TOKENIZER, dims).suppress_tokens
    for text in (" ", "“", "é", " the", "-", "'"):
        assert not {*TOKENIZER.encode(text)} & {*suppressed}
    assert {*TOKENIZER.encode("#*+"), TOKENIZER.special.start_of_transcript} <= {*suppressed}


def test_the_settings_that_ctranslate2_puts_into_config_json(tmp_path: Path, dims: ModelDimensions) -> None:
    said = {"suppress_ids": [1, 2], "suppress_ids_begin": [220, 5], "lang_ids": [514], "alignment_heads": [[2, 1]]}
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    assert read_generation(tmp_path, dims, TOKENIZER) == GenerationConfig(
        suppress_tokens=(1, 2),
        begin_suppress_tokens=(220, 5),
        max_initial_timestamp_index=50,  # which its decoder has unless it is told another
        alignment_heads=((2, 1),),
        multilingual=True,
    )
    # Of 2022 or more no token is.
    edit(tmp_path / "config.json", suppress_ids=[2022])
    with pytest.raises(ModelError, match=r"config\.json has suppress_tokens \[2022\]"):
        read_generation(tmp_path, dims, TOKENIZER)
    # The first conversions knew no heads.
    (tmp_path / "config.json").write_text('{"suppress_ids": null, "suppress_ids_begin": null}', encoding="utf-8")
    generation = read_generation(tmp_path, dims, TOKENIZER)
    assert generation.suppress_tokens == generation.begin_suppress_tokens == ()
    assert len(generation.alignment_heads) == 6
    # A file of its own comes first.
    shutil.copy(NANO / NAME, tmp_path)
    assert read_generation(tmp_path, dims, TOKENIZER) == read_generation(NANO, dims, TOKENIZER)
