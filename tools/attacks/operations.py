"""Attacks on tokens, TLS, descriptors and the process itself."""

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tools.attacks import requests, sockets, streams
from tools.attacks.table import attack
from tools.attacks.target import HEADER_S, MAX_PER_ADDRESS, ROOT, TOKEN, Daemon, Target
from tools.attacks.wire import KEY, PING, UPGRADE, Broken, Wire, exchange, expect, frame

STOP_S = 15.0  # after SIGTERM the daemon is gone, whatever is open

# Tokens.


@attack(
    "guesses of the token from one address, for 4 s, by header, address and WebSocket",
    "slowed with 429, told in the log; the right token is served",
    kind="token",
    log_bytes=40_000,
)
def token_guesses(target: Daemon) -> str:
    begin = time.monotonic()
    n = {401: 0, 429: 0}
    logged = target.look().log_bytes
    while (took_s := time.monotonic() - begin) < 4.0:
        wires = [target.open(9) for _ in range(20)]
        guess = secrets.token_urlsafe(24)
        heads = [
            f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {guess}\r\n\r\n",
            f"GET /v1/captions?token={guess} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
            f"GET /v1/stream?token={guess} HTTP/1.1\r\nHost: 127.0.0.1\r\n{UPGRADE}{KEY}\r\n",
        ]
        found = exchange(wires, [heads[i % 3].encode() for i in range(20)], 5.0, 0.05)
        for wire, answer in zip(wires, found, strict=True):
            wire.close()
            for status in answer.statuses:
                expect(status in n or status == 503, f"a guess gets {status}")
                n[status] = n.get(status, 0) + 1
    said = target.said(logged)
    rate = (n[401] + n[429]) / took_s
    expect(rate < 40, f"{rate:.0f} guesses a second are answered, {n[429]} times 429")
    expect(target.ask("/metrics", 9)[0] == 200, "the right token is not served at the guesses' address")
    expect("token" in said, "the log says nothing of it")
    expect(TOKEN not in said and guess not in said, "the log holds a token")
    return f"{n[401]} times 401, {n[429]} times 429"


@attack("tokens of odd characters, of 60 kB, of other schemes", "401 or 4xx", kind="token")
def odd_tokens(target: Daemon) -> str:
    values = (
        "Bearer",
        "Bearer ",
        "bearer \xff",
        "Basic " + "A" * 100,
        "Bearer " + "t" * 60_000,
        "Bearer\t" + TOKEN[:-1],
        f"Bearer {TOKEN}, Bearer x",
        f"Digest {TOKEN}",
        "Bearer \x80\xed\xa0\x80",
        "",
    )
    heads = [
        f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {value}\r\n\r\n".encode("latin-1")
        for value in values
    ]
    heads += [
        f"GET /metrics?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode("latin-1")
        for query in ("token=", "token=%ff", "token=%ED%A0%80", f"token={TOKEN[:-1]}", "TOKEN=" + TOKEN, "token=\xff")
    ]
    return requests.refused(target, heads, (400, 401, 413, 429, 431))


@attack("the right token in an address, requests that fail with it", "in no log and no answer", kind="token")
def token_told(target: Daemon) -> str:
    logged = target.look().log_bytes
    heads = [
        f"GET {path}?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode()
        for path in ("/", "/nothing", "//[", "/v1/stream")
        for more in ("", UPGRADE + KEY, "Origin: https://evil.example\r\n")
    ]
    found = requests.answers(target, heads)
    said = target.said(logged)
    expect(TOKEN not in said, "the log holds the token")
    expect(not any(TOKEN.encode() in answer.data for answer in found), "an answer holds the token")
    return str(len(heads))


# TLS.


@attack("garbage, plain HTTP and half a greeting to the TLS port", "closed in time; the log stays short", kind="tls")
def tls_garbage(target: Daemon) -> str:
    pieces = [
        os.urandom(2000),
        target.head(),
        b"\x16\x03\x01\x02\x00\x01",
        b"\x16\x03\x01\xff\xff" + bytes(65535),
        b"",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x80\x2e\x01\x03\x01" + bytes(60),
    ]
    wires = [target.open(2) for _ in range(len(pieces) * 5)]
    for i, wire in enumerate(wires):
        wire.send(pieces[i % len(pieces)])
    left = sum(not wire.closed_within(HEADER_S + 8) for wire in wires)
    for wire in wires:
        wire.close()
    expect(not left, f"{left} of {len(wires)} stay open")
    return f"{len(wires)} closed"


@attack("TLS 1.0 and 1.1, and ciphers without a name", "refused", kind="tls")
def tls_old(target: Daemon) -> str:
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        with target.open(2) as wire, contextlib.suppress(OSError):
            context.wrap_socket(wire.sock)
            raise Broken(f"{version.name} is spoken")
    return "refused"


@attack("500 TLS connections that vanish in the handshake", "gone without a trace", kind="tls")
def tls_vanish(target: Daemon) -> str:
    greeting = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), greeting, server_hostname="localhost").do_handshake()
    data = greeting.read()
    for i in range(500):
        wire = target.open(2 + i % 20)
        wire.send(data)
        if i % 3 == 0:
            wire.read(1.0, quiet_s=0.01)
        wire.reset()
    return "500"


