"""Streams that are wrong: that say nothing, vanish, flood, guess, or send what is no audio and no message."""

import json
import os
import secrets
import struct
import time

from tools.attacks.sockets import FLOOD_S, START, STREAM
from tools.attacks.table import attack
from tools.attacks.target import FIRST_MESSAGE_S, IDLE_S, MAX_STREAMS, RESUME_S, Daemon, Target, spoken_bytes
from tools.attacks.wire import BINARY, CLOSE, TEXT, Broken, Wire, expect, frame

FINISH = frame(TEXT, b'{"type":"finish"}')


def _events(wire: Wire, seconds: float, last: str = "end") -> tuple[list[dict[str, object]], int | None]:
    """Return the events up to one of type `last`, and the close code where the connection was closed before."""
    found: list[dict[str, object]] = []
    for opcode, payload in wire.frames(seconds):
        if opcode == CLOSE:
            return found, int.from_bytes(payload[:2], "big") if payload else 1006
        if opcode == TEXT:
            found.append(json.loads(payload))
            if found[-1]["type"] == last:
                return found, None
    return found, None


def _open(target: Target, source: int = 2, start: bytes = START, *, receive_buffer: int = 0) -> tuple[Wire, str]:
    """Open a stream and return it with the name of its session. Raises Broken where it is refused."""
    wire = target.upgrade(STREAM, source, receive_buffer=receive_buffer)
    wire.send(start)
    events, code = _events(wire, 10.0, "ready")
    if not events or events[-1]["type"] != "ready":
        wire.close()
        raise Broken(f"a stream is refused: {events} {code}")
    return wire, str(events[-1]["session"])


def _resume(session: str, after: int) -> bytes:
    return frame(TEXT, json.dumps({"type": "resume", "session": session, "after": after}).encode("ascii"))


# Places.


@attack("as many streams as there are places, that say nothing", "ended in time; others get in again", probe=False)
def say_nothing(target: Target) -> str:
    return _keep_out(target, b"", FIRST_MESSAGE_S)


@attack("as many streams as there are places, that send start and nothing else", "ended in time", probe=False)
def start_only(target: Target) -> str:
    return _keep_out(target, START, IDLE_S)


@attack("as many streams as there are places, that send pings and nothing else", "ended in time", probe=False)
def ping_only(target: Target) -> str:
    return _keep_out(target, START, IDLE_S, again=frame(9))


@attack("as many streams as there are places, that are paused", "ended in time", probe=False)
def paused_only(target: Target) -> str:
    return _keep_out(target, START + frame(TEXT, b'{"type":"pause"}'), IDLE_S)


@attack("streams that finish and read no end", "ended in time", probe=False)
def unread_end(target: Target) -> str:
    return _keep_out(target, START + FINISH, IDLE_S + 6, read=False)


def _keep_out(target: Target, first: bytes, seconds: float, *, again: bytes = b"", read: bool = True) -> str:
    wires = []
    for i in range(MAX_STREAMS + 2):
        wire = target.upgrade(STREAM, 2 + i % 2)
        wire.send(first)
        wires.append(wire)
    begin = time.monotonic()
    left = list(wires)
    while left and time.monotonic() - begin < seconds + 5:
        time.sleep(0.05)
        for wire in list(left):
            gone = (wire.close_code(0.05) is not None) if read else not wire.send(frame(9))
            if gone or (again and not wire.send(again)):
                left.remove(wire)
    took_s = time.monotonic() - begin
    for wire in wires:
        wire.reset()
    expect(not left, f"{len(left)} of {len(wires)} hold their places after {took_s:.0f} s")
    return f"all ended after {took_s:.1f} s"


@attack("more streams with speech than there are places", "1013 with its reason, the others go on", probe=False)
def stream_crowd(target: Target) -> str:
    wires = []
    for i in range(MAX_STREAMS * 2):
        wire = target.upgrade(STREAM, 2 + i % 2)
        wire.send(START + frame(BINARY, spoken_bytes(0.6, 1.6)))
        wires.append(wire)
    first = [_events(wire, 10.0, "ready") for wire in wires]
    ready = sum(any(e["type"] == "ready" for e in events) for events, _ in first)
    told = {str(events[0].get("code")) for events, _ in first if events and events[0]["type"] == "error"}
    for wire in wires:
        wire.reset()
    expect(0 < ready <= MAX_STREAMS, f"{ready} are let in where {MAX_STREAMS} places are")
    expect(told == {"busy"}, f"the others are told {told}")
    return f"{ready} let in, the others busy"


