"""Typing into the focused window, with what this desktop has for it; else into the clipboard."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import psutil

from streamer.errors import PeerError, StreamerError, UsageError
from streamer.outside import one_line
from streamer.plugins.dictation.windows import Windows
from streamer.plugins.dictation.x11 import X11

TOOL_S = 10.0  # after which a tool is given up
MODIFIERS_S = 3.0  # for which a held modifier is waited for: with Ctrl, Alt or Super letters are commands
POLL_S = 0.02  # between two looks at a key
LOCK_S = 2.0  # between two looks at whether the screen is locked, each of which takes milliseconds
MAX_ERROR_BYTES = 4096  # of what a tool says when it fails
MAX_PIECE_CHARS = 200  # that are typed at once: wtype takes 7 ms for each, and Ctrl-C waits for it
MAX_KEPT_CHARS = 100_000  # of text that the clipboard holds because it was not typed

# Keys that can be held, by desktop, as X11 and as Windows number them: none that writes something, and no modifier.
KEYS = {
    "x11": {f"F{n}": 0xFFBD + n for n in range(1, 25)} | {"Pause": 0xFF13, "ScrollLock": 0xFF14, "Menu": 0xFF67},
    "windows": {f"F{n}": 0x6F + n for n in range(1, 25)} | {"Pause": 0x13, "ScrollLock": 0x91, "Menu": 0x5D},
}

# Programs that lock a screen, and would take text for a password.
LOCKERS = {
    *("swaylock", "hyprlock", "gtklock", "waylock", "i3lock", "slock", "xlock", "xsecurelock", "xtrlock"),
    *("physlock", "vlock", "kscreenlocker_greet", "xscreensaver-auth", "light-locker"),
}


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that types or copies its standard input; or that pastes, behind programs that copy.

    Text is never an argument.
    """

    command: Sequence[str]
    copiers: "Sequence[Tool]" = ()
    encoding: str = "utf-8"

    @property
    def is_installed(self) -> bool:
        return all(shutil.which(name) for name in (self.command[0], *(copier.command[0] for copier in self.copiers)))

    def modifier_held(self) -> bool:
        """Return False: the desktop keeps the tool's modifiers apart from the user's."""
        return False

    def type(self, text: str) -> None:
        """Type, copy or paste text. Raises PeerError."""
        for copier in self.copiers:
            copier.type(text)
        # A file, not a pipe: what serves a clipboard goes on in the background with all that it has open.
        with tempfile.TemporaryFile() as errors:
            try:
                code = subprocess.run(  # noqa: S603 - the names are ours
                    self.command,
                    input=b"" if self.copiers else text.encode(self.encoding),
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=TOOL_S,
                    start_new_session=True,  # Ctrl-C ends it in the middle of a word otherwise
                    env={**os.environ, "LC_ALL": "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"},
                    check=False,
                ).returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                raise PeerError(f"{self.command[0]} failed: {one_line(error):.200}") from None
            errors.seek(0)
            said = one_line(errors.read(MAX_ERROR_BYTES).decode("utf-8", "replace"))
        if code:
            raise PeerError(f"{self.command[0]} failed: {said or f'exit code {code}':.200}")


Keyboard = Tool | X11 | Windows

_NOTHING = "nothing that {} is installed: expected wtype, or for GNOME ydotool 1.0 and wl-clipboard"

_WL_COPY, _PBCOPY = Tool(("wl-copy",)), Tool(("pbcopy",))
_SHIFT_INSERT = ("key", "42:1", "110:1", "110:0", "42:0")  # pastes the clipboard or, in terminals, the selection
_COMMAND_V = ("-e", 'tell application "System Events" to keystroke "v" using command down')

# What types, and what copies, by the desktop.
_TYPING = {
    "wayland": (Tool(("wtype", "-")), Tool(("ydotool", *_SHIFT_INSERT), (_WL_COPY, Tool(("wl-copy", "--primary"))))),
    "macos": (Tool(("osascript", *_COMMAND_V), (_PBCOPY,)),),
}
_COPYING = {
    "wayland": (_WL_COPY,),
    "x11": (Tool(("xclip", "-selection", "clipboard")), Tool(("xsel", "--clipboard", "--input"))),
    "macos": (_PBCOPY,),
    "windows": (Tool(("clip.exe",), encoding="utf-16"),),
}


def desktop() -> str:
    """Return which desktop this is: windows, macos, wayland or x11. Raises StreamerError without a desktop."""
    if sys.platform in ("win32", "darwin"):
        return "windows" if sys.platform == "win32" else "macos"
    for name, variable in (("wayland", "WAYLAND_DISPLAY"), ("x11", "DISPLAY")):
        if os.environ.get(variable):
            return name
    raise StreamerError(
        "no desktop found: neither WAYLAND_DISPLAY nor DISPLAY is set; run this in a terminal of the"
        " desktop, or use `streamer listen`"
    )


