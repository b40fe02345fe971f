"""Linux machines without an NPU or GPU, or with a usable one; golden/refusals/device.toml has the others."""

import ctypes
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from streamer.whisper.device import drivers
from streamer.whisper.device.drivers import Obstacle, gpu_obstacle, npu_compiler_obstacle, npu_obstacle

DRIVER = "libze_intel_npu.so.1"
COMPILERS = (
    *("libopenvino_intel_npu_compiler_loader.so", "libopenvino_intel_npu_compiler.so"),
    *("libnpu_driver_compiler.so", "libvpux_driver_compiler.so"),
)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The libraries of a machine whose file system is in `tmp_path`, and whose devices this user may use."""
    there: set[str] = set()

    def load(name: str) -> None:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(drivers, "ROOT", tmp_path)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    return there


def put(root: Path, cards: Mapping[str, str], *files: str) -> None:
    """Add PCI devices by their address, each with vendor and class, and empty files."""
    for address, facts in cards.items():
        for name, text in zip(("vendor", "class"), facts.split(), strict=True):
            put(root, {}, f"sys/bus/pci/devices/{address}/{name}")
            (root / "sys/bus/pci/devices" / address / name).write_text(f"{text}\n", encoding="ascii")
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()


def test_one_usable_node_of_several_is_enough(
    tmp_path: Path, libraries: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {"0000:00:0b.0": "0x8086 0x120000"}, "dev/accel/accel0", "dev/accel/accel1")
    found = npu_obstacle()
    monkeypatch.setattr(drivers, "may_use", lambda path: path.name == "accel1")
    assert npu_obstacle() == found
    monkeypatch.setattr(drivers, "may_use", lambda path: False)
    assert npu_obstacle() != found


@pytest.mark.parametrize("obstacle", [npu_obstacle, gpu_obstacle])
@pytest.mark.usefixtures("libraries")
def test_a_machine_without_one_has_no_obstacle(tmp_path: Path, obstacle: Callable[[], Obstacle | None]) -> None:
    assert obstacle() is None
    # Another vendor's accelerator and graphics, one of Intel's bridges, and what is no PCI device.
    others = {"1": "0x1002 0x120000", "2": "0x10de 0x030000", "3": "0x8086 0x060000", "4": "0x8086 hello"}
    put(tmp_path, others, "sys/bus/pci/devices/5/uevent")
    assert obstacle() is None


@pytest.mark.parametrize("name", COMPILERS)
def test_a_drivers_compiler_has_several_names(libraries: set[str], name: str) -> None:
    assert npu_compiler_obstacle() is None  # a driver in another directory may have its compiler there, too
    libraries.add(DRIVER)
    assert npu_compiler_obstacle() is not None
    libraries.add(name)
    assert npu_compiler_obstacle() is None
