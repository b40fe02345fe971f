"""What `streamer doctor` finds of OpenVINO and its devices."""

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import openvino
import pytest

from streamer.errors import InferenceError
from streamer.findings import Finding
from streamer.whisper.device import doctor, drivers
from streamer.whisper.device.devices import DeviceInfo, DeviceSettings
from streamer.whisper.device.drivers import Obstacle
from streamer.whisper.device.verdicts import DeviceVerdict
from tests.findings import OK, PROBLEM, WARNING, expect

CPU = DeviceInfo("CPU", "Some Processor", "")
ALL = (CPU, DeviceInfo("GPU", "Arc", ""), DeviceInfo("NPU", "Intel(R) AI Boost", "1688"))
UNUSABLE = Obstacle("no driver", "install it")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Linux machine without accelerators."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for name in ("npu_obstacle", "npu_compiler_obstacle", "gpu_obstacle"):
        monkeypatch.setattr(drivers, name, lambda: None)
    monkeypatch.setattr(doctor, "why_it_cannot_compile", lambda device: "")


def check(
    monkeypatch: pytest.MonkeyPatch, devices: Sequence[DeviceInfo], version: str = "2026.4.1-1234", **settings: object
) -> dict[str, Finding]:
    monkeypatch.setattr(doctor, "list_devices", lambda: list(devices))
    monkeypatch.setattr(openvino, "get_version", lambda: version)
    return doctor.check_devices(DeviceSettings(**settings))  # type: ignore[arg-type]


def test_a_good_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(monkeypatch, ALL)
    expect(found["OpenVINO"], OK, "2026.4.1, finds CPU, GPU, NPU")
    expect(found["NPU"], OK, "Intel(R) AI Boost, driver 1688")
    expect(found["GPU"], OK, "Arc")
    expect(found["Stages"], OK, "encoder on NPU, cross_kv on NPU, decoder on NPU")
    expect(check(monkeypatch, [CPU])["NPU"], OK, "this machine has none")


def test_an_openvino_that_is_broken_old_or_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expect(check(monkeypatch, [])["OpenVINO"], PROBLEM, "finds no device", "pip install")
    old = check(monkeypatch, [CPU], "2024.6.0")
    expect(old["OpenVINO"], WARNING, "expected 2026.0 or newer", "pip install")
    expect(check(monkeypatch, [CPU], "custom")["OpenVINO"], OK, "custom")

    def fail() -> None:
        raise InferenceError("OpenVINO cannot list its devices")

    monkeypatch.setattr(doctor, "list_devices", fail)
    assert [*doctor.check_devices(DeviceSettings())] == ["OpenVINO"]
    expect(doctor.check_devices(DeviceSettings())["OpenVINO"], PROBLEM, "cannot list its devices")


@pytest.mark.parametrize(("kind", "obstacle"), [("NPU", "npu_obstacle"), ("GPU", "gpu_obstacle")])
def test_an_accelerator_that_is_not_found_is_a_problem_if_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, kind: str, obstacle: str
) -> None:
    monkeypatch.setattr(drivers, obstacle, lambda: UNUSABLE)
    expect(check(monkeypatch, [CPU])[kind], WARNING, "no driver", "install it")
    expect(check(monkeypatch, [CPU], device="CPU")[kind], WARNING, "no driver", "install it")
    expect(check(monkeypatch, [CPU], device=kind)[kind], PROBLEM, "no driver", "install it")
    expect(check(monkeypatch, [CPU], encoder_device=f"{kind}.1")[kind], PROBLEM, "no driver", "install it")


def test_an_npu_without_a_compiler_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "npu_compiler_obstacle", lambda: Obstacle("its driver has no compiler", "install it"))
    expect(check(monkeypatch, ALL)["NPU"], WARNING, "driver 1688; its driver has no compiler", "install it")
    expect(check(monkeypatch, ALL, device="NPU")["NPU"], PROBLEM, "its driver has no compiler")


@pytest.mark.parametrize("system", ["Linux", "Windows"])
def test_an_npu_that_compiles_nothing_is_of_no_use(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    reason = "it compiles nothing (no): its compiler is an old one"
    monkeypatch.setattr(doctor, "why_it_cannot_compile", lambda device: reason if device == "NPU" else "")
    found = check(monkeypatch, ALL)
    expect(found["NPU"], WARNING, "driver 1688; it compiles nothing (no): its compiler is an old one")
    expect(found["GPU"], OK, "Arc")
    expect(check(monkeypatch, ALL, device="NPU")["NPU"], PROBLEM, "its compiler is an old one")


def test_a_report_shows_devices_and_verdicts_and_no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "list_devices", lambda: list(ALL))
    properties = {"DEVICE_ARCHITECTURE": "4000"}
    monkeypatch.setattr(doctor, "device_property", lambda core, device, name: properties.get(name, ""))
    expect(doctor.report(tmp_path)["Verdicts"], OK, "none: run `streamer models verify base --device NPU`")
    verdict = DeviceVerdict(
        "", "encoder", "openai/whisper-base int8", "AI Boost, driver 1.38", "2026.4", [30], 12.5, []
    )
    for i, kept in enumerate((verdict, dataclasses.replace(verdict, model="anna/whisper", problem="wrong"))):
        entry = tmp_path / f"VERDICT-{i:016}"
        entry.mkdir()
        (entry / "verdict.json").write_text(json.dumps(dataclasses.asdict(kept)), encoding="utf-8")
        os.utime(entry, (1_000_000 - i, 1_000_000 - i))
    damaged = tmp_path / "VERDICT-damaged"
    damaged.mkdir()
    (damaged / "verdict.json").write_text("{}", encoding="utf-8")
    found = doctor.report(tmp_path)
    expect(found["NPU"], OK, "Intel(R) AI Boost, driver 1688, DEVICE_ARCHITECTURE 4000")
    where = "on AI Boost, driver 1.38, OpenVINO 2026.4: compiled in 12.5 s"
    expect(found["Verdict 1"], OK, f"encoder of openai/whisper-base int8 {where}, right")
    expect(found["Verdict 2"], OK, f"encoder of a model {where}, wrong")
    assert "Verdict 3" not in found


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "npu_obstacle", lambda: UNUSABLE)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    expect(check(monkeypatch, [CPU])["NPU"], OK, "Core Ultra")
    expect(check(monkeypatch, [CPU])["GPU"], OK, "Windows Update")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    expect(check(monkeypatch, [CPU])["NPU"], OK, "OpenVINO finds none")


def test_the_devices_of_the_settings_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check(monkeypatch, [CPU], decoder_device="GPU")
    expect(found["Stages"], PROBLEM, "device GPU for the decoder is not there")
