"""The C library's allocator, in a process of its own."""

import platform
import subprocess
import sys

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
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_blocks_go_back_to_the_system() -> None:
    assert rss_mb(give_back=True) + 100 < rss_mb(give_back=False)
