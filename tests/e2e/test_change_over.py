"""A daemon that computes on the CPU until its model is compiled for the NPU."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamer.whisper.model import WhisperModel
from tests.daemon import CACHE_VARIABLE, environment
from tests.e2e.test_failures import daemon_at_work, healthz
from tests.unit.whisper.stand_in_npu import Compiler, install
from tests.unit.whisper.support import shallow
from tests.waiting import WAIT_S, wait_until


async def test_healthz_says_on_which_device_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    install(monkeypatch, compiler)
    model = str(shallow())
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    watched: list[object] = []  # it would run graphs in the middle of other tests
    monkeypatch.setattr(WhisperModel, "watch", lambda model, before: watched.append(before))
    async with daemon_at_work("none", model) as (_, port):
        _, health = await asyncio.to_thread(healthz, port)
        assert {*health["device"].values()} == {"CPU"}
        compiler.go_on()
        await asyncio.to_thread(wait_until, lambda: {*healthz(port)[1]["device"].values()} == {"NPU"})
    assert len(watched) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a process without a console cannot be interrupted there")
def test_it_ends_at_once_while_it_compiles(tmp_path: Path) -> None:
    program = f"""import sys, time
from streamer.__main__ import main
from streamer.whisper.device import devices
from tests.unit.whisper.stand_in_npu import StandInCore
devices._cores.append(StandInCore(lambda model: time.sleep({10 * WAIT_S})))
sys.exit(main())"""
    command = [sys.executable, "-c", program, "run", "--port", "0", "--input", "none"]
    environ = environment({CACHE_VARIABLE: str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)})
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ) as daemon:
        assert daemon.stderr is not None
        assert any(b"listening on" in line for line in daemon.stderr)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(WAIT_S) == 0
    assert not list(tmp_path.glob("NPU-*/*.blob"))
    assert list(tmp_path.glob("CPU-*/*.blob"))
