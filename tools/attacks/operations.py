"""Attacks on the process itself: signals, kills, its port, its output. Most start daemons of their own."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.attacks.conversations import flood, open_groups
from tools.attacks.table import run_steps, step
from tools.attacks.target import ROOT, Daemon, Target
from tools.attacks.wire import Broken, expect

STOP_S = 15.0  # after SIGTERM the daemon is gone, whatever is open

Groups = Sequence[Mapping[str, Any]]


@contextlib.contextmanager
def _started(settings: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> Iterator[Daemon]:
    daemon = Daemon(0, settings=settings or {}, arguments=(*arguments, "--input", "none"))
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


@step
def stopped(
    _: None,
    signals: Sequence[str],
    *,
    groups: Groups,
    within_s: float,
    settings: Mapping[str, str] | None = None,
    any_code: bool = False,
) -> str:
    """Send signals to a daemon with connections in the middle of everything; it ends in time."""
    with _started(settings) as daemon:
        daemon.serve_honest()
        lines = open_groups(daemon, groups)
        flood(lines, 0.3)
        for name in signals:
            begin = time.monotonic()
            daemon.signal(name)
            time.sleep(0.3 if len(signals) > 1 else 0.0)
        code = daemon.wait(STOP_S)
        took_s = time.monotonic() - begin
        for line in lines:
            line.wire.close()
        expect(any_code or code == 0, f"exit code {code}: {daemon.last_words()}")
        expect(any_code or "Traceback" not in daemon.said(), "a traceback in the log")
        expect(took_s < within_s, f"it took {took_s:.1f} s")
        return f"exit code {code} after {took_s:.1f} s"


@step
def signals(daemon: Daemon, names: Sequence[str], *, times: int) -> str:
    """Send signals that must not end the daemon."""
    for name in [*names] * times:
        daemon.signal(name)
        time.sleep(0.05)
    time.sleep(0.5)
    expect(daemon.alive, f"it ended: {daemon.last_words()}")
    return f"{len(names) * times} signals"


@step
def killed(_: None, attacks: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Kill a daemon in the middle of each attack; then another starts and serves."""
    chance = random.Random(14)
    for steps in attacks:
        with _started() as daemon:

            def attack(steps: Sequence[Mapping[str, Any]] = steps, daemon: Daemon = daemon) -> None:
                with contextlib.suppress(Exception):  # the daemon dies in the middle of it
                    run_steps(daemon, steps)

            thread = threading.Thread(target=attack, daemon=True)
            thread.start()
            time.sleep(chance.uniform(0.1, 1.0))
            daemon.kill()
            thread.join(15)
    with _started() as daemon:
        daemon.serve_honest()
    return f"{len(attacks)} times"


@step
def same_port(_: None, groups: Groups) -> str:
    """Kill a daemon under its connections, and start another on its port at once."""
    with _started() as daemon:
        port = daemon.port
        lines = open_groups(daemon, groups)
    with _started(arguments=("--port", str(port))) as again:
        expect(again.port == port, f"it listens on {again.port}")
    for line in lines:
        line.wire.close()
    return "starts"


@step
def unread_stderr(_: None, requests: Sequence[str], *, times: int) -> str:
    """Have a daemon log more than a pipe holds that is not read; it serves and stops."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        target = Target(int(probe.getsockname()[1]))
    keep = {name: value for name, value in os.environ.items() if not name.startswith("STREAMER_")}
    keep |= {name: value for name, value in os.environ.items() if name == "STREAMER_CACHE_DIR"}
    command = [sys.executable, "-m", "streamer", "run", "--port", str(target.port), "--input", "none", "--debug"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=keep, cwd=ROOT
    )
    assert process.stderr is not None
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(Broken):
                if target.ask("/healthz")[0] == 200:
                    break
            time.sleep(0.1)
        for _round in range(times):
            run_steps(target, [{"requests": requests, "times": 50}, {"ask": "/healthz"}])
        target.serve_honest()
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise Broken("SIGTERM does not end it") from None
        return f"ended after {time.monotonic() - begin:.1f} s"
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


@step
def odd_file_name(_: None, name: str) -> str:
    """Start a daemon with the name of an input that does not exist."""
    command = [sys.executable, "-m", "streamer", "run", "--port", "0", "--input", name]
    done = subprocess.run(command, capture_output=True, timeout=60, cwd=ROOT, check=False)
    text = done.stderr.decode("utf-8", "replace")
    expect(
        all(line.isprintable() for line in text.splitlines()) and text.count("\n") <= 3, f"it prints {text[-200:]!r}"
    )
    return f"exit code {done.returncode}"
