"""The C library's allocator, in a process of its own, and files that are mapped."""

import ctypes
import mmap
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamer.whisper.device.allocator import give_back_mapped
from tests.waiting import WAIT_S

linux_only = pytest.mark.skipif(platform.system() != "Linux", reason="only Linux lists what is mapped")

# Frees a large block first, which raises glibc's own threshold above the next ones.
CHURN = """
import sys
import numpy as np
import psutil
from streamer.whisper.device.allocator import give_back_large_blocks
if sys.argv[1] == "yes":
    give_back_large_blocks()
del (grown := [np.ones(3_500_000)])[:]
blocks = [np.ones(200_000) for _ in range(100)]  # 160 MB
kept = np.ones(1000)  # lies behind them in a heap, which cannot shrink then
del blocks
print(psutil.Process().memory_info().rss // 2**20)
"""


def rss_mb(*, give_back: bool) -> int:
    command = [sys.executable, "-c", CHURN, "yes" if give_back else "no"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=3 * WAIT_S).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_blocks_go_back_to_the_system() -> None:
    assert rss_mb(give_back=True) + 100 < rss_mb(give_back=False)


def resident_kb(path: Path) -> int:
    """Return how much of a mapped file is in memory."""
    smaps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    return sum(map(int, re.findall(rf"{re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", smaps)))


@linux_only
def test_pages_of_mapped_files_are_given_back_and_can_be_read_again(tmp_path: Path) -> None:
    """Wherever the file is, as behind the links of the Hub's cache, and however its model is called."""
    path = tmp_path / "graph.blob"
    with path.open("wb") as file:
        file.write(b"\1" * 8 * 2**20)
        os.fsync(file.fileno())
    if subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, check=True).stdout == b"tmpfs\n":
        pytest.skip("files in memory stay there")
    with path.open("rb") as blob, mmap.mmap(blob.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        total = sum(mapped[::4096])
        assert resident_kb(path) == 8 * 1024
        give_back_mapped()
        assert resident_kb(path) < 1024
        assert sum(mapped[::4096]) == total


@linux_only
def test_memory_at_an_address_that_was_used_anew_keeps_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    with mmap.mmap(-1, 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as live:
        live[:] = b"\1" * 2**20
        view = ctypes.c_char.from_buffer(live)
        begin = ctypes.addressof(view)
        del view
        # There was a file a moment ago.
        smaps = f"{begin:x}-{begin + 2**20:x} r--p 0 00:00 1 /x.blob\nRss: 4 kB\nAnonymous:   0 kB\n"
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: smaps)
        give_back_mapped()
        assert live[:] == b"\1" * 2**20
