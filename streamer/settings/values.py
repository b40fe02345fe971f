"""One value of a setting: read from text, checked, or refused with what was found, what is expected, and a remedy."""

import difflib
import math
import re
from typing import Any, cast

from streamer.errors import ConfigError
from streamer.languages import code_of
from streamer.settings.table import Setting, short

# What a setting that may be None is set to then.
NONE = "none"

# What environment variables and flags may say for true and false.
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

_TYPE_NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


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
    """Return a value as its setting's type. Raises ConfigError where it is none; `where` says where it stands."""
    kind = setting.kind
    if setting.may_be_none and isinstance(value, str) and value.strip().lower() == NONE:
        return None
    if setting.name == "decoding.language" and isinstance(value, str):
        value = code_of(value)
    items = list(value) if isinstance(value, list | tuple) else []
    if kind in (bool, int, float, str):
        if _is_valid(setting, kind, value):
            return float(cast(float, value)) if kind is float else value
        wrong = []
    else:
        item_kind = str if kind == tuple[str, ...] else int
        wrong = [item for item in items if not _is_valid(setting, item_kind, item)]
        if isinstance(value, list | tuple) and not wrong:
            return tuple(items)
        if item_kind is str:
            wrong = [item for item in wrong if isinstance(item, str)]
    found = f"a {type(value).__name__}" if setting.secret else described(wrong[0] if wrong else value)
    raise ConfigError(
        f"{where} {'has' if wrong else 'is'} {found}: expected {_expected(setting)}{_remedy(setting, value)}"
    )


def _is_valid(setting: Setting, kind: type[Any], value: object) -> bool:
    """Return whether a plain value, or an item of a list, is what a setting may be."""
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    if isinstance(value, str):
        return kind is str and _fits(setting, value)
    return isinstance(value, (int, float) if kind is float else kind) and setting.is_in_range(value)


def _fits(setting: Setting, text: str) -> bool:
    """Return whether text is one of a setting's choices or fits its pattern; any does where it has neither."""
    if setting.choices is None and setting.pattern is None:
        return True
    is_pattern = setting.pattern is not None and re.fullmatch(setting.pattern, text) is not None
    return is_pattern or text in (setting.choices or ())


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


def _expected(setting: Setting) -> str:
    example = setting.example
    if setting.choices is not None:
        full_name = f", or a full name such as {example}" if example else ""
        return f"one of {', '.join(filter(None, setting.choices))}{full_name}"
    if setting.kind == tuple[int, ...]:
        what = "a list of whole numbers"
    else:
        what = _TYPE_NAMES.get(setting.kind, f"a list of text such as {example}" if example else "a list of text")
    if setting.low is not None and setting.high is not None:
        what += f" from {short(setting.low)} to {short(setting.high)}"
    return f"{what}, or {NONE}" if setting.may_be_none else what


def _remedy(setting: Setting, value: object) -> str:
    kind = setting.kind
    if value is None:
        return "; delete the line to use the default"
    if setting.choices is not None and isinstance(value, str):
        folded = {choice.lower(): choice for choice in setting.choices}
        nearest = difflib.get_close_matches(value.lower(), folded, 1)
        return f"; the nearest is {folded[nearest[0]]}" if nearest else ""
    if kind is str and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind in (bool, int, float) and isinstance(value, str) and _fits_unquoted(kind, value):
        return "; take the quotes away"
    if kind == tuple[str, ...] and isinstance(value, str):
        return f"; write [{value!r:.60}]"
    if kind == tuple[int, ...] and _is_valid(setting, int, value):
        return f"; write [{value}]"
    return ""


def _fits_unquoted(kind: type[Any], text: str) -> bool:
    try:
        return text.lower() in _BOOLEANS if kind is bool else math.isfinite(float(text))
    except ValueError:
        return False
