"""Linux machines with an Intel NPU or GPU and something wrong with its driver."""

import ctypes
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.whisper.device import drivers
from streamer.whisper.device.drivers import Obstacle, gpu_obstacle, npu_compiler_obstacle, npu_obstacle

NPU = {"0000:00:0b.0": ("0x8086", "0x120000")}
GPU = {"0000:00:02.0": ("0x8086", "0x030000")}
MODULE, NPU_NODE, GPU_NODE = "sys/module/intel_vpu/uevent", "dev/accel/accel0", "dev/dri/renderD128"
ICD = "etc/OpenCL/vendors/intel.icd"
LOADER, DRIVER, COMPILER = "libze_loader.so.1", "libze_intel_npu.so.1", "libopenvino_intel_npu_compiler_loader.so"
COMPILERS = (COMPILER, "libopenvino_intel_npu_compiler.so", "libnpu_driver_compiler.so", "libvpux_driver_compiler.so")


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The libraries of a machine whose file system is in `tmp_path`, and whose devices this user may use."""
    there: set[str] = set()

    def load(name: str) -> None:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(drivers, "ROOT", tmp_path)
    return there


def put(root: Path, cards: dict[str, tuple[str, str]], *files: str) -> None:
    for address, facts in cards.items():
        for name, text in zip(("vendor", "class"), facts, strict=True):
            put(root, {}, f"sys/bus/pci/devices/{address}/{name}")
            (root / "sys/bus/pci/devices" / address / name).write_text(f"{text}\n", encoding="ascii")
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()


def expect(obstacle: Obstacle | None, fact: str, remedy: str) -> None:
    assert obstacle is not None
    assert fact in obstacle.fact
    assert remedy in obstacle.remedy
    assert "\n" not in obstacle.fact + obstacle.remedy


@pytest.mark.parametrize(
    ("cards", "files", "there", "fact", "remedy"),
    [
        (NPU, (), (), "(0000:00:0b.0), but the kernel module intel_vpu is not loaded", "modprobe intel_vpu"),
        (NPU, (MODULE,), (), "no /dev/accel/accel0", "intel-fw-npu"),
        ({}, (MODULE,), (), "no /dev/accel/accel0", "intel-fw-npu"),
        (NPU, (MODULE, NPU_NODE), (), f"no {LOADER}, {DRIVER}, {COMPILER}", "libze1 (level-zero)"),
        (NPU, (MODULE, NPU_NODE), (LOADER,), f"no {DRIVER}, {COMPILER}", "intel-level-zero-npu, intel-driver"),
        (NPU, (MODULE, NPU_NODE), (LOADER, DRIVER), f"no {COMPILER}", "install intel-driver-compiler-npu"),
        (NPU, (MODULE, NPU_NODE), (LOADER, DRIVER, COMPILER), "does not find it", "pip install --upgrade openvino"),
        # Built into the kernel; and the older names of the libraries.
        (NPU, (NPU_NODE,), (LOADER, "libze_intel_vpu.so.1", COMPILERS[-1]), "does not find it", "latest"),
    ],
)
def test_why_openvino_finds_no_npu(
    tmp_path: Path,
    libraries: set[str],
    cards: dict[str, tuple[str, str]],
    files: tuple[str, ...],
    there: tuple[str, ...],
    fact: str,
    remedy: str,
) -> None:
    put(tmp_path, cards, *files)
    libraries.update(there)
    expect(npu_obstacle(), fact, remedy)


@pytest.mark.parametrize(
    ("files", "fact", "remedy"),
    [
        ((), "(0000:00:02.0), but no /dev/dri/renderD128", "--device /dev/dri"),
        ((GPU_NODE,), "no OpenCL driver", "intel-opencl-icd"),
        ((GPU_NODE, ICD), "OpenVINO does not find it", "clinfo"),
    ],
)
@pytest.mark.usefixtures("libraries")
def test_why_openvino_finds_no_gpu(tmp_path: Path, files: tuple[str, ...], fact: str, remedy: str) -> None:
    put(tmp_path, GPU, *files)
    expect(gpu_obstacle(), fact, remedy)


@pytest.mark.parametrize(("obstacle", "node"), [(npu_obstacle, NPU_NODE), (gpu_obstacle, GPU_NODE)])
@pytest.mark.parametrize(
    ("group", "remedy"),
    [
        ("video", "sudo usermod -aG video $USER; then log out"),
        # Without a rule of udev's the node belongs to root alone.
        ("root", "sudo chown root:render /NODE; sudo chmod g+rw /NODE; sudo usermod -aG render $USER"),
        ("", "sudo usermod -aG render $USER"),
    ],
)
@pytest.mark.usefixtures("libraries")
def test_a_device_that_this_user_may_not_use_names_the_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    obstacle: Callable[[], Obstacle | None],
    node: str,
    group: str,
    remedy: str,
) -> None:
    def group_of(path: Path) -> str:
        if not group:
            raise KeyError(1234)
        return group

    put(tmp_path, {**NPU, **GPU}, MODULE, node)
    monkeypatch.setattr(drivers, "may_use", lambda path: False)
    monkeypatch.setattr(Path, "group", group_of)
    expect(obstacle(), f"this user may not use /{node}", remedy.replace("NODE", node))


def test_one_usable_node_of_several_is_enough(
    tmp_path: Path, libraries: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, NPU, NPU_NODE, "dev/accel/accel1")
    libraries.update((LOADER, DRIVER, COMPILER))
    monkeypatch.setattr(drivers, "may_use", lambda path: path.name == "accel1")
    expect(npu_obstacle(), "OpenVINO does not find it", "latest")


@pytest.mark.parametrize("obstacle", [npu_obstacle, gpu_obstacle])
@pytest.mark.usefixtures("libraries")
def test_a_machine_without_one_has_no_obstacle(tmp_path: Path, obstacle: Callable[[], Obstacle | None]) -> None:
    assert obstacle() is None
    # Another vendor's accelerator and graphics, one of Intel's bridges, and what is no PCI device.
    others = {"1": ("0x1002", "0x120000"), "2": ("0x10de", "0x030000"), "3": ("0x8086", "0x060000")}
    put(tmp_path, {**others, "4": ("0x8086", "hello")}, "sys/bus/pci/devices/5/uevent")
    assert obstacle() is None


@pytest.mark.parametrize("name", COMPILERS)
def test_a_drivers_compiler_has_several_names(libraries: set[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    assert npu_compiler_obstacle() is None  # a driver in another directory may have its compiler there, too
    libraries.add(DRIVER)
    expect(npu_compiler_obstacle(), f"no {COMPILER}", "install intel-driver-compiler-npu")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "fedora"})
    expect(npu_compiler_obstacle(), "Fedora's package intel-npu-driver comes without one", "of the driver's version")
    libraries.add(name)
    assert npu_compiler_obstacle() is None
