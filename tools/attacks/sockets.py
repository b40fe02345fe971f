"""WebSockets that are wrong: handshakes, frames, floods, and subscribers that do not read."""

import contextlib
import os
import time

from tools.attacks.requests import answers, refused
from tools.attacks.table import attack
from tools.attacks.target import Target
from tools.attacks.wire import (
    BINARY,
    CLOSE,
    CONTINUATION,
    KEY,
    PING,
    PONG,
    TEXT,
    UPGRADE,
    Broken,
    Wire,
    expect,
    frame,
    statuses,
)

CAPTIONS, STREAM = "/v1/captions", "/v1/stream"
START = frame(TEXT, b'{"type":"start"}')
FLOOD_S = 3.0
MAX_MESSAGE_BYTES = 1 << 20


def _codes(target: Target, pieces: list[bytes], allowed: tuple[int, ...], seconds: float = 8.0) -> str:
    """Send each to a stream of its own; raise Broken unless all are closed with one of some codes."""
    wires = [target.upgrade(STREAM, 2 + i % 4) for i in range(len(pieces))]
    for wire, piece in zip(wires, pieces, strict=True):
        wire.send(piece)
    seen = [wire.close_code(seconds) for wire in wires]
    for wire in wires:
        wire.close()
    for piece, code in zip(pieces, seen, strict=True):
        expect(code in allowed, f"frame {piece[:14].hex(' ')} is closed with {code}, expected {allowed}")
    return " ".join(f"{code}:{seen.count(code)}" for code in sorted(set(map(int, filter(None, seen)))))


# Handshakes.


@attack("no key, two keys, short, long and odd keys", "400", quick=True)
def wrong_keys(target: Target) -> str:
    keys = (
        "",
        KEY + KEY,
        "Sec-WebSocket-Key: c2hvcnQ=\r\n",
        f"Sec-WebSocket-Key: {'A' * 5000}\r\n",
        "Sec-WebSocket-Key: \xff\xfe\r\n",
        "Sec-WebSocket-Key:\r\n",
    )
    return refused(target, [target.head(STREAM, more=UPGRADE + key) for key in keys], (400, 426, 431))


@attack("versions of WebSocket that are none, and none at all", "400 or 426", quick=True)
def wrong_versions(target: Target) -> str:
    start = "Upgrade: websocket\r\nConnection: Upgrade\r\n" + KEY
    values = (
        "Sec-WebSocket-Version: 12\r\n",
        "Sec-WebSocket-Version: 99\r\n",
        "Sec-WebSocket-Version: x\r\n",
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 8\r\n",
        "",
    )
    return refused(target, [target.head(STREAM, more=start + value) for value in values], (400, 426))


@attack("Upgrade to h2c, to nothing, by POST, of pages, without Connection", "no WebSocket, no failure", quick=True)
def odd_upgrades(target: Target) -> str:
    rest = "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" + KEY
    requests = [
        target.head(STREAM, more=f"Upgrade: {value}\r\n{rest}")
        for value in ("h2c", "", "WebSocket2", "websocket/13, h2c")
    ]
    requests += [
        target.head(STREAM, "POST", UPGRADE + KEY),
        target.head(STREAM, more=UPGRADE.replace("Connection: Upgrade\r\n", "") + KEY),
    ]
    requests += [
        target.head(path, more=UPGRADE + KEY)
        for path in ("/captions.js", "/healthz", "/metrics", "/nothing", "/v1/input", "/v1/input/pause")
    ]
    found = answers(target, requests)
    opened = [
        request
        for request, answer in zip(requests, found, strict=True)
        if 101 in answer.statuses and request.split()[1] != STREAM.encode()
    ]
    expect(not opened, f"{opened[:1]} opens a WebSocket")
    return " ".join(str(answer.statuses[0] if answer.statuses else 0) for answer in found)


