"""The keyboard of Windows: text typed into the focused window, and whether a key is held. Written, not tried."""

import ctypes
import struct
from typing import Any

from streamer.errors import PeerError

_MODIFIERS = (0x10, 0x11, 0x12, 0x5B, 0x5C)  # virtual-key codes of Shift, Ctrl, Alt and both Windows keys
_INPUT_KEYBOARD, _UNICODE, _KEY_UP = 1, 4, 2
_NO_REPEAT = 0x4000
_INPUT = "<I4xHHII4xQ8x"  # INPUT on 64-bit Windows, with KEYBDINPUT in its union


def inputs_of(text: str) -> list[bytes]:
    """Return the `INPUT` structures that type a text: a press and a release for each UTF-16 unit."""
    data = text.encode("utf-16-le")
    return [
        struct.pack(_INPUT, _INPUT_KEYBOARD, 0, unit, _UNICODE | up, 0, 0)
        for (unit,) in struct.iter_unpack("<H", data)
        for up in (0, _KEY_UP)
    ]


class Windows:
    """The user's keyboard. The keys that it grabs are those of the thread that grabs them."""

    def __init__(self) -> None:
        library: Any = ctypes  # elsewhere it has no WinDLL
        self._user32 = library.WinDLL("user32")

    def type(self, text: str) -> None:
        """Type text into the focused window. Raises PeerError if Windows refuses."""
        inputs = inputs_of(text)
        if self._user32.SendInput(len(inputs), b"".join(inputs), struct.calcsize(_INPUT)) != len(inputs):
            raise PeerError("Windows refuses: the screen is locked, or an administrator's window has the focus")

    def modifier_held(self) -> bool:
        """Return whether Shift, Ctrl, Alt or the Windows key is held."""
        return any(self.is_down(code) for code in _MODIFIERS)

    def grab(self, code: int) -> bool:
        """Keep a key from other programs, by its virtual-key code. Returns whether none has it already."""
        return bool(self._user32.RegisterHotKey(None, code, _NO_REPEAT, code))

    def is_down(self, code: int) -> bool:
        """Return whether a key is held."""
        return bool(self._user32.GetAsyncKeyState(code) & 0x8000)

    def release(self, code: int) -> None:
        """Give a key back."""
        self._user32.UnregisterHotKey(None, code)
