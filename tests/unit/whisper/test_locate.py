"""From names of models to where they lie, without asking anybody that need not be asked."""

from pathlib import Path

import pytest

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.whisper.hub import cache, fetch
from streamer.whisper.locate import find_model, find_or_pull
from tests.unit.whisper.support import NANO


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that the Hub was asked for."""
    names: list[str] = []

    def pull(name: str, **_: object) -> Path:
        names.append(name)
        return Path("pulled")

    monkeypatch.setattr(fetch, "pull", pull)
    monkeypatch.setattr(cache, "cached", lambda name: None)
    return names


def test_a_model_is_found_by_name_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    found = find_model("nano.en")
    assert found is not None
    assert found.samefile(NANO)
    assert find_model(str(NANO)) == NANO
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.pt").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "mine.pt"):
        assert find_or_pull(name, lambda progress: None).samefile(tmp_path / name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert find_model("~/mine") == tmp_path / "mine"
    assert asked == []


@pytest.mark.parametrize(
    ("file", "content", "is_model"),
    [
        ("notes.txt", b"", False),
        ("config.json", b'{"model_type": "bert"}', False),
        ("config.json", b"{}", False),
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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    caplog: pytest.LogCaptureFixture,
    name: str,
    file: str,
    content: bytes,
    is_model: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(name)
    folder.mkdir()
    (folder / file).write_bytes(content)
    found = find_or_pull(name, lambda progress: None)
    if is_model:
        assert (found, find_model(name)) == (folder, folder)
        assert caplog.messages == []
    else:
        assert found.samefile(NANO) if name == "nano.en" else found == Path("pulled")
        assert caplog.messages == [f"./{name} holds no model: using the published {name}"]
    assert asked == ([] if is_model or name == "nano.en" else [name])
    for path in (f"./{name}", f"{name}/"):
        assert find_model(path) == folder


def test_a_file_hides_no_model_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base").write_text("notes", encoding="utf-8")
    assert find_or_pull("base", lambda progress: None) == Path("pulled")
    assert "./base holds no model" in caplog.text


def test_a_link_to_nothing_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.pt", "base"):
        try:
            Path(name).symlink_to("gone.pt")
        except OSError:  # on Windows it takes a privilege
            pytest.skip("no symbolic links")
    with pytest.raises(ModelError, match=r"^mine\.pt is neither a file nor a folder: .* link to one may be broken$"):
        find_or_pull("mine.pt", lambda progress: None)
    assert find_or_pull("base", lambda progress: None) == Path("pulled")
    assert asked == ["base"]


def test_an_empty_name_is_not_the_working_directory(asked: list[str]) -> None:
    with pytest.raises(ModelError, match="there is no model ''"):
        find_or_pull("", lambda progress: None)
    assert asked == []


def test_what_is_not_here_is_fetched(asked: list[str]) -> None:
    for name in ("base.en", "somebody/whisper-of-mine"):
        assert find_or_pull(name, lambda progress: None) == Path("pulled")
    assert asked == ["base.en", "somebody/whisper-of-mine"]


def test_what_was_downloaded_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.setattr(cache, "cached", lambda name: Path("here") if name == "base.en" else None)
    assert find_or_pull("base.en", lambda progress: None) == Path("here")
    assert asked == []


def test_a_folder_may_be_called_like_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai").mkdir()
    assert find_or_pull("openai/whisper-base", lambda progress: None) == Path("pulled")
    assert asked == ["openai/whisper-base"]


@pytest.mark.parametrize("error", [ModelError, PeerError])
def test_a_slip_in_a_path_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StreamerError]) -> None:
    def pull(name: str, **_: object) -> Path:
        raise error("there is no such model on the Hub")

    monkeypatch.setattr(fetch, "pull", pull)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=r"^there is no such model on the Hub$"):
        find_or_pull("models/bse.en", lambda progress: None)
    (tmp_path / "models").mkdir()
    with pytest.raises(error, match=r"on the Hub; the folder models has no bse\.en$"):
        find_or_pull("models/bse.en", lambda progress: None)
    (tmp_path / "models" / "base.en").mkdir()
    with pytest.raises(error, match=r"has no bse\.en: did you mean models.base\.en\?$"):
        find_or_pull("models/bse.en", lambda progress: None)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("bse.en", "base.en"), ("nanoen", "nano.en"), ("my-basse", "my-base"), ("./tinny.pt", "tiny.pt")],
)
def test_the_nearest_name_or_path_is_offered_alone(
    typed: str, meant: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-base").mkdir()
    for file in ("tiny.pt", "bse.en.txt"):
        (tmp_path / file).touch()
    with pytest.raises(ModelError) as caught:
        find_or_pull(typed, lambda progress: None)
    assert str(caught.value) == f"there is no model {typed!r}: did you mean {Path(meant)}?"
    assert asked == []


@pytest.mark.parametrize("name", ["huge", "no/such/dir", "x" * 5000, "a\0b", "~nobody-of-that-name/x", "../nano"])
def test_an_unknown_name_lists_what_there_is(
    name: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unlike").mkdir()
    monkeypatch.chdir(tmp_path / "unlike")  # beside which there is nothing like it
    with pytest.raises(ModelError, match=r"there is no model .*: expected .*, or one of nano\.en, tiny") as caught:
        find_or_pull(name, lambda progress: None)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert asked == []
