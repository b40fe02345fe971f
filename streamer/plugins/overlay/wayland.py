"""A Wayland client for a surface above all windows: the protocol `wlr-layer-shell-unstable-v1`, which Qt lacks.

Sway, Hyprland, river, labwc, Wayfire, KDE's KWin and COSMIC have it, GNOME has not. The format of messages is that of
https://wayland.freedesktop.org/docs/html/ch04.html; numbers of requests and events are those in the protocols' XML
files, which never change.
"""

import array
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from streamer.errors import PeerError
from streamer.outside import one_line

LAYER_SHELL = "zwlr_layer_shell_v1"
READ_BYTES = 1 << 16

_OVERLAY = 3  # the layer above panels and full screens
_ALL_EDGES, _TOP_LEFT = 1 | 2 | 4 | 8, 1 | 4
_IGNORE_PANELS = -1
_ARGB8888 = 0  # premultiplied, as Qt's Format_ARGB32_Premultiplied
_BUTTONS = {0x110: "left", 0x111: "right"}

# Versions of interfaces that are used, at most.
_VERSIONS = {"wl_compositor": 4, "wl_shm": 1, "wl_seat": 1, "wl_output": 4, LAYER_SHELL: 1}

Pointer = Literal["press", "move", "release", "wheel", "right"]
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

    def create(self, parent: int, request: int, arguments: bytes = b"", *, handler: Handler | None = None) -> int:
        """Send a request whose first argument is a new object; return the object."""
        number = self.number(handler)
        self.send(parent, request, struct.pack("=I", number) + arguments)
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
        number = self.number(handler)
        version = min(known[name], _VERSIONS[interface])
        self.send(self._registry, 0, struct.pack("=I", name) + _string(interface) + struct.pack("=II", version, number))
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

    def number(self, handler: Handler | None) -> int:
        if self._free:
            number = self._free.popleft()
        else:
            self._n_objects += 1
            number = self._n_objects
        self._handlers[number] = handler or (lambda *_: None)
        return number

    def _handle_display(self, event: int, arguments: bytes) -> None:
        if event == 0:
            raise PeerError(f"the Wayland compositor refuses a request: {one_line(_text(arguments, 8)):.200}")
        (number,) = struct.unpack_from("=I", arguments)
        self._handlers.pop(number, None)
        self._free.append(number)

    def _handle_registry(self, event: int, arguments: bytes) -> None:
        (name,) = struct.unpack_from("=I", arguments)
        if event == 0:
            (version,) = struct.unpack_from("=I", arguments, len(arguments) - 4)
            self.globals.setdefault(_text(arguments, 4), {})[name] = version
        else:
            for known in self.globals.values():
                known.pop(name, None)