def fill(target: Target) -> None:
    """Have as many streams at once as there are places, so that memory for them is there."""
    wires = [target.upgrade(STREAM, 2 + i % 2) for i in range(MAX_STREAMS)]
    for wire in wires:
        wire.send(START + FINISH)
    for wire in wires:
        wire.close_code(10.0)
        wire.close()


# Vanishing.


@attack("300 streams open, send half a second, and vanish", "gone after resume_s; memory stays", kept_mb=24)
def vanishing_streams(target: Target) -> str:
    audio = frame(BINARY, spoken_bytes(0.6, 1.1))
    opened = 0
    for i in range(300):
        wire = target.upgrade(STREAM, 2 + i % 4)
        opened += wire.send(START + audio)
        wire.reset() if i % 2 else wire.close()
    return str(opened)


@attack("a thousand streams open and close in order", "gone at once; memory stays", kept_mb=24)
def closing_streams(target: Target) -> str:
    for i in range(1000):
        wire = target.upgrade(STREAM, 2 + i % 4)
        wire.send(START + frame(CLOSE, b"\x03\xe8"))
        wire.close()
    return "1000"


@attack(
    "8 clients send a recording at once and vanish while they are held back",
    "their streams end after resume_s",
    peak_mb=160,
    kept_mb=48,  # for a while: the next attacks find it given back
    probe=False,
)
def vanish_held_back(target: Daemon) -> str:
    return _vanish(target, 16_000)


@attack("the same with 4 kHz", "the same, and no more memory than with 16 kHz", peak_mb=160, kept_mb=48, probe=False)
def vanish_held_back_4k(target: Daemon) -> str:
    return _vanish(target, 4_000)


def _vanish(target: Daemon, rate: int) -> str:
    start = frame(TEXT, b'{"type":"start","sample_rate":%d}' % rate)
    data = frame(BINARY, spoken_bytes(0.0, 30.0)[: 1 << 19]) * 8
    wires = []
    for i in range(8):
        try:
            wires.append(_open(target, 2 + i % 4, start)[0])
        except Broken:  # as many as the machine keeps in real time
            break
    expect(bool(wires), "no stream is let in")
    sent = 0
    for wire in wires:
        sent += wire.flood(data, 1.0)
    for wire in wires:
        wire.reset()
    end = time.monotonic() + RESUME_S + 12
    while time.monotonic() < end:
        n = target.n_sessions()
        if not n:
            took_s = RESUME_S + 12 - (end - time.monotonic())
            return f"{len(wires)} clients, {sent >> 20} MB; sessions gone after {took_s:.1f} s"
        time.sleep(0.3)
    raise Broken(f"{n} sessions are served {RESUME_S + 12:.0f} s after their clients vanished")


@attack("a stream that sends audio as fast as it goes and reads nothing", "held back; memory stays", peak_mb=64)
def deaf_stream(target: Target) -> str:
    with _open(target, receive_buffer=4096)[0] as wire:
        sent = wire.flood(frame(BINARY, bytes(1 << 20)), FLOOD_S * 2)
    return f"{sent >> 20} MB taken"


@attack("two streams that cause a hundred errors each and read nothing", "closed as too slow or bad; memory stays")
def deaf_errors(target: Target) -> str:
    wires = [_open(target, receive_buffer=4096)[0] for _ in range(2)]
    for wire in wires:
        wire.flood(frame(TEXT, b"x" * 1000) * 50, 1.0, 1 << 22)
    closed = [wire.closed_within(15.0) for wire in wires]
    for wire in wires:
        wire.reset()
    expect(all(closed), "they stay open")
    return "closed"


# Messages.


def _talk(target: Target, messages: list[bytes], start: bytes = START) -> tuple[list[dict[str, object]], int | None]:
    """Say something in a stream, finish, and return its events and close code."""
    with target.upgrade(STREAM) as wire:
        wire.send(start + b"".join(frame(TEXT, message) for message in messages) + FINISH)
        events, code = _events(wire, 15.0)
    return events, code


