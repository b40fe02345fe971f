"""What `streamer doctor` checks of OpenVINO and its devices."""

import contextlib
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import openvino

from streamer.errors import StreamerError
from streamer.findings import Finding, missing, ok, problem, warning
from streamer.whisper.device import drivers
from streamer.whisper.device.busy import busy_checks, npu_busy_us
from streamer.whisper.device.devices import (
    DeviceInfo,
    DeviceSettings,
    device_property,
    kind_of,
    list_devices,
    plan_stages,
    the_core,
    why_it_cannot_compile,
)
from streamer.whisper.device.verdicts import kept_verdicts

MIN_OPENVINO = (2026, 0)

# Properties of devices that a report shows.
_REPORTED = {
    "NPU": ("DEVICE_ARCHITECTURE", "NPU_COMPILER_VERSION", "NPU_MAX_TILES", "NPU_DEVICE_TOTAL_MEM_SIZE"),
    "GPU": ("DEVICE_ARCHITECTURE",),
    "CPU": ("OPTIMIZATION_CAPABILITIES",),
}

# Of models that a report names; another's name may be a person's.
_PUBLISHERS = ("openai/", "distil-whisper/", "streamer/")

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


def report(cache: Path) -> dict[str, Finding]:
    """Return what the project needs of a machine with an accelerator, without paths: devices, drivers, verdicts.

    cache : the directory of compiled graphs
    """
    system = platform.system()
    with contextlib.suppress(OSError):
        system = platform.freedesktop_os_release().get("PRETTY_NAME", system)
    found = {"System": ok(f"{system}, kernel {platform.release()}"), "OpenVINO": ok(openvino.get_version())}
    for device in list_devices():
        facts = {name: device_property(the_core(), device.name, name) for name in _REPORTED[kind_of(device.name)]}
        reason = why_it_cannot_compile(device.name)
        shown = [device.about, *(f"{name} {value}" for name, value in facts.items() if value), *filter(None, [reason])]
        found[device.name] = ok(", ".join(shown))
    for i, verdict in enumerate(kept_verdicts(cache), 1):
        model = verdict.model if verdict.model.startswith(_PUBLISHERS) else "a model"
        where = f"{verdict.stage} of {model} on {verdict.device}, OpenVINO {verdict.openvino}"
        found[f"Verdict {i}"] = ok(f"{where}: compiled in {verdict.compile_s:g} s, {verdict.problem or 'right'}")
    if "Verdict 1" not in found:
        found["Verdicts"] = ok("none: run `streamer models verify base --device NPU`, and then this again")
    return found
