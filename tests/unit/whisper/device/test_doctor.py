"""What `streamer doctor` finds of OpenVINO and its devices."""

import platform
from collections.abc import Callable, Sequence

import openvino
import pytest

from streamer.errors import InferenceError
from streamer.findings import Finding, Severity
from streamer.whisper.device import busy, doctor, drivers
from streamer.whisper.device.devices import DeviceInfo, DeviceSettings
from streamer.whisper.device.drivers import Obstacle
from tests.findings import OK, PROBLEM, WARNING, expect

CPU = DeviceInfo("CPU", "Some Processor", "")
ALL = (CPU, DeviceInfo("GPU", "Arc", ""), DeviceInfo("NPU", "Intel(R) AI Boost", "1688"))
UNUSABLE = Obstacle("no driver", "install it")

# Returns the findings on a machine with these devices.
Check = Callable[..., dict[str, Finding]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """A Linux machine without obstacles."""
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for name in ("npu_obstacle", "npu_compiler_obstacle", "gpu_obstacle"):
        monkeypatch.setattr(drivers, name, lambda: None)
    monkeypatch.setattr(doctor, "why_it_cannot_compile", lambda device: "")

    def on(devices: Sequence[DeviceInfo], version: str = "2026.4.1-1234", **settings: str) -> dict[str, Finding]:
        monkeypatch.setattr(doctor, "list_devices", lambda: list(devices))
        monkeypatch.setattr(openvino, "get_version", lambda: version)
        return doctor.check_devices(DeviceSettings(**settings))  # type: ignore[arg-type]

    return on


def test_a_good_machine_asks_for_nothing(check: Check) -> None:
    found = check(ALL)
    expect(found["OpenVINO"], OK, "2026.4.1")
    expect(found["NPU"], OK, "Intel(R) AI Boost, driver 1688")
    expect(found["GPU"], OK, "Arc")
    expect(found["Stages"], OK, "encoder on NPU, cross_kv on NPU, decoder on NPU")
    expect(check([CPU])["NPU"], OK, "")


@pytest.mark.parametrize(
    ("version", "severity"), [("2025.4.0", WARNING), ("2026.0.0", OK), ("2027.1", OK), ("custom", OK)]
)
def test_an_old_openvino_is_a_warning(check: Check, version: str, severity: object) -> None:
    found = check([CPU], version)["OpenVINO"]
    assert (found.severity, bool(found.remedy)) == (severity, severity is WARNING)


def test_an_openvino_without_devices_is_a_problem(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise InferenceError("OpenVINO cannot list its devices")

    expect(check([])["OpenVINO"], PROBLEM, "", "pip install")
    monkeypatch.setattr(doctor, "list_devices", fail)
    found = doctor.check_devices(DeviceSettings())
    assert [*found] == ["OpenVINO"]
    expect(found["OpenVINO"], PROBLEM, "cannot list its devices")


@pytest.mark.parametrize(("kind", "obstacle"), [("NPU", "npu_obstacle"), ("GPU", "gpu_obstacle")])
def test_an_accelerator_that_is_not_found_is_a_problem_if_it_is_needed(
    check: Check, monkeypatch: pytest.MonkeyPatch, kind: str, obstacle: str
) -> None:
    monkeypatch.setattr(drivers, obstacle, lambda: UNUSABLE)
    expect(check([CPU])[kind], WARNING, "no driver", "install it")
    expect(check([CPU], device="CPU")[kind], WARNING, "no driver", "install it")
    expect(check([CPU], device=kind)[kind], PROBLEM, "no driver", "install it")
    for stage in ("encoder", "decoder"):
        found = check([CPU], **{f"{stage}_device": f"{kind}.1"})
        expect(found[kind], PROBLEM, "no driver", "install it")
        expect(found["Stages"], PROBLEM, kind)


def test_an_npu_whose_driver_has_no_compiler_is_of_no_use(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "npu_compiler_obstacle", lambda: UNUSABLE)
    expect(check(ALL)["NPU"], WARNING, "driver 1688; no driver", "install it")
    expect(check(ALL, device="NPU")["NPU"], PROBLEM, "no driver", "install it")


@pytest.mark.parametrize("system", ["Linux", "Windows"])
def test_an_npu_that_compiles_nothing_is_of_no_use(check: Check, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(doctor, "why_it_cannot_compile", lambda device: "it does not" if device == "NPU" else "")
    found = check(ALL)
    expect(found["NPU"], WARNING, "driver 1688; it does not")
    expect(found["GPU"], OK, "Arc")
    expect(check(ALL, device="NPU")["NPU"], PROBLEM, "it does not")


@pytest.mark.parametrize(("busy_us", "severity"), [(2500, OK), (0, PROBLEM)])
def test_an_npu_is_busy_when_it_is_tried(
    check: Check, monkeypatch: pytest.MonkeyPatch, busy_us: int, severity: Severity
) -> None:
    counts_us = iter([1000, 1000 + busy_us] * 2)
    monkeypatch.setattr(doctor, "npu_busy_us", lambda: next(counts_us))
    monkeypatch.setattr(busy, "npu_busy_us", lambda: next(counts_us))
    found = check([CPU, ALL[2]], device="NPU")["NPU"]
    expect(found, severity, f"busy for {busy_us / 1000} ms")


@pytest.mark.parametrize("system", ["Windows", "Darwin"])
def test_other_systems_are_not_searched_for_drivers(check: Check, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(drivers, "npu_obstacle", lambda: UNUSABLE)
    monkeypatch.setattr(platform, "system", lambda: system)
    for kind in ("NPU", "GPU"):
        found = check([CPU])[kind]
        assert found.severity is OK
        assert ("driver" in found.found) == (system == "Windows")
