"""What conversations.yaml is written in: bytes with placeholders, and frames. The file's head explains it."""

import functools
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tools.attacks.table import TEXTS
from tools.attacks.target import Target, spoken_bytes
from tools.attacks.wire import OPCODES, frame

_FRAME = re.compile(r"(?:(\d+) \* )?(\w+)((?: [\w=]+)*):(?: (.*))?", re.DOTALL)
_REPEATED = re.compile(r"(.*)\*(\d+)", re.DOTALL)


def each_of(items: Sequence[Any]) -> list[Any]:
    """Return items, each template among them with all of its values in the position of `<>`."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, Mapping):
            found += [text.replace("<>", value) for text in item["send"] for value in item["each"]]
        else:
            found.append(item)
    return found


class Notation:
    """Turns what the file says into bytes for a server."""

    def __init__(self, target: Target) -> None:
        self._texts = {**TEXTS, "port": str(target.port), "token": target.token}
        self._texts["authorization"] = f"Authorization: Bearer {target.token}\r\n" if target.token else ""

    def raw(self, text: str) -> bytes:
        """Return the bytes of a text. Raises ValueError if a placeholder is unknown."""
        return self._expand(text).encode("latin-1")

    def requests(self, items: Sequence[Any]) -> list[bytes]:
        """Return the bytes of requests. Raises ValueError as `raw`."""
        return [self.raw(text) for text in each_of(items)]

    def frames(self, items: Sequence[Any]) -> bytes:
        """Return frames, one after another. Raises ValueError if one is written wrongly."""
        return b"".join(self._frames(item) for item in each_of(items))

    def either(self, text: str | Sequence[Any]) -> bytes:
        """Return the bytes of a text, or of a list of frames."""
        return self.raw(text) if isinstance(text, str) else self.frames(text)

    def _frames(self, item: str) -> bytes:
        match = _FRAME.fullmatch(self._texts.get(item, item))
        if match is None:
            raise ValueError(f"cannot read the frame {item[:60]!r}")
        times, name, flags, text = match[1], match[2], match[3].split(), self._expand(match[4] or "")
        known = dict(flag.split("=") for flag in flags if "=" in flag)
        make = functools.partial(
            frame,
            OPCODES[name] if name in OPCODES else int(name.removeprefix("opcode")),
            fin="open" not in flags,
            reserved=int(known.get("reserved", 0)),
            mask="unmasked" not in flags,
            length=int(known.get("length", -1)),
        )
        if not times or "#" not in text:
            return make(text.encode("latin-1"))[: int(known.get("cut", 1 << 40))] * int(times or 1)
        return b"".join(make(text.replace("#", str(i)).encode("latin-1")) for i in range(int(times)))

    def _expand(self, text: str) -> str:
        parts = [""]
        for piece in re.split("([<>])", text):
            if piece == "<":
                parts.append("")
            elif piece == ">":
                inner = parts.pop()
                parts[-1] += self._value(inner)
            else:
                parts[-1] += piece
        if len(parts) > 1:
            raise ValueError(f"a placeholder is not closed: {text[:60]!r}")
        return parts[0]

    def _value(self, inner: str) -> str:
        if inner in self._texts:
            return self._expand(self._texts[inner])
        if inner == "guess":
            return secrets.token_urlsafe(24)
        kind, _, rest = inner.partition(" ")
        if kind == "frame":
            return self._frames(rest).decode("latin-1")
        if kind == "speech":
            return spoken_bytes(*map(float, rest.split())).decode("latin-1")
        if (match := _REPEATED.fullmatch(inner)) is None:
            raise ValueError(f"unknown placeholder {inner[:60]!r}")
        text, n = match[1], int(match[2])
        if text == "random":
            return os.urandom(n).decode("latin-1")
        return "".join(text.replace("#", str(i)) for i in range(n)) if "#" in text else text * n
