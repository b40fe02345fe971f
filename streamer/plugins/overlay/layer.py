"""A surface above all windows: the protocol `wlr-layer-shell-unstable-v1`, which Qt does not speak.

Sway, Hyprland, river, labwc, Wayfire, KDE's KWin and COSMIC have it, GNOME has not.
"""

import mmap
import os
import struct
from collections.abc import Callable
from typing import Literal

from streamer.plugins.overlay.wayland import LAYER_SHELL, Connection, decoded, encoded

_OVERLAY = 3  # the layer above panels and full screens
_ALL_EDGES, _TOP_LEFT = 1 | 2 | 4 | 8, 1 | 4
_IGNORE_PANELS = -1
_ARGB8888 = 0  # premultiplied, as Qt's Format_ARGB32_Premultiplied
_LEFT_BUTTON, _RIGHT_BUTTON = 0x110, 0x111

# What the mouse does: its position, of the wheel how many steps up.
Pointer = Literal["press", "move", "release", "wheel", "right"]
OnPointer = Callable[[Pointer, int, int], None]

# Given width and height in logical pixels, returns premultiplied ARGB, its width and height in pixels, and how many of
# them a logical one is.
Draw = Callable[[int, int], tuple[bytes, int, int, int]]


class Layer:
    """A surface above all windows, through which clicks go unless it is grabbed; then it covers its screen."""

    def __init__(self, connection: Connection) -> None:
        """Prepare; nothing is shown yet."""
        self._connection = connection
        self._canvas = Canvas(connection)
        self._shell = connection.bind(LAYER_SHELL)
        # Screens by their names of the connection, each an object and a name of the desktop.
        self._outputs: dict[int, tuple[int, str]] = {}

        # The surface and its role; 0: nothing is shown. What it is configured as: screen, whether grabbed, geometry.
        self._surface = self._role = 0
        self._geometry: tuple[object, ...] = ()
        # What is drawn once the compositor has agreed to the geometry, and the size that it has agreed to.
        self._draw: Draw | None = None
        self._size: tuple[int, int] | None = None

    def show(self, draw: Draw, rectangle: tuple[int, int, int, int], screen: str, *, grabbed: bool) -> None:
        """Show a picture.

        rectangle : x, y, width, height in logical pixels; if grabbed, the whole screen is drawn instead
        screen : name; if it is missing, the compositor chooses one
        """
        if self._surface and self._geometry[:2] != (screen, grabbed):
            self.hide()
        self._draw = draw
        if not self._surface:
            self._create(screen, grabbed=grabbed)
        geometry = (screen, grabbed, None if grabbed else rectangle)
        if geometry == self._geometry:
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

    def _create(self, screen: str, *, grabbed: bool) -> None:
        output = self._output(screen)
        self._surface = self._canvas.surface()
        arguments = struct.pack("=III", self._surface, output, _OVERLAY) + encoded("streamer")
        role = self._role = self._connection.create(
            self._shell, 0, arguments, handler=lambda *event: self._handle(role, *event)
        )
        self._request(2, "i", _IGNORE_PANELS)
        if not grabbed:
            self._canvas.let_clicks_through(self._surface)

    def _request(self, request: int, types: str, *arguments: int) -> None:
        self._connection.send(self._role, request, struct.pack(f"={types}", *arguments))

    def _output(self, screen: str) -> int:
        """Return the object of a screen; 0 if it has gone."""
        there = self._connection.globals.get("wl_output", {})
        for name in there.keys() - self._outputs.keys():
            self._add_output(name)
        self._connection.roundtrip()
        return next((output for name, (output, known) in self._outputs.items() if name in there and known == screen), 0)

    def _add_output(self, name: int) -> None:
        def handle(event: int, arguments: bytes) -> None:
            if event == 4:
                self._outputs[name] = (output, decoded(arguments, 0))

        output = self._connection.bind("wl_output", name, handle)
        self._outputs[name] = (output, "")

    def _handle(self, role: int, event: int, arguments: bytes) -> None:
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
        if self._draw is not None and self._size is not None:
            self._canvas.put(self._surface, *self._draw(*self._size))


class Mouse:
    """The mouse on our surfaces, and the picture of its pointer there."""

    def __init__(self, connection: Connection, on_pointer: OnPointer, picture: bytes, size: int) -> None:
        """Prepare. `picture` is premultiplied ARGB, square, its side in pixels; its middle points."""
        self._connection = connection
        self._on_pointer = on_pointer
        self._canvas = Canvas(connection)
        self._picture, self._size = picture, size
        # The surface of the picture, and the mouse; 0: none yet. Where it is.
        self._surface = self._pointer = 0
        self._at = (0, 0)
        if "wl_seat" in connection.globals:
            self._seat = connection.bind("wl_seat", handler=self._handle_seat)

    def _handle_seat(self, event: int, arguments: bytes) -> None:
        if event == 0 and struct.unpack("=I", arguments)[0] & 1 and not self._pointer:
            self._pointer = self._connection.create(self._seat, 0, handler=self._handle)

    def _handle(self, event: int, arguments: bytes) -> None:
        match event:
            case 0:
                serial, _, x, y = struct.unpack("=IIii", arguments)
                self._at = (x // 256, y // 256)
                self._show(serial)
            case 2:
                _, x, y = struct.unpack("=Iii", arguments)
                self._at = (x // 256, y // 256)
                self._on_pointer("move", *self._at)
            case 3:
                _, _, button, is_down = struct.unpack("=IIII", arguments)
                if button == _LEFT_BUTTON:
                    self._on_pointer("press" if is_down else "release", *self._at)
                elif button == _RIGHT_BUTTON and is_down:
                    self._on_pointer("right", *self._at)
            case 4:
                _, axis, value = struct.unpack("=IIi", arguments)
                if axis == 0 and value:
                    self._on_pointer("wheel", 0, -1 if value > 0 else 1)

    def _show(self, serial: int) -> None:
        self._surface = self._surface or self._canvas.surface()
        middle = self._size // 2
        self._connection.send(self._pointer, 0, struct.pack("=IIii", serial, self._surface, middle, middle))
        self._canvas.put(self._surface, self._picture, self._size, self._size, 1)


class Canvas:
    """Makes surfaces, and puts pictures on them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._compositor = connection.bind("wl_compositor")
        self._memory = connection.bind("wl_shm")

    def surface(self) -> int:
        """Return a new surface."""
        return self._connection.create(self._compositor, 0)

    def let_clicks_through(self, surface: int) -> None:
        """Let an empty region of a surface take input."""
        region = self._connection.create(self._compositor, 1)
        self._connection.send(surface, 5, struct.pack("=I", region))
        self._connection.send(region, 0)

    def put(self, surface: int, pixels: bytes, width: int, height: int, scale: int) -> None:
        """Put a picture on a surface."""
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
            pool = self._connection.create(self._memory, 0, struct.pack("=i", len(pixels)), descriptor=descriptor)
        finally:
            os.close(descriptor)
        shape = struct.pack("=iiiiI", 0, width, height, 4 * width, _ARGB8888)
        buffer = self._connection.create(pool, 0, shape, handler=lambda *_: self._connection.send(buffer, 0))
        self._connection.send(pool, 1)
        return buffer
