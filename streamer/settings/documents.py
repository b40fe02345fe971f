"""What is written about the settings, made of the table: config.yaml and its JSON Schema."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from streamer.settings.registry import SECTIONS, SETTINGS
from streamer.settings.setting import Setting
from streamer.settings.values import NONE

# Name of the file with the JSON Schema, beside the configuration file, whose first line names it to editors.
SCHEMA_NAME = "config.schema.json"

# Column at which comments begin, unless a value is too long for that.
_COMMENT_COLUMN = 28

_HEAD = """\
# Settings of streamer, each with its default. Everything may be left out.
#
# The file is the one that --config names, else the one that STREAMER_CONFIG names, else config.yaml in the user's
# configuration directory (on Linux ~/.config/streamer). Environment variables win over it (server.port is
# STREAMER_SERVER_PORT; a list is separated by commas), and command-line flags win over both.
"""


def config_yaml() -> str:
    """Return a configuration file with all defaults, each explained."""
    comments = {setting.name: _noted(setting.help, setting.limits) for setting in SETTINGS.values()}
    defaults = {setting.name: setting.default for setting in SETTINGS.values()}
    return f"# yaml-language-server: $schema={SCHEMA_NAME}\n{_HEAD}\n{settings_yaml(defaults, comments)}"


def settings_yaml(values: Mapping[str, object], comments: Mapping[str, str]) -> str:
    """Return all settings as a configuration file has them, with a comment each, by their dotted names."""
    sections = []
    for section, cls in SECTIONS.items():
        lines = [_line(f"{section}:", _summary(cls))]
        for setting in SETTINGS.values():
            if setting.name.startswith(f"{section}."):
                lines.append(_line(f"  {setting.key}: {_yaml(values[setting.name])}", comments[setting.name]))
        sections.append("".join(lines))
    return "\n".join(sections)


def json_schema() -> str:
    properties = {
        section: {
            "description": _summary(cls),
            # A section whose keys are all commented out is null.
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {
                setting.key: _property(setting)
                for setting in SETTINGS.values()
                if setting.name.startswith(f"{section}.")
            },
        }
        for section, cls in SECTIONS.items()
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of streamer",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": properties,
    }
    return msgspec.json.format(msgspec.json.encode(schema)).decode("utf-8") + "\n"


def _property(setting: Setting) -> dict[str, Any]:
    described = {
        "description": _noted(setting.help, setting.limits) + (f". {setting.more}" if setting.more else ""),
        "default": NONE if setting.default is None else setting.default,
    }
    allowed = msgspec.json.schema(setting.type)
    if "enum" in allowed:
        allowed["enum"] = list(setting.choices)  # in our order
    if setting.may_be_none:
        return {**described, "anyOf": [allowed, {"enum": [NONE]}]}
    return {**described, **allowed}


def _summary(cls: type[Any]) -> str:
    assert cls.__doc__
    return cls.__doc__.removesuffix(".")


def _noted(help: str, limits: str) -> str:
    return f"{help} ({limits})" if limits else help


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COMMENT_COLUMN - 2}}  # {comment}\n"


def _yaml(value: object) -> str:
    """Return a value as YAML, on one line."""
    match value:
        case None:
            return NONE
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(_yaml, value))}]"
        case str():
            if _is_plain(value):
                return value
            quoted = json.dumps(value, ensure_ascii=False)
            return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
    return str(value)


def _is_plain(text: str) -> bool:
    """Return whether YAML, in a list too, reads text as itself without quotes."""
    with contextlib.suppress(ValueError):
        float(text)
        return False  # YAML 1.1 does not know 1e3 for a number, 1.2 does
    with contextlib.suppress(yaml.YAMLError):
        return bool(yaml.safe_load(f"x: {text}\ny: [{text}]") == {"x": text, "y": [text]})
    return False
