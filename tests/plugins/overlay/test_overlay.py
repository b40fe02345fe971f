"""The overlay on Qt's offscreen platform: what is drawn, what the mouse changes, and how the command ends."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamer.commands.signature import require
from streamer.errors import MissingExtraError
from streamer.plugins.overlay.plugin import overlay as overlay_command
from streamer.plugins.overlay.settings import OverlaySettings
from tests.builders import final, partial
from tests.daemon import Outcome, command, environment, free_port
from tests.waiting import WAIT_S, until
from tests.wire.harness import numbered_final, serving

PORT = str(free_port())


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PySide6", None)
    with pytest.raises(MissingExtraError) as found:
        require(overlay_command, "overlay")
    assert (found.value.package, found.value.extra) == ("PySide6", "overlay")


class Panel:
    """A panel that keeps the newest picture."""

    def __init__(self, on_pointer: Callable[..., None]) -> None:
        self.on_pointer = on_pointer
        self.image: Any = None
        self.grabbed = False

    def show_picture(self, picture: Callable[[int], Any], place: object, *, grabbed: bool) -> None:
        self.image, self.grabbed = picture(1), grabbed

    def hide_picture(self) -> None:
        self.image = None

    def light(self, y: int, height: int) -> int:
        """Return how many pixels of some rows are light: letters are."""
        n_bytes = self.image.bytesPerLine()
        rows = bytes(self.image.constBits())[y * n_bytes : (y + height) * n_bytes]
        return sum(green > 150 for green in rows[1::4])


@pytest.fixture
def qt(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - Qt's application, where it is installed
    widgets = pytest.importorskip("PySide6.QtWidgets", reason="Qt is not installed: pip install PySide6-Essentials")
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    return widgets.QApplication.instance() or widgets.QApplication(["tests"])


Make = Callable[..., Any]


@pytest.fixture
def make(qt: Any, tmp_path: Path) -> Iterator[Make]:  # noqa: ANN401
    from streamer.plugins.overlay.overlay import Overlay

    made = []

    def overlay(**settings: Any) -> Overlay:  # noqa: ANN401
        found = Overlay(OverlaySettings(**settings), tmp_path / "overlay.json", Panel)
        made.append(found)
        return found

    yield overlay
    for each in made:
        each.deleteLater()
    qt.processEvents()


def draw(qt: Any, overlay: Any) -> None:  # noqa: ANN401
    """Let Qt draw what has changed."""
    deadline_s = time.monotonic() + 0.05
    while time.monotonic() < deadline_s:
        qt.processEvents()
    overlay._draw()


def test_words_are_drawn_where_their_lines_are_and_open_ones_are_paler(qt: Any, make: Make) -> None:  # noqa: ANN401
    overlay = make()
    place = overlay.place
    first, second = place.padding, place.padding + place.row
    overlay.news.emit(partial("One two", 7, segment=1))
    draw(qt, overlay)
    stable = overlay.panel.light(first, place.row)
    assert stable > 100
    assert overlay.panel.light(second, place.row) == 0
    overlay.news.emit(partial("One two three", 7, segment=1))
    draw(qt, overlay)
    open_ = overlay.panel.light(first, place.row)
    assert open_ > stable
    overlay.news.emit(final("One two three " + "and so on " * 8, segment=1))
    draw(qt, overlay)
    assert overlay.panel.light(second, place.row) > 100


def test_the_mouse_moves_and_resizes_it_and_the_place_is_remembered(qt: Any, make: Make) -> None:  # noqa: ANN401
    overlay = make(position="middle", size=20, width=300)
    before = overlay.place
    assert (before.size, before.width) == (20, 300)
    point = overlay.panel.on_pointer
    point("press", before.x + 150, before.y + 30)
    point("move", before.x + 99, before.y + 99)
    assert overlay.place == before, "clicks go through"
    overlay.move()
    draw(qt, overlay)
    assert overlay.panel.grabbed
    for what, x, y in (("press", 150, 30), ("move", 170, 20), ("release", 170, 20), ("move", 300, 300)):
        point(what, before.x + x, before.y + y)
    moved = overlay.place
    assert (moved.x, moved.y, moved.width) == (before.x + 20, before.y - 10, 300)
    for what, x in (("press", 299), ("move", 349), ("release", 349)):
        point(what, moved.x + x, moved.y + 30)
    point("wheel", 0, 1)
    point("right", 0, 0)
    draw(qt, overlay)
    assert not overlay.panel.grabbed
    assert (overlay.place.width, overlay.place.size) == (350, 22)
    assert make().place == overlay.place
    overlay.put_back()
    assert (make().place.size, make(size=30).place.size) == (40, 30)


def test_a_place_on_a_screen_that_has_gone_is_put_on_another(make: Make, tmp_path: Path) -> None:
    overlay = make()
    kept = msgspec.structs.replace(overlay.place, screen="gone", x=5000, width=9000)
    (tmp_path / "overlay.json").write_bytes(msgspec.json.encode(kept))
    assert make().place.x + make().place.width <= 800, "what Qt's offscreen platform has"


def test_an_error_of_the_connection_ends_it(qt: Any, make: Make) -> None:  # noqa: ANN401
    from streamer.plugins.overlay.following import Failed

    overlay, error = make(), OSError("no")
    overlay.news.emit(Failed(error))
    draw(qt, overlay)
    assert overlay.error is error


@pytest.fixture
def desktop(tmp_path: Path) -> dict[str, str]:
    hidden = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "DBUS_SESSION_BUS_ADDRESS": ""}
    return {**hidden, "XDG_CACHE_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "QT_QPA_PLATFORM": "offscreen"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="signals, and folders by variables of XDG")
@pytest.mark.usefixtures("qt")
async def test_the_command_follows_a_daemon_is_asked_from_outside_and_ends_well(
    tmp_path: Path, desktop: dict[str, str]
) -> None:
    def ask(*words: str) -> Outcome:
        return command("overlay", *words, "--daemon", f"127.0.0.1:{PORT}", environ=desktop)

    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamer", "overlay", "--daemon", f"127.0.0.1:{PORT}"],
            stderr=file,
            env=environment(desktop),
        )
    try:
        await until(lambda: "streamer run" in log.read_text(encoding="utf-8"))
        async with serving(port=int(PORT)) as server:
            await until(lambda: "is there" in log.read_text(encoding="utf-8"))
            server.log.append(numbered_final(1, "One."))
            assert (await asyncio.to_thread(ask)).exit_code == 2
            assert (await asyncio.to_thread(ask, "toggle")).exit_code == 0
            await until(lambda: "paused" in log.read_text(encoding="utf-8"))
            process.send_signal(signal.SIGUSR1)
            await until(lambda: "go on" in log.read_text(encoding="utf-8"))
            process.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(process.wait, WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert all(line.startswith("streamer: ") for line in log.read_text(encoding="utf-8").splitlines())
    assert (await asyncio.to_thread(ask, "quit")).exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="displays are named by variables")
@pytest.mark.usefixtures("qt")
@pytest.mark.parametrize(
    ("more", "flags", "code"),
    [
        ({}, (), 1),
        ({"DISPLAY": ":97"}, (), 1),
        ({"WAYLAND_DISPLAY": "nothing"}, (), 1),
        ({}, ("--size", "5"), 2),
        ({}, ("--position", "left"), 2),
    ],
    ids=["no desktop", "no X server", "no compositor", "letters that nobody can read", "no place"],
)
def test_what_cannot_be_is_one_line(
    desktop: dict[str, str], more: dict[str, str], flags: tuple[str, ...], code: int
) -> None:
    done = command("overlay", *flags, environ={**desktop, "QT_QPA_PLATFORM": "", **more})
    assert done.exit_code == code
    assert done.error()
