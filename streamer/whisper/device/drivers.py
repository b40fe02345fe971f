"""Why OpenVINO finds no Intel NPU or GPU on Linux: no kernel module, no device file, no permission, no library.

Names of modules, libraries and packages: https://github.com/intel/linux-npu-driver (docs/overview.md), and
https://docs.openvino.ai, "Configurations for Intel GPU".
"""

import contextlib
import ctypes
import os
import platform
from dataclasses import dataclass
from pathlib import Path

# Directory of the file system's root.
ROOT = Path("/")

_INTEL = "0x8086"

# How PCI's class codes of processing accelerators and of displays begin.
_ACCELERATOR, _DISPLAY = "0x1200", "0x03"

_NPU_RELEASES = "https://github.com/intel/linux-npu-driver/releases"

# What OpenVINO needs to reach an NPU: the package of each library, and the names the library has had, the newest first.
_NPU_LIBRARIES = {
    "libze1 (level-zero)": ("libze_loader.so.1",),
    "intel-level-zero-npu": ("libze_intel_npu.so.1", "libze_intel_vpu.so.1"),
    "intel-driver-compiler-npu": (
        "libopenvino_intel_npu_compiler_loader.so",  # since driver 1.35
        "libopenvino_intel_npu_compiler.so",
        "libnpu_driver_compiler.so",
        "libvpux_driver_compiler.so",
    ),
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps OpenVINO from a device, and what to do about it."""

    fact: str
    remedy: str


def npu_obstacle() -> Obstacle | None:
    """Return why OpenVINO finds no NPU; None if the machine has none."""
    cards = _intel_cards(_ACCELERATOR)
    has_module = (ROOT / "sys/module/intel_vpu").is_dir()
    if not cards and not has_module:
        return None
    npu = f"Intel NPU found ({', '.join(cards) or 'its kernel module is loaded'})"
    nodes = sorted((ROOT / "dev/accel").glob("accel*"))
    if not nodes and not has_module:
        return Obstacle(
            f"{npu}, but the kernel module intel_vpu is not loaded",
            "sudo modprobe intel_vpu; if there is no such module: Linux 6.8 or newer, on Ubuntu with the package"
            " linux-modules-extra of that kernel",
        )
    if not nodes:
        return Obstacle(
            f"{npu}, but no /dev/accel/accel0: its firmware is probably missing",
            f"install intel-fw-npu from {_NPU_RELEASES}, or a newer linux-firmware, and restart; `sudo dmesg | grep"
            " intel_vpu` says more. In a container: start it with --device /dev/accel",
        )
    if not any(map(may_use, nodes)):
        return _forbidden(npu, nodes[0])
    absent = {package: names[0] for package, names in _NPU_LIBRARIES.items() if not _loads(names)}
    if absent:
        return Obstacle(
            f"{npu}, but not its driver's {', '.join(absent.values())}",
            f"install {', '.join(absent)}, see {_NPU_RELEASES}",
        )
    return Obstacle(
        f"{npu} with its driver, but OpenVINO does not detect it",
        f"update its driver ({_NPU_RELEASES}) and OpenVINO (pip install --upgrade openvino), and restart",
    )


def npu_compiler_obstacle() -> Obstacle | None:
    """Return that the driver of an NPU which OpenVINO finds has no compiler, as Fedora packs it; None if it has."""
    _, driver, compiler = _NPU_LIBRARIES.values()
    if not _loads(driver) or _loads(compiler):
        return None
    with contextlib.suppress(OSError):
        if platform.freedesktop_os_release()["ID"] == "fedora":
            return Obstacle(
                "its driver has no compiler, since Fedora's package intel-npu-driver comes without one",
                f"install the compiler of the driver's version from {_NPU_RELEASES}",
            )
    return Obstacle(
        f"its driver has no compiler (no {compiler[0]}), and nothing runs on it without",
        f"install intel-driver-compiler-npu of the driver's version, see {_NPU_RELEASES}",
    )


def gpu_obstacle() -> Obstacle | None:
    """Return why OpenVINO finds no GPU; None if the machine has none of Intel's, which are all that it can use."""
    cards = _intel_cards(_DISPLAY)
    if not cards:
        return None
    gpu = f"Intel GPU found ({', '.join(cards)})"
    nodes = sorted((ROOT / "dev/dri").glob("renderD*"))
    if not nodes:
        return Obstacle(
            f"{gpu}, but /dev/dri/renderD128 is missing: its kernel module (i915 or xe) is not running",
            "use a newer kernel for a new GPU; `sudo dmesg | grep -E 'i915|xe'` says more. In a container: start it"
            " with --device /dev/dri",
        )
    if not any(map(may_use, nodes)):
        return _forbidden(gpu, nodes[0])
    if not any((ROOT / "etc/OpenCL/vendors").glob("*intel*.icd")):
        return Obstacle(
            f"{gpu}, but no OpenCL driver for it in /etc/OpenCL/vendors",
            "install it: apt-get install intel-opencl-icd (Debian, Ubuntu), dnf install intel-compute-runtime (Fedora)",
        )
    return Obstacle(
        f"{gpu} with an OpenCL driver, but OpenVINO does not detect it",
        "update the GPU's driver and OpenVINO (pip install --upgrade openvino); `clinfo` should list it",
    )


def may_use(node: Path) -> bool:
    """Return whether this user may read and write a device's file."""
    return os.access(node, os.R_OK | os.W_OK)


def _forbidden(device: str, node: Path) -> Obstacle:
    shown = "/" + node.relative_to(ROOT).as_posix()
    group = "root"
    with contextlib.suppress(OSError, KeyError, NotImplementedError):  # a number without a name, Windows
        group = node.group()
    # Without a rule of udev's for the node, it belongs to root alone.
    give = f"sudo chown root:render {shown}; sudo chmod g+rw {shown}; " if group == "root" else ""
    group = "render" if group == "root" else group
    return Obstacle(
        f"{device}, but this user may not use {shown}",
        f"{give}sudo usermod -aG {group} $USER; then log out and in again",
    )


def _intel_cards(pci_class: str) -> list[str]:
    """Return the addresses of Intel's PCI devices whose class begins so, such as `0000:00:0b.0`."""
    found = []
    for card in sorted((ROOT / "sys/bus/pci/devices").glob("*")):
        with contextlib.suppress(OSError, ValueError):
            vendor, own_class = ((card / name).read_text(encoding="ascii").strip() for name in ("vendor", "class"))
            if vendor == _INTEL and own_class.startswith(pci_class):
                found.append(card.name)
    return found


def _loads(names: tuple[str, ...]) -> bool:
    """Return whether one of these libraries can be loaded."""
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False
