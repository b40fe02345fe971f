"""Runs the overlay on this desktop until it is ended."""

import logging
import os
import signal
import socket
import sys
from pathlib import Path

from PySide6.QtCore import QSocketNotifier, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from streamer.client.connection import DaemonAddress
from streamer.commands.terminal import notice
from streamer.errors import PeerError, StreamerError
from streamer.outside import one_line
from streamer.plugins.overlay.following import Following
from streamer.plugins.overlay.layer import OnPointer
from streamer.plugins.overlay.overlay import Overlay
from streamer.plugins.overlay.panels import LayerPanel, Panel, WindowPanel
from streamer.plugins.overlay.settings import OverlaySettings
from streamer.plugins.overlay.tray import Tray
from streamer.plugins.overlay.wayland import LAYER_SHELL, Connection, socket_path

logger = logging.getLogger(__name__)

RAISE_MS = 1000  # between two times that a window is put above those that came later

# What Qt said of late; the reason for its end is not in its last words.
_said: list[str] = []


def show(address: DaemonAddress, settings: OverlaySettings, file: Path, port_file: Path, *, moving: bool) -> None:
    """Show a daemon's captions until the user ends it.

    file : keeps the place
    port_file : lets other processes of the user reach this one
    moving : whether it begins in the mode in which it is moved

    Raises StreamerError without a desktop, and if the daemon refuses the connection.
    """
    connection = _prepare_desktop()
    qInstallMessageHandler(_handle_message)
    application = QApplication(["streamer"])
    application.setQuitOnLastWindowClosed(False)
    application.setDesktopFileName("streamer")

    def make_panel(on_pointer: OnPointer) -> Panel:
        if connection is None:
            return WindowPanel(on_pointer)
        return LayerPanel(connection, on_pointer, lambda error: overlay.fail(error))

    overlay = Overlay(settings, file, make_panel)
    tray = Tray(overlay)
    raising = QTimer(interval=RAISE_MS)
    if isinstance(overlay.panel, WindowPanel):
        raising.timeout.connect(overlay.panel.raise_above)
        raising.start()
    if moving:
        overlay.move()
    following = Following(address, port_file, overlay.news.emit)
    try:
        _run(application, overlay)
    finally:
        following.stop()
        overlay.panel.hide_picture()
        del tray
    if overlay.error is not None:
        raise overlay.error


def _run(application: QApplication, overlay: Overlay) -> None:
    """Run until the end. Ctrl-C and SIGTERM end it, SIGUSR1 pauses it."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    # Python calls its handlers between two of its instructions: a signal must make Qt run some.
    notifier = QSocketNotifier(woken.fileno(), QSocketNotifier.Type.Read)
    notifier.activated.connect(lambda *_: woken.recv(64))
    before = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: application.quit())
    signal.signal(signal.SIGTERM, lambda *_: application.quit())
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, lambda *_: overlay.pause())
    try:
        if application.exec() and overlay.error is None:
            overlay.error = StreamerError(
                f"the display has gone ({one_line(_said[-1]) if _said else 'no reason given'})"
            )
    finally:
        signal.set_wakeup_fd(before)
        notifier.setEnabled(False)
        wake.close()
        woken.close()


def _prepare_desktop() -> Connection | None:
    """Choose how Qt reaches the desktop. Returns a connection to a Wayland compositor if it has the layer shell.

    Elsewhere the window is one of X11: Wayland alone lets no program put a window above others. Raises StreamerError if
    there is no desktop.
    """
    # Qt's own windows on Wayland, which many ask for, are never above others.
    chosen = os.environ.get("QT_QPA_PLATFORM", "")
    if sys.platform in ("win32", "darwin") or (chosen and not chosen.startswith("wayland")):
        return None
    has_x11, path = bool(os.environ.get("DISPLAY")), socket_path()
    if path is not None:
        try:
            connection = Connection(path)
            if LAYER_SHELL in connection.globals:
                os.environ["QT_QPA_PLATFORM"] = "wayland"
                return connection
            connection.close()
        except PeerError as error:
            if not has_x11:
                raise
            logger.info("%s", error)
    if has_x11:
        os.environ["QT_QPA_PLATFORM"] = "xcb"
        return None
    if path is not None:
        raise StreamerError(
            "this Wayland compositor has no layer shell, which puts captions above windows: expected Sway, Hyprland,"
            " KDE or COSMIC, or Xwayland beside it"
        )
    raise StreamerError(
        "no desktop found: neither WAYLAND_DISPLAY nor DISPLAY is set; run this in a terminal of the desktop, or use"
        " `streamer listen`"
    )


def _handle_message(kind: QtMsgType, _context: object, message: str) -> None:
    """Log what Qt says. What it ends the process for is reported in one line, as our errors are."""
    if kind == QtMsgType.QtFatalMsg:
        reason = next((each for each in _said if "needed" in each or "connect" in each), message)
        notice(f"error: Qt cannot show windows here ({one_line(reason):.200}): expected a display that can be reached")
        os._exit(1)
    _said[:] = [*_said[-20:], message]
    logger.debug("Qt: %s", one_line(message))
