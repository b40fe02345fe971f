"""Connections made by hand, so that they may be wrong in every way."""

import contextlib
import re
import selectors
import socket
import struct
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

# Opcodes of RFC 6455, 5.2.
OPCODES = {"continuation": 0x0, "text": 0x1, "binary": 0x2, "close": 0x8, "ping": 0x9, "pong": 0xA}
TEXT, CLOSE = OPCODES["text"], OPCODES["close"]

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class Broken(AssertionError):  # noqa: N818 - what did not hold
    """Something that must hold under an attack did not."""


def expect(holds: bool, message: str) -> None:
    """Raise Broken with a message unless something holds."""
    if not holds:
        raise Broken(message)


class Wire:
    """A TCP connection, which may be a WebSocket. Times out instead of waiting for ever."""

    # All that are open, so that those that a failed attack left behind can be closed.
    opened: ClassVar["weakref.WeakSet[Wire]"] = weakref.WeakSet()

    def __init__(self, port: int, source: int = 2, *, receive_buffer: int = 0, timeout_s: float = 10.0) -> None:
        """Connect from the address 127.0.0.`source`, if the system has such addresses. Raises OSError.

        With a small `receive_buffer` the server soon has to wait for the client to read.
        """
        self.sock = socket.socket()
        self.is_websocket = False
        self.unread = b""  # received, but not used yet
        self.timeout_s = timeout_s
        try:
            self.sock.settimeout(timeout_s)
            if receive_buffer:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            if sys.platform != "darwin":
                self.sock.bind((f"127.0.0.{source}", 0))
            self.sock.connect(("127.0.0.1", port))
        except OSError:
            self.sock.close()
            raise
        self.opened.add(self)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> bool:
        """Send all; return whether the server accepted it."""
        self.sock.settimeout(self.timeout_s)
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def push(self, data: memoryview) -> int:
        """Send what the server accepts at once; return how many bytes, -1 if the connection is closed."""
        self.sock.settimeout(0.0)
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def receive(self, seconds: float) -> bytes | None:
        """Return what comes first within some time, b'' if the connection is closed, None if nothing comes."""
        self.sock.settimeout(max(seconds, 0.0))
        try:
            return self.sock.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError:
            return b""

    def read(self, seconds: float) -> bytes:
        """Return what comes within some time, or until the connection is closed."""
        data, end = b"", time.monotonic() + seconds
        while piece := self.receive(end - time.monotonic()):
            data += piece
        return data

    def closed(self) -> bool:
        """Whether the server has closed the connection, or its WebSocket. What has come is dropped."""
        if (piece := self.receive(0.0)) is None:
            return False
        self.unread = self.unread + piece if self.is_websocket else b""
        return not piece or any(opcode == CLOSE for opcode, _ in self.frames(0.0))

    def frames(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Yield the opcode and payload of frames that come within some time; CLOSE with b'' if TCP was closed."""
        end = time.monotonic() + seconds
        while True:
            while (found := _first_frame(self.unread)) is not None:
                opcode, payload, self.unread = found
                yield opcode, payload
            left = end - time.monotonic()
            if left <= 0 or (piece := self.receive(left)) is None:
                return
            if not piece:
                yield CLOSE, b""
                return
            self.unread += piece

    def close_code(self, seconds: float) -> int | None:
        """Return the code of the close frame that comes in time, 1006 if TCP is closed without, else None."""
        return next((code_of(payload) for opcode, payload in self.frames(seconds) if opcode == CLOSE), None)

    @classmethod
    def close_all(cls) -> None:
        """Close those that are open."""
        for wire in list(cls.opened):
            wire.close()

    def close(self) -> None:
        """Close in order."""
        self.sock.close()

    def reset(self) -> None:
        """Vanish: the server gets a reset."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@dataclass
class Answer:
    """What came over one of several connections."""

    data: bytes = b""
    closed: bool = False

    # Status codes of the responses in it, in order.
    statuses: list[int] = field(default_factory=list)


def exchange(wires: Sequence[Wire], requests: Sequence[bytes], seconds: float, quiet_s: float) -> list[Answer]:
    """Send a request over each connection, and read all of them until each is closed, or has answered and is quiet."""
    answers = [Answer() for _ in wires]
    with selectors.DefaultSelector() as selector:
        for wire, request, answer in zip(wires, requests, answers, strict=True):
            wire.send(request)
            selector.register(wire.sock, selectors.EVENT_READ, (wire, answer))
        end = time.monotonic() + seconds
        received = time.monotonic()
        while time.monotonic() < end and any(not answer.closed for answer in answers):
            if all(answer.data or answer.closed for answer in answers) and time.monotonic() - received > quiet_s:
                break
            for key, _ in selector.select(0.05):
                wire, answer = key.data
                received = time.monotonic()
                if piece := wire.receive(0.0):
                    answer.data += piece
                elif piece is not None:
                    answer.closed = True
                    selector.unregister(wire.sock)
    for answer in answers:
        answer.statuses = statuses(answer.data)
    return answers


def statuses(data: bytes) -> list[int]:
    """Return the status codes of the HTTP responses in what was read."""
    return [int(code) for code in _STATUS.findall(data)]


def code_of(payload: bytes) -> int:
    """Return the code in a close frame, 1006 if there was no such frame."""
    return int.from_bytes(payload[:2], "big") if payload else 1006


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bool = True, length: int = -1
) -> bytes:
    """Return a client's frame (RFC 6455, 5.2). The masking key is 0, so that floods cost the attacker little.

    `length` is announced instead of the payload's own.
    """
    n = len(payload) if length < 0 else length
    first = fin << 7 | reserved << 4 | opcode
    if n < 126:
        head = struct.pack(">BB", first, mask << 7 | n)
    elif n < 1 << 16:
        head = struct.pack(">BBH", first, mask << 7 | 126, n)
    else:
        head = struct.pack(">BBQ", first, mask << 7 | 127, n)
    return head + (bytes(4) if mask else b"") + payload


def _first_frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Split a server's first frame, which is never masked, from what follows it; None if it is not complete."""
    if len(data) < 2:
        return None
    n, at = data[1] & 0x7F, 2
    if n >= 126:
        at = 4 if n == 126 else 10
        if len(data) < at:
            return None
        n = int.from_bytes(data[2:at], "big")
    if len(data) < at + n:
        return None
    return data[0] & 0x0F, data[at : at + n], data[at + n :]