# Descriptors.


@attack(
    "400 connections to a daemon that may have 96 descriptors",
    "told of once, nothing dies, others are let in again",
    kind="few",
    probe=False,
    log_bytes=8_000,
    errors=1,
)
def no_descriptors(target: Daemon) -> str:
    wires = []
    for i in range(400):
        try:
            wires.append(Wire(target.port, 2 + i % 30, timeout_s=1.0))
        except OSError:
            continue
    time.sleep(3.0)
    for wire in wires:
        wire.close()
    return f"{len(wires)} connected"


@attack(
    "streams and pages that are opened while descriptors run out",
    "told of once, others are let in again",
    kind="few",
    probe=False,
    log_bytes=8_000,
    errors=1,
)
def no_descriptors_streams(target: Daemon) -> str:
    wires = []
    for i in range(150):
        try:
            wire = Wire(target.port, 2 + i % 30, timeout_s=1.0)
        except OSError:
            continue
        wire.send(target.head("/v1/stream", more=UPGRADE + KEY) + sockets.START)
        wires.append(wire)
    time.sleep(2.0)
    for wire in wires:
        wire.reset()
    return f"{len(wires)} connected"


# Signals, and what an operator does. Each starts a daemon of its own.


def _under_way(target: Target) -> list[Wire]:
    """Open one connection of each kind, in the middle of what it does."""
    wires = [target.open(2), target.open(2)]
    wires[1].send(target.head()[:30])
    for first in (b"", sockets.START, sockets.START + frame(2, bytes(64_000))):
        wire = target.upgrade(sockets.STREAM, 2)
        wire.send(first)
        wires.append(wire)
    deaf = target.upgrade(sockets.STREAM, 3, receive_buffer=4096)
    deaf.send(sockets.START)
    deaf.flood(frame(PING, bytes(125)) * 500, 0.3)
    talking = target.upgrade(sockets.STREAM, 3)
    talking.send(sockets.START)
    talking.flood(frame(2, bytes(1 << 16)), 0.3)
    broken = target.upgrade(sockets.STREAM, 4)
    broken.send(frame(2, length=1 << 40))
    gone = target.upgrade(sockets.STREAM, 4)
    gone.send(sockets.START)
    gone.reset()
    return [*wires, deaf, talking, broken]


def _stopped(number: int) -> str:
    daemon = Daemon(0)
    daemon.start()
    try:
        daemon.serve_honest()
        wires = _under_way(daemon)
        begin = time.monotonic()
        daemon.signal(number)
        code = daemon.wait(STOP_S)
        took_s = time.monotonic() - begin
        for wire in wires:
            wire.close()
        said = daemon.said()
        expect(code == 0, f"exit code {code}: {daemon.last_words()}")
        expect("Traceback" not in said, "a traceback in the log")
        expect(took_s < 13, f"it took {took_s:.1f} s")
        return f"exit code {code} after {took_s:.1f} s"
    finally:
        daemon.stop()


@attack("SIGTERM while ten connections are in the middle of everything", "ends in order within seconds", kind="self")
def sigterm(_: Daemon) -> str:
    return _stopped(signal.SIGTERM)


@attack("SIGINT in the same state", "ends in order within seconds", kind="self")
def sigint(_: Daemon) -> str:
    return _stopped(signal.SIGINT)


@attack(
    "a stream that said nothing, and SIGTERM",
    "ends within the time for a closing handshake, not after 10 s",
    kind="self",
)
def sigterm_silent_stream(_: Daemon) -> str:
    daemon = Daemon(0, settings={"SERVER_FIRST_MESSAGE_S": "600"})
    daemon.start()
    try:
        wire = daemon.upgrade(sockets.STREAM)
        begin = time.monotonic()
        daemon.signal(signal.SIGTERM)
        code = daemon.wait(STOP_S)
        took_s = time.monotonic() - begin
        wire.close()
        expect(code == 0 and took_s < 8, f"exit code {code} after {took_s:.1f} s")
        return f"{took_s:.1f} s"
    finally:
        daemon.stop()


@attack("SIGINT twice in the same state", "ends at once", kind="self")
def sigint_twice(_: Daemon) -> str:
    daemon = Daemon(0)
    daemon.start()
    try:
        wires = _under_way(daemon)
        daemon.signal(signal.SIGINT)
        time.sleep(0.3)
        begin = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            daemon.signal(signal.SIGINT)
        code = daemon.wait(STOP_S)
        took_s = time.monotonic() - begin
        for wire in wires:
            wire.close()
        expect(took_s < 2, f"it took {took_s:.1f} s")
        return f"exit code {code} after {took_s:.1f} s"
    finally:
        daemon.stop()


@attack("SIGHUP and SIGUSR1, twenty times, under load", "goes on to serve", kind="plain", log_bytes=40_000)
def sighup_sigusr1(daemon: Daemon) -> str:
    wires = _under_way(daemon)
    for _ in range(10):
        for name in ("SIGHUP", "SIGUSR1"):
            daemon.signal(getattr(signal, name))
            time.sleep(0.05)
    time.sleep(0.5)
    for wire in wires:
        wire.reset()
    expect(daemon.alive, f"it ended: {daemon.last_words()}")
    return "20"


