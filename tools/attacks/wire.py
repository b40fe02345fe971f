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
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class Broken(AssertionError):  # noqa: N818 - what did not hold
    """Something that must hold under an attack did not."""


def expect(holds: bool, message: str) -> None:
    """Raise Broken with a message unless something holds."""
    if not holds:
        raise Broken(message)


class Wire:
    """A TCP connection. Times out instead of waiting for ever."""

    # All that are open: what an attack that breaks off leaves behind is closed all the same.
    opened: ClassVar["weakref.WeakSet[Wire]"] = weakref.WeakSet()

    def __init__(self, port: int, source: int = 2, *, receive_buffer: int = 0, timeout_s: float = 10.0) -> None:
        """Connect from the address 127.0.0.`source`, where the system has such addresses.

        `receive_buffer` makes the kernel take few bytes before the server has to wait. Raises OSError.
        """
        self.sock = socket.socket()
        # What was read and is not used yet.
        self.unread = b""
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

    def send(self, data: bytes | str) -> bool:
        """Send all; return whether the server took it."""
        try:
            self.sock.sendall(data.encode("latin-1") if isinstance(data, str) else data)
        except OSError:
            return False
        return True

    def flood(self, data: bytes, seconds: float, most_bytes: int = 1 << 34) -> int:
        """Send `data` again and again without reading; return how many bytes the server took."""
        sent = 0
        view = memoryview(data)
        end = time.monotonic() + seconds
        self.sock.settimeout(0.2)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end and sent < most_bytes:
                with contextlib.suppress(TimeoutError):
                    sent += self.sock.send(view[sent % len(data) :])
        self.sock.settimeout(10.0)
        return sent

    def read(self, seconds: float, quiet_s: float = 0.0) -> tuple[bytes, bool]:
        """Return what comes within some time, and whether the server closed the connection.

        With `quiet_s` less is waited for once something has come.
        """
        data, self.unread = self.unread, b""
        end = time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                self.sock.settimeout(min(left, quiet_s) if quiet_s and data else left)
                piece = self.sock.recv(1 << 16)
                if not piece:
                    return data, True
                data += piece
        except TimeoutError:
            pass
        except OSError:
            return data, True
        finally:
            self.sock.settimeout(10.0)
        return data, False

    def closed_within(self, seconds: float) -> bool:
        """Whether the server closes the connection in time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.sock.settimeout(left)
            try:
                if not self.sock.recv(1 << 16):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    def is_open(self) -> bool:
        """Whether nothing more has come, not even an end. What has come is dropped."""
        self.sock.settimeout(0.0)
        try:
            self.sock.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def frames(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Yield the opcode and payload of frames that come within some time; CLOSE with b'' where TCP was closed."""
        end = time.monotonic() + seconds
        while True:
            while (found := _first_frame(self.unread)) is not None:
                opcode, payload, self.unread = found
                yield opcode, payload
            left = end - time.monotonic()
            if left <= 0:
                return
            self.sock.settimeout(left)
            try:
                piece = self.sock.recv(1 << 16)
            except TimeoutError:
                return
            except OSError:
                piece = b""
            if not piece:
                yield CLOSE, b""
                return
            self.unread += piece

    def close_code(self, seconds: float) -> int | None:
        """Return the code of the close frame that comes in time, 1006 where TCP is closed without, else None."""
        for opcode, payload in self.frames(seconds):
            if opcode == CLOSE:
                return int.from_bytes(payload[:2], "big") if payload else 1006
        return None

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


def exchange(wires: Sequence[Wire], requests: Sequence[bytes], seconds: float, quiet_s: float = 0.5) -> list[Answer]:
    """Send a request over each connection, and read all of them until each is closed, or has answered and is quiet."""
    answers = [Answer() for _ in wires]
    with selectors.DefaultSelector() as selector:
        for wire, request, answer in zip(wires, requests, answers, strict=True):
            wire.send(request)
            selector.register(wire.sock, selectors.EVENT_READ, answer)
        end = time.monotonic() + seconds
        heard = time.monotonic()
        while time.monotonic() < end and any(not answer.closed for answer in answers):
            if all(answer.data or answer.closed for answer in answers) and time.monotonic() - heard > quiet_s:
                break
            for key, _ in selector.select(0.05):
                sock: socket.socket = key.fileobj  # type: ignore[assignment]
                try:
                    piece = sock.recv(1 << 16)
                except OSError:
                    piece = b""
                heard = time.monotonic()
                key.data.data += piece
                if not piece:
                    key.data.closed = True
                    selector.unregister(sock)
    for answer in answers:
        answer.statuses = statuses(answer.data)
    return answers


def statuses(data: bytes) -> list[int]:
    """Return the status codes of the HTTP responses in what was read."""
    return [int(code) for code in _STATUS.findall(data)]


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, reserved: int = 0, mask: bool = True, length: int = -1
) -> bytes:
    """Return a client's frame (RFC 6455, 5.2). The masking key is 0, so that floods cost us little.

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
    """Split a server's first frame, which is never masked, from what follows it; None where it is not complete."""
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
