"""Steps that need more than a conversation: sessions that are taken over, TLS, signals, kills, a pipe."""

import contextlib
import json
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.attacks.conversations import STREAM, open_groups, read_events
from tools.attacks.table import run_steps, step
from tools.attacks.target import MAX_STREAMS, Daemon, Target, any_certificate, spoken_bytes
from tools.attacks.wire import OPCODES, TEXT, Broken, Wire, expect, frame

STOP_S = 15.0  # after SIGTERM the daemon is gone, whatever is open

Steps = Sequence[Mapping[str, Any]]


def _message(**fields: object) -> bytes:
    return frame(TEXT, json.dumps(fields).encode("ascii"))


def _open(target: Target, source: int) -> tuple[Wire, str]:
    wire = target.upgrade(STREAM, target.open(source))
    wire.send(_message(type="start"))
    events, code = read_events(wire, 10.0, "ready")
    expect(bool(events) and events[-1]["type"] == "ready", f"a stream is refused: {events} {code}")
    return wire, str(events[-1]["session"])


def _finish(wire: Wire) -> None:
    wire.send(_message(type="finish"))
    events, code = read_events(wire, 10.0)
    expect(bool(events) and events[-1]["type"] == "end", f"the stream ends with {events[-1:]} {code}")


@step
def stream_crowd(target: Target, n: int) -> str:
    """Open more streams with speech than there are slots."""
    wires = [target.upgrade(STREAM, target.open(2 + i % 2)) for i in range(n)]
    for wire in wires:
        wire.send(_message(type="start") + frame(OPCODES["binary"], spoken_bytes(0.6, 1.6)))
    found = [events[-1] for events, _ in (read_events(wire, 10.0, "ready") for wire in wires) if events]
    n_ready = sum(event["type"] == "ready" for event in found)
    codes = {event["code"] for event in found if event["type"] == "error"}
    expect(0 < n_ready <= MAX_STREAMS, f"{n_ready} are let in, there are {MAX_STREAMS} slots")
    expect(codes == {"busy"}, f"the others get {codes}")
    return f"{n_ready} let in, the others busy"


@step
def resume_guesses(target: Target, most: int, *, seconds: float) -> str:
    """Guess the names of sessions while an honest stream is open."""
    honest, _ = _open(target, 1)
    end = time.monotonic() + seconds
    for n in range(most):
        with contextlib.suppress(Broken), target.upgrade(STREAM, target.open(2 + n % 8, timeout_s=3.0)) as wire:
            wire.send(_message(type="resume", session=secrets.token_urlsafe(24), after=0))
            events, _ = read_events(wire, 3.0, "error")
            assert not events or events[0]["type"] == "error", f"a guess gets {events[:1]}"
        if time.monotonic() > end:
            break
    _finish(honest)
    return f"{n + 1} guesses"


@step
def resume(target: Target, n: int, *, after: int, receive_buffer: int = 0, leave: bool = False) -> str:
    """Take one stream over, again and again; the older connections `leave`, or the server closes them."""
    wire, session = _open(target, 2)
    older = []
    for i in range(n):
        older.append(wire)
        wire = target.upgrade(STREAM, target.open(2 + i % 2, receive_buffer))
        wire.send(_message(type="resume", session=session, after=after))
        if leave:
            older[-1].reset() if i % 3 else older[-1].sock.close()
    if leave:
        events, code = read_events(wire, 10.0, "resumed")
        expect(bool(events) and events[-1]["type"] == "resumed", f"the last gets {events} {code}")
        _finish(wire)
        return f"{n} times"
    n_open = sum(read_events(wire, 4.0, "")[1] is None for wire in older)
    expect(n_open == 0, f"{n_open} older connections stay open")
    return f"{n} closed"


@step
def tls_old(target: Daemon, names: Sequence[str]) -> str:
    """Offer old versions of TLS and weak ciphers."""
    for version in (ssl.TLSVersion[name] for name in names):
        context = any_certificate()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
        with target.open() as wire, contextlib.suppress(OSError):
            context.wrap_socket(wire.sock)
            raise Broken(f"{version.name} is accepted")
    return "refused"


@step
def tls_vanish(target: Daemon, n: int) -> str:
    """Vanish in the middle of the handshake."""
    greeting = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        any_certificate().wrap_bio(ssl.MemoryBIO(), greeting, server_hostname="localhost").do_handshake()
    data = greeting.read()
    for i in range(n):
        wire = target.open(2 + i % 20)
        wire.send(data)
        if i % 3 == 0:
            wire.receive(1.0)
        wire.reset()
    return f"{n} handshakes"


@contextlib.contextmanager
def _started(port: int = 0, **fields: Any) -> Iterator[Daemon]:  # noqa: ANN401 - fields of Daemon
    daemon = Daemon(port, **fields)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


@step
def daemon(_: None, fields: Mapping[str, Any], *, do: Steps) -> str:
    """Start a daemon, have it serve an honest client, and run steps against it."""
    with socket.socket() as probe:  # a port that is free; a daemon whose log is not read cannot report its own
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with _started(port if fields.get("unread") else 0, **fields) as started:
        started.serve_honest()
        return run_steps(started, do)


@step
def signals(
    daemon: Daemon,
    names: Sequence[str],
    *,
    times: int = 1,
    pause_s: float = 0.05,
    ends_s: float = 0.0,
    codes: Sequence[int] = (0,),
) -> str:
    """Send signals; the daemon runs on, or with `ends_s` ends in that time after the last one."""
    for name in [*names] * times:
        time.sleep(pause_s)
        begin = time.monotonic()
        daemon.signal(name)
    if not ends_s:
        time.sleep(0.5)
        expect(daemon.alive, f"it ended: {daemon.last_words()}")
        return f"{len(names) * times} signals"
    found, took_s = daemon.wait(STOP_S), time.monotonic() - begin
    expect(found in codes and "Traceback" not in daemon.said(), f"exit code {found}: {daemon.last_words()}")
    expect(took_s < ends_s, f"it took {took_s:.1f} s")
    return f"exit code {found} after {took_s:.1f} s"


@step
def killed(_: None, attacks: Sequence[Steps]) -> str:
    """Kill a daemon in the middle of each attack; then another starts and serves."""

    def attack(target: Daemon, steps: Steps) -> None:
        with contextlib.suppress(Exception):  # the daemon dies in the middle of it
            run_steps(target, steps)

    chance = random.Random(14)
    for steps in attacks:
        with _started() as dying:
            thread = threading.Thread(target=attack, args=(dying, steps), daemon=True)
            thread.start()
            time.sleep(chance.uniform(0.1, 1.0))
            dying.kill()
            thread.join(15)
    with _started() as next_one:
        next_one.serve_honest()
    return f"{len(attacks)} times"


@step
def same_port(_: None, groups: Steps) -> str:
    """Kill a daemon under its connections, and start another on its port at once."""
    with _started() as first:
        wires = open_groups(first, groups)
    with _started(first.port) as again:
        expect(again.port == first.port, f"it listens on {again.port}")
    return f"starts after {len(wires)} connections"


@step
def odd_file_name(_: None, name: str) -> str:
    """Start a daemon with the name of an input that does not exist."""
    failing = Daemon(0, arguments=("--input", name))
    with contextlib.suppress(Broken):
        failing.start()
    said, code = failing.said(), failing.wait(STOP_S)
    failing.stop()
    expect(code != 0 and all(line.isprintable() for line in said.splitlines()), f"it prints {said[-200:]!r}")
    expect(said.count("\n") <= 3, f"it prints {said[-200:]!r}")
    return f"exit code {code}"