@attack(
    "JSON nested 100 000 deep, numbers of 100 000 digits, NaN, duplicate keys, wrong types",
    "each an error, none a failure",
    quick=True,
)
def bad_json(target: Target) -> str:
    messages = [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"type":"set","beam_size":' + b"9" * 100_000 + b"}",
        b'{"type":"set","pace_s":1e400}',
        b'{"type":"set","pace_s":NaN}',
        b'{"type":"set","pace_s":-Infinity}',
        b'{"type":"set","type":"finish"',
        b'{"type":["set"]}',
        b'{"type":null}',
        b"null",
        b"1",
        b'""',
        b"",
        b"{}",
        b"[]",
        b'{"type":"set","words":1}',
        b'{"type":"set","hotwords":' + json.dumps(["a"] * 5000).encode() + b"}",
        b'{"type":"set","language":' + b'"' + b"x" * 5000 + b'"}',
        b"\xef\xbb\xbf{}",
        b'{"type":"set",' + b'"a":1,' * 10_000 + b'"b":1}',
        b'{"type":"set","beam_size":1e2}',
        b'{"type":"set","initial_prompt":"\\u0000"}',
        b'{"type":"start"}',
        b'{"type":"resume","x":1}',
    ]
    events, code = _talk(target, messages)
    told = [event for event in events if event["type"] == "error"]
    expect(len(told) == len(messages), f"{len(messages)} bad messages cause {len(told)} errors, then {code}")
    expect({str(event["code"]) for event in told} <= {"bad_message", "config"}, f"they are told {told[:2]}")
    return f"{len(told)} errors"


@attack(
    "surrogates, ESC, C1 and line breaks in keys, values and types", "errors of one clean line; a clean log", quick=True
)
def bad_characters(target: Target) -> str:
    texts = ("\\ud800", "\\udc00\\ud800", "\\u001b[31m", "\\u009b31m", "\\n\\r", "\\u2028", "\\u202e", "\\u0000")
    messages = [
        template.replace("?", text).encode()
        for text in texts
        for template in ('{"type":"set","?":1}', '{"type":"?"}', '{"type":"set","task":"?"}', '{"?":"set"}', '"?"')
    ]
    messages += [b"\x1b[31m", "\x9b31m".encode(), b'{"type":"set","\x1b":1}']
    events, code = _talk(target, messages)
    told = [str(event["message"]) for event in events if event["type"] == "error"]
    expect(len(told) == len(messages), f"{len(messages)} bad messages cause {len(told)} errors, then {code}")
    expect(all(text.isprintable() for text in told), "an error holds characters that steer a terminal")
    return f"{len(told)} errors"


@attack("first messages that are wrong", "a fatal error, and 1008", quick=True)
def bad_first(target: Target) -> str:
    firsts = (
        b"x",
        b"[" * 100_000,
        b"{}",
        b'{"type":"start","\\ud800":1}',
        b'{"type":"start","task":"sing"}',
        b'{"type":"start","format":"mp3"}',
        b" " * 900_000,
    )
    for first in firsts:
        with target.upgrade(STREAM) as wire:
            wire.send(frame(TEXT, first))
            events, _ = _events(wire, 10.0, "error")
            code = wire.close_code(5.0)
        expect(bool(events) and events[-1]["type"] == "error", f"{first[:30]!r} gets {events}")
        expect(code == 1008, f"{first[:30]!r} is closed with {code}")
    return str(len(firsts))


@attack("rates and channels that are none", "a fatal error, and 1008", quick=True)
def bad_formats(target: Target) -> str:
    values = [
        '"sample_rate":' + v
        for v in ("0", "-1", "3999", "384001", "1000000000000", "16000.5", '"16000"', "1e99", "true")
    ]
    values += ['"channels":' + v for v in ("0", "-1", "33", "1e9", "[]")] + ['"format":"s24le"', '"format":1']
    for value in values:
        with target.upgrade(STREAM) as wire:
            wire.send(frame(TEXT, b'{"type":"start",' + value.encode() + b"}"))
            events, _ = _events(wire, 10.0, "error")
            code = wire.close_code(5.0)
        expect(bool(events) and events[-1].get("fatal") is True, f"{value} gets {events}")
        expect(code == 1008, f"{value} is closed with {code}")
    return str(len(values))


@attack("a hundred bad messages, and ten thousand", "1003 after the hundredth", quick=True)
def many_bad_messages(target: Target) -> str:
    with target.upgrade(STREAM) as wire:
        wire.send(START)
        wire.flood(frame(TEXT, b"x") * 100, 1.0, 80_000)
        events, _ = _events(wire, 10.0)
        code = wire.close_code(5.0)
    n = sum(event["type"] == "error" for event in events)
    expect(n == 100 and code in (1003, 1006), f"{n} errors, then {code}")
    return f"{n} errors, then {code}"