@attack("a thousand subprotocols, extensions with odd parameters", "opens without them, or 400", quick=True)
def odd_offers(target: Target) -> str:
    offers = (
        "Sec-WebSocket-Protocol: " + ",".join(f"p{i}" for i in range(1000)),
        "Sec-WebSocket-Protocol: ,,,",
        "Sec-WebSocket-Protocol: a\r\nSec-WebSocket-Protocol: a",
        "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99",
        "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits; client_max_window_bits",
        "Sec-WebSocket-Extensions: " + "x," * 5000,
        'Sec-WebSocket-Extensions: a; b="',
        "Sec-WebSocket-Extensions: permessage-deflate",
    )
    found = answers(target, [target.head(STREAM, more=f"{UPGRADE}{KEY}{offer}\r\n") for offer in offers])
    for answer in found:
        expect(answer.statuses[:1] in ([101], [400], [431]), f"an offer gets {answer.statuses}")
        expect(
            b"permessage-deflate" not in answer.data.lower() or 101 not in answer.statuses, "compression is agreed on"
        )
    return " ".join(str(answer.statuses[0]) for answer in found)


@attack("after, session and tokens that are garbage", "400, or an error in the stream; no failure", quick=True)
def odd_queries(target: Target) -> str:
    values = (
        "after=-1",
        "after=1e9",
        "after=%D9%A3",
        "after=" + "9" * 5000,
        "after=",
        "after=%00",
        "after=1&after=x",
        "session=%00",
        "session=%ff",
        "session=" + "s" * 5000,
        "session[]=1",
        "session=../../etc",
        "%=%&&&==",
        "session=x&after=" + "9" * 15,
        "session=%ED%A0%80",
        "token=%ff",
    )
    requests = [target.head(f"{path}?{value}", more=UPGRADE + KEY) for path in (CAPTIONS, STREAM) for value in values]
    found = answers(target, requests)
    return " ".join(sorted({str(answer.statuses[0] if answer.statuses else 0) for answer in found}))


@attack(
    "600 WebSockets at once from one address and from thirty",
    "refused beyond the limits, others are let in again",
    probe=False,
)
def upgrade_crowd(target: Target) -> str:
    # A slow machine opens them for longer than a silent one may stay: those that were cut make room for others.
    wires: list[Wire] = []
    opened = 0
    for i in range(600):
        with contextlib.suppress(Broken):
            wires.append(target.upgrade(STREAM, 2 if i < 200 else 3 + i % 30, timeout_s=3.0))
            opened += 1
        if i == 199:
            wires = [wire for wire in wires if wire.is_open()]
            expect(len(wires) <= 150, f"{len(wires)} WebSockets from one address")
    n_open = sum(wire.is_open() for wire in wires)
    for wire in wires:
        wire.reset()
    expect(n_open <= 450, f"{n_open} WebSockets at once")
    return f"{opened} of 600 opened, {n_open} at once"


# Frames.


@attack("frames that are not masked", "1002", quick=True)
def unmasked(target: Target) -> str:
    return _codes(
        target, [frame(TEXT, b"{}", mask=False), frame(BINARY, bytes(10), mask=False), frame(PING, mask=False)], (1002,)
    )


@attack("reserved bits, compressed frames among them, though nothing was agreed on", "1002", quick=True)
def reserved_bits(target: Target) -> str:
    return _codes(
        target, [frame(op, b"abc", reserved=bit) for op in (TEXT, BINARY, PING) for bit in (1, 2, 4)], (1002,)
    )


@attack("reserved opcodes", "1002", quick=True)
def reserved_opcodes(target: Target) -> str:
    return _codes(target, [frame(op, b"abc") for op in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)], (1002,))


@attack("control frames that are too long, or in fragments", "1002", quick=True)
def wrong_controls(target: Target) -> str:
    return _codes(
        target,
        [
            frame(PING, bytes(126)),
            frame(PONG, bytes(70_000)),
            frame(PING, fin=False),
            frame(CLOSE, b"\x03\xe8" + bytes(130)),
        ],
        (1002,),
    )


@attack("continuations of nothing, a text within a fragmented one", "1002", quick=True)
def wrong_fragments(target: Target) -> str:
    return _codes(
        target,
        [frame(CONTINUATION, b"x"), frame(CONTINUATION, fin=False), frame(TEXT, b"a", fin=False) + frame(TEXT, b"b")],
        (1002,),
    )


@attack("text that is not UTF-8, whole, in fragments, surrogates", "1007", quick=True)
def bad_utf8(target: Target) -> str:
    pieces = [frame(TEXT, data) for data in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf")]
    pieces.append(frame(TEXT, b"\xc3", fin=False) + frame(CONTINUATION, b"("))
    return _codes(target, pieces, (1007,))


@attack("close frames with bad codes, reasons and lengths", "1002 or 1007", quick=True)
def bad_closes(target: Target) -> str:
    payloads = [code.to_bytes(2, "big") for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)]
    return _codes(target, [frame(CLOSE, p) for p in (*payloads, b"\x03", b"\x03\xe8\xff\xff")], (1002, 1007))


