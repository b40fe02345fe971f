"""What is said of devices, their properties and their drivers."""

import ctypes
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamer.errors import StreamerError
from streamer.whisper.device import drivers
from streamer.whisper.device.devices import (
    DeviceSettings,
    StagePlan,
    choose_devices,
    plan_stages,
    remedy_for,
    until_npu,
)
from tests.refusals import Refusal, refusals
from tests.unit.whisper.device.test_drivers import put


def say_why(device: str, available: Sequence[str], wanted: str, **plan: Any) -> str:  # noqa: ANN401
    candidates = tuple(choose_devices(wanted, available))
    stage = StagePlan("encoder", candidates, {}, wanted, npu_through_cpu=plan.get("through_cpu", False))
    return (until_npu({"encoder": stage})["encoder"] if "until_npu" in plan else stage).why(device, available)


def of_machine(
    find: Callable[[], drivers.Obstacle | None],
    *,
    allowed: bool = True,
    group: str = "",
    **machine: Any,  # noqa: ANN401
) -> str:
    """Return what is wrong with a driver on a machine with these cards, files and libraries."""

    def load(name: str) -> None:
        if name not in machine.get("libraries", []):
            raise OSError(f"{name}: cannot open shared object file")

    def group_of(path: Path) -> str:
        if not group:
            raise KeyError(1234)
        return group

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes, "CDLL", load)
        patch.setattr(drivers, "may_use", lambda path: allowed)
        patch.setattr(Path, "group", group_of)
        patch.setattr(platform, "freedesktop_os_release", lambda: {"ID": machine.get("system", "debian")})
        put(drivers.ROOT, machine.get("cards", {}), *machine.get("files", []))
        obstacle = find()
    assert obstacle is not None
    return f"{obstacle.fact}: {obstacle.remedy}"


def plan(available: Sequence[str], **settings: Any) -> None:  # noqa: ANN401
    plan_stages(DeviceSettings(**settings), available)


CALLS: dict[str, Callable[..., str | None]] = {
    "plan": plan,
    "why": say_why,
    "remedy": lambda device, message: remedy_for(device, RuntimeError(message)),
    "npu": lambda **machine: of_machine(drivers.npu_obstacle, **machine),
    "npu_compiler": lambda **machine: of_machine(drivers.npu_compiler_obstacle, **machine),
    "gpu": lambda **machine: of_machine(drivers.gpu_obstacle, **machine),
}


@refusals("device")
def test_what_is_said_of_a_device(tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "ROOT", tmp_path)
    ((call, given),) = refusal.given.items()
    try:
        said = CALLS[call](**given)
    except StreamerError as error:
        refusal.check(type(error).__name__, error.code, str(error))
    else:
        refusal.check("", "", said or "nothing")
