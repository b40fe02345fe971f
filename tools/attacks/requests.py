"""Requests that are wrong: heads, targets, hosts, bodies, and what hides one request in another."""

import json
import time
from collections.abc import Sequence

from tools.attacks.table import attack
from tools.attacks.target import HEADER_S, Target
from tools.attacks.wire import KEY, UPGRADE, Answer, exchange, expect, frame, statuses

# A server that does not answer is given the time for a head, and this.
PATIENCE_S = HEADER_S + 3.0
ANSWER_S = 60.0  # for an answer that has to come, on a busy machine


def answers(target: Target, requests: Sequence[bytes], *, most: int = 1, quiet_s: float = 0.25) -> list[Answer]:
    """Send each request over its own connection; return what comes.

    Raises Broken where one is answered more than `most` times, by a 5xx that means a failure, or neither with a status
    nor by closing.
    """
    found: list[Answer] = []
    for first in range(0, len(requests), 40):
        part = requests[first : first + 40]
        wires = [target.open(2 + i % 8) for i in range(len(part))]
        found += exchange(wires, part, ANSWER_S, quiet_s)
        for wire in wires:
            wire.close()
    for request, answer in zip(requests, found, strict=True):
        told = f"{request[:60]!r} gets"
        expect(len(answer.statuses) <= most, f"{told} {len(answer.statuses)} answers")
        expect(not {500, 502, 503, 504} & set(answer.statuses), f"{told} {answer.statuses}")
        expect(bool(answer.statuses) or answer.closed, f"{told} no answer, and the connection stays open")
    return found


def refused(target: Target, requests: Sequence[bytes], allowed: Sequence[int]) -> str:
    """Check that each request gets one of some statuses; return those seen."""
    found = answers(target, requests)
    for request, answer in zip(requests, found, strict=True):
        expect(
            len(answer.statuses) == 1 and answer.statuses[0] in allowed,
            f"{request[:80]!r} gets {answer.statuses or 'nothing'}",
        )
    return _tally(found)


def _tally(found: Sequence[Answer]) -> str:
    seen = [status for answer in found for status in (answer.statuses or [0])]
    return " ".join(f"{status or 'closed'}:{seen.count(status)}" for status in sorted(set(seen)))


# What hides a second request.

HIDDEN = "POST /v1/input/pause HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _with_hidden(target: Target, headers: str, body: str) -> bytes:
    return target.head("/healthz", "POST", headers) + body.encode("latin-1")


@attack(
    "POST with Content-Length and Transfer-Encoding", "at most one answer, then the connection is closed", quick=True
)
def both_lengths(target: Target) -> str:
    chunked = "Transfer-Encoding: chunked\r\n"
    requests = [
        _with_hidden(target, f"Content-Length: {5 + len(HIDDEN)}\r\n{chunked}", "0\r\n\r\n" + HIDDEN),
        _with_hidden(target, f"{chunked}Content-Length: 4\r\n", f"{len(HIDDEN):x}\r\n{HIDDEN}\r\n0\r\n\r\n"),
        _with_hidden(target, f"Content-Length: 5\r\n{chunked}", "0\r\n\r\n" + HIDDEN),
    ]
    return _tally(answers(target, requests))


@attack("Content-Length twice, with a sign, a list, in hex", "refused, or one answer and closed", quick=True)
def odd_content_lengths(target: Target) -> str:
    values = (
        "0\r\nContent-Length: 50",
        "50\r\nContent-Length: 0",
        "+0",
        "-1",
        "0x0",
        "0, 50",
        "0 0",
        "",
        "1e1",
        "9" * 30,
    )
    requests = [_with_hidden(target, f"Content-Length: {value}\r\n", HIDDEN) for value in values]
    return _tally(answers(target, requests))


