"""What `streamer doctor` checks of OpenVINO and its devices."""

import platform
import re
from collections.abc import Callable, Sequence

import openvino

from streamer.errors import StreamerError
from streamer.findings import Finding, missing, ok, problem, warning
from streamer.whisper.device import drivers
from streamer.whisper.device.busy import busy_checks, npu_busy_us
from streamer.whisper.device.devices import (
    DeviceInfo,
    DeviceSettings,
    kind_of,
    list_devices,
    plan_stages,
    why_it_cannot_compile,
)

MIN_OPENVINO = (2026, 0)

INSTALL = "pip install --upgrade --force-reinstall openvino"

# What to install if OpenVINO finds no such device on Windows.
_ON_WINDOWS = {
    "NPU": "if the processor has one (Core Ultra), install the Intel NPU driver: Windows Update, or intel.com",
    "GPU": "if there is one of Intel's, install its latest driver: Windows Update, or intel.com",
}


def check_devices(settings: DeviceSettings) -> dict[str, Finding]:
    """Check OpenVINO, the accelerators and the devices of the stages."""
    try:
        devices = list_devices()
    except StreamerError as error:
        return {"OpenVINO": problem(str(error))}
    try:
        plans = plan_stages(settings, [device.name for device in devices])
        stages = ok(", ".join(f"{plan.stage} on {plan.candidates[0]}" for plan in plans.values()))
    except StreamerError as error:
        stages = problem(str(error))
    return {
        "OpenVINO": _check_openvino(openvino.get_version().partition("-")[0], devices),
        "NPU": _check_accelerator("NPU", devices, settings, drivers.npu_obstacle, drivers.npu_compiler_obstacle),
        "GPU": _check_accelerator("GPU", devices, settings, drivers.gpu_obstacle),
        "Stages": stages,
    }


def _check_openvino(version: str, devices: Sequence[DeviceInfo]) -> Finding:
    found = f"{version}, finds {', '.join(device.name for device in devices) or 'no device'}"
    if not devices:
        return problem(found, f"the CPU at least should be there: {INSTALL}")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < MIN_OPENVINO:
        return warning(f"{found}; expected {'.'.join(map(str, MIN_OPENVINO))} or newer", INSTALL)
    return ok(found)


def _check_accelerator(
    kind: str,
    devices: Sequence[DeviceInfo],
    settings: DeviceSettings,
    why_missing: Callable[[], drivers.Obstacle | None],
    why_useless: Callable[[], drivers.Obstacle | None] = lambda: None,
) -> Finding:
    """Check for a kind of device; on Linux also why it is not found, or of no use although it is found."""
    names = [device.name for device in devices if kind_of(device.name) == kind]
    found = "; ".join(device.about for device in devices if device.name in names)
    needed = any(kind_of(name) == kind for name in (settings.device, settings.encoder_device, settings.decoder_device))
    system = platform.system()
    if system != "Linux":
        hint = f"; {_ON_WINDOWS[kind]}" if system == "Windows" else ""
        return _try(names, found, needed=needed) if names else ok(f"OpenVINO finds none{hint}")
    obstacle = why_useless() if found else why_missing()
    if obstacle is None:
        return _try(names, found, needed=needed) if names else ok("this machine has none")
    fact = f"{found}; {obstacle.fact}" if found else obstacle.fact
    return missing(fact, obstacle.remedy, needed=needed)


def _try(names: Sequence[str], found: str, *, needed: bool) -> Finding:
    """Have the devices of a kind compile and compute a small graph; an NPU's busy time shows whether it has."""
    since_us = npu_busy_us()
    reasons = [reason for reason in map(why_it_cannot_compile, names) if reason]
    npus = [name for name in names if kind_of(name) == "NPU"]
    for check in busy_checks(since_us, () if reasons else npus):
        if not check.passed:
            reasons.append("it computed nothing, although a small graph came back: its busy time did not rise")
        found = f"{found}, busy for {check.found} when it was tried"
    return missing(f"{found}; {'; '.join(reasons)}", needed=needed) if reasons else ok(found)
