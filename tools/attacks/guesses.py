"""Attacks on streams, tokens and TLS that need what the server answered, or a library, to go on."""

import contextlib
import json
import secrets
import ssl
import time
from collections.abc import Sequence

from tools.attacks.conversations import STREAM, flood, notation, open_groups, read_events
from tools.attacks.table import step
from tools.attacks.target import MAX_STREAMS, RESUME_S, Daemon, Target, any_certificate
from tools.attacks.wire import TEXT, Broken, Wire, exchange, expect, frame

START = frame(TEXT, b'{"type":"start"}')
FINISH = frame(TEXT, b'{"type":"finish"}')


def _open(target: Target, source: int = 2) -> tuple[Wire, str]:
    """Open a stream and return it with the name of its session. Raises Broken if it is refused."""
    wire = target.upgrade(STREAM, source)
    wire.send(START)
    events, code = read_events(wire, 10.0, "ready")
    expect(bool(events) and events[-1]["type"] == "ready", f"a stream is refused: {events} {code}")
    return wire, str(events[-1]["session"])


def _resume(session: str, after: int) -> bytes:
    return frame(TEXT, json.dumps({"type": "resume", "session": session, "after": after}).encode("ascii"))


def _finish(wire: Wire) -> None:
    wire.send(FINISH)
    events, code = read_events(wire, 10.0)
    wire.close()
    expect(bool(events) and events[-1]["type"] == "end", f"the stream ends with {events[-1:]} {code}")


@step
def stream_crowd(target: Target, n: int) -> str:
    """Open more streams with speech than there are slots."""
    speech = notation(target).frames(["binary: <speech 0.6 1.6>"])
    wires = [target.upgrade(STREAM, 2 + i % 2) for i in range(n)]
    for wire in wires:
        wire.send(START + speech)
    first = [events for events, _ in (read_events(wire, 10.0, "ready") for wire in wires)]
    for wire in wires:
        wire.reset()
    n_ready = sum(any(event["type"] == "ready" for event in events) for events in first)
    codes = {str(events[0].get("code")) for events in first if events and events[0]["type"] == "error"}
    expect(0 < n_ready <= MAX_STREAMS, f"{n_ready} are let in, there are {MAX_STREAMS} slots")
    expect(codes == {"busy"}, f"the others get {codes}")
    return f"{n_ready} let in, the others busy"


@step
def vanish(target: Daemon, rate: int) -> str:
    """Send a recording as fast as possible over 8 streams, and vanish while the server holds them back."""
    start = f'text: {{"type":"start","sample_rate":{rate}}}'
    group = {"n": 8, "path": STREAM, "start": [start], "again": ["binary: <speech 0 16.384>"], "may_fail": True}
    lines = open_groups(target, [{**group, "addresses": 4}])
    served = [line for line in lines if "ready" in {e["type"] for e in read_events(line.wire, 10.0, "ready")[0]}]
    expect(bool(served), "no stream is let in")  # as many as the machine can transcribe in real time
    flood(served, 4.0)
    for line in lines:
        line.wire.reset()
    begin = time.monotonic()
    while n := target.n_sessions():
        expect(time.monotonic() - begin < RESUME_S + 12, f"{n} sessions are served after their clients vanished")
        time.sleep(0.3)
    n_bytes = sum(line.sent for line in served)
    return f"{len(served)} clients, {n_bytes >> 20} MB; sessions gone after {time.monotonic() - begin:.1f} s"


@step
def resume_guesses(target: Target, most: int, *, seconds: float) -> str:
    """Guess the names of sessions while an honest stream is open."""
    honest, _ = _open(target, 1)
    begin = time.monotonic()
    n = 0
    while n < most and time.monotonic() - begin < seconds:
        n += 1
        try:
            wire = target.upgrade(STREAM, 2 + n % 8, timeout_s=3.0)
        except Broken:  # refused, after that many
            continue
        wire.send(_resume(secrets.token_urlsafe(24), 0))
        events, _ = read_events(wire, 3.0, "error")
        wire.reset()
        expect(not events or events[0]["type"] == "error", f"a guess gets {events[:1]}")
    _finish(honest)
    return f"{n} guesses"


@step
def resume_ping_pong(target: Target, n: int) -> str:
    """Have two connections take one stream from each other."""
    wire, session = _open(target, 2)
    for i in range(n):
        earlier, wire = wire, target.upgrade(STREAM, 2 + i % 2)
        wire.send(_resume(session, 1))
        earlier.reset() if i % 3 else earlier.close()
    events, code = read_events(wire, 10.0, "resumed")
    expect(bool(events) and events[-1]["type"] == "resumed", f"the last gets {events} {code}")
    _finish(wire)
    return str(n)


@step
def resume_crowd(target: Target, n: int) -> str:
    """Resume one stream over many connections, none of which reads."""
    first, session = _open(target, 2)
    wires = [first]
    for i in range(n):
        wires.append(target.upgrade(STREAM, 2 + i % 2, receive_buffer=4096))
        wires[-1].send(_resume(session, 0))
    time.sleep(1.0)
    n_open = sum(wire.close_code(3.0) is None for wire in wires[:-1])
    for wire in wires:
        wire.reset()
    expect(n_open == 0, f"{n_open} older connections stay open")
    return f"{n} closed"


@step
def token_guesses(target: Daemon, heads: Sequence[str], *, seconds: float, most_a_second: float) -> str:
    """Guess the token from one address, 20 guesses at once."""
    begin = time.monotonic()
    logged = target.look().log_bytes
    n = {401: 0, 429: 0, 503: 0}
    while (took_s := time.monotonic() - begin) < seconds:
        guess = secrets.token_urlsafe(24)
        wanted = [head.replace("<guess>", guess) for head in heads]
        wires = [target.open(9) for _ in range(20)]
        found = exchange(wires, notation(target).requests([wanted[i % len(wanted)] for i in range(20)]), 5.0, 0.05)
        for wire, answer in zip(wires, found, strict=True):
            wire.close()
            for status in answer.statuses:
                expect(status in n, f"a guess gets {status}")
                n[status] += 1
    rate = (n[401] + n[429]) / took_s
    said = target.said(logged)
    expect(rate < most_a_second, f"{rate:.0f} guesses a second are answered, {n[429]} times 429")
    expect(target.ask("/metrics", 9)[0] == 200, "the right token is not accepted from the guesses' address")
    expect("token" in said, "the log does not mention the guesses")
    expect(guess not in said, "the log holds a guess")
    return f"{n[401]} times 401, {n[429]} times 429"


@step
def tls_old(target: Daemon, names: Sequence[str]) -> str:
    """Offer old versions of TLS and weak ciphers."""
    for version in (ssl.TLSVersion[name] for name in names):
        context = any_certificate()
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
        with target.open(2) as wire, contextlib.suppress(OSError):
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
    return str(n)
