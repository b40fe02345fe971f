"""The steps of attacks that are conversations: requests, streams, connections."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.attacks.notation import Notation, each_of
from tools.attacks.table import TEXTS, run_steps, step
from tools.attacks.target import Target
from tools.attacks.wire import CLOSE, TEXT, Broken, Wire, code_of, exchange, expect

ANSWER_S = 60.0  # for an answer that has to come, on a busy machine
STREAM = "/v1/stream"


def notation(target: Target) -> Notation:
    """Return what turns the file's texts into bytes for a target."""
    return Notation(target, TEXTS)


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
    seconds: float = ANSWER_S,
    together: int = 40,
) -> str:
    """Send each request over its own connection."""
    notes = notation(target)
    wanted = notes.requests(items) * times
    unwanted = [notes.raw(text).lower() for text in never]
    seen: list[int] = []
    end = time.monotonic() + seconds
    for at in range(0, len(wanted), together):
        if times > 1 and time.monotonic() > end:
            break
        part = wanted[at : at + together]
        wires = [target.open(2 + i % 8) for i in range(len(part))]
        found = exchange(wires, part, ANSWER_S, 0.25)
        for request, answer, wire in zip(part, found, wires, strict=True):
            wire.close()
            codes, told = answer.statuses, f"{request[:80]!r} gets {answer.statuses or 'no answer'}"
            expect(len(codes) <= most and not {500, 502, 503, 504} & set(codes) - set(allowed), told)
            expect(bool(codes) or (answer.closed and not answered), f"{told}, open: {not answer.closed}")
            expect(not allowed or (len(codes) == 1 and codes[0] in allowed), told)
            expect(not first or codes[:1] in [[code] for code in first], told)
            expect(not set(codes) & set(forbidden), told)
            data = answer.data.lower()
            expect(not any(text in data for text in unwanted), f"{told} and what may not be in an answer")
            expect(data.endswith(ends.encode()), f"{told} and a body")
            seen += codes or [0]
    return " ".join(f"{status or 'closed'}:{seen.count(status)}" for status in sorted(set(seen)))


@step
def ask(
    target: Target, path: str, *, times: int = 1, source: int = 1, holds: str = "", within_s: float = ANSWER_S
) -> str:
    """Ask as an honest client does."""
    slowest_s = 0.0
    for _ in range(times):
        begin = time.monotonic()
        status, body = target.ask(path, source)
        slowest_s = max(slowest_s, time.monotonic() - begin)
        expect(status == 200 and holds in body, f"{path} answers {status} {body[:100]}")
    expect(slowest_s < within_s, f"the slowest answer took {slowest_s:.1f} s")
    return f"slowest answer {slowest_s * 1000:.0f} ms"


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
    notes = notation(target)
    found: list[Mapping[str, Any]] = []
    wanted = each_of(conversations)
    for i, conversation in enumerate(wanted):
        with target.upgrade(path, 2 + i % 4) as wire:
            wire.send(notes.frames([conversation] if isinstance(conversation, str) else conversation))
            events, code = read_events(wire, 20.0, opens or ("" if closes else "end"))
        told = f"{str(conversation)[:80]} gets {[event['type'] for event in events[-3:]]} and {code}"
        expect(not closes or code in closes, told)
        expect(not ends or any(event["type"] == "end" for event in events), told)
        expect(not opens or bool(events and events[-1]["type"] == opens), told)
        found += (failed := [event for event in events if event["type"] == "error"])
        expect(not fatal or bool(failed and failed[-1].get("fatal")), told)
    seen = {str(event["code"]) for event in found}
    expect(errors is None or len(found) == errors, f"{len(found)} errors, expected {errors}")
    expect(
        not codes or (seen == set(codes) if every else seen <= set(codes)),
        f"errors {sorted(seen)}, expected {sorted(codes)}",
    )
    expect(all(str(event["message"]).isprintable() for event in found), "an error holds control characters")
    return f"{len(wanted)} streams, {len(found)} errors"


def read_events(wire: Wire, seconds: float, last: str = "end") -> tuple[list[dict[str, Any]], int | None]:
    """Return the events up to one of type `last`, and the close code if the connection was closed before."""
    found: list[dict[str, Any]] = []
    for opcode, payload in wire.frames(seconds):
        if opcode == CLOSE:
            return found, code_of(payload)
        if opcode == TEXT:
            found.append(json.loads(payload))
            if found[-1]["type"] == last:
                break
    return found, None


