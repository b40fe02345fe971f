"""Servers as processes: when they are ready, what they say when they fail, what they cost, and that they are gone."""

import sys
import textwrap

import psutil
import pytest

from tools.benchmarks.processes import Meter, Server, ServerFailure, free_port


def python(code: str, *arguments: str) -> Server:
    return Server("it", [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments], {})


def test_its_log_tells_when_it_is_ready() -> None:
    server = python("import time; print('at http://somewhere/'); time.sleep(600)")
    try:
        assert server.wait_said(r"http://\S+", 60) == "http://somewhere/"
    finally:
        server.stop()


def test_so_does_its_port() -> None:
    port = free_port()
    server = python(
        """
        import socket, sys, time
        listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        time.sleep(600)
        """,
        str(port),
    )
    try:
        server.wait_listening(port, 60)
    finally:
        server.stop()


def test_an_early_end_is_told_with_the_error_that_it_died_of() -> None:
    server = python("import sys; print('going', file=sys.stderr); raise ValueError('no model')")
    with pytest.raises(ServerFailure, match="it ended with 1: ValueError: no model"):
        server.wait_said("ready", 60)
    server.stop()
    server.stop()


def test_a_server_that_is_not_ready_in_time_is_not_waited_for() -> None:
    server = python("import time; print('loading'); time.sleep(600)")
    try:
        server.wait_said("loading", 60)
        with pytest.raises(ServerFailure, match="it was not ready within 0 s: loading"):
            server.wait_listening(free_port(), 0)
    finally:
        server.stop()


def test_no_such_program_is_a_failure() -> None:
    with pytest.raises(ServerFailure, match="it cannot be started"):
        Server("it", ["./no-such-program"], {})


def test_children_are_measured_and_end_with_it() -> None:
    child = "import time; print('used', flush=True); m = bytearray(64 << 20); t = time.process_time\n"
    child += "while t() < 0.5: pass\nprint('done', flush=True); time.sleep(600)"
    server = python("import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])", child)
    try:
        with Meter(server) as meter:
            server.wait_said("done", 60)
            meter._look()
            assert meter.cpu_s() >= 0.4
            assert meter.peak_rss_mb > 64
        processes = server.processes()
        assert len(processes) == 2
    finally:
        server.stop()
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
