"""`python -m streamer`."""

import subprocess
import sys

import pytest

from tests.waiting import WAIT_S

LEFT_BEHIND = """
import threading, time
from streamer import __main__, cli

def main():
    print("done")
    threading.Thread(target=time.sleep, args=(600.0,), daemon=DAEMON).start()
    return 3

cli.main = main
raise SystemExit(__main__.main())
"""


@pytest.mark.parametrize("daemon", [False, True])
def test_the_program_ends_though_a_thread_is_left_in_a_compiler(daemon: bool) -> None:
    """As after Ctrl-C: graphs are compiled by the threads of a pool, which are no daemons."""
    program = [sys.executable, "-c", LEFT_BEHIND.replace("DAEMON", str(daemon))]
    done = subprocess.run(program, stdout=subprocess.PIPE, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stdout) == (3, b"done\n")
