"""What Linux tells of an Intel NPU or GPU: is it there, does its driver run, may this user have it.

Names of modules, libraries and packages: https://github.com/intel/linux-npu-driver (docs/overview.md), and
https://docs.openvino.ai, "Configurations for Intel GPU".
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_INTEL = 0x8086

# The first and second byte of PCI's class code.
_PROCESSING_ACCELERATOR = 0x1200
_DISPLAY = 0x03

_NPU_RELEASES = "https://github.com/intel/linux-npu-driver/releases"

# What OpenVINO needs to reach an NPU: library, by the names it has had, the newest first, and its package.
_NPU_LOADER = (("libze_loader.so.1",), "libze1 (level-zero)")
_NPU_DRIVER = (("libze_intel_npu.so.1", "libze_intel_vpu.so.1"), "intel-level-zero-npu")
_NPU_COMPILER = (
    (
        "libopenvino_intel_npu_compiler_loader.so",  # since driver 1.35
        "libopenvino_intel_npu_compiler.so",
        "libnpu_driver_compiler.so",
        "libvpux_driver_compiler.so",
    ),
    "intel-driver-compiler-npu",
)
_NPU_LIBRARIES = (_NPU_LOADER, _NPU_DRIVER, _NPU_COMPILER)

_LIBRARY_FOLDERS = (
    "lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "usr/lib",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/local/lib",
    "usr/local/lib64",
    "usr/local/lib/x86_64-linux-gnu",
    "run/opengl-driver/lib",  # NixOS
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps OpenVINO from a device, and what to do about it."""

    fact: str
    remedy: str


def may_read_and_write(path: Path) -> bool:
    """Whether this user may use a device's file."""
    return os.access(path, os.R_OK | os.W_OK)


def npu_obstacle(root: Path, may_use: Callable[[Path], bool]) -> Obstacle | None:
    """Say why OpenVINO finds no NPU; None where the machine has none.

    root : where the file system begins
    may_use : whether this user may read and write a file
    """
    cards = _intel_cards(root, lambda pci_class: pci_class >> 8 == _PROCESSING_ACCELERATOR)
    has_module = (root / "sys/module/intel_vpu").is_dir()
    if not cards and not has_module:
        return None
    npu = f"there is an Intel NPU ({', '.join(cards) or 'its kernel module is loaded'})"
    nodes = _found(root / "dev/accel", "accel*")
    if not nodes and not has_module:
        return Obstacle(
            f"{npu}, but the kernel module intel_vpu is not loaded",
            "sudo modprobe intel_vpu; where there is no such module: Linux 6.8 or newer, on Ubuntu with the package"
            " linux-modules-extra of that kernel",
        )
    if not nodes:
        return Obstacle(
            f"{npu} and its kernel module, but no /dev/accel/accel0: most often its firmware is missing",
            f"install intel-fw-npu from {_NPU_RELEASES}, or a newer linux-firmware, and restart; `sudo dmesg | grep"
            " intel_vpu` tells more. In a container: start it with --device /dev/accel",
        )
    if not any(map(may_use, nodes)):
        return _forbidden(npu, nodes[0], root)
    missing = [(names[0], package) for names, package in _NPU_LIBRARIES if not _has_library(root, names)]
    if missing:
        return Obstacle(
            f"{npu} that this user may use, but no {', '.join(name for name, _ in missing)}",
            f"install {', '.join(package for _, package in missing)}, see {_NPU_RELEASES}",
        )
    return Obstacle(
        f"{npu} with driver and libraries, but OpenVINO does not find it",
        f"bring driver ({_NPU_RELEASES}) and OpenVINO (pip install --upgrade openvino) to their latest, and restart",
    )


def npu_compiler_obstacle(root: Path) -> Obstacle | None:
    """Say that the driver of an NPU which OpenVINO finds has no compiler, as Fedora packs it; None where it may have.

    root : where the file system begins
    """
    (names, package), (driver, _) = _NPU_COMPILER, _NPU_DRIVER
    # A driver at another place may have its compiler there, too.
    if not _has_library(root, driver) or _has_library(root, names):
        return None
    return Obstacle(
        f"its driver has no compiler (no {names[0]}), and nothing runs on it without",
        f"install {package} of the driver's version, see {_NPU_RELEASES}",
    )


def gpu_obstacle(root: Path, may_use: Callable[[Path], bool]) -> Obstacle | None:
    """Say why OpenVINO finds no GPU; None where the machine has none of Intel's, which are all that it can use.

    root : where the file system begins
    may_use : whether this user may read and write a file
    """
    cards = _intel_cards(root, lambda pci_class: pci_class >> 16 == _DISPLAY)
    if not cards:
        return None
    gpu = f"there is an Intel GPU ({', '.join(cards)})"
    nodes = _found(root / "dev/dri", "renderD*")
    if not nodes:
        return Obstacle(
            f"{gpu}, but no /dev/dri/renderD128: its kernel module (i915 or xe) does not run",
            "use a newer kernel for a new GPU; `sudo dmesg | grep -E 'i915|xe'` tells more. In a container: start it"
            " with --device /dev/dri",
        )
    if not any(map(may_use, nodes)):
        return _forbidden(gpu, nodes[0], root)
    if not _found(root / "etc/OpenCL/vendors", "*intel*.icd"):
        return Obstacle(
            f"{gpu} that this user may use, but no OpenCL driver for it in /etc/OpenCL/vendors",
            "install it: apt-get install intel-opencl-icd (Debian, Ubuntu), dnf install intel-compute-runtime (Fedora)",
        )
    return Obstacle(
        f"{gpu} with an OpenCL driver, but OpenVINO does not find it",
        "bring the GPU's driver and OpenVINO (pip install --upgrade openvino) to their latest; `clinfo` should list it",
    )


def _forbidden(device: str, node: Path, root: Path) -> Obstacle:
    shown = "/" + node.relative_to(root).as_posix()
    group = "root"
    with contextlib.suppress(OSError, KeyError, NotImplementedError):  # a number without a name, Windows
        group = node.group()
    # Where udev has no rule for the node, being in a group is of no use yet.
    give = f"sudo chown root:render {shown}; sudo chmod g+rw {shown}; " if group == "root" else ""
    group = "render" if group == "root" else group
    return Obstacle(
        f"{device}, but this user may not use {shown}",
        f"{give}sudo usermod -aG {group} $USER; then log out and in again",
    )


def _intel_cards(root: Path, is_wanted: Callable[[int], bool]) -> list[str]:
    """Return Intel's PCI devices of a class: numbers and place, such as `8086:7d1d at 0000:00:0b.0`."""
    found = []
    for card in _found(root / "sys/bus/pci/devices", "*"):
        try:
            vendor, device, pci_class = (
                int((card / name).read_text(encoding="ascii"), 16) for name in ("vendor", "device", "class")
            )
        except (OSError, ValueError):
            continue
        if vendor == _INTEL and is_wanted(pci_class):
            found.append(f"{vendor:04x}:{device:04x} at {card.name}")
    return found


def _has_library(root: Path, names: Sequence[str]) -> bool:
    folders = [root / folder for folder in _LIBRARY_FOLDERS]
    folders += [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return any(_found(folder, f"{name}*") for folder in folders for name in names)


def _found(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []
