"""The keyboard of X11: text typed into the focused window, and whether a key is held.

A character that is not on the layout gets an unused key, and keeps it for as long as possible: a busy program looks up
the character of a key late. xdotool takes the key away again at once, and loses some of these characters.
"""

import ctypes
import os
import time
from collections.abc import Iterator
from typing import Any

from streamer.errors import PeerError, UsageError

SETTLE_S = 0.5  # in which programs have looked up the characters of keys that were pressed, before these keys change

_HELD = 0b1001101  # Shift, Control, Mod1 (Alt), Mod4 (Super)
_SHIFT = 0xFFE1  # keysym
_CORE = 0x100  # the keyboard of XKB that all others feed
_CAPS = 0b10  # modifier
_LOCKS = (0, 0b10, 0b10000, 0b10010)  # Caps Lock and Num Lock (Mod2), which a grab counts as modifiers
_OURS = 0xFFFFFF  # VoidSymbol, which marks a key of ours, or one that an earlier process has left

# Connections of which the server has refused a request.
_refused = set[int | None]()


def _refuse(display: int, event: int) -> int:
    _refused.add(display)
    return 0


# Kept for as long as the process lives, as Xlib has one for all connections; without it, Xlib ends the process.
_ON_ERROR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_refuse)


class X11:
    """A connection to the X server. Used by one thread at a time."""

    def __init__(self) -> None:
        """Connect. Raises PeerError if the libraries or the server are missing."""
        try:
            libraries = [ctypes.CDLL(f"lib{name}") for name in ("X11.so.6", "Xtst.so.6", "xkbcommon.so.0")]
        except OSError as error:
            raise PeerError(f"{error}; install libx11-6, libxtst6 and libxkbcommon0") from None
        self._xlib, self._xtest, self._xkb = libraries
        self._xlib.XInitThreads()
        self._xlib.XOpenDisplay.restype = ctypes.c_void_p
        self._xlib.XDefaultRootWindow.restype = ctypes.c_ulong
        self._xlib.XInternAtom.restype = ctypes.c_ulong
        self._xlib.XGetKeyboardMapping.restype = ctypes.POINTER(ctypes.c_ulong)
        self._xlib.XSetErrorHandler(_ON_ERROR)
        self._display = ctypes.c_void_p(self._xlib.XOpenDisplay(None))
        if not self._display:
            raise PeerError(f"cannot reach the X server {os.environ.get('DISPLAY', '')!r:.60}: check DISPLAY")
        self._root = ctypes.c_ulong(self._call("XDefaultRootWindow"))
        # Keys of the layout by their keysyms, each with whether it needs Shift.
        self._layout: dict[int, tuple[int, bool]] = {}
        # Our keys by their keysyms, the one used longest ago first; time (monotonic) of the newest press of one.
        self._codes: dict[int, int] = {}
        self._pressed = 0.0

    def type(self, text: str) -> None:
        """Type text into the focused window. Raises PeerError if no window has the focus."""
        if not self._is_focused():
            raise PeerError("no window has the focus")
        state = self._state()
        free, shift_code = self._read_layout(state[0]), self._code(_SHIFT)
        chunks = [*self._chunks(text, len(free) + len(self._codes))]
        caps = state[9] & _CAPS
        self._call("XkbLockModifiers", _CORE, caps, 0)  # otherwise letters have the wrong case
        for chunk in chunks:
            self._assign(chunk, free)
            for keysym in chunk:
                code, shift = self._layout.get(keysym) or (self._codes[keysym], False)
                for key, is_down in [(shift_code, 1)] * shift + [(code, 1), (code, 0)] + [(shift_code, 0)] * shift:
                    self._xtest.XTestFakeKeyEvent(self._display, key, is_down, ctypes.c_ulong(0))
            self._call("XSync", 0)
            self._pressed = time.monotonic()
        self._call("XkbLockModifiers", _CORE, caps, caps)
        self._call("XSync", 0)

    def modifier_held(self) -> bool:
        """Return whether Shift, Ctrl, Alt or Super is held."""
        window, position, modifiers = ctypes.c_ulong(), ctypes.c_int(), ctypes.c_uint()
        found = [ctypes.byref(value) for value in (window, window, position, position, position, position, modifiers)]
        self._call("XQueryPointer", self._root, *found)
        return bool(modifiers.value & _HELD)

    def grab(self, keysym: int) -> bool:
        """Keep a key from other programs, by its keysym. Returns whether none has it already.

        Raises UsageError if the layout lacks the key.
        """
        code = self._code(keysym)
        if code == 0:  # to X11, any key
            raise UsageError("the keyboard layout lacks this key: choose another with --key")
        _refused.discard(self._display.value)
        for locks in _LOCKS:
            self._call("XGrabKey", code, locks, self._root, 0, 1, 1)
        self._repeat(keysym, is_on=False)
        return self._display.value not in _refused

    def is_down(self, keysym: int) -> bool:
        """Return whether a grabbed key is held, and free the keyboard, which its press has grabbed for us."""
        keys, code = ctypes.create_string_buffer(32), self._code(keysym)
        self._call("XQueryKeymap", keys)
        self._call("XUngrabKeyboard", ctypes.c_ulong(0))
        self._call("XSync", 1)
        return bool(keys.raw[code // 8] >> code % 8 & 1)

    def release(self, keysym: int) -> None:
        """Give a key back."""
        self._call("XUngrabKey", self._code(keysym), 1 << 15, self._root)
        self._repeat(keysym, is_on=True)

    def _call(self, function: str, *arguments: Any) -> Any:  # noqa: ANN401 - as C has it
        return getattr(self._xlib, function)(self._display, *arguments)

    def _is_focused(self) -> bool:
        """Return whether a window has the focus: one of the window manager's, which no user sees, is none."""
        focus = ctypes.c_ulong()
        self._call("XGetInputFocus", ctypes.byref(focus), ctypes.byref(ctypes.c_int()))
        if focus.value in (0, self._root.value):
            return False
        if not self._window_in(b"_NET_SUPPORTING_WM_CHECK"):
            return True
        # It may name a window that has gone.
        active = ctypes.c_ulong(self._window_in(b"_NET_ACTIVE_WINDOW"))
        return bool(active.value and self._call("XGetWindowAttributes", active, ctypes.create_string_buffer(256)))

    def _window_in(self, name: bytes) -> int:
        """Return the window that a property of the root window names; 0: none (Extended Window Manager Hints)."""
        length, ignored, found = ctypes.c_ulong(), ctypes.c_ulong(), ctypes.POINTER(ctypes.c_ulong)()
        atom = ctypes.c_ulong(self._call("XInternAtom", name, 0))
        first = (self._root, atom, ctypes.c_long(0), ctypes.c_long(1), 0, ctypes.c_ulong(0))
        results = [ctypes.byref(value) for value in (ignored, ctypes.c_int(), length, ignored, found)]
        self._call("XGetWindowProperty", *first, *results)
        window = int(found[0]) if length.value else 0
        if found:
            self._xlib.XFree(found)
        return window

    def _code(self, keysym: int) -> int:
        return int(self._call("XKeysymToKeycode", ctypes.c_ulong(keysym)))

    def _repeat(self, keysym: int, *, is_on: bool) -> None:
        """Let a key repeat while it is held, or not: each repetition would grab the keyboard from the window."""
        control = (ctypes.c_int * 8)(0, 0, 0, 0, 0, 0, self._code(keysym), is_on)
        self._call("XChangeKeyboardControl", ctypes.c_ulong(0b11000000), control)
        self._call("XSync", 0)

    def _state(self) -> bytes:
        """Return the state of the keyboard: the first byte is the group, the tenth the locked modifiers."""
        state = ctypes.create_string_buffer(64)
        self._call("XkbGetState", _CORE, state)
        return state.raw

    def _read_layout(self, group: int) -> list[int]:
        """Read the present layout, which may have taken keys of ours. Returns the keys without a character."""
        first, last, width = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("XDisplayKeycodes", ctypes.byref(first), ctypes.byref(last))
        n_codes = last.value - first.value + 1
        keysyms = self._call("XGetKeyboardMapping", first.value, n_codes, ctypes.byref(width))
        rows = {first.value + i: keysyms[i * width.value : (i + 1) * width.value] for i in range(n_codes)}
        self._xlib.XFree(keysyms)
        first_level = 2 * group
        self._layout = {
            row[first_level + shift]: (code, bool(shift))
            for shift in (1, 0)
            for code, row in reversed(rows.items())
            if _OURS not in row and first_level + shift < 4 <= len(row)
        }
        self._codes = {keysym: code for keysym, code in self._codes.items() if rows[code][0] == keysym}
        ours = self._codes.values()
        return [code for code, row in rows.items() if (not any(row) or _OURS in row) and code not in ours]

    def _chunks(self, text: str, n_keys: int) -> Iterator[list[int]]:
        """Yield the keysyms of a text, in pieces of which at most `n_keys` different ones are not on the layout."""
        chunk: list[int] = []
        others = set[int]()
        for char in text:
            keysym: int = self._xkb.xkb_utf32_to_keysym(ord(char))
            if keysym not in self._layout and keysym not in others:
                if n_keys == 0:
                    raise PeerError("the keyboard's layout has no unused key for other characters")
                if len(others) == n_keys:
                    yield chunk
                    chunk, others = [], set()
                others.add(keysym)
            chunk.append(keysym)
        yield chunk

    def _assign(self, chunk: list[int], free: list[int]) -> None:
        """Give each keysym of a chunk a key."""
        needed = [keysym for keysym in dict.fromkeys(chunk) if keysym not in self._layout]
        self._codes |= {keysym: self._codes.pop(keysym) for keysym in needed if keysym in self._codes}
        new = [keysym for keysym in needed if keysym not in self._codes]
        if len(new) > len(free):
            time.sleep(max(0.0, self._pressed + SETTLE_S - time.monotonic()))
        for keysym in new:
            code = free.pop() if free else self._codes.pop(next(iter(self._codes)))
            # In both groups, with Shift or without.
            row = (ctypes.c_ulong * 6)(*[keysym] * 5, _OURS)
            self._call("XChangeKeyboardMapping", code, len(row), row, 1)
            self._codes[keysym] = code
        self._call("XSync", 0)