@attack("Transfer-Encoding that is none, twice, hidden by blanks", "refused, or one answer and closed", quick=True)
def odd_transfer_encodings(target: Target) -> str:
    values = (
        "xchunked",
        "chunked, identity",
        "identity",
        "chunked, chunked",
        "\x0bchunked",
        "chunked\r\nTransfer-Encoding: x",
        "gzip, chunked",
        "chunKed;q=1",
    )
    requests = [_with_hidden(target, f"Transfer-Encoding: {value}\r\n", "0\r\n\r\n" + HIDDEN) for value in values]
    requests.append(_with_hidden(target, "Transfer-Encoding : chunked\r\nContent-Length: 0\r\n", "0\r\n\r\n" + HIDDEN))
    return _tally(answers(target, requests, most=2))


@attack("chunks with wrong sizes, ends and extensions", "refused or answered once; memory stays", quick=True)
def odd_chunks(target: Target) -> str:
    bodies = (
        "ffffffffffffffff\r\nabc",
        "-1\r\nabc\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        "1\na\n0\n\n",
        "zz\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1;" + "e" * 100_000 + "\r\na\r\n0\r\n\r\n",
        "0\r\nX: " + "y" * 100_000 + "\r\n\r\n",
        " 1\r\na\r\n0\r\n\r\n",
        "\r\n\r\n",
        "1" * 5000,
    )
    return _tally(
        answers(target, [_with_hidden(target, "Transfer-Encoding: chunked\r\n", body) for body in bodies], most=2)
    )


@attack("a header folded over two lines, bare LF and CR, blanks before the colon", "refused, or one answer", quick=True)
def odd_lines(target: Target) -> str:
    lines = (
        "X: a\r\n b: c\r\n",
        "X: a\nY: b\r\n",
        "X: a\rY: b\r\n",
        "X : a\r\n",
        " X: a\r\n",
        ": a\r\n",
        "X\r\n",
        "X: \x00\r\n",
        "X: a\x7f\r\n",
        "(): a\r\n",
        "X\xe9: a\r\n",
        "X: \xff\xfe\r\n",
    )
    requests = [target.head(more=line) for line in lines]
    requests.append(target.head().replace(b"\r\n", b"\n"))
    requests.append(target.head().replace(b"\r\n", b"\r"))
    return _tally(answers(target, requests))


@attack("two requests in one packet", "each is answered, or one and the connection is closed", quick=True)
def pipelined(target: Target) -> str:
    two = target.head("/healthz") + target.head("/healthz", more="Connection: close\r\n")
    found = answers(target, [two, target.head("/healthz") + b"garbage\r\n\r\n", two * 20], most=40)
    for answer in found:
        expect(answer.statuses[:1] == [200], f"the first of two requests gets {answer.statuses or 'nothing'}")
    return _tally(found)


@attack(
    "a request, a frame and garbage right behind a request to upgrade", "the WebSocket opens or is closed", quick=True
)
def pipelined_upgrade(target: Target) -> str:
    upgrade = target.head("/v1/stream", more=UPGRADE + KEY)
    texts = (target.head("/healthz"), frame(1, b'{"type":"finish"}'), b"\x00" * 1000, frame(1, b"x" * 70_000))
    found = answers(target, [upgrade + text for text in texts])
    expect(all(answer.statuses[:1] in ([101], [400]) for answer in found), f"the upgrades get {_tally(found)}")
    return _tally(found)


@attack(
    "an upgrade that is refused, and a request behind it", "the second is not taken for frames, nor lost", quick=True
)
def pipelined_refusal(target: Target) -> str:
    bad = target.head("/v1/stream", more=UPGRADE + "Sec-WebSocket-Key: short\r\n")
    found = answers(
        target,
        [bad + target.head("/healthz"), target.head("/nothing", more=UPGRADE + KEY) + target.head("/healthz")],
        most=2,
    )
    expect(all(answer.statuses[:1] and answer.statuses[0] in range(400, 427) for answer in found), _tally(found))
    return _tally(found)


