"""Steps that are conversations: requests, streams, connections. The head of conversations.yaml explains them."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tools.attacks.notation import each_of, encode
from tools.attacks.table import run_steps, step
from tools.attacks.target import Daemon, Target
from tools.attacks.wire import CLOSE, TEXT, Broken, Wire, exchange, expect, statuses

STREAM = "/v1/stream"


@step
def requests(
    target: Target,
    items: Sequence[Any],
    *,
    most: int = 1,
    allowed: Sequence[int] = (),
    first: Sequence[int] = (),
    forbidden: Sequence[int] = (),
    answered: bool = False,
    never: Sequence[str] = (),
    ends: str = "",
    times: int = 1,
    seconds: float = 0.0,
    together: int = 40,
    source: int = 0,
    most_a_second: float = 0.0,
) -> str:
    """Send each request over its own connection."""
    wanted = [encode(target, text) for text in each_of(items) * times]
    unwanted = [encode(target, text).lower() for text in never]
    seen: list[int] = []
    begin = time.monotonic()
    for at in range(0, len(wanted), together):
        if seconds and time.monotonic() - begin > seconds:
            break
        part = wanted[at : at + together]
        wires = [target.open(source or 2 + i % 8) for i in range(len(part))]
        found = exchange(wires, part, 0.25)
        for request, (data, closed), wire in zip(part, found, wires, strict=True):
            wire.sock.close()
            codes = statuses(data)
            seen += codes or [0]
            fact = f"{request[:80]!r} gets {codes or 'no answer'}{', closed' * closed}, {data[-40:]!r}"
            expect(len(codes) <= most and not {500, 502, 503, 504} & set(codes) - set(allowed), fact)
            expect(bool(codes) or (closed and not answered), fact)
            expect(not allowed or (len(codes) == 1 and codes[0] in allowed), fact)
            expect(not first or bool(codes and codes[0] in first), fact)
            expect(not set(codes) & set(forbidden), fact)
            expect(not any(text in data.lower() for text in unwanted) and data.endswith(ends.encode()), fact)
    rate = sum(status < 500 for status in seen) / (time.monotonic() - begin)
    expect(not most_a_second or rate < most_a_second, f"{rate:.0f} requests a second are answered")
    return " ".join(f"{status or 'closed'}:{seen.count(status)}" for status in sorted(set(seen)))


@step
def ask(target: Target, path: str, *, times: int = 1, source: int = 1, holds: str = "", within_s: float = 60.0) -> str:
    """Ask as an honest client does."""
    slowest_s = 0.0
    for _ in range(times):
        begin = time.monotonic()
        status, body = target.ask(path, source)
        expect(status == 200 and holds in body, f"{path} answers {status} {body[:100]}")
        slowest_s = max(slowest_s, time.monotonic() - begin)
    expect(slowest_s < within_s, f"an answer took {slowest_s:.1f} s")
    return f"an answer took {slowest_s * 1000:.0f} ms"


@step
def idle(target: Daemon, within_s: float) -> str:
    """Wait until the server has no session of a client left."""
    begin = time.monotonic()
    while n := target.n_sessions():
        expect(time.monotonic() - begin < within_s, f"{n} sessions are served after {within_s:.0f} s")
        time.sleep(0.3)
    return f"no session after {time.monotonic() - begin:.1f} s"


@step
def streams(
    target: Target,
    conversations: Sequence[Any],
    *,
    path: str = STREAM,
    closes: Sequence[int] = (),
    errors: int | None = None,
    codes: Sequence[str] = (),
    every: bool = False,
    ends: bool = False,
    fatal: bool = False,
    opens: str = "",
) -> str:
    """Send each conversation over a WebSocket of its own, and read up to `end`, or until it is closed."""
    found: list[Mapping[str, Any]] = []
    wanted = each_of(conversations)
    for i, conversation in enumerate(wanted):
        with target.upgrade(path, target.open(2 + i % 4)) as wire:
            wire.send(encode(target, [conversation] if isinstance(conversation, str) else conversation))
            events, code = read_events(wire, 20.0, opens or ("" if closes else "end"))
        fact = f"{str(conversation)[:80]} gets {[event['type'] for event in events[-3:]]} and {code}"
        failed = [event for event in events if event["type"] == "error"]
        expect(not closes or code in closes, fact)
        expect(not ends or any(event["type"] == "end" for event in events), fact)
        expect(not opens or bool(events and events[-1]["type"] == opens), fact)
        expect(not fatal or bool(failed and failed[-1].get("fatal")), fact)
        found += failed
    seen = {event["code"] for event in found}
    expect(errors is None or len(found) == errors, f"{len(found)} errors, expected {errors}")
    expect(not codes or (seen == set(codes) if every else seen <= set(codes)), f"errors {seen}, expected {codes}")
    expect(all(event["message"].isprintable() for event in found), "an error holds control characters")
    return f"{len(wanted)} streams, {len(found)} errors"


def read_events(wire: Wire, seconds: float, last: str = "end") -> tuple[list[dict[str, Any]], int | None]:
    """Return the events up to one of type `last`, and the close code if there is one; 1006 if TCP is closed without."""
    found: list[dict[str, Any]] = []
    for opcode, payload in wire.frames(seconds):
        if opcode == CLOSE:
            return found, int.from_bytes(payload[:2], "big") if payload else 1006
        if opcode == TEXT:
            found.append(json.loads(payload))
            if found[-1]["type"] == last:
                break
    return found, None


def _open(
    target: Target,
    *,
    n: int = 1,
    path: str = "",  # of a WebSocket; empty: what is sent is text, not frames
    start: str | Sequence[str] = "",
    again: str | Sequence[str] = "",
    source: int = 2,  # the first of their addresses
    addresses: int = 8,
    receive_buffer: int = 0,
    gone: bool = False,  # whether the client vanishes at once
    half: bool = False,  # whether the client closes its half
    may_fail: bool = False,  # whether the server may refuse the connection
    most_bytes: int = 1 << 40,
    piece: int = 1 << 18,  # bytes sent at a time
) -> Iterator[Wire]:
    first, more = encode(target, start), encode(target, again)
    more *= max(1, (1 << 16) // max(1, len(more)))  # few calls for many bytes
    for i in range(n):
        try:
            wire = target.open(source + i % addresses, receive_buffer, 3.0 if may_fail else 10.0)
            if path:
                target.upgrade(path, wire)
        except Broken:
            if may_fail:
                continue
            raise
        wire.again, wire.piece, wire.most_bytes = memoryview(more), piece, most_bytes
        wire.send(first)
        if half:
            wire.sock.shutdown(1)
        if gone:
            wire.reset() if i % 2 else wire.sock.close()
        else:
            yield wire


def open_groups(target: Target, groups: Sequence[Mapping[str, Any]], most_open: Sequence[int] = ()) -> list[Wire]:
    """Open all connections of groups. Raises Broken if one is refused, or if too many stay open."""
    wires: list[Wire] = []
    for i, group in enumerate(groups):
        wires += _open(target, **group)
        if most_open:
            time.sleep(0.3)
            n_open = sum(not wire.closed() for wire in wires)
            expect(n_open <= most_open[i], f"{n_open} connections are open, at most {most_open[i]} may be")
    return wires


def flood(wires: Sequence[Wire], seconds: float, pause_s: float = 0.0, *, read: bool = False) -> None:
    """Send `again` over all connections until the time is over, or all are closed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(wire.lost for wire in wires):
        n_sent = 0
        for wire in wires:
            if not wire.lost:
                n_sent += wire.push()
                wire.lost = wire.lost or (read and wire.closed())
        time.sleep(pause_s or (0.0 if n_sent else 0.005))


@step
def connections(
    target: Target,
    groups: Sequence[Mapping[str, Any]],
    *,
    seconds: float = 0.0,
    closed_s: float = 0.0,
    read: bool | None = None,
    pause_s: float = 0.0,
    most_open: Sequence[int] = (),
    meanwhile: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Open connections, flood the server over them, expect it to close them, and vanish."""
    wires = open_groups(target, groups, most_open)
    begin = time.monotonic()
    flood(wires, seconds, pause_s, read=bool(read))
    flood(wires, closed_s, pause_s, read=read is not False)
    took_s, n_open = time.monotonic() - begin, sum(not wire.lost for wire in wires)
    expect(not closed_s or not n_open, f"{n_open} of {len(wires)} are open after {took_s:.1f} s")
    report = run_steps(target, meanwhile)
    for wire in wires:
        wire.reset()
    n_kb = sum(wire.sent for wire in wires) >> 10
    return f"{len(wires)} connections, {n_kb} kB taken, {n_open} open after {took_s:.1f} s {report}".rstrip()
