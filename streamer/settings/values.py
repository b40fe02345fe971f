"""One value of a setting: read from text, checked, or refused with what was found and what is expected."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from streamer.errors import ConfigError
from streamer.languages import code_of
from streamer.settings.setting import Setting, short

# What a setting that may be None is set to then.
NONE = "none"

# What environment variables and flags may say for true and false.
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

_TYPE_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple[int, ...]: "a list of whole numbers",
    tuple[str, ...]: "a list of text",
}


def from_text(setting: Setting, text: str) -> object:
    """Read a value as environment variables and flags give it; text that does not fit the type stays text."""
    match setting.kind:
        case kind if kind is bool:
            return _BOOLEANS.get(text.strip().lower(), text)
        case kind if kind is int or kind is float:
            try:
                return kind(text)
            except ValueError:
                return text
        case kind if kind is str:
            return text
    items = [item for part in text.split(",") if (item := part.strip())]
    if setting.kind == tuple[str, ...]:
        return items
    # One that has more digits than any setting's stays text.
    return [int(item) if re.fullmatch(r"[0-9]{1,18}", item) else item for item in items]


def checked(setting: Setting, value: object, where: str) -> object:
    """Return a value as its setting's type. Raises ConfigError if it is invalid; `where` says where it was set."""
    if setting.may_be_none and isinstance(value, str) and value.strip().lower() == NONE:
        return None
    if setting.name == "decoding.language" and isinstance(value, str):
        value = code_of(value, where)
    try:
        # msgspec takes no subclass of float, such as numpy.float64.
        return msgspec.convert(float(value) if isinstance(value, float) else value, setting.type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: a name with half a surrogate pair
        item = re.search(r"`\$\[(\d+)\]", str(error))
    verb = "is"
    if item is not None and isinstance(value, list | tuple):
        verb, value = "has", value[int(item[1])]
    found = _TYPE_NAMES.get(type(value), "something else") if setting.secret else described(value)
    what = expected(setting.kind, setting.choices, setting.meta)
    or_none = f", or {NONE}" if setting.may_be_none else ""
    raise ConfigError(f"{where} {verb} {found}: expected {what}{or_none}")


def described(value: object) -> str:
    """Say in a few words what a value is."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) >= 10**18:
            return "a huge number"  # more digits than fit a line, or than int -> str converts
        case str() | int() | float():
            return f"{value!r:.60}"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
    return f"a {type(value).__name__}"


def expected(kind: Any, choices: Sequence[str], meta: msgspec.Meta) -> str:  # noqa: ANN401 - any type
    """Return what a value other than None may be, in a few words. See `values_of` for the arguments."""
    example = meta.examples[-1] if meta.examples else ""
    if choices:
        return f"one of {', '.join(filter(None, choices))}" + (f", or a full name such as {example}" if example else "")
    within = f" from {short(meta.ge)} to {short(meta.le)}" if meta.ge is not None and meta.le is not None else ""
    return _TYPE_NAMES[kind] + (f" such as {example}" if example else "") + within
