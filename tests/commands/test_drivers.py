"""Machines with an Intel NPU or GPU and something wrong with its driver."""

from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.commands.drivers import Obstacle, gpu_obstacle, npu_compiler_obstacle, npu_obstacle

NPU_PARTS = ("card", "module", "node", "loader", "driver", "compiler")
GPU_PARTS = ("card", "node", "icd")
COMPILERS = (
    "libopenvino_intel_npu_compiler_loader.so",
    "libopenvino_intel_npu_compiler.so",
    "libnpu_driver_compiler.so",
    "libvpux_driver_compiler.so",
)


@pytest.fixture(autouse=True)
def _no_libraries_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")
    return path


def put_card(root: Path, place: str, vendor: str, device: str, pci_class: str) -> None:
    card = root / "sys/bus/pci/devices" / place
    put(card / "vendor", f"{vendor}\n")
    put(card / "device", f"{device}\n")
    put(card / "class", f"{pci_class}\n")


def npu_machine(root: Path, *parts: str) -> Path:
    put_card(root, "0000:00:00.0", "0x8086", "0x7d02", "0x060000")
    for part in parts:
        match part:
            case "card":
                put_card(root, "0000:00:0b.0", "0x8086", "0x7d1d", "0x120000")
            case "module":
                (root / "sys/module/intel_vpu").mkdir(parents=True)
            case "node":
                put(root / "dev/accel/accel0")
            case "loader":
                put(root / "usr/lib/x86_64-linux-gnu/libze_loader.so.1.21.9")
            case "driver":
                put(root / "usr/lib64/libze_intel_npu.so.1")
            case "compiler":
                put(root / "usr/local/lib/libnpu_driver_compiler.so")
    return root


def gpu_machine(root: Path, *parts: str) -> Path:
    for part in parts:
        match part:
            case "card":
                put_card(root, "0000:00:02.0", "0x8086", "0x46a6", "0x030000")
            case "node":
                put(root / "dev/dri/renderD128")
            case "icd":
                put(root / "etc/OpenCL/vendors/intel.icd")
    return root


def allowed(path: Path) -> bool:
    return True


def forbidden(path: Path) -> bool:
    return False


def told(obstacle: Obstacle | None, fact: str, remedy: str) -> None:
    assert obstacle is not None
    assert fact in obstacle.fact
    assert remedy in obstacle.remedy
    assert "\n" not in obstacle.fact + obstacle.remedy


@pytest.mark.parametrize(
    ("parts", "fact", "remedy"),
    [
        (("card",), "8086:7d1d at 0000:00:0b.0), but the kernel module intel_vpu is not loaded", "modprobe intel_vpu"),
        (("card", "module"), "no /dev/accel/accel0", "intel-fw-npu"),
        (("module",), "no /dev/accel/accel0", "intel-fw-npu"),
        (NPU_PARTS[:3], f"no libze_loader.so.1, libze_intel_npu.so.1, {COMPILERS[0]}", "libze1 (level-zero)"),
        (NPU_PARTS[:4], f"no libze_intel_npu.so.1, {COMPILERS[0]}", "intel-level-zero-npu, intel-driver"),
        (NPU_PARTS[:5], f"no {COMPILERS[0]}", "install intel-driver-compiler-npu"),
        (NPU_PARTS, "OpenVINO does not find it", "pip install --upgrade openvino"),
        # Built into the kernel, without parameters to show.
        (("card", *NPU_PARTS[2:]), "OpenVINO does not find it", "pip install --upgrade openvino"),
    ],
)
def test_what_keeps_openvino_from_an_npu(tmp_path: Path, parts: tuple[str, ...], fact: str, remedy: str) -> None:
    told(npu_obstacle(npu_machine(tmp_path, *parts), allowed), fact, remedy)


