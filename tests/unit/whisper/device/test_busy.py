"""What Linux says of its NPUs' busy time, and what follows from it."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamer.whisper.device import drivers
from streamer.whisper.device.busy import busy_checks, npu_busy_us

pytestmark = pytest.mark.skipif(os.name == "nt", reason="symbolic links of Linux")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(drivers, "ROOT", tmp_path)
    return tmp_path


def set_counter(root: Path, i: int, text: str) -> None:
    """Write the busy time of accel0, accel1, ..., whose directories are links to those of PCI devices."""
    device = root / f"sys/devices/pci0000:00/0000:00:0{i}.0"
    node = root / f"sys/class/accel/accel{i}"
    if not node.exists():
        device.mkdir(parents=True)
        (root / f"sys/devices/accel{i}").mkdir()
        (root / f"sys/devices/accel{i}/device").symlink_to(device)
        node.parent.mkdir(parents=True, exist_ok=True)
        node.symlink_to(root / f"sys/devices/accel{i}")
    (device / "npu_busy_time_us").write_text(text, encoding="ascii")


def test_the_busy_time_is_that_of_all_npus(root: Path) -> None:
    assert npu_busy_us() is None
    set_counter(root, 0, "no number\n")
    assert npu_busy_us() is None
    set_counter(root, 1, "1200\n")
    set_counter(root, 2, "34\n")
    assert npu_busy_us() == 1234


@pytest.mark.parametrize(
    ("before", "after", "stages", "passed"),
    [
        ("1000", "3500", ["encoder"], [True]),
        ("1000", "1000", ["encoder", "decoder"], [False]),
        ("1000", "1000", [], []),
    ],
)
def test_an_npu_that_was_to_compute_was_busy(
    root: Path, before: str, after: str, stages: Sequence[str], passed: list[bool]
) -> None:
    set_counter(root, 0, before)
    since_us = npu_busy_us()
    set_counter(root, 0, after)
    checks = list(busy_checks(since_us, stages))
    assert [check.passed for check in checks] == passed
    assert all(check.found == f"{(int(after) - int(before)) / 1000} ms" for check in checks)


def test_a_kernel_that_does_not_count_says_nothing(root: Path) -> None:
    assert list(busy_checks(npu_busy_us(), ["encoder"])) == []
    set_counter(root, 0, "5")
    assert list(busy_checks(None, ["encoder"])) == []
