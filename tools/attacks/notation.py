"""What conversations.yaml is written in: bytes with placeholders, and frames. The file's head explains it."""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tools.attacks.table import TEXTS
from tools.attacks.target import Target, spoken_bytes
from tools.attacks.wire import OPCODES, frame

_FRAME = re.compile(r"(?:(\d+) \* )?(\w+)((?: [\w=]+)*):(?: (.*))?", re.DOTALL)


def each_of(items: Sequence[Any]) -> list[Any]:
    """Return items, each template among them with all of its values in the position of `<>`."""
    found: list[Any] = []
    for item in items:
        values = item["each"] if isinstance(item, Mapping) else ()
        found += [text.replace("<>", value) for text in item["send"] for value in values] if values else [item]
    return found


def encode(target: Target, text: str | Sequence[Any]) -> bytes:
    """Return the bytes of a text, or of a list of frames, for a server. Raises ValueError if it is written wrongly."""
    if not isinstance(text, str):
        return "".join(_frames(target, item) for item in each_of(text)).encode("latin-1")
    return _expand(target, text).encode("latin-1")


def _frames(target: Target, item: str) -> str:
    match = _FRAME.fullmatch(TEXTS.get(item, item))
    if match is None:
        raise ValueError(f"cannot read the frame {item[:60]!r}")
    times, name, flags, text = int(match[1] or 1), match[2], match[3].split(), match[4] or ""
    known = {key: int(value) for key, _, value in (flag.partition("=") for flag in flags) if value}
    code = OPCODES[name] if name in OPCODES else int(name.removeprefix("opcode"))
    reserved, length = known.get("reserved", 0), known.get("length", -1)

    def make(text: str) -> str:
        payload, fin, mask = _expand(target, text).encode("latin-1"), "open" not in flags, "unmasked" not in flags
        data = frame(code, payload, fin=fin, reserved=reserved, mask=mask, length=length)
        return data[: known.get("cut")].decode("latin-1")

    return "".join(make(text.replace("#", str(i))) for i in range(times)) if "#" in text else make(text) * times


def _expand(target: Target, text: str) -> str:
    parts = [""]
    for piece in re.split("([<>])", text):
        if piece == ">":
            inner = parts.pop()
            parts[-1] += _value(target, inner)
        elif piece == "<":
            parts.append("")
        else:
            parts[-1] += piece
    if len(parts) > 1:
        raise ValueError(f"a placeholder is not closed: {text[:60]!r}")
    return parts[0]


def _value(target: Target, name: str) -> str:
    kind, _, rest = name.partition(" ")
    text, _, n = name.rpartition("*")
    match kind:
        case _ if name in TEXTS:
            return _expand(target, TEXTS[name])
        case "port":
            return str(target.port)
        case "token":
            return target.token
        case "authorization":
            return f"Authorization: Bearer {target.token}\r\n" if target.token else ""
        case "guess":
            return secrets.token_urlsafe(24)
        case "frame":
            return _frames(target, rest)
        case "speech":
            return spoken_bytes(*map(float, rest.split())).decode("latin-1")
        case _ if not n.isdigit():
            raise ValueError(f"unknown placeholder {name[:60]!r}")
        case _ if text == "random":
            return os.urandom(int(n)).decode("latin-1")
    return "".join(text.replace("#", str(i)) for i in range(int(n))) if "#" in text else text * int(n)