@attack(
    "1 MiB and a byte: in one frame, announced, in fragments; 2^63 announced", "1009 at once, memory stays", quick=True
)
def too_long(target: Target) -> str:
    big = bytes(MAX_MESSAGE_BYTES + 1)
    half = bytes(MAX_MESSAGE_BYTES // 2 + 1)
    pieces = [
        frame(BINARY, big),
        frame(TEXT, b" " * (MAX_MESSAGE_BYTES + 1)),
        frame(BINARY, length=MAX_MESSAGE_BYTES + 1),
        frame(BINARY, length=(1 << 63) - 1),
        frame(BINARY, half, fin=False) + frame(CONTINUATION, half),
        frame(BINARY, length=1 << 32),
    ]
    told = _codes(target, pieces, (1009,))
    return told + "; 2^64: " + _codes(target, [frame(BINARY, length=(1 << 64) - 1)], (1002, 1009))


@attack("a message in a million fragments of a byte", "closed, or taken; memory stays")
def fragment_bomb(target: Target) -> str:
    return _endless(target, frame(BINARY, b"x", fin=False), frame(CONTINUATION, b"x", fin=False) * 10_000)


@attack("continuations without content, for ever", "memory stays")
def empty_continuations(target: Target) -> str:
    return _endless(target, frame(TEXT, fin=False), frame(CONTINUATION, fin=False) * 10_000)


@attack("continuations without content for ever, from five subscribers", "memory stays", kind="own")
def empty_continuations_captions(target: Target) -> str:
    return _endless(target, frame(TEXT, fin=False), frame(CONTINUATION, fin=False) * 10_000, CAPTIONS, 5)


def _endless(target: Target, start: bytes, again: bytes, path: str = STREAM, n: int = 1) -> str:
    wires = [target.upgrade(path) for _ in range(n)]
    sent = 0
    for wire in wires:
        wire.send(start)
        sent += wire.flood(again, FLOOD_S * 2 / n)
    for wire in wires:
        wire.reset()
    return f"{sent >> 10} kB taken"


@attack("pings for ever, whose pongs nobody reads, on a stream", "held back; memory stays", peak_mb=16)
def unread_pongs(target: Target) -> str:
    return _unread(target, STREAM, frame(PING, os.urandom(125)) * 500, 3)


@attack(
    "pings for ever, whose pongs nobody reads, from three subscribers",
    "held back; memory stays",
    peak_mb=16,
    kind="own",
)
def unread_pongs_captions(target: Target) -> str:
    return _unread(target, CAPTIONS, frame(PING, os.urandom(125)) * 500, 3)


def _unread(target: Target, path: str, data: bytes, n: int) -> str:
    wires = [target.upgrade(path, receive_buffer=4096) for _ in range(n)]
    end = time.monotonic() + FLOOD_S * 2
    sent = 0
    while time.monotonic() < end:
        for wire in wires:
            sent += wire.flood(data, 0.1)
    for wire in wires:
        wire.reset()
    return f"{sent / 2**20:.1f} MB of frames taken"


@attack("pings for ever, and their pongs are read", "answered; others too", peak_mb=16)
def read_pongs(target: Target) -> str:
    wire = target.upgrade(STREAM)
    end = time.monotonic() + FLOOD_S
    n = 0
    while time.monotonic() < end and wire.send(frame(PING, b"x") * 200):
        n += len(wire.read(2.0, quiet_s=0.02)[0]) // 3
    wire.close()
    return f"{n} pongs"


@attack(
    "pongs that nobody asked for, empty texts, empty audio, single samples, for ever",
    "others are answered; memory stays",
    log_bytes=30_000,
)
def tiny_frames(target: Target) -> str:
    told = []
    for again in (frame(PONG) * 5000, frame(BINARY) * 5000, frame(BINARY, b"\0\0") * 5000, frame(TEXT) * 5000):
        wire = target.upgrade(STREAM)
        wire.send(START)
        told.append(str(wire.flood(again, FLOOD_S / 2) >> 10))
        wire.reset()
    return "kB taken: " + ", ".join(told)


@attack("half a frame, half a head of one, and silence", "closed in time, or by the client's leaving", quick=True)
def half_frames(target: Target) -> str:
    wires = [target.upgrade(STREAM) for _ in range(3)]
    for wire, data in zip(wires, (b"\x82", frame(BINARY, bytes(500))[:100], frame(TEXT, b"x")[:4]), strict=True):
        wire.send(data)
        wire.sock.shutdown(1)
    expect(all(wire.closed_within(8.0) for wire in wires), "connections whose other half is closed stay open")
    return "3 closed"


@attack("a client that never answers a close, and goes on to send", "cut within seconds")
def unanswered_close(target: Target) -> str:
    wires = [target.upgrade(STREAM) for _ in range(5)]
    for wire in wires:
        wire.send(frame(BINARY, length=1 << 40))
    begin = time.monotonic()
    while time.monotonic() - begin < 12:
        alive = [wire.send(frame(PING) * 10) for wire in wires]
        if not any(alive):
            return f"cut after {time.monotonic() - begin:.1f} s"
        time.sleep(0.2)
    raise Broken("connections live 12 s after they broke the protocol")


@attack("frames behind a close frame", "ignored; closed", quick=True)
def after_close(target: Target) -> str:
    return _codes(target, [frame(CLOSE, b"\x03\xe8") + frame(BINARY, bytes(100)) * 100 + frame(CLOSE)], (1000, 1006))


# Subscribers.


@attack("40 subscribers that never read, from the first caption on", "memory stays; others read", kind="own")
def deaf_subscribers(target: Target) -> str:
    return _deaf(target, f"{CAPTIONS}?after=0", 40)


@attack("200 replays of everything that nobody reads, each cut after its first bytes", "memory stays", kind="own")
def deaf_replays(target: Target) -> str:
    for i in range(200):
        wire = target.upgrade(f"{CAPTIONS}?after=0&session=another", 2 + i % 8, receive_buffer=4096)
        wire.reset()
    return "200"


def _deaf(target: Target, path: str, n: int) -> str:
    wires = [target.upgrade(path, receive_buffer=4096) for _ in range(n)]
    time.sleep(4.0)
    follower = target.upgrade(CAPTIONS, 1)
    first = next(iter(follower.frames(5.0)), None)
    follower.close()
    for wire in wires:
        wire.reset()
    expect(first is not None and b"ready" in first[1], "an honest subscriber gets nothing")
    return f"{n} deaf ones"


@attack("150 subscribers where 100 may be", "refused beyond with 1013 or 503, and let in again", kind="own")
def subscriber_crowd(target: Target) -> str:
    codes = []
    wires = []
    for i in range(150):
        wire = target.open(2 + i % 8)
        wire.send(target.head(CAPTIONS, more=UPGRADE + KEY))
        wires.append(wire)
    for wire in wires:
        data, _ = wire.read(5.0, quiet_s=0.05)
        codes.append((statuses(data) or [0])[0])
    opened = 0
    for wire, code in zip(wires, codes, strict=True):
        opened += code == 101 and wire.send(frame(PING))
        wire.reset()
    seen = sorted(set(codes))
    expect(set(seen) <= {101, 429, 503}, f"subscribers get {seen}")
    return ", ".join(f"{code}: {codes.count(code)}" for code in seen)


@attack("a subscriber that sends 4097 bytes, and one that floods messages", "1009; the flood delays nobody", kind="own")
def talking_subscriber(target: Target) -> str:
    wire = target.upgrade(CAPTIONS)
    wire.send(frame(TEXT, b"x" * 4097))
    expect((code := wire.close_code(5.0)) == 1009, f"closed with {code}")
    wire.close()
    with target.upgrade(CAPTIONS) as flooding:
        sent = flooding.flood(frame(TEXT, b"x" * 4000) * 20, FLOOD_S)
    return f"{sent >> 20} MB of messages taken"


@attack("300 subscribers that open and vanish", "gone without a trace", kind="own")
def vanishing_subscribers(target: Target) -> str:
    for i in range(300):
        wire = target.upgrade(f"{CAPTIONS}?after=0", 2 + i % 8)
        wire.reset() if i % 2 else wire.close()
    return "300"