@pytest.mark.parametrize(
    ("parts", "fact", "remedy"),
    [
        (("card",), "8086:46a6 at 0000:00:02.0), but no /dev/dri/renderD128", "--device /dev/dri"),
        (("card", "node"), "no OpenCL driver", "intel-opencl-icd"),
        (GPU_PARTS, "OpenVINO does not find it", "clinfo"),
    ],
)
def test_what_keeps_openvino_from_a_gpu(tmp_path: Path, parts: tuple[str, ...], fact: str, remedy: str) -> None:
    told(gpu_obstacle(gpu_machine(tmp_path, *parts), allowed), fact, remedy)


@pytest.mark.parametrize(
    ("make", "parts", "look", "node"),
    [
        (npu_machine, NPU_PARTS, npu_obstacle, "/dev/accel/accel0"),
        (gpu_machine, GPU_PARTS, gpu_obstacle, "/dev/dri/renderD128"),
    ],
)
def test_a_device_that_this_user_may_not_use_names_the_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Path],
    parts: tuple[str, ...],
    look: Callable[..., Obstacle | None],
    node: str,
) -> None:
    root = make(tmp_path, *parts)
    monkeypatch.setattr(Path, "group", lambda self: "video")
    told(look(root, forbidden), f"this user may not use {node}", "sudo usermod -aG video $USER; then log out")
    # Without a rule of udev's the node belongs to root alone.
    monkeypatch.setattr(Path, "group", lambda self: "root")
    told(
        look(root, forbidden), f"this user may not use {node}", f"sudo chown root:render {node}; sudo chmod g+rw {node}"
    )

    def unknown(self: Path) -> str:
        raise KeyError(1234)

    monkeypatch.setattr(Path, "group", unknown)
    told(look(root, forbidden), f"this user may not use {node}", "sudo usermod -aG render $USER")


def test_the_older_names_of_the_libraries_count(tmp_path: Path) -> None:
    root = npu_machine(tmp_path, *NPU_PARTS[:4])
    put(root / "lib/libze_intel_vpu.so.1")
    put(root / "lib/libvpux_driver_compiler.so")
    told(npu_obstacle(root, allowed), "OpenVINO does not find it", "latest")


def test_libraries_may_lie_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = npu_machine(tmp_path / "root", *NPU_PARTS[:5])
    put(tmp_path / "own/libnpu_driver_compiler.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path / 'own'}")
    told(npu_obstacle(root, allowed), "OpenVINO does not find it", "latest")


def test_one_usable_node_of_several_is_enough(tmp_path: Path) -> None:
    root = npu_machine(tmp_path, *NPU_PARTS)
    put(root / "dev/accel/accel1")
    told(npu_obstacle(root, lambda path: path.name == "accel1"), "OpenVINO does not find it", "latest")


@pytest.mark.parametrize("look", [npu_obstacle, gpu_obstacle])
def test_a_machine_without_one_has_no_obstacle(tmp_path: Path, look: Callable[..., Obstacle | None]) -> None:
    assert look(tmp_path, allowed) is None
    # Another vendor's accelerator and graphics, one of Intel's bridges, and what is no PCI device.
    put_card(tmp_path, "0000:01:00.0", "0x1002", "0x1502", "0x120000")
    put_card(tmp_path, "0000:02:00.0", "0x10de", "0x2684", "0x030000")
    put_card(tmp_path, "0000:00:00.0", "0x8086", "0x7d02", "0x060000")
    put_card(tmp_path, "0000:00:01.0", "0x8086", "hello", "0x120000")
    (tmp_path / "sys/bus/pci/devices/0000:00:02.0").mkdir()
    assert look(tmp_path, allowed) is None


@pytest.mark.parametrize("name", COMPILERS)
def test_a_drivers_compiler_is_known_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    root = npu_machine(tmp_path, *NPU_PARTS[:5])
    told(npu_compiler_obstacle(root), f"no {COMPILERS[0]}", "install intel-driver-compiler-npu")
    put(root / "usr/lib64" / name)
    assert npu_compiler_obstacle(root) is None
    told(npu_obstacle(root, allowed), "OpenVINO does not find it", "pip install --upgrade openvino")


def test_of_a_driver_at_another_place_nothing_is_said(tmp_path: Path) -> None:
    assert npu_compiler_obstacle(npu_machine(tmp_path, *NPU_PARTS[:4])) is None
