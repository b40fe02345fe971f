"""A stand-in for a Wayland compositor with a layer shell: it notes requests by their objects' interfaces."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

GLOBALS = ("wl_compositor", "wl_shm", "wl_seat", "zwlr_layer_shell_v1", "wl_output")
SCREEN = "eDP-1"

# Interfaces of the objects that requests make: by interface and request, whether behind other arguments or not.
MADE = {
    ("wl_display", 0): "wl_callback",
    ("wl_display", 1): "wl_registry",
    ("wl_compositor", 0): "wl_surface",
    ("wl_compositor", 1): "wl_region",
    ("wl_shm", 0): "wl_shm_pool",
    ("wl_shm_pool", 0): "wl_buffer",
    ("wl_seat", 0): "wl_pointer",
    ("zwlr_layer_shell_v1", 0): "layer_surface",
}
LEFT_BUTTON, RIGHT_BUTTON = 0x110, 0x111


@dataclass
class Compositor:
    """Serves one client. `requests` has `interface.number` and the arguments of each."""

    path: Path
    globals: tuple[str, ...] = GLOBALS
    screen: tuple[int, int] = (1280, 720)
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    pixels: list[bytes] = field(default_factory=list)  # of each buffer
    objects: dict[int, str] = field(default_factory=lambda: {1: "wl_display"})
    _client: socket.socket | None = None
    _pool: bytes = b""
    _size: tuple[int, int] = (0, 0)

    def number(self, interface: str) -> int:
        """Return the newest object of an interface."""
        return max(number for number, name in self.objects.items() if name == interface)

    def of(self, request: str) -> list[bytes]:
        """Return the arguments of all requests of a kind."""
        return [arguments for name, arguments in self.requests if name == request]

    def send(self, number: int, event: int, arguments: bytes = b"") -> None:
        assert self._client is not None
        self._client.sendall(struct.pack("=II", number, (8 + len(arguments)) << 16 | event) + arguments)

    def point(self, x: int, y: int) -> None:
        """Move the pointer."""
        self.send(self.number("wl_pointer"), 2, struct.pack("=Iii", 0, x * 256, y * 256))

    def press(self, button: int, *, down: bool = True) -> None:
        self.send(self.number("wl_pointer"), 3, struct.pack("=IIII", 0, 0, button, down))

    def close(self) -> None:
        """Leave the client."""
        if self._client is not None:
            self._client.shutdown(socket.SHUT_RDWR)

    def serve(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._client, _ = listener.accept()
            received, descriptors = b"", list[int]()
            while True:
                found, passed, *_ = socket.recv_fds(self._client, 1 << 16, 4)
                if not found:
                    return
                received, descriptors = received + found, descriptors + passed
                while len(received) >= 8 and len(received) >= (size := struct.unpack_from("=II", received)[1] >> 16):
                    number, header = struct.unpack_from("=II", received)
                    arguments, received = received[8:size], received[size:]
                    self._handle(number, header & 0xFFFF, arguments, descriptors)

    def _handle(self, number: int, request: int, arguments: bytes, descriptors: list[int]) -> None:
        interface = self.objects[number]
        if (made := MADE.get((interface, request))) is not None:
            self.objects[struct.unpack_from("=I", arguments)[0]] = made
        match interface, request:
            case "wl_display", 0:
                (callback,) = struct.unpack("=I", arguments)
                self.send(callback, 0, struct.pack("=I", 0))
                self.send(1, 1, struct.pack("=I", callback))
            case "wl_display", 1:
                for name, each in enumerate(self.globals, 1):
                    text = _string(each)
                    self.send(self.number("wl_registry"), 0, struct.pack("=I", name) + text + struct.pack("=I", 4))
            case "wl_registry", 0:
                (name,) = struct.unpack_from("=I", arguments)
                (bound,) = struct.unpack_from("=I", arguments, len(arguments) - 4)
                self.objects[bound] = self.globals[name - 1]
                if self.globals[name - 1] == "wl_output":
                    self.send(bound, 4, _string(SCREEN))
                elif self.globals[name - 1] == "wl_seat":
                    self.send(bound, 0, struct.pack("=I", 1))
            case "wl_shm", 0:
                with open(descriptors.pop(0), "rb") as file:  # noqa: PTH123 - a descriptor
                    file.seek(0)
                    self.pixels.append(file.read())
            case "layer_surface", 0:
                self._size = struct.unpack("=II", arguments)
            case "wl_surface", 6 if self.requests and self.requests[-1][0].startswith("layer_surface."):
                width, height = (of or whole for of, whole in zip(self._size, self.screen, strict=True))
                self.send(self.number("layer_surface"), 0, struct.pack("=III", 77, width, height))
        self.requests.append((f"{interface}.{request}", arguments))


@contextlib.contextmanager
def serving(path: Path, **known: tuple[str, ...]) -> Iterator[Compositor]:
    """Run a compositor at a socket's path."""
    compositor = Compositor(path, **known)  # type: ignore[arg-type]
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=compositor.serve, args=(listener,), daemon=True)
        thread.start()
        yield compositor
        compositor.close()
        listener.close()
        thread.join()


def _string(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("=I", len(raw)) + raw + bytes(-len(raw) % 4)