class Layer:
    """A surface above all windows, through which clicks go unless it is grabbed; then it covers its screen."""

    def __init__(self, connection: Connection, on_pointer: Callable[[Pointer, int, int], None]) -> None:
        """Prepare; nothing is shown yet. `on_pointer` has what the mouse does while the surface is grabbed."""
        self._connection = connection
        self._on_pointer = on_pointer
        self._compositor = connection.bind("wl_compositor")
        self._memory = connection.bind("wl_shm")
        self._shell = connection.bind(LAYER_SHELL)
        # Screens by their names of the connection, each an object and a name of the desktop.
        self._outputs: dict[int, tuple[int, str]] = {}
        if "wl_seat" in connection.globals:
            self._seat = connection.bind("wl_seat", handler=self._handle_seat)
        # The mouse, 0 if there is none; where its pointer is, and the picture of it.
        self._pointer = 0
        self._at = (0, 0)
        self.cursor: tuple[bytes, int] | None = None
        self._cursor_surface = 0

        # The surface and its role; 0: nothing is shown. What it was configured as: screen, geometry, whether grabbed.
        self._surface = self._role = 0
        self._geometry: tuple[object, ...] = ()
        # What is drawn once the compositor has agreed to the geometry: makes a picture for a size.
        self._draw: Callable[[int, int], tuple[bytes, int, int, int]] | None = None
        self._size: tuple[int, int] | None = None

    def show(
        self,
        draw: Callable[[int, int], tuple[bytes, int, int, int]],
        rectangle: tuple[int, int, int, int],
        screen: str,
        *,
        grabbed: bool,
    ) -> None:
        """Show a picture.

        draw : given width and height in logical pixels, returns premultiplied ARGB, its width and height in pixels, and
            how many of them a logical one is
        rectangle : x, y, width, height in logical pixels; if grabbed, the whole screen is drawn instead
        """
        self._draw = draw
        if self._surface and self._geometry[:2] != (screen, grabbed):
            self.hide()
            self._draw = draw
        if not self._surface:
            self._surface = self._connection.create(self._compositor, 0)
            output = self._output(screen)
            arguments = struct.pack("=III", self._surface, output, _OVERLAY) + _string("streamer")
            role = self._role = self._connection.create(
                self._shell, 0, arguments, handler=lambda *event: self._handle_role(role, *event)
            )
            self._request(2, "i", _IGNORE_PANELS)
            if not grabbed:
                region = self._connection.create(self._compositor, 1)
                self._connection.send(self._surface, 5, struct.pack("=I", region))
                self._connection.send(region, 0)
        geometry = (screen, grabbed, None if grabbed else rectangle)
        if geometry == self._geometry:
            if self._size is not None:
                self._attach()
            return
        self._geometry, self._size = geometry, None
        x, y, width, height = (0, 0, 0, 0) if grabbed else rectangle
        self._request(0, "II", width, height)
        self._request(1, "I", _ALL_EDGES if grabbed else _TOP_LEFT)
        self._request(3, "iiii", y, 0, 0, x)
        self._connection.send(self._surface, 6)

    def hide(self) -> None:
        """Show nothing."""
        if self._surface:
            self._request(7, "")
            self._connection.send(self._surface, 0)
        self._surface = self._role = 0
        self._geometry, self._draw, self._size = (), None, None

    def _request(self, request: int, types: str, *arguments: int) -> None:
        self._connection.send(self._role, request, struct.pack(f"={types}", *arguments))

    def _output(self, screen: str) -> int:
        """Return the object of a screen; 0, for which the compositor chooses one, if it has gone."""
        there = self._connection.globals.get("wl_output", {})
        for name in there.keys() - self._outputs.keys():
            self._add_output(name)
        self._connection.roundtrip()
        return next((output for name, (output, known) in self._outputs.items() if name in there and known == screen), 0)

    def _add_output(self, name: int) -> None:
        def handle(event: int, arguments: bytes) -> None:
            if event == 4:
                self._outputs[name] = (output, _text(arguments, 0))

        output = self._connection.bind("wl_output", name, handle)
        self._outputs[name] = (output, "")

    def _handle_role(self, role: int, event: int, arguments: bytes) -> None:
        if role != self._role:  # of a surface that is hidden
            return
        if event == 1:  # the screen has gone
            self.hide()
            return
        serial, width, height = struct.unpack("=III", arguments)
        self._request(6, "I", serial)
        self._size = (width, height)
        self._attach()

    def _attach(self) -> None:
        if self._draw is None or self._size is None:
            return
        pixels, width, height, scale = self._draw(*self._size)
        self._put(self._surface, pixels, width, height, scale)

    def _put(self, surface: int, pixels: bytes, width: int, height: int, scale: int) -> None:
        buffer = self._buffer(pixels, width, height)
        self._connection.send(surface, 8, struct.pack("=i", scale))
        self._connection.send(surface, 1, struct.pack("=Iii", buffer, 0, 0))
        self._connection.send(surface, 9, struct.pack("=iiii", 0, 0, width, height))
        self._connection.send(surface, 6)

    def _buffer(self, pixels: bytes, width: int, height: int) -> int:
        """Return a buffer with a picture, which frees itself when the compositor no longer uses it."""
        descriptor = os.memfd_create("streamer-overlay", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, len(pixels))
            with mmap.mmap(descriptor, len(pixels)) as memory:
                memory[:] = pixels
            number = self._connection.number(None)
            arguments = struct.pack("=Ii", number, len(pixels))
            self._connection.send(self._memory, 0, arguments, descriptor)
        finally:
            os.close(descriptor)

        def release(*_: object) -> None:
            self._connection.send(buffer, 0)

        shape = struct.pack("=iiiiI", 0, width, height, 4 * width, _ARGB8888)
        buffer = self._connection.create(number, 0, shape, handler=release)
        self._connection.send(number, 1)
        return buffer

    def _handle_seat(self, event: int, arguments: bytes) -> None:
        if event == 0 and struct.unpack("=I", arguments)[0] & 1 and not self._pointer:
            self._pointer = self._connection.create(self._seat, 0, handler=self._handle_pointer)

    def _handle_pointer(self, event: int, arguments: bytes) -> None:
        match event:
            case 0:
                serial, _, x, y = struct.unpack("=IIii", arguments)
                self._at = (x // 256, y // 256)
                self._show_cursor(serial)
            case 2:
                _, x, y = struct.unpack("=Iii", arguments)
                self._at = (x // 256, y // 256)
                self._on_pointer("move", *self._at)
            case 3:
                _, _, button, state = struct.unpack("=IIII", arguments)
                if _BUTTONS.get(button) == "left":
                    self._on_pointer("press" if state else "release", *self._at)
                elif _BUTTONS.get(button) == "right" and state:
                    self._on_pointer("right", *self._at)
            case 4:
                _, axis, value = struct.unpack("=IIi", arguments)
                if axis == 0 and value:
                    self._on_pointer("wheel", 0, -1 if value > 0 else 1)

    def _show_cursor(self, serial: int) -> None:
        if self.cursor is None:
            return
        pixels, size = self.cursor
        if not self._cursor_surface:
            self._cursor_surface = self._connection.create(self._compositor, 0)
        arguments = struct.pack("=IIii", serial, self._cursor_surface, size // 2, size // 2)
        self._connection.send(self._pointer, 0, arguments)
        self._put(self._cursor_surface, pixels, size, size, 1)


def _string(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("=I", len(raw)) + raw + bytes(-len(raw) % 4)


def _text(arguments: bytes, at: int) -> str:
    (size,) = struct.unpack_from("=I", arguments, at)
    return arguments[at + 4 : at + 3 + size].decode("utf-8", "replace")
