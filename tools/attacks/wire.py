"""Connections made by hand, so that they may be wrong in every way."""

import contextlib
import re
import socket
import struct
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import ClassVar

# Opcodes of RFC 6455, 5.2.
OPCODES = {"continuation": 0x0, "text": 0x1, "binary": 0x2, "close": 0x8, "ping": 0x9, "pong": 0xA}
TEXT, CLOSE = OPCODES["text"], OPCODES["close"]


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

    def __init__(self, port: int, source: int, receive_buffer: int, timeout_s: float) -> None:
        """Connect from the address 127.0.0.`source`, if the system has such addresses. Raises OSError.

        With a small `receive_buffer` the server soon has to wait for the client to read.
        """
        self.sock = socket.socket()
        self.is_websocket = False
        self.unread = b""  # received, but not used yet
        self.timeout_s = timeout_s
        # A flood: what is sent again and again, so many bytes at a time, up to a limit; what was sent, and whether the
        # server has closed the connection.
        self.again, self.piece, self.most_bytes, self.sent, self.lost = memoryview(b""), 0, 0, 0, False
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
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send all, unless the server closes the connection or does not accept it in time."""
        self.sock.settimeout(self.timeout_s)
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def push(self) -> int:
        """Send more of `again`, as much as the server accepts at once; return how many bytes."""
        if not self.again or self.sent >= self.most_bytes:
            return 0
        at, n = self.sent % len(self.again), 0
        self.sock.settimeout(0.0)
        try:
            n = self.sock.send(self.again[at : at + self.piece])
        except OSError as error:
            self.lost = not isinstance(error, BlockingIOError)
        self.sent += n
        return n

    def receive(self, seconds: float) -> bytes | None:
        """Return what comes first within some time, b'' if the connection is closed, None if nothing comes."""
        self.sock.settimeout(max(seconds, 0.0))
        try:
            return self.sock.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return None
        except OSError:
            return b""

    def read(self, seconds: float, until: bytes | None = None) -> bytes:
        """Return what comes within some time, until the connection is closed or some bytes have come."""
        data, end = b"", time.monotonic() + seconds
        while (until is None or until not in data) and (piece := self.receive(end - time.monotonic())):
            data += piece
        return data

    def closed(self) -> bool:
        """Whether the server has closed the connection, or its WebSocket. What has come is dropped."""
        while piece := self.receive(0.0):
            self.unread = self.unread + piece if self.is_websocket else b""
        return piece == b"" or any(opcode == CLOSE for opcode, _ in self.frames(0.0))

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

    def reset(self) -> None:
        """Vanish: the server gets a reset."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    @classmethod
    def close_all(cls) -> None:
        """Close those that are open."""
        for wire in list(cls.opened):
            wire.sock.close()


def exchange(wires: Sequence[Wire], requests: Sequence[bytes], quiet_s: float) -> list[tuple[bytes, bool]]:
    """Send a request over each connection; return what comes over each until it is quiet, and whether it is closed."""
    data = dict.fromkeys(wires, b"")
    closed: set[Wire] = set()
    for wire, request in zip(wires, requests, strict=True):
        wire.send(request)
    last = time.monotonic()
    end = last + 60.0  # on a busy machine
    while len(closed) < len(data) and time.monotonic() < end:
        if all(data[wire] or wire in closed for wire in wires) and time.monotonic() - last > quiet_s:
            break
        for wire in data.keys() - closed:
            if (piece := wire.receive(0.0)) is not None:
                last = time.monotonic()
                data[wire] += piece
                closed |= set() if piece else {wire}
        time.sleep(0.002)
    return [(data[wire], wire in closed) for wire in wires]


def statuses(data: bytes) -> list[int]:
    """Return the status codes of the HTTP responses in what was read."""
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", data)]


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bool = True, length: int = -1
) -> bytes:
    """Return a client's frame (RFC 6455, 5.2) with a masking key of 0. `length` is announced instead of its own."""
    n = len(payload) if length < 0 else length
    code, size = (n, "") if n < 126 else (126, "H") if n < 1 << 16 else (127, "Q")
    head = struct.pack(f">BB{size}", fin << 7 | reserved << 4 | opcode, mask << 7 | code, *[n] * len(size))
    return head + (bytes(4) if mask else b"") + payload


def _first_frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Split a server's first frame, which is never masked, from what follows it; None if it is not complete."""
    if len(data) < 2:
        return None
    n = data[1] & 0x7F
    at = {126: 4, 127: 10}.get(n, 2)
    if at > 2:
        n = int.from_bytes(data[2:at], "big")
    if len(data) < at + n:
        return None
    return data[0] & 0x0F, data[at : at + n], data[at + n :]
