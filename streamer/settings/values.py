"""One value of a setting: read from text, checked, or refused with what was found, what is expected, and a remedy."""

import difflib
import re
import typing
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
    except (msgspec.ValidationError, UnicodeEncodeError):  # the latter: a name with half a surrogate pair
        pass
    wrong = _wrong_items(setting, value) if isinstance(value, list | tuple) else []
    found = f"a {type(value).__name__}" if setting.secret else described(wrong[0] if wrong else value)
    or_none = f", or {NONE}" if setting.may_be_none else ""
    raise ConfigError(
        f"{where} {'has' if wrong else 'is'} {found}: expected {expected(setting)}{or_none}{_remedy(setting, value)}"
    )


def _wrong_items(setting: Setting, items: Sequence[object]) -> list[object]:
    """Return the items of a list that can be named in a message: of a list of text only text."""
    if setting.kind in (bool, int, float, str):
        return []
    item_type, _ = typing.get_args(setting.type)
    can_be_named = str if setting.kind == tuple[str, ...] else object
    return [item for item in items if isinstance(item, can_be_named) and not _is_valid(item, item_type)]


def _is_valid(value: object, type: Any) -> bool:  # noqa: ANN401 - any type
    try:
        msgspec.convert(value, type)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def described(value: object) -> str:
    """Say in a few words what a value is."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true (yes or no)" if value else "false (yes or no)"
        case str():
            return f"{value!r:.60} (text)"
        case int() if abs(value) >= 10**18:
            return "a huge number"  # more digits than fit a line, or than int -> str converts
        case int() | float():
            return f"{value} (a number)"
        case list() | tuple():
            return "a list" if all(isinstance(item, str) for item in value) else "a list with other things than text"
        case dict():
            return "a mapping"
    return f"{value!s:.60} (a {type(value).__name__})"


def expected(setting: Setting) -> str:
    """Return what a setting may be set to other than None, in a few words."""
    example = setting.example
    if setting.choices:
        what = f"one of {', '.join(filter(None, setting.choices))}"
        what += f", or a full name such as {example}" if example else ""
    else:
        what = _TYPE_NAMES[setting.kind] + (f" such as {example}" if example else "")
        what += f" from {' to '.join(map(short, setting.within))}" if setting.within is not None else ""
    return what


def _remedy(setting: Setting, value: object) -> str:
    kind = setting.kind
    if value is None:
        return "; delete the line to use the default"
    if setting.choices and isinstance(value, str):
        folded = {choice.lower(): choice for choice in setting.choices}
        nearest = difflib.get_close_matches(value.lower(), folded, 1)
        return f"; the nearest is {folded[nearest[0]]}" if nearest else ""
    if kind is str and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind in (bool, int, float) and isinstance(value, str) and _is_valid(from_text(setting, value), setting.type):
        return "; take the quotes away"
    if _is_valid([value], setting.type):
        return f"; write [{value!r:.60}]"
    return ""
