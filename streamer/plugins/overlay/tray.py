"""The icon in the tray, and its menu."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtGui import QAction, QIcon
from PySide6.QtWidgets import QApplication, QMenu, QSystemTrayIcon

from streamer.commands.terminal import notice
from streamer.plugins.overlay.overlay import Overlay

ICON = Path(__file__).parents[2] / "server" / "static" / "icon.svg"


class Tray:
    """An icon that is grey while captions are paused. A click pauses them; the menu has the rest."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._icon = QIcon(str(ICON))
        self._tray = QSystemTrayIcon(self._icon)
        self._menu = QMenu()
        self._pause = self._add("Pause", overlay.pause)
        self._move = self._add("Move and resize", overlay.move)
        self._add("Larger letters", lambda: overlay.resize(larger=True))
        self._add("Smaller letters", lambda: overlay.resize(larger=False))
        self._add("Back to the bottom", overlay.put_back)
        self._menu.addSeparator()
        self._add("Quit", QApplication.quit)
        self._tray.setContextMenu(self._menu)
        self._tray.activated.connect(self._activate)
        overlay.on_change = self._update
        self._update()
        self._tray.show()
        if not QSystemTrayIcon.isSystemTrayAvailable():
            notice("this desktop has no tray: use `streamer overlay toggle`, `move` and `quit`")

    def _add(self, text: str, act: Callable[[], None]) -> QAction:
        action = self._menu.addAction(text)
        action.triggered.connect(lambda *_: act())
        return action

    def _activate(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason == QSystemTrayIcon.ActivationReason.Trigger:
            self._overlay.pause()

    def _update(self) -> None:
        mode, state = self._overlay.shown.mode, self._overlay.shown.state
        self._pause.setText("Show captions" if mode == "paused" else "Pause")
        self._move.setText("Done" if mode == "moving" else "Move and resize")
        is_grey = mode == "paused"
        self._tray.setIcon(QIcon(self._icon.pixmap(64, 64, QIcon.Mode.Disabled)) if is_grey else self._icon)
        there = {"open": "captions", "ended": "captions have ended"}.get(state, "no daemon: start it with streamer run")
        self._tray.setToolTip(f"streamer: {'captions are paused' if is_grey else there}")
