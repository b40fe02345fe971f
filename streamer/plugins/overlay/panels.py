"""What shows a picture above all windows, and lets clicks through: a layer of Wayland, or a window of Qt."""

from collections.abc import Callable
from typing import Protocol

from PySide6.QtCore import QPoint, QSocketNotifier, Qt
from PySide6.QtGui import (
    QColor,
    QCursor,
    QGuiApplication,
    QImage,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QScreen,
    QWheelEvent,
)
from PySide6.QtWidgets import QWidget

from streamer.errors import StreamerError
from streamer.plugins.overlay.layer import Layer, Mouse, OnPointer, Pointer
from streamer.plugins.overlay.painting import cursor_picture
from streamer.plugins.overlay.place import Place
from streamer.plugins.overlay.wayland import Connection

# Makes the picture at a scale.
Picture = Callable[[int], QImage]

_SHADE = QColor(0, 0, 0, 60)  # of the screen while the captions are moved


class Panel(Protocol):
    """Shows a picture; only while it is grabbed it gets the mouse."""

    def show_picture(self, picture: Picture, place: Place, *, grabbed: bool) -> None: ...

    def hide_picture(self) -> None: ...


def screen_of(place: Place | None) -> QScreen:
    """Return the screen of a place, or the main one."""
    named = [screen for screen in QGuiApplication.screens() if place is not None and screen.name() == place.screen]
    return named[0] if named else QGuiApplication.primaryScreen()


def room_of(screen: QScreen) -> tuple[int, int]:
    """Return the width of a screen, and its height without a panel at the bottom."""
    whole, free = screen.geometry(), screen.availableGeometry()
    return whole.width(), free.y() + free.height() - whole.y()


class LayerPanel:
    """A layer surface. While it is grabbed it covers its screen, and the mouse is its own."""

    def __init__(
        self, connection: Connection, on_pointer: OnPointer, on_failure: Callable[[StreamerError], None]
    ) -> None:
        self._connection = connection
        self._on_failure = on_failure
        self._layer = Layer(connection)
        cursor = cursor_picture()
        self._mouse = Mouse(connection, on_pointer, bytes(cursor.constBits()), cursor.width())
        connection.roundtrip()
        self._notifier = QSocketNotifier(connection.descriptor, QSocketNotifier.Type.Read)
        self._notifier.activated.connect(self._dispatch)

    def show_picture(self, picture: Picture, place: Place, *, grabbed: bool) -> None:
        scale = max(1, -int(-screen_of(place).devicePixelRatio() // 1))

        def draw(width: int, height: int) -> tuple[bytes, int, int, int]:
            image = picture(scale)
            if grabbed:
                image = _shaded(image, place, width, height, scale)
            return bytes(image.constBits()), image.width(), image.height(), scale

        self._try(
            lambda: self._layer.show(
                draw, (place.x, place.y, place.width, place.height), screen_of(place).name(), grabbed=grabbed
            )
        )

    def hide_picture(self) -> None:
        self._try(self._layer.hide)

    def _dispatch(self) -> None:
        self._try(self._connection.dispatch)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StreamerError as error:
            self._notifier.setEnabled(False)
            self._on_failure(error)


class WindowPanel(QWidget):
    """A window without a frame, which window managers leave alone."""

    def __init__(self, on_pointer: OnPointer) -> None:
        super().__init__(
            None,
            Qt.WindowType.FramelessWindowHint
            | Qt.WindowType.WindowStaysOnTopHint
            | Qt.WindowType.Tool
            | Qt.WindowType.BypassWindowManagerHint
            | Qt.WindowType.WindowDoesNotAcceptFocus
            | Qt.WindowType.WindowTransparentForInput,
        )
        self._on_pointer = on_pointer
        self._image = QImage()
        self._origin = QPoint()
        self.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground)
        self.setAttribute(Qt.WidgetAttribute.WA_ShowWithoutActivating)
        self.setWindowTitle("streamer")
        self.setCursor(QCursor(Qt.CursorShape.SizeAllCursor))

    def show_picture(self, picture: Picture, place: Place, *, grabbed: bool) -> None:
        screen = screen_of(place)
        self._origin = screen.geometry().topLeft()
        self._image = picture(max(1, -int(-screen.devicePixelRatio() // 1)))
        self.setGeometry(self._origin.x() + place.x, self._origin.y() + place.y, place.width, place.height)
        self.show()
        window = self.windowHandle()
        window.setFlag(Qt.WindowType.WindowTransparentForInput, not grabbed)
        self.raise_()  # above what came later, such as a full screen
        self.update()

    def hide_picture(self) -> None:
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter = QPainter(self)
        painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_Source)
        painter.drawImage(QPoint(), self._image)
        painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        is_right = event.button() == Qt.MouseButton.RightButton
        self._report("right" if is_right else "press", event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        self._report("move", event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        self._report("release", event)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802
        if n := event.angleDelta().y():
            self._on_pointer("wheel", 0, 1 if n > 0 else -1)

    def raise_above(self) -> None:
        """Put the window above those that came later, such as a full screen."""
        if self.isVisible():
            self.raise_()

    def _report(self, what: Pointer, event: QMouseEvent) -> None:
        at = event.globalPosition().toPoint() - self._origin
        self._on_pointer(what, at.x(), at.y())


def _shaded(captions: QImage, place: Place, width: int, height: int, scale: int) -> QImage:
    """Return a picture of a whole screen with the captions in their place."""
    image = QImage(width * scale, height * scale, QImage.Format.Format_ARGB32_Premultiplied)
    image.setDevicePixelRatio(scale)
    image.fill(_SHADE)
    painter = QPainter(image)
    painter.drawImage(QPoint(place.x, place.y), captions)
    painter.end()
    return image