@attack("bodies behind GET and behind an upgrade", "answered as without, or refused", quick=True)
def bodies_unasked(target: Target) -> str:
    body = "Content-Length: 5\r\n"
    requests = [
        target.head("/healthz", more=body) + b"hello",
        target.head("/healthz", more="Transfer-Encoding: chunked\r\n") + b"5\r\nhello\r\n0\r\n\r\n",
        target.head("/v1/stream", more=UPGRADE + KEY + body) + b"hello",
        target.head("/healthz") + b"hello\r\n\r\n",
    ]
    found = answers(target, requests, most=2)
    expect(all(answer.statuses for answer in found), f"empty reply: {_tally(found)}")
    return _tally(found)


@attack("Content-Length more and less than the body", "one answer, in the time for a head", quick=True)
def wrong_content_length(target: Target) -> str:
    requests = [
        target.head("/v1/input/flush", "POST", "Content-Length: 100\r\n") + b"x",
        target.head("/v1/input/flush", "POST", "Content-Length: 1\r\n") + b"x" * 100,
        target.head("/healthz", "GET", "Content-Length: 100\r\n"),
    ]
    return _tally(answers(target, requests, most=2))


@attack("Expect: 100-continue, and others", "no hang", quick=True)
def expectations(target: Target) -> str:
    values = ("100-continue", "200-ok", "100-continue, 100-continue")
    requests = [
        target.head("/v1/input/flush", "POST", f"Expect: {v}\r\nContent-Length: 10\r\nConnection: close\r\n")
        for v in values
    ]
    return _tally(answers(target, requests, most=2))


# Request lines.


@attack("GET //[ and other targets that are no address", "4xx, no traceback", quick=True)
def odd_targets(target: Target) -> str:
    paths = (
        "//[",
        "//]",
        "//[::1",
        "/[",
        "http://[",
        "http://evil.example/",
        "//evil.example/",
        "*",
        "evil:80",
        "/\\",
        "?",
        "#",
        "/#a",
        "/;a",
        "/ /",
        "/%",
        "/%zz",
        "/%00",
        "/%ff",
        "/%2",
        "/\x80\xff",
        "/\x00",
        "/\x01",
        "/\xe2\x80\xae",
        "/v1/../healthz",
        "/healthz/",
        "//healthz",
        "/HEALTHZ",
        "/healthz%20",
        "/healthz\x09",
    )
    return _tally(answers(target, [target.head(path) for path in paths]))


@attack("targets of 8 kB to 1 MB, and 5000 parameters", "4xx or answered, once", quick=True)
def long_targets(target: Target) -> str:
    paths = ["/" + "a" * n for n in (8_000, 65_536, 1 << 20)]
    paths += [
        "/healthz?" + "a=b&" * 5000,
        "/v1/captions?after=" + "9" * 60_000,
        "/" + "/" * 60_000,
        "/" + "../" * 20_000,
    ]
    return _tally(answers(target, [target.head(path) for path in paths]))


@attack("every way to leave the page's folder", "no file of the program or the system", quick=True)
def traversal(target: Target) -> str:
    ups = (
        "../",
        "..%2f",
        "%2e%2e/",
        "%2e%2e%2f",
        "..\\",
        "..%5c",
        "....//",
        "%252e%252e/",
        "..;/",
        "..%c0%af",
        "\x2e\x2e/",
    )
    paths = [
        f"/{start}{up * 8}{end}" for up in ups for start in ("", "static/") for end in ("etc/passwd", "pyproject.toml")
    ]
    paths += [
        "/captions.js/../app.py",
        "//etc/passwd",
        "/etc/passwd",
        "/static/../server/front.py",
        "/.git/config",
        "/..",
        "/.",
    ]
    found = answers(target, [target.head(path) for path in paths])
    for path, answer in zip(paths, found, strict=True):
        leaks = b"root:" in answer.data or b"[project]" in answer.data or b"import " in answer.data
        expect(not leaks and 200 not in answer.statuses, f"{path} gives a file")
    return _tally(found)


