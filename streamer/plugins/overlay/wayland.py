"""A connection to a Wayland compositor.

The format of messages is that of https://wayland.freedesktop.org/docs/html/ch04.html; numbers of requests and events
are those in the protocols' XML files, which never change.
"""

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

from streamer.errors import PeerError
from streamer.outside import one_line

LAYER_SHELL = "zwlr_layer_shell_v1"
READ_BYTES = 1 << 16

# Versions of interfaces that are used, at most.
_VERSIONS = {"wl_compositor": 4, "wl_shm": 1, "wl_seat": 1, "wl_output": 4, LAYER_SHELL: 1}

Handler = Callable[[int, bytes], None]


def socket_path() -> Path | None:
    """Return the socket of this session's compositor; None if the environment names none."""
    name = os.environ.get("WAYLAND_DISPLAY", "")
    return Path(os.environ.get("XDG_RUNTIME_DIR", "")) / name if name else None


class Connection:
    """A connection to the compositor: requests out, events to the handlers of objects."""

    def __init__(self, path: Path) -> None:
        """Connect, and learn what there is. Raises PeerError if there is no compositor."""
        self._socket = socket.socket(socket.AF_UNIX)
        # Handlers of events by the numbers of objects; numbers that can be used again.
        self._handlers: dict[int, Handler] = {1: self._handle_display}
        self._free: deque[int] = deque()
        self._n_objects = 1
        self._received = b""
        # What the compositor has: versions by names, which are numbers, by interfaces.
        self.globals: dict[str, dict[int, int]] = {}
        try:
            self._socket.connect(str(path))
            self._registry = self.create(1, 1, handler=self._handle_registry)
            self.roundtrip()
        except OSError as error:
            raise PeerError(
                f"cannot reach the Wayland compositor at {path} ({one_line(error)}): check WAYLAND_DISPLAY"
            ) from None

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def create(
        self,
        parent: int,
        request: int,
        arguments: bytes = b"",
        *,
        handler: Handler | None = None,
        descriptor: int | None = None,
    ) -> int:
        """Send a request whose first argument is a new object, perhaps with a file; return the object."""
        number = self._number(handler)
        self.send(parent, request, struct.pack("=I", number) + arguments, descriptor)
        return number

    def bind(self, interface: str, name: int | None = None, handler: Handler | None = None) -> int:
        """Return an object for something that the compositor has. Raises PeerError if it has not.

        name : its number in `globals`; None: that of the first
        """
        known = self.globals.get(interface, {})
        if name is None:
            name = next(iter(known), None)
        if name is None:
            raise PeerError(f"the Wayland compositor has no {interface}")
        number = self._number(handler)
        version = min(known[name], _VERSIONS[interface])
        self.send(self._registry, 0, struct.pack("=I", name) + encoded(interface) + struct.pack("=II", version, number))
        return number

    def send(self, sender: int, request: int, arguments: bytes = b"", descriptor: int | None = None) -> None:
        """Send a request. Raises PeerError if the compositor has gone."""
        message = struct.pack("=II", sender, (8 + len(arguments)) << 16 | request) + arguments
        passed = [] if descriptor is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            self._socket.sendmsg([message], passed)
        except OSError as error:
            raise PeerError(f"the Wayland compositor has gone ({one_line(error)})") from None

    def dispatch(self) -> None:
        """Wait for events, and handle those that are there. Raises PeerError if the compositor has gone or refuses."""
        try:
            found = self._socket.recv(READ_BYTES)
        except OSError as error:
            raise PeerError(f"the Wayland compositor has gone ({one_line(error)})") from None
        if not found:
            raise PeerError("the Wayland compositor has gone")
        self._received += found
        while len(self._received) >= 8:
            number, header = struct.unpack_from("=II", self._received)
            size = header >> 16
            if size < 8:
                raise PeerError("malformed message from the Wayland compositor")
            if len(self._received) < size:
                return
            arguments, self._received = self._received[8:size], self._received[size:]
            if (handler := self._handlers.get(number)) is not None:
                try:
                    handler(header & 0xFFFF, arguments)
                except struct.error:
                    raise PeerError("malformed message from the Wayland compositor") from None

    def roundtrip(self) -> None:
        """Wait until the compositor has answered all requests so far."""
        answered = []
        self.create(1, 0, handler=lambda *_: answered.append(True))
        while not answered:
            self.dispatch()

    def _number(self, handler: Handler | None) -> int:
        if self._free:
            number = self._free.popleft()
        else:
            self._n_objects += 1
            number = self._n_objects
        self._handlers[number] = handler or (lambda *_: None)
        return number

    def _handle_display(self, event: int, arguments: bytes) -> None:
        if event == 0:
            raise PeerError(f"the Wayland compositor refuses a request: {one_line(decoded(arguments, 8)):.200}")
        (number,) = struct.unpack_from("=I", arguments)
        self._handlers.pop(number, None)
        self._free.append(number)

    def _handle_registry(self, event: int, arguments: bytes) -> None:
        (name,) = struct.unpack_from("=I", arguments)
        if event == 0:
            (version,) = struct.unpack_from("=I", arguments, len(arguments) - 4)
            self.globals.setdefault(decoded(arguments, 4), {})[name] = version
        else:
            for known in self.globals.values():
                known.pop(name, None)


def encoded(text: str) -> bytes:
    """Return text as an argument."""
    raw = text.encode() + b"\0"
    return struct.pack("=I", len(raw)) + raw + bytes(-len(raw) % 4)


def decoded(arguments: bytes, at: int) -> str:
    """Return the text that begins somewhere in arguments."""
    (size,) = struct.unpack_from("=I", arguments, at)
    return arguments[at + 4 : at + 3 + size].decode("utf-8", "replace")