@dataclass(frozen=True)
class Group:
    """Connections that all do the same."""

    n: int = 1
    path: str = ""  # of a WebSocket; empty: what is sent is no frames
    start: str | Sequence[str] = ""
    again: str | Sequence[str] = ""
    source: int = 2
    addresses: int = 8
    receive_buffer: int = 0
    gone: bool = False  # whether the client vanishes at once
    half: bool = False  # whether the client closes its half
    may_fail: bool = False  # whether the server may refuse the connection
    most_bytes: int = 1 << 40
    piece: int = 1 << 18  # bytes sent at a time

    def encode(self, notes: Notation, text: str | Sequence[str]) -> bytes:
        """Return the bytes of a text or of frames."""
        return notes.raw(text) if isinstance(text, str) else notes.frames(text)

    def open(self, target: Target, i: int) -> Wire | None:
        """Open one of the connections; return None if it is refused, and may be."""
        source = self.source + i % self.addresses
        timeout_s = 3.0 if self.may_fail else 10.0
        try:
            if self.path:
                return target.upgrade(self.path, source, receive_buffer=self.receive_buffer, timeout_s=timeout_s)
            return target.open(source, receive_buffer=self.receive_buffer, timeout_s=timeout_s)
        except Broken:
            if not self.may_fail:
                raise
            return None


@dataclass
class Line:
    """A connection of a group while it is used."""

    wire: Wire
    again: memoryview
    most_bytes: int
    piece: int
    sent: int = 0
    lost: bool = False

    def push(self) -> int:
        """Send on where the last bytes ended; return how many were accepted."""
        if not self.again or self.sent >= self.most_bytes:
            return 0
        at = self.sent % len(self.again)
        n = self.wire.push(self.again[at : at + self.piece])
        self.lost = n < 0
        self.sent += max(n, 0)
        return max(n, 0)


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
    report = f"{len(lines)} connections, {sum(line.sent for line in lines) >> 10} kB taken"
    if closed_s:
        flood(lines, closed_s, pause_s, read=read is not False, until_closed=True)
        n_open = sum(not line.lost for line in lines)
        report += f", closed after {time.monotonic() - begin:.1f} s"
        expect(not n_open, f"{n_open} of {len(lines)} are open after {time.monotonic() - begin:.1f} s")
    report = "; ".join(filter(None, (report, run_steps(target, meanwhile))))
    for line in lines:
        line.wire.reset()
    return report


def open_groups(target: Target, groups: Sequence[Mapping[str, Any]], most_open: Sequence[int] = ()) -> list[Line]:
    """Open all connections of groups. Raises Broken if one is refused, or if too many stay open."""
    notes = notation(target)
    lines: list[Line] = []
    for j, fields in enumerate(groups):
        group = Group(**fields)
        start, again = group.encode(notes, group.start), group.encode(notes, group.again)
        if again:
            again *= max(1, (1 << 16) // len(again))  # few calls for many bytes
        for i in range(group.n):
            if (wire := group.open(target, i)) is None:
                continue
            wire.send(start)
            if group.half:
                wire.sock.shutdown(1)
            if group.gone:
                wire.reset()
                continue
            lines.append(Line(wire, memoryview(again), group.most_bytes, group.piece))
        if most_open:
            time.sleep(0.3)
            n_open = sum(not line.wire.closed() for line in lines)
            expect(n_open <= most_open[j], f"{n_open} connections are open, at most {most_open[j]} may be")
    return lines


def flood(
    lines: Sequence[Line], seconds: float, pause_s: float = 0.0, *, read: bool = False, until_closed: bool = False
) -> None:
    """Send over all lines until the time is over, or all are closed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (until_closed and all(line.lost for line in lines)):
        n = 0
        for line in lines:
            if not line.lost:
                n += line.push()
                line.lost = line.lost or (read and line.wire.closed())
        time.sleep(pause_s or (0.0 if n else 0.005))


@step
def churn(target: Target, groups: Sequence[Mapping[str, Any]]) -> str:
    """Open connections one after another, send, and vanish: by a reset, and in order."""
    notes = notation(target)
    n = 0
    for group in (Group(**fields) for fields in groups):
        start = group.encode(notes, group.start)
        for i in range(group.n):
            if (wire := group.open(target, i)) is not None:
                wire.send(start)
                wire.reset() if i % 2 else wire.close()
                n += 1
    return f"{n} connections"
