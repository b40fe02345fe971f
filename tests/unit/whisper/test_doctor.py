"""What `streamer doctor` finds of models and of the directories that they are kept in."""

import dataclasses
import json
import os
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer.findings import Finding, Severity
from streamer.whisper import doctor
from streamer.whisper.device.devices import DeviceInfo
from streamer.whisper.doctor import LITTLE_SPACE_BYTES, check_cache, check_hub, check_model
from streamer.whisper.trust import Verdict
from tests import findings
from tests.findings import OK, PROBLEM, WARNING
from tests.unit.whisper.support import NANO, damage

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _much_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMER_CACHE_DIR", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, LITTLE_SPACE_BYTES))


def expect(finding: Finding, severity: Severity, about: str) -> None:
    findings.expect(finding, severity, about, "" if severity is OK else " ")  # a remedy, unless all is well


@pytest.mark.parametrize(
    ("file", "change", "about"),
    [
        ("model.safetensors", False, "model.safetensors"),
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1", "model.safetensors"),
        ("preprocessor_config.json", {"feature_size": 128}, "feature_size"),
        ("tokenizer.json", "{", "tokenizer.json"),
    ],
)
def test_a_model_is_read_as_far_as_its_weights(tmp_path: Path, file: str, change: object, about: str) -> None:
    folder = Path(shutil.copytree(NANO, tmp_path / "model", ignore=shutil.ignore_patterns("sample.*", "vocab.json")))
    expect(check_model(str(folder)), OK, "MB")
    damage(folder / file, change)
    expect(check_model(str(folder)), PROBLEM, about)


def test_a_model_for_trying_things_out_one_to_be_fetched_and_one_that_does_not_exist() -> None:
    for name, severity in (("nano.en", WARNING), ("./no/such/model", PROBLEM), ("nobody/such-a-whisper", WARNING)):
        expect(check_model(name), severity, name)


def test_the_cache_directory_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache"
    expect(check_cache(str(path)), OK, "4.0 GB free")
    (path / "NPU-0123456789abcdef").mkdir(parents=True)
    (path / "NPU-0123456789abcdef" / "a.blob").write_bytes(bytes(2_000_000))
    expect(check_cache(str(path)), OK, f"{path}, 2 MB, ")
    assert not [path for path in path.iterdir() if path.is_file()]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, LITTLE_SPACE_BYTES - 1))
    expect(check_cache(str(path)), WARNING, str(path))


def test_a_cache_directory_that_cannot_be_made_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("~nobody-of-this-name/x")):
        expect(check_cache(str(path)), PROBLEM, str(path))


def test_one_that_cannot_be_written_to_is_a_problem_unless_it_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    expect(check_cache(str(tmp_path)), PROBLEM, "No space left on device")
    monkeypatch.setattr(doctor, "cache_base", lambda setting: tmp_path)
    expect(check_cache(""), WARNING, "No space left on device")
    monkeypatch.setitem(os.environ, "STREAMER_CACHE_DIR", str(tmp_path))
    expect(check_cache(""), PROBLEM, "No space left on device")


def test_the_directory_of_the_hub_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(path))
    for offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        found = check_hub()
        expect(found, OK, str(path))
        assert ("HF_HUB_OFFLINE" in found.found) == offline
    path.touch()
    expect(check_hub(), WARNING, str(path))


def test_a_report_shows_devices_and_verdicts_and_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npu, properties = DeviceInfo("NPU", "Intel(R) AI Boost", "1688"), {"DEVICE_ARCHITECTURE": "4000"}
    monkeypatch.setattr(doctor, "list_devices", lambda: [npu])
    monkeypatch.setattr(doctor, "why_it_cannot_compile", lambda device: "")
    monkeypatch.setattr(doctor, "device_property", lambda core, device, name: properties.get(name, ""))
    expect(doctor.report(tmp_path)["Verdicts"], OK, "")
    verdict = Verdict("", "encoder (15 s)", "openai/whisper-base int8", "AI Boost", "2026.4", 12.5, "")
    for i, kept in enumerate((verdict, dataclasses.replace(verdict, model="anna/whisper", problem="wrong"))):
        path = tmp_path / f"NPU-{i:016}" / "verdict.json"
        path.parent.mkdir()
        path.write_text(json.dumps(dataclasses.asdict(kept)), encoding="utf-8")
        os.utime(path, (1_000_000 - i, 1_000_000 - i))
    damaged = tmp_path / "NPU-damaged"
    damaged.mkdir()
    (damaged / "verdict.json").write_text("{}", encoding="utf-8")
    found = doctor.report(tmp_path)
    expect(found["NPU"], OK, "Intel(R) AI Boost, driver 1688, DEVICE_ARCHITECTURE 4000")
    where = "on AI Boost, OpenVINO 2026.4: compiled in 12.5 s"
    expect(found["Verdict 1"], OK, f"encoder (15 s) of openai/whisper-base int8 {where}, right")
    expect(found["Verdict 2"], OK, f"encoder (15 s) of a model {where}, wrong")
    assert "Verdict 3" not in found
