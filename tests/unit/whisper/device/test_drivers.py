"""Linux machines without an NPU or GPU, or with a usable one, and what is said of devices and drivers."""

import ctypes
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from streamer.whisper.device.drivers import Obstacle, gpu_obstacle, npu_compiler_obstacle, npu_obstacle
from tests.refusals import Refusal, refusals

DRIVER = "libze_intel_npu.so.1"
COMPILERS = (
    *("libopenvino_intel_npu_compiler_loader.so", "libopenvino_intel_npu_compiler.so"),
    *("libnpu_driver_compiler.so", "libvpux_driver_compiler.so"),
)

Find = Callable[[], Obstacle | None]


@contextmanager
def machine(
    root: Path,
    cards: Mapping[str, str] | None = None,
    files: Sequence[str] = (),
    libraries: Sequence[str] = (),
    allowed: Callable[[Path], bool] = lambda path: True,
    group: str = "",
    system: str = "debian",
) -> Iterator[None]:
    """Be on a machine of these PCI devices (by address: vendor and class), empty files and libraries."""

    def load(name: str) -> None:
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")

    def group_of(path: Path) -> str:
        if not group:
            raise KeyError(1234)
        return group

    facts = {f"sys/bus/pci/devices/{card}/{n}": t for card, c in (cards or {}).items() for n, t in named(c)}
    for file, text in {**facts, **dict.fromkeys(files, "")}.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text, encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drivers, "ROOT", root)
        patch.setattr(ctypes, "CDLL", load)
        patch.setattr(drivers, "may_use", allowed)
        patch.setattr(Path, "group", group_of)
        patch.setattr(platform, "freedesktop_os_release", lambda: {"ID": system})
        yield


def named(card: str) -> Iterator[tuple[str, str]]:
    return zip(("vendor", "class"), (f"{part}\n" for part in card.split()), strict=True)


def test_one_usable_node_of_several_is_enough(tmp_path: Path) -> None:
    given: Any = {"cards": {"0000:00:0b.0": "0x8086 0x120000"}, "files": ["dev/accel/accel0", "dev/accel/accel1"]}
    found = []
    usable: list[str] = []
    for usable in (["accel0", "accel1"], ["accel1"], []):
        with machine(tmp_path, allowed=lambda path: path.name in usable, **given):  # noqa: B023 - used in this round
            found.append(npu_obstacle())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("find", [npu_obstacle, gpu_obstacle])
def test_a_machine_without_one_has_no_obstacle(tmp_path: Path, find: Find) -> None:
    # Another vendor's accelerator and graphics, one of Intel's bridges, and what is no PCI device.
    others = {"1": "0x1002 0x120000", "2": "0x10de 0x030000", "3": "0x8086 0x060000", "4": "0x8086 hello"}
    for cards, files in (({}, []), (others, ["sys/bus/pci/devices/5/uevent"])):
        with machine(tmp_path, cards, files):
            assert find() is None


@pytest.mark.parametrize("name", COMPILERS)
def test_a_drivers_compiler_has_several_names(tmp_path: Path, name: str) -> None:
    # A driver in another directory may have its compiler there, too.
    for libraries, is_obstacle in (([], False), ([DRIVER], True), ([DRIVER, name], False)):
        with machine(tmp_path, libraries=libraries):
            assert (npu_compiler_obstacle() is not None) == is_obstacle


def plan(available: Sequence[str], **settings: Any) -> None:  # noqa: ANN401
    plan_stages(DeviceSettings(**settings), available)


def why(device: str, available: Sequence[str], wanted: str, **plan: Any) -> str:  # noqa: ANN401
    candidates = tuple(choose_devices(wanted, available))
    stage = StagePlan("encoder", candidates, {}, wanted, npu_through_cpu=plan.get("through_cpu", False))
    return (until_npu({"encoder": stage})["encoder"] if "until_npu" in plan else stage).why(device, available)


CALLS: dict[str, Callable[..., str | None]] = {
    "plan": plan,
    "why": why,
    "remedy": lambda device, message: remedy_for(device, RuntimeError(message)),
}
OBSTACLES: dict[str, Find] = {"npu": npu_obstacle, "npu_compiler": npu_compiler_obstacle, "gpu": gpu_obstacle}


@refusals("device")
def test_what_is_said_of_a_device(tmp_path: Path, refusal: Refusal) -> None:
    ((call, given),) = refusal.given.items()
    try:
        if call in OBSTACLES:
            allowed = given.pop("allowed", True)
            with machine(tmp_path, allowed=lambda path: allowed, **given):
                obstacle = OBSTACLES[call]()
            said = f"{obstacle.fact}: {obstacle.remedy}" if obstacle else None
        else:
            said = CALLS[call](**given)
    except StreamerError as error:
        refusal.check(type(error).__name__, error.code, str(error))
    else:
        refusal.check("", "", said or "nothing")
