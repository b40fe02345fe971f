"""What `streamer doctor` finds of models and of the directories that they are kept in."""

import os
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer.whisper import doctor
from streamer.whisper.doctor import check_cache, check_hub, check_model
from tests.findings import OK, PROBLEM, WARNING, expect

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _much_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMER_CACHE_DIR", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**12))


def test_a_model_that_is_missing_empty_or_half_fetched(tmp_path: Path) -> None:
    expect(check_model("nano.en"), WARNING, "`streamer models verify nano.en`", "synthetic voices, not people")
    expect(check_model("nano.en"), WARNING, "nano.en", "`streamer models pull base`")
    expect(check_model("./no/such/model"), PROBLEM, "there is no model './no/such/model'", "list")
    expect(check_model("nobody/such-a-whisper"), WARNING, "is not here", "pull nobody/such-a-whisper")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    expect(check_model(str(folder)), PROBLEM, "holds no weights", "fetch")
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    expect(check_model(str(folder)), PROBLEM, "model.safetensors has 43 bytes", "git lfs pull")
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    expect(check_model(str(folder)), OK, "2 MB; ")
    one_file = tmp_path / "ggml-tiny.bin"
    one_file.write_bytes(bytes(3_000_000))
    expect(check_model(str(one_file)), OK, "3 MB; ")


def test_the_cache_directory_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache"
    expect(check_cache(str(path)), OK, f"{path}, not made yet, 1000.0 GB free")
    (path / "NPU-0123456789abcdef").mkdir(parents=True)
    (path / "NPU-0123456789abcdef" / "a.blob").write_bytes(bytes(2_000_000))
    expect(check_cache(str(path)), OK, f"{path}, 2 MB, 1000.0 GB free")
    assert not [path for path in path.iterdir() if path.is_file()]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**9))
    expect(check_cache(str(path)), WARNING, "1.0 GB free", "make room")


def test_a_cache_directory_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, path = tmp_path / "file", tmp_path / "cache"
    file.touch()
    path.mkdir()
    expect(check_cache(str(file)), PROBLEM, "is a file", "model.cache_dir")
    expect(check_cache(str(file / "below")), PROBLEM, "cannot be made", "model.cache_dir")
    expect(check_cache("~nobody-of-this-name/x"), PROBLEM, "model.cache_dir", "name a directory")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    expect(check_cache(str(path)), PROBLEM, "cannot be written to (No space left on device)", "model.cache_dir")
    # The default one: the daemon works without.
    monkeypatch.setattr(doctor, "cache_base", lambda setting: path)
    expect(check_cache(""), WARNING, "cannot be written to")
    monkeypatch.setitem(os.environ, "STREAMER_CACHE_DIR", str(path))
    expect(check_cache(""), PROBLEM, "cannot be written to")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user whom permissions stop")
def test_a_cache_directory_that_cannot_be_entered(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        expect(check_cache(str(tmp_path / "cache")), PROBLEM, "cannot be made (Permission denied)", "model.cache_dir")
    finally:
        tmp_path.chmod(0o700)


def test_the_directory_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    expect(check_hub(), OK, f"{tmp_path / 'hub'}, not made yet")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    expect(check_hub(), OK, "offline, since HF_HUB_OFFLINE is set")
    (tmp_path / "hub").touch()
    expect(check_hub(), WARNING, "cannot be written to", "HF_HOME")