@attack("HEAD, OPTIONS, TRACE, CONNECT, PUT and methods that are none", "405 or 4xx, and no body for HEAD", quick=True)
def methods(target: Target) -> str:
    names = (
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PUT",
        "DELETE",
        "PATCH",
        "get",
        "G",
        "GET" * 30,
        "G\x00T",
        "",
        "PROPFIND",
        "\xff",
    )
    found = answers(target, [target.head("/healthz", name, "X-Told: me\r\n") for name in names])
    expect(not any(b"X-Told" in answer.data for answer in found), "the request is sent back")
    expect(not any(200 in answer.statuses for answer in found), f"a method is taken for GET: {_tally(found)}")
    (head,) = answers(target, [target.head("/healthz", "HEAD")])
    body = head.data.partition(b"\r\n\r\n")[2]
    expect(not body, f"HEAD is answered with {head.statuses} and a body of {len(body)} bytes")
    return _tally([*found, head])


@attack("HTTP/0.9, HTTP/2 with prior knowledge, HTTP/9.9, no version", "refused, one answer", quick=True)
def versions(target: Target) -> str:
    requests = [
        target.head(version=version)
        for version in ("HTTP/2.0", "HTTP/9.9", "HTTP/1.2", "HTTP/0.9", "HTTP/1", "http/1.1", "XTTP/1.1", "HTTP/1.1 x")
    ]
    requests += [
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"\r\n" * 100,
        b"\x00" * 100,
        b"\xff" * 2000,
    ]
    return _tally(answers(target, requests, most=2))


@attack("GET in HTTP/1.0, with keep-alive and without Host", "no failure", quick=True)
def old_http(target: Target) -> str:
    requests = [
        b"GET /healthz HTTP/1.0\r\n\r\n",
        target.head("/healthz", version="HTTP/1.0"),
        target.head("/healthz", version="HTTP/1.0", more="Connection: keep-alive\r\n"),
        target.head("/v1/stream", version="HTTP/1.0", more=UPGRADE + KEY),
    ]
    return _tally(answers(target, requests))


# Host and Origin.


