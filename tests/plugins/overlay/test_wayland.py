"""The Wayland client beside a stand-in for a compositor: what is shown, and where clicks go."""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamer.errors import PeerError
from streamer.plugins.overlay.layer import Layer, Mouse
from streamer.plugins.overlay.wayland import Connection
from tests.plugins.overlay.compositor import GLOBALS, LEFT_BUTTON, RIGHT_BUTTON, SCREEN, Compositor, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Wayland is Linux's")

RECTANGLE = (10, 20, 4, 2)


class Stage:
    """A layer, and what the mouse does on it."""

    def __init__(self, compositor: Compositor) -> None:
        self.compositor = compositor
        self.connection = Connection(compositor.path)
        self.pointed: list[tuple[str, int, int]] = []
        self.layer = Layer(self.connection)
        self.mouse = Mouse(self.connection, lambda *what: self.pointed.append(what), bytes(4 * 9), 3)
        self.drawn: list[tuple[int, int]] = []

    def draw(self, width: int, height: int) -> tuple[bytes, int, int, int]:
        self.drawn.append((width, height))
        return bytes([len(self.drawn)]) * (16 * width * height), 2 * width, 2 * height, 2

    def show(self, *, grabbed: bool = False, screen: str = SCREEN) -> None:
        self.layer.show(self.draw, RECTANGLE, screen, grabbed=grabbed)
        self.settle()

    def settle(self) -> None:
        """Let both handle what the other has sent."""
        for _ in range(2):
            self.connection.roundtrip()

    def of(self, request: str, types: str) -> list[tuple[int, ...]]:
        return [struct.unpack(f"={types}", arguments) for arguments in self.compositor.of(request)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with serving(tmp_path / "wayland-9") as compositor:
        found = Stage(compositor)
        yield found
        found.connection.close()


def test_a_picture_is_above_all_windows_at_its_place_and_clicks_go_through(stage: Stage) -> None:
    stage.show()
    assert stage.drawn == [(4, 2)]
    assert stage.compositor.pixels == [bytes([1]) * 128]
    ((_, surface, output, layer),) = (
        struct.unpack_from("=IIII", each) for each in stage.compositor.of("zwlr_layer_shell_v1.0")
    )
    assert stage.compositor.objects[surface] == "wl_surface"
    assert stage.compositor.objects[output] == "wl_output"
    assert layer == 3
    assert stage.of("layer_surface.0", "II") == [(4, 2)]
    assert stage.of("layer_surface.1", "I") == [(1 | 4,)]
    assert stage.of("layer_surface.3", "iiii") == [(20, 0, 0, 10)]
    assert stage.of("layer_surface.6", "I") == [(77,)]
    # An empty region takes input.
    ((region,),) = stage.of("wl_surface.5", "I")
    assert region
    assert stage.compositor.of("wl_region.1") == []
    assert stage.of("wl_surface.8", "i") == [(2,)]


def test_another_picture_of_the_same_place_asks_for_nothing_again(stage: Stage) -> None:
    stage.show()
    stage.show()
    assert len(stage.compositor.pixels) == 2
    assert len(stage.compositor.of("layer_surface.0")) == 1
    stage.compositor.send(stage.compositor.number("wl_buffer"), 0)
    stage.settle()
    assert len(stage.compositor.of("wl_buffer.0")) == 1


def test_while_it_is_grabbed_it_covers_its_screen_and_has_the_mouse(stage: Stage) -> None:
    stage.show()
    stage.show(grabbed=True)
    assert stage.drawn == [(4, 2), (1280, 720)]
    assert stage.of("layer_surface.1", "I")[-1] == (1 | 2 | 4 | 8,)
    assert len(stage.compositor.of("wl_surface.5")) == 1, "of the first alone"
    stage.compositor.point(30, 40)
    stage.compositor.press(LEFT_BUTTON)
    stage.compositor.point(31, 42)
    stage.compositor.press(LEFT_BUTTON, down=False)
    stage.compositor.send(stage.compositor.number("wl_pointer"), 4, struct.pack("=IIi", 0, 0, 2560))
    stage.compositor.press(RIGHT_BUTTON)
    stage.settle()
    assert stage.pointed == [
        *(("move", 30, 40), ("press", 30, 40), ("move", 31, 42), ("release", 31, 42)),
        *(("wheel", 0, -1), ("right", 31, 42)),
    ]


def test_the_pointer_has_a_picture_while_it_is_grabbed(stage: Stage) -> None:
    stage.show(grabbed=True)
    surface = stage.compositor.number("wl_surface")
    stage.compositor.send(stage.compositor.number("wl_pointer"), 0, struct.pack("=IIii", 5, surface, 256, 512))
    stage.settle()
    ((serial, _, x, y),) = stage.of("wl_pointer.0", "IIii")
    assert (serial, x, y) == (5, 1, 1)
    assert stage.compositor.pixels[-1] == bytes(36)


def test_what_is_hidden_is_gone_and_comes_again(stage: Stage) -> None:
    stage.show()
    stage.layer.hide()
    stage.layer.hide()
    stage.settle()
    assert len(stage.compositor.of("layer_surface.7")) == len(stage.compositor.of("wl_surface.0")) == 1
    stage.show()
    assert stage.drawn == [(4, 2)] * 2


def test_a_screen_that_goes_takes_the_picture_with_it(stage: Stage) -> None:
    stage.show()
    stage.compositor.send(stage.compositor.number("wl_registry"), 1, struct.pack("=I", 1 + GLOBALS.index("wl_output")))
    stage.compositor.send(stage.compositor.number("layer_surface"), 1)
    stage.settle()
    assert len(stage.compositor.of("layer_surface.7")) == 1
    stage.show()
    *_, newest = stage.compositor.of("zwlr_layer_shell_v1.0")
    assert struct.unpack_from("=III", newest)[2] == 0, "the compositor chooses"


def test_a_compositor_that_is_away_goes_or_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError):
        Connection(tmp_path / "nothing")
    with serving(tmp_path / "a") as compositor:
        connection = Connection(tmp_path / "a")
        compositor.close()
        with pytest.raises(PeerError):
            connection.roundtrip()
    with serving(tmp_path / "b") as compositor:
        connection = Connection(tmp_path / "b")
        compositor.send(1, 0, struct.pack("=III", 3, 1, 4) + b"no\0\0")
        with pytest.raises(PeerError):
            connection.roundtrip()
    with serving(tmp_path / "c") as compositor:
        connection = Connection(tmp_path / "c")
        compositor.send(1, 0)
        with pytest.raises(PeerError):
            connection.roundtrip()


def test_a_compositor_without_layers_is_an_error(tmp_path: Path) -> None:
    with serving(tmp_path / "a", globals=("wl_compositor", "wl_shm")) as compositor, pytest.raises(PeerError):
        Layer(Connection(compositor.path))
