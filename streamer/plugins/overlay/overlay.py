"""The overlay: what the daemon, the mouse and the tray change, and what is drawn then."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from streamer.commands.terminal import notice
from streamer.events import Event
from streamer.plugins.overlay.following import Asked, Connected, Failed, News
from streamer.plugins.overlay.layer import OnPointer, Pointer
from streamer.plugins.overlay.painting import Painter
from streamer.plugins.overlay.panels import Panel, room_of, screen_of
from streamer.plugins.overlay.place import N_ROWS, Grip, Place, read, usual, write
from streamer.plugins.overlay.settings import OverlaySettings
from streamer.plugins.overlay.shown import Shown

DRAW_MS = 15  # after an event: a replay of many events is drawn once
STEP = 1.1  # of the letters' size, for a step of the wheel or in the menu


class Overlay(QObject):
    """Captions on a panel. Lives in the thread of Qt; `news.emit` is for any."""

    news = Signal(object)

    def __init__(self, settings: OverlaySettings, file: Path, make_panel: Callable[[OnPointer], Panel]) -> None:
        """Prepare; nothing is shown before Qt runs. `file` keeps the place."""
        super().__init__()
        self._file = file
        # As it is wanted, and as far as the screen has room for it.
        self._wanted = self.place = _first_place(settings, file)
        self._painter = Painter(settings.opacity)
        self._painter.prepare(self.place)
        self.shown = Shown(self._painter.fits, settings.fade_s)
        self.panel = make_panel(self._on_pointer)
        # Why it ended, if by itself; called when mode or state change.
        self.error: Exception | None = None
        self.on_change: Callable[[], None] = lambda: None
        # What is dragged: from which point, and the place at that time.
        self._drag: tuple[Grip, int, int, Place] | None = None
        self._due = QTimer(self, singleShot=True)
        self._due.timeout.connect(self._draw)
        self.news.connect(self.take, Qt.ConnectionType.QueuedConnection)
        application = QGuiApplication.instance()
        assert isinstance(application, QGuiApplication)
        application.screenAdded.connect(self._redraw)
        application.screenRemoved.connect(self._redraw)
        self._due.start(0)

    def take(self, news: News) -> None:
        """Take what the daemon publishes, that it has come or gone, or what another process asks for."""
        match news:
            case Failed(error):
                self.fail(error)
            case Connected(state):
                self.shown.meet(state, time.monotonic())
                self.on_change()
            case Asked(word):
                {"toggle": self.pause, "move": self.move, "quit": QApplication.quit}[word]()
            case Event():
                self.shown.handle(news, time.monotonic())
        self._redraw()

    def fail(self, error: Exception) -> None:
        """End because of an error."""
        self.error = error
        QApplication.quit()

    def pause(self) -> None:
        """Stop showing captions, or go on."""
        self._drag = None
        self.shown.pause(time.monotonic(), on=self.shown.mode != "paused")
        notice("captions are paused" if self.shown.mode == "paused" else "captions go on")
        self.on_change()
        self._redraw()

    def move(self) -> None:
        """Let the mouse move and resize the captions, or let clicks through again."""
        self._drag = None
        self.shown.mode = "shown" if self.shown.mode == "moving" else "moving"
        self.on_change()
        self._redraw()

    def resize(self, *, larger: bool) -> None:
        """Change the letters' size."""
        step = max(1, round((STEP - 1) * self.place.size))
        self._put(self.place.resized(self.place.size + (step if larger else -step)))
        write(self._file, self._wanted)

    def put_back(self) -> None:
        """Put the captions where they were at first."""
        self._put(msgspec.structs.replace(usual(*room_of(screen_of(self._wanted))), screen=self._wanted.screen))
        write(self._file, self._wanted)

    def _put(self, place: Place) -> None:
        """Take a place that the user wants."""
        size = screen_of(place).geometry().size()
        self._wanted = place.within(size.width(), size.height())
        self._fit()
        self._redraw()

    def _fit(self) -> None:
        """Take as much of the place as the screen has room for now: it may have gone, or be another size."""
        size = screen_of(self._wanted).geometry().size()
        before, self.place = self.place, self._wanted.within(size.width(), size.height())
        if (self.place.width, self.place.size) != (before.width, before.size):
            self._painter.prepare(self.place)
            self.shown.lay_again()

    def _on_pointer(self, what: Pointer, x: int, y: int) -> None:
        if self.shown.mode != "moving":
            return
        match what:
            case "press":
                grip = self.place.grip(x, y)
                self._drag = (grip, x, y, self.place) if grip is not None else None
            case "move" if self._drag is not None:
                grip, from_x, from_y, place = self._drag
                self._put(place.dragged(grip, x - from_x, y - from_y))
            case "release":
                self._drag = None
                write(self._file, self._wanted)
            case "wheel":
                self.resize(larger=y > 0)
            case "right":
                self.move()

    def _redraw(self, *_: object) -> None:
        self._due.start(DRAW_MS)

    def _draw(self) -> None:
        self._fit()
        now_s = time.monotonic()
        rows, place, grabbed = self.shown.rows(N_ROWS, now_s), self.place, self.shown.mode == "moving"
        if rows:
            self.panel.show_picture(
                lambda scale: self._painter.picture(rows, place, scale, framed=grabbed), place, grabbed=grabbed
            )
        else:
            self.panel.hide_picture()
        if (due_s := self.shown.due_s()) is not None:
            self._due.start(max(DRAW_MS, math.ceil(1000 * (due_s - now_s))))


def _first_place(settings: OverlaySettings, file: Path) -> Place:
    """Return the place that was kept, or the usual one, with what the settings say of it."""
    kept = read(file)
    screen = screen_of(kept)
    width, height = screen.geometry().width(), screen.geometry().height()
    place = kept or usual(*room_of(screen), size=settings.size)
    if settings.size:
        place = place.resized(settings.size)
    if settings.width:
        left = place.x + (place.width - settings.width) // 2
        place = msgspec.structs.replace(place, width=settings.width, x=left)
    place = msgspec.structs.replace(place, screen=screen.name()).within(width, height)
    if settings.position != "last":
        place = place.at(settings.position, *room_of(screen))
    if place != kept:
        write(file, place)
    return place
