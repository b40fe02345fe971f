"""The C library's allocator, in a process of its own."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

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
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_blocks_go_back_to_the_system() -> None:
    assert rss_mb(give_back=True) + 100 < rss_mb(give_back=False)


# Maps a file as OpenVINO does, and reads all of it.
MAP = """
import mmap
import pathlib
import sys
import psutil
from streamer.whisper.device.allocator import give_back_mapped
path = pathlib.Path(sys.argv[1])
with path.open("rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
def read():
    return sum(mapped[i] for i in range(0, len(mapped), 4096))
rss = lambda: psutil.Process().memory_info().rss
total, before = read(), rss()
give_back_mapped([path.parent / "elsewhere"])
assert rss() > before - 2**20
give_back_mapped([path.parent])
print((before - rss()) // 2**20)
assert read() == total
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux lists what is mapped")
def test_pages_of_mapped_files_are_given_back_and_can_be_read_again(tmp_path: Path) -> None:
    (tmp_path / "graph.blob").write_bytes(b"\1" * 40 * 2**20)
    command = [sys.executable, "-c", MAP, str(tmp_path / "graph.blob")]
    given_back = int(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    assert given_back >= 38
