"""Steps that are conversations: requests, streams, connections. The head of conversations.yaml explains them."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
            told = f"{request[:80]!r} gets {codes or 'no answer'}{', closed' * closed}, {data[-40:]!r}"
            expect(len(codes) <= most and not {500, 502, 503, 504} & set(codes) - set(allowed), told)
            expect(bool(codes) or (closed and not answered), told)
            expect(not allowed or (len(codes) == 1 and codes[0] in allowed), told)
            expect(not first or bool(codes and codes[0] in first), told)
            expect(not set(codes) & set(forbidden), told)
            expect(not any(text in data.lower() for text in unwanted) and data.endswith(ends.encode()), told)
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
        told = f"{str(conversation)[:80]} gets {[event['type'] for event in events[-3:]]} and {code}"
        failed = [event for event in events if event["type"] == "error"]
        expect(not closes or code in closes, told)
        expect(not ends or any(event["type"] == "end" for event in events), told)
        expect(not opens or bool(events and events[-1]["type"] == opens), told)
        expect(not fatal or bool(failed and failed[-1].get("fatal")), told)
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


@dataclass(frozen=True)
class Group:
    """Connections that all do the same."""

    n: int = 1
    path: str = ""  # of a WebSocket; empty: what is sent is text, not frames
    start: str | Sequence[str] = ""
    again: str | Sequence[str] = ""
    source: int = 2  # the first of their addresses
    addresses: int = 8
    receive_buffer: int = 0
    gone: bool = False  # whether the client vanishes at once
    half: bool = False  # whether the client closes its half
    may_fail: bool = False  # whether the server may refuse the connection
    most_bytes: int = 1 << 40
    piece: int = 1 << 18  # bytes sent at a time


@dataclass
class Line:
    """A connection of a group while it is used."""

    wire: Wire
    group: Group
    again: memoryview
    sent: int = 0
    lost: bool = False

    def push(self) -> int:
        """Continue to send where the last bytes ended; return how many were accepted."""
        if not self.again or self.sent >= self.group.most_bytes:
            return 0
        at = self.sent % len(self.again)
        n = self.wire.push(self.again[at : at + self.group.piece])
        self.lost = n < 0
        self.sent += max(n, 0)
        return max(n, 0)


def _open(target: Target, group: Group) -> Iterator[Line]:
    start, again = encode(target, group.start), encode(target, group.again)
    again *= max(1, (1 << 16) // max(1, len(again)))  # few calls for many bytes
    for i in range(group.n):
        try:
            source = group.source + i % group.addresses
            wire = target.open(source, group.receive_buffer, 3.0 if group.may_fail else 10.0)
            if group.path:
                target.upgrade(group.path, wire)
        except Broken:
            if group.may_fail:
                continue
            raise
        wire.send(start)
        if group.half:
            wire.sock.shutdown(1)
        if group.gone:
            wire.reset() if i % 2 else wire.sock.close()
        yield Line(wire, group, memoryview(again))


def open_groups(target: Target, groups: Sequence[Mapping[str, Any]], most_open: Sequence[int] = ()) -> list[Line]:
    """Open all connections of groups. Raises Broken if one is refused, or if too many stay open."""
    lines: list[Line] = []
    for i, group in enumerate(Group(**fields) for fields in groups):
        lines += [line for line in _open(target, group) if not group.gone]
        if most_open:
            time.sleep(0.3)
            n_open = sum(not line.wire.closed() for line in lines)
            expect(n_open <= most_open[i], f"{n_open} connections are open, at most {most_open[i]} may be")
    return lines


def flood(lines: Sequence[Line], seconds: float, pause_s: float = 0.0, *, read: bool = False) -> None:
    """Send over all lines until the time is over, or all are closed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(line.lost for line in lines):
        n_sent = 0
        for line in lines:
            if not line.lost:
                n_sent += line.push()
                line.lost = line.lost or (read and line.wire.closed())
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
    lines = open_groups(target, groups, most_open)
    begin = time.monotonic()
    flood(lines, seconds, pause_s, read=bool(read))
    flood(lines, closed_s, pause_s, read=read is not False)
    took_s, n_open = time.monotonic() - begin, sum(not line.lost for line in lines)
    expect(not closed_s or not n_open, f"{n_open} of {len(lines)} are open after {took_s:.1f} s")
    told = run_steps(target, meanwhile)
    for line in lines:
        line.wire.reset()
    n_kb = sum(line.sent for line in lines) >> 10
    return f"{len(lines)} connections, {n_kb} kB taken, {n_open} open after {took_s:.1f} s {told}".rstrip()