@attack("Host of another, none, two, with a user, a port that is none", "403 or 400", quick=True)
def wrong_hosts(target: Target) -> str:
    hosts = (
        "evil.example",
        "127.0.0.1.evil.example",
        "evil@127.0.0.1",
        "127.0.0.1@evil",
        "[::1",
        "localhost:99999999",
        "127.0.0.1:x",
        "",
        "\xff",
        "127.0.0.1, evil.example",
        "2130706433",
        "0",
        "localhost.",
        "127.0.0.1/evil",
        "a" * 60_000,
    )
    requests = [f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1") for host in hosts]
    requests += [
        b"GET / HTTP/1.1\r\n\r\n",
        target.head(more="Host: evil.example\r\n"),
        b"GET / HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n",
    ]
    requests.append(b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    return refused(target, requests, (400, 403, 404, 413, 414, 431))


@attack("Origin of another, null, two, of odd characters", "403, also for WebSockets", quick=True)
def wrong_origins(target: Target) -> str:
    own = f"http://127.0.0.1:{target.port}"
    origins = (
        "https://evil.example",
        "null",
        "file://",
        own + ".evil.example",
        own + "\r\nOrigin: https://evil.example",
        "http://127.0.0.1:1",
        "http://[",
        "http://\xff",
        "http://evil@127.0.0.1",
        f"{own}/path",
        "x" * 5000,
        "",
    )
    heads = [target.head("/healthz", more=f"Origin: {origin}\r\n") for origin in origins]
    heads += [target.head("/v1/stream", more=f"{UPGRADE}{KEY}Origin: {origin}\r\n") for origin in origins]
    heads += [target.head("/v1/input/pause", "POST", f"Origin: {origin}\r\n") for origin in origins]
    return refused(target, heads, (400, 403, 431))


@attack("X-Forwarded-For and -Proto from who is no proxy", "believed by nobody: limits hold as before", quick=True)
def forged_forwarding(target: Target) -> str:
    more = (
        "X-Forwarded-For: {}\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil.example\r\nForwarded: for=[::]\r\n"
    )
    values = ("1.2.3.4", "x", "\xff", "1.2.3.4," * 5000, "[::1]:99999999", "")
    return _tally(answers(target, [target.head("/healthz", more=more.format(value)) for value in values]))


# Sizes.


@attack("headers of 1 MB, 20 000 headers, a line without an end", "refused early; memory stays", quick=True)
def huge_heads(target: Target) -> str:
    requests = [
        target.head(more=f"X: {'a' * (1 << 20)}\r\n"),
        target.head(more="X: a\r\n" * 20_000),
        target.head(more="A" * (1 << 20)),
    ]
    return _tally(answers(target, requests))


@attack("heads that never end: headers, one header, a request line, empty lines", "cut in seconds; memory stays")
def endless_heads(target: Target) -> str:
    starts = (
        (target.head()[:-2], b"X: a\r\n" * 1000),
        (b"GET / HTTP/1.1\r\nX: ", b"a" * 65536),
        (b"GET /", b"a" * 65536),
    )
    return _until_cut(target, [*starts, (b"", b"\r\n" * 32768)])


@attack("bodies that never end, announced and chunked, for paths that take none", "cut in seconds; memory stays")
def endless_bodies(target: Target) -> str:
    announced = ("Content-Length: 9999999999\r\n", b"a" * 65536)
    chunked = ("Transfer-Encoding: chunked\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n")
    paths = ("/v1/input/pause", "/healthz", "/nothing")
    return _until_cut(
        target, [(target.head(path, "POST", more), again) for path in paths for more, again in (announced, chunked)]
    )


def _until_cut(target: Target, floods: Sequence[tuple[bytes, bytes]]) -> str:
    """Send all that the server takes; raise Broken unless it closes in the time for a head and for a closing."""
    wires = [target.open(2) for _ in floods]
    left = {}
    for wire, (start, again) in zip(wires, floods, strict=True):
        wire.send(start)
        wire.sock.setblocking(False)
        left[wire] = again
    begin = time.monotonic()
    n_bytes = 0
    while left and time.monotonic() - begin < PATIENCE_S + 6:
        for wire, again in list(left.items()):
            try:
                n_bytes += wire.sock.send(again)
            except BlockingIOError:
                pass
            except OSError:
                del left[wire]
        time.sleep(0.005)  # 13 MB a second over each are enough
    took_s = time.monotonic() - begin
    for wire in wires:
        wire.reset()
    expect(not left, f"{len(left)} of {len(wires)} are heard for {took_s:.0f} s, {n_bytes >> 20} MB in all")
    return f"{n_bytes >> 20} MB taken, cut after {took_s:.1f} s"


# Time.


@attack("50 heads, a byte every 0.1 s", "cut when the time for a head is over", peak_mb=32)
def slow_heads(target: Target) -> str:
    return _drip(target, target.head("/healthz", more="X: " + "a" * 1000 + "\r\n")[:-2], 50)


@attack("50 bodies, a byte every 0.1 s", "answered before, or cut when the time for a body is over", peak_mb=32)
def slow_bodies(target: Target) -> str:
    return _drip(
        target, target.head("/v1/input/flush", "POST", "Content-Length: 1000\r\n") + b"a" * 900, 50, at_once=True
    )


def _drip(target: Target, data: bytes, n: int, *, at_once: bool = False) -> str:
    wires = [target.open(2) for _ in range(n)]
    begin = time.monotonic()
    at = data.find(b"\r\n\r\n") + 4 if at_once else 20
    for wire in wires:
        wire.send(data[:at])
        wire.sock.setblocking(False)
    left = list(wires)
    while left and time.monotonic() - begin < PATIENCE_S:
        time.sleep(0.1)
        at += 1
        for wire in list(left):
            try:
                wire.sock.send(data[at - 1 : at])
                if not wire.sock.recv(65536):
                    left.remove(wire)
            except BlockingIOError:
                pass
            except OSError:
                left.remove(wire)
    took_s = time.monotonic() - begin
    for wire in wires:
        wire.close()
    expect(not left, f"{len(left)} of {n} connections are open after {took_s:.1f} s")
    return f"all cut after {took_s:.1f} s"


def _all_closed(target: Target, start: bytes, n: int = 40, *, half: bool = False) -> str:
    wires = [target.open(2) for _ in range(n)]
    for wire in wires:
        wire.send(start)
        if half:
            wire.sock.shutdown(1)
    end = time.monotonic() + PATIENCE_S + 3
    open_still = sum(not wire.closed_within(max(0.05, end - time.monotonic())) for wire in wires)
    for wire in wires:
        wire.close()
    expect(not open_still, f"{open_still} of {n} connections stay open")
    return f"{n} closed"


@attack("40 connections that say nothing", "closed when the time for a head is over")
def silent_connections(target: Target) -> str:
    return _all_closed(target, b"")


@attack("40 connections that stop in the middle of a head", "closed when the time for a head is over")
def half_heads(target: Target) -> str:
    return _all_closed(target, b"GET /healthz HTTP/1.1\r\nHo")


@attack("40 connections that stop in the middle of a body", "closed when the time for a body is over")
def half_bodies(target: Target) -> str:
    return _all_closed(target, target.head("/v1/input/flush", "POST", "Content-Length: 100\r\n") + b"abc")


@attack("40 connections that close their half in the middle of a head", "closed", quick=True)
def half_closed(target: Target) -> str:
    return _all_closed(target, b"GET /healthz HTTP/1.1\r\nHo", half=True)


@attack("40 connections that ask once, and keep the connection", "closed within seconds")
def idle_keepalive(target: Target) -> str:
    return _all_closed(target, target.head("/healthz"))


@attack("80 connections ask for the page 500 times each and read nothing", "held back; memory stays")
def unread_answers(target: Target) -> str:
    wires = []
    sent = 0
    for i in range(80):
        wire = target.open(2 + i % 8, receive_buffer=4096)
        sent += wire.flood(target.head("/captions.js") * 50, 0.05, 500 * 120)
        wires.append(wire)
    time.sleep(1.0)
    for wire in wires:
        wire.reset()
    return f"{sent >> 10} kB of requests"


@attack("1000 connections that are reset at once", "gone without a trace")
def reset_at_once(target: Target) -> str:
    for i in range(1000):
        target.open(2 + i % 20).reset()
    return "1000"


@attack("1000 connections that are closed at once", "gone without a trace")
def close_at_once(target: Target) -> str:
    for i in range(1000):
        target.open(2 + i % 20).close()
    return "1000"


@attack("200 clients ask and are gone before the answer", "gone without a trace", quick=True)
def ask_and_vanish(target: Target) -> str:
    for i in range(200):
        wire = target.open(2 + i % 20)
        wire.send(target.head(("/", "/metrics", "/healthz", "/v1/captions")[i % 4]))
        wire.reset()
    return "200"


@attack("2000 commands to the input, as fast as they go", "answered; nothing grows", kind="own")
def input_flood(target: Target) -> str:
    begin = time.monotonic()
    n = 0
    for command in ("flush", "pause", "resume", "clear") * 500:
        with target.open(2) as wire:
            wire.send(target.head(f"/v1/input/{command}", "POST", "Connection: close\r\nContent-Length: 0\r\n"))
            data, _ = wire.read(5.0, quiet_s=0.2)
        n += statuses(data) == [200]
        if time.monotonic() - begin > 12:
            break
    expect(n > 0, "none is answered with 200")
    return f"{n} answered, {n / (time.monotonic() - begin):.0f} a second"


@attack("POST to pause the input from another origin", "403, and the input is not paused", kind="own")
def forged_pause(target: Target) -> str:
    told = refused(
        target,
        [target.head("/v1/input/pause", "POST", "Origin: https://evil.example\r\nContent-Length: 0\r\n")],
        (403,),
    )
    answers(target, [_with_hidden(target, "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + HIDDEN)])
    expect(json.loads(target.ask("/v1/input")[1])["paused"] is False, "the input is paused")
    return told