@attack("100 000 times set, each with another prompt", "obeyed or held back; memory stays")
def set_flood(target: Target) -> str:
    data = b"".join(
        frame(TEXT, b'{"type":"set","initial_prompt":"%s","hotwords":["w%d"]}' % (b"p" * 1900, i)) for i in range(200)
    )
    with _open(target)[0] as wire:
        sent = wire.flood(data, FLOOD_S, 100_000 * len(data) // 200)
    return f"{sent * 200 // len(data)} taken"


@attack("100 000 commands of each kind, and audio between them", "obeyed or held back; memory stays")
def command_flood(target: Target) -> str:
    data = (
        b"".join(
            frame(TEXT, b'{"type":"%s"}' % c) + frame(BINARY, bytes(64))
            for c in (b"flush", b"pause", b"resume", b"clear")
        )
        * 100
    )
    with _open(target)[0] as wire:
        sent = wire.flood(data, FLOOD_S, 100_000 * len(data) // 100)
    return f"{sent * 800 // len(data)} taken"


# Audio.


@attack("odd bytes, NaN, infinities, the largest floats, noise", "one error of each kind, then end", peak_mb=96)
def bad_audio(target: Target) -> str:
    floats = b'{"type":"start","format":"f32le","sample_rate":48000,"channels":2}'
    worst = struct.pack("<6f", float("nan"), float("inf"), -float("inf"), 3.4e38, -3.4e38, 1e-45) * 4000
    seen = set()
    for start, data in (
        (b'{"type":"start"}', b"\1" * 3333),
        (floats, worst),
        (floats, os.urandom(100_001)),
        (b'{"type":"start","channels":32,"sample_rate":384000}', os.urandom(600_001)),
    ):
        with target.upgrade(STREAM) as wire:
            wire.send(frame(TEXT, start) + frame(BINARY, data) + frame(BINARY, b"") + FINISH)
            events, code = _events(wire, 20.0)
        expect(bool(events) and events[-1]["type"] == "end", f"no end, but {events[-1:]} {code}")
        seen |= {str(event["code"]) for event in events if event["type"] == "error"}
    expect(
        {"odd_bytes", "bad_samples", "out_of_range"} <= seen <= {"odd_bytes", "bad_samples", "out_of_range"},
        f"errors: {seen}",
    )
    return "odd_bytes, bad_samples, out_of_range"


@attack("audio after finish, finish twice, start twice", "ignored or told; end comes", quick=True)
def late_audio(target: Target) -> str:
    with target.upgrade(STREAM) as wire:
        wire.send(START + FINISH + frame(BINARY, bytes(100_000)) * 20 + FINISH + START)
        events, code = _events(wire, 15.0)
    expect(any(event["type"] == "end" for event in events), f"no end, but {events[-1:]} {code}")
    return "end"


# Resuming.


@attack("10 000 guesses of a session's name", "none is right; each is answered or refused", log_bytes=60_000)
def resume_guesses(target: Target) -> str:
    honest, _ = _open(target, 1)
    begin = time.monotonic()
    n = 0
    while n < 10_000 and time.monotonic() - begin < 8:
        n += 1
        try:
            wire = target.upgrade(STREAM, 2 + n % 8, timeout_s=3.0)
            wire.send(_resume(secrets.token_urlsafe(24), 0))
        except Broken:
            continue
        events, _ = _events(wire, 3.0, "error")
        wire.reset()
        expect(not events or events[0]["type"] == "error", f"a guess gets {events[:1]}")
    honest.send(FINISH)
    events, _ = _events(honest, 10.0)
    honest.close()
    expect(bool(events) and events[-1]["type"] == "end", "the honest stream was disturbed")
    return f"{n} guesses"


@attack("two connections take one stream from each other 300 times", "always one has it; nothing is lost")
def resume_ping_pong(target: Target) -> str:
    first, session = _open(target, 2)
    wires = [first]
    for i in range(300):
        wires.append(target.upgrade(STREAM, 2 + i % 2))
        wires[-1].send(_resume(session, 1))
        wires.pop(0).reset() if i % 3 else wires.pop(0).close()
    events, code = _events(wires[-1], 10.0, "resumed")
    expect(bool(events) and events[-1]["type"] == "resumed", f"the last gets {events} {code}")
    wires[-1].send(FINISH)
    events, code = _events(wires[-1], 10.0)
    wires[-1].close()
    expect(bool(events) and events[-1]["type"] == "end", f"the last gets {events[-1:]} {code}")
    return "300"


@attack(
    "50 connections resume one stream at once, and none reads", "one has it, the others are closed", log_bytes=40_000
)
def resume_crowd(target: Target) -> str:
    first, session = _open(target, 2)
    wires = [first]
    for i in range(50):
        wires.append(target.upgrade(STREAM, 2 + i % 2, receive_buffer=4096))
        wires[-1].send(_resume(session, 0))
    time.sleep(1.0)
    codes = [wire.close_code(3.0) for wire in wires[:-1]]
    for wire in wires:
        wire.reset()
    left = sum(code is None for code in codes)
    expect(left == 0, f"{left} older connections stay open")
    return "49 closed"