def find_keyboards(name: str) -> list[Keyboard]:
    """Return what types on a desktop, the best first. Raises PeerError if X11 cannot be reached."""
    if name in ("x11", "windows"):
        return [X11() if name == "x11" else Windows()]
    return [tool for tool in _TYPING[name] if tool.is_installed]


def find_clipboard(name: str) -> Tool | None:
    """Return what copies text to a desktop's clipboard; None if nothing is installed."""
    return next((tool for tool in _COPYING[name] if tool.is_installed), None)


class Typist:
    """Types text with the first keyboard that works. Text that none types goes to a terminal and to the clipboard.

    A reason for that is reported once, until typing works again.
    """

    def __init__(
        self, keyboards: Sequence[Keyboard], clipboard: Tool | None, terminal: TextIO, on_notice: Callable[[str], None]
    ) -> None:
        """Make a typist. Raises StreamerError if nothing types or copies."""
        if not keyboards and clipboard is None:
            raise StreamerError(_NOTHING.format("types or copies"))
        self._keyboards = keyboards
        self._clipboard = clipboard
        self._terminal = terminal
        self._on_notice = on_notice
        # Text since the last that was typed, and why it was not; empty: it was.
        self._kept = self._reason = ""
        # Whether the screen was locked at the last look, and when (monotonic) the next is due.
        self._locked, self._look_s = False, 0.0

    def type(self, text: str) -> None:
        """Type a text of at most `MAX_PIECE_CHARS`, or keep it."""
        if time.monotonic() >= self._look_s:
            self._locked, self._look_s = _is_locked(), time.monotonic() + LOCK_S
        reason = "the screen is locked" if self._locked else self._try(text)
        if not reason:
            if self._reason:
                self.end_line()
                self._on_notice("typing works again")
            self._kept = self._reason = ""
            return
        if reason != self._reason:
            place = "the terminal" if self._clipboard is None else "the terminal and the clipboard"
            self._on_notice(f"text goes to {place}, not to the window: {reason}")
        self._reason = reason
        self._kept = (self._kept + text)[-MAX_KEPT_CHARS:]
        self._terminal.write(text)
        self._terminal.flush()
        if self._clipboard is not None:
            with contextlib.suppress(PeerError):
                self._clipboard.type(self._kept)

    def end_line(self) -> None:
        """End the line of text that was not typed."""
        if self._kept:
            self._terminal.write("\n")
            self._terminal.flush()
            self._kept = ""

    def _try(self, text: str) -> str:
        """Type text. Returns why no keyboard has; empty if one has."""
        reasons = []
        for keyboard in self._keyboards:
            try:
                _wait_modifiers(keyboard)
                keyboard.type(text)
            except PeerError as error:
                reasons.append(str(error))
            else:
                return ""
        return "; ".join(reasons) or _NOTHING.format("types")


@contextlib.contextmanager
def grabbed(name: str, key: str) -> Iterator[Callable[[], bool]]:
    """Keep a key from other programs; yield a function that returns whether it is held. Raises UsageError if it cannot.

    name : the desktop
    key : one of `KEYS`
    """
    if name not in KEYS:
        raise UsageError(
            f"{name} lets no program watch keys: bind `streamer type --toggle` to one in the desktop's settings"
        )
    if key not in KEYS[name]:
        raise UsageError(f"cannot hold {key!r:.40} to dictate: expected F1 to F24, Pause, ScrollLock or Menu")
    keyboard, code = X11() if name == "x11" else Windows(), KEYS[name][key]
    is_ours = keyboard.grab(code)
    try:
        if not is_ours:
            raise UsageError(f"another program uses the key {key}: release it there, or choose another with --key")
        yield lambda: keyboard.is_down(code)
    finally:
        keyboard.release(code)


def _wait_modifiers(keyboard: Keyboard) -> None:
    deadline_s = time.monotonic() + MODIFIERS_S
    while keyboard.modifier_held():
        if time.monotonic() > deadline_s:
            raise PeerError("Shift, Ctrl, Alt or Super is held")
        time.sleep(POLL_S)


def _is_locked() -> bool:
    """Return whether the screen is locked, as far as Linux says so; on Windows `SendInput` fails then."""
    if sys.platform in ("win32", "darwin"):
        return False
    session = os.environ.get("XDG_SESSION_ID", "auto")  # GNOME's terminal is outside of the session and has none
    command = ["loginctl", "show-session", "--property=LockedHint", "--value", "--", session]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, check=False, capture_output=True, timeout=TOOL_S)  # noqa: S603
        if done.stdout.strip() == b"yes":
            return True
    with contextlib.suppress(psutil.Error):  # a process may end in between
        return any(
            process.info["name"] in LOCKERS and process.uids().real == os.getuid()
            for process in psutil.process_iter(["name"])
        )
    return False