@attack(
    "kill -9 in the middle of six kinds of attack, then a new start",
    "starts as before; no file is spoiled",
    kind="self",
)
def kill_and_restart(_: Daemon) -> str:
    works: list[Callable[[Daemon], object]] = [
        _under_way,
        sockets.empty_continuations,
        sockets.unread_pongs,
        streams.command_flood,
        streams.vanishing_streams,
        requests.close_at_once,
    ]
    chance = random.Random(14)
    daemon = Daemon(0)
    for work in works:
        daemon = Daemon(0)
        daemon.start()

        def busy(work: Callable[[Daemon], object] = work, daemon: Daemon = daemon) -> None:
            with contextlib.suppress(Exception):  # the daemon dies in the middle of it
                work(daemon)

        thread = threading.Thread(target=busy, daemon=True)
        thread.start()
        time.sleep(chance.uniform(0.1, 1.0))
        daemon.kill()
        thread.join(15)
        daemon.stop()
    daemon = Daemon(0)
    daemon.start()
    try:
        daemon.serve_honest()
    finally:
        daemon.stop()
    return f"{len(works)} times"


@attack("a port that was killed under 100 connections, used again at once", "starts", kind="self")
def same_port_again(_: Daemon) -> str:
    daemon = Daemon(0)
    daemon.start()
    port = daemon.port
    wires = [daemon.open(2 + i % 8) for i in range(100)]
    daemon.kill()
    daemon.stop()
    again = Daemon(0, settings={"SERVER_PORT": str(port)})
    again.arguments = ("--port", str(port), *again.arguments)
    try:
        again.start()
        expect(again.port == port, f"it listens on {again.port}")
    finally:
        again.stop()
        for wire in wires:
            wire.close()
    return "starts"


@attack("standard error that nobody reads, and everything is logged", "stops nothing", kind="self")
def unread_stderr(_: Daemon) -> str:
    command = [
        sys.executable,
        "-m",
        "streamer",
        "run",
        "--port",
        str(port := _free_port()),
        "--input",
        "none",
        "--debug",
    ]
    with contextlib.ExitStack() as stack:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("STREAMER_") or name == "STREAMER_CACHE_DIR"
        }
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
        )
        assert process.stderr is not None
        stack.callback(process.wait)
        stack.callback(process.stderr.close)
        stack.callback(process.kill)
        target = Target(port)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(Broken):
                if target.ask("/healthz")[0] == 200:
                    break
            time.sleep(0.1)
        for i in range(1500):  # a line each, at least: a pipe holds 64 kB
            wire = target.open(2 + i % 20)
            wire.send(b"GET /" + b"x" * 60 + b" HTTP/1.1\r\n\r\n" if i % 2 else b"\x00garbage\r\n\r\n")
            wire.read(0.5, quiet_s=0.001)
            wire.close()
            if i % 100 == 0:
                status, body = target.ask("/healthz")
                expect(status == 200, f"/healthz answers {status} {body[:100]}")
        target.serve_honest()
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise Broken("SIGTERM does not end it") from None
    return f"ended after {time.monotonic() - begin:.1f} s"


@attack("a file whose name steers the terminal, that is no audio", "one clean line", kind="self")
def odd_file_name(_: Daemon) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "streamer", "run", "--port", "0", "--input", "/nowhere/\x1b[31m\nx\x9b.wav"],
        capture_output=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    text = done.stderr.decode("utf-8", "replace")
    expect(all(line.isprintable() for line in text.splitlines()) and text.count("\n") <= 3, f"it says {text[-200:]!r}")
    return f"exit code {done.returncode}"


@attack("all of one address's connections are taken by silence", "another address is served meanwhile", probe=True)
def one_address_full(target: Daemon) -> str:
    wires = [target.open(7) for _ in range(MAX_PER_ADDRESS * 2)]
    time.sleep(0.3)
    wires[0].send(target.head("/healthz"))
    kept = sum(not wire.closed_within(0.01) for wire in wires)
    told, _ = target.ask("/healthz")
    for wire in wires:
        wire.close()
    expect(told == 200, f"another address gets {told}")
    expect(kept <= MAX_PER_ADDRESS, f"{kept} connections of one address are kept")
    return f"{kept} kept"


@attack("a hundred honest sessions' worth of small requests under a crowd of silent ones", "all are answered in time")
def service_under_silence(target: Daemon) -> str:
    crowd = [target.open(2 + i % 3) for i in range(100)]
    slowest = 0.0
    for _ in range(50):
        begin = time.monotonic()
        status, body = target.ask("/healthz")
        slowest = max(slowest, time.monotonic() - begin)
        expect(status == 200 and json.loads(body)["status"] == "ok", f"{status} {body[:80]}")
    for wire in crowd:
        wire.reset()
    expect(slowest < 2.0, f"the slowest answer took {slowest:.1f} s")
    return f"slowest {slowest * 1000:.0f} ms"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
