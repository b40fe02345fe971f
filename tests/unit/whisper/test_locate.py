"""From names of models to where they lie, the Hub last."""

from pathlib import Path

import pytest

from streamer.errors import ModelError, PeerError
from streamer.whisper.hub import cache, fetch
from streamer.whisper.locate import find_model, find_or_pull
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import NANO, check_one_line

PULLED = Path("pulled")


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Names that the Hub was asked for; the working directory is empty."""
    names: list[str] = []

    def pull(name: str, **_: object) -> Path:
        names.append(name)
        return PULLED

    monkeypatch.setattr(fetch, "pull", pull)
    monkeypatch.setattr(cache, "cached", lambda name: None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return names


def find(name: str) -> Path:
    return find_or_pull(name, lambda progress: None)


def test_a_model_is_found_by_name_and_by_path(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    assert find("nano.en").samefile(NANO)
    assert find_model(str(NANO)) == NANO
    here = Path.cwd()
    Path("mine").mkdir()
    Path("mine.pt").touch()
    for name in ("mine", "mine.pt", "./mine", "mine/"):
        assert find(name).samefile(here / name)
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(here))
    assert find_model("~/mine") == here / "mine"
    assert asked == []


def test_what_is_not_here_is_fetched(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("openai").mkdir()  # a folder may be called like an owner
    for name in ("base.en", "somebody/whisper-of-mine", "openai/whisper-base"):
        assert find(name) == PULLED
    monkeypatch.setattr(cache, "cached", lambda name: Path("here") if name == "base.en" else None)
    assert find("base.en") == Path("here")
    assert asked == ["base.en", "somebody/whisper-of-mine", "openai/whisper-base"]


@pytest.mark.parametrize(
    ("file", "content", "is_model"),
    [
        ("notes.txt", b"", False),
        ("config.json", b'{"model_type": "bert"}', False),
        ("config.json", b"{", False),
        ("model.bin", b"", False),
        ("config.json", b'{"model_type": "whisper"}', True),
        ("config.json", b'{"n_mels": 80}', True),
        ("whisper_encoder.xml", b"", True),
        ("adapter_config.json", b"", True),
        ("mine.pt", b"PK\x03\x04", True),
        ("model.bin", b"\6\0\0\0\x0c\0WhisperSpec\0", True),
    ],
)
@pytest.mark.parametrize("name", ["base", "nano.en"])
def test_a_folder_hides_the_model_of_its_name_only_if_it_holds_one(
    asked: list[str], caplog: pytest.LogCaptureFixture, name: str, file: str, content: bytes, is_model: bool
) -> None:
    folder = Path(name)
    folder.mkdir()
    (folder / file).write_bytes(content)
    found = find(name)
    if is_model:
        assert found == find_model(name) == folder
    else:
        assert found.samefile(NANO) if name == "nano.en" else found == PULLED
    assert len(caplog.records) == (not is_model)
    assert asked == ([] if is_model or name == "nano.en" else [name])
    for path in (f"./{name}", f"{name}/"):
        assert find_model(path) == folder


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_or_a_broken_link_hides_no_published_model(asked: list[str], is_link: bool) -> None:
    (link if is_link else Path.touch)(Path("base"))
    assert find("base") == PULLED
    assert asked == ["base"]


def link(path: Path) -> None:
    """Make a link to nothing."""
    try:
        path.symlink_to("gone.pt")
    except OSError:  # on Windows it takes a privilege
        pytest.skip("no symbolic links")


@refusals("whisper_names")
def test_a_name_of_no_model_is_refused(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(name: str, **_: object) -> Path:
        error = PeerError if refusal.error == "PeerError" else ModelError
        raise error("there is no such model on the Hub")

    monkeypatch.setattr(fetch, "pull", pull)
    for name in refusal.given.get("folders", ()):
        Path(name).mkdir(parents=True)
    for name in refusal.given.get("files", ()):
        Path(name).touch()
    for name in refusal.given.get("links", ()):
        link(Path(name))
    with refusal.expected():
        find(refusal.given["name"])


@pytest.mark.parametrize("name", ["", "no/such/dir", "x" * 5000, "a\0b", "~nobody-of-that-name/x", "../nano"])
def test_what_is_not_even_a_path_is_refused_in_one_line(name: str, asked: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        find(name)
    check_one_line(caught.value)
    assert asked == []
