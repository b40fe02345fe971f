"""`streamer config show`, `init` and `schema`: the settings that hold, a file to begin with, and what editors check."""

import os
import sys
from pathlib import Path

from streamer.audio.sources.address import is_address, shown
from streamer.commands.invocation import Invocation
from streamer.errors import UsageError
from streamer.settings.documents import SCHEMA_NAME, config_yaml, json_schema, settings_yaml
from streamer.settings.load import config_path, default_config_path, given_values
from streamer.settings.registry import SETTINGS


def show(invocation: Invocation) -> int:
    """Print each setting as a configuration file has it, with where it comes from. Returns the exit code.

    Secrets that are set are masked. Raises ConfigError if a setting is refused.
    """
    given = given_values(invocation.config, os.environ, invocation.overrides)
    values = {name: given[name].value if name in given else setting.default for name, setting in SETTINGS.items()}
    if is_address(str(values["input.source"])):
        values["input.source"] = shown(str(values["input.source"]))
    values.update({name: "***" for name, setting in SETTINGS.items() if setting.secret and values[name]})
    origins = {name: given[name].where if name in given else "default" for name in SETTINGS}
    path = config_path(invocation.config, os.environ)
    sys.stdout.write(f"# {path}{'' if path.is_file() else ' (not there)'}\n{settings_yaml(values, origins)}")
    return 0


def init(output: Path | None, *, force: bool) -> int:
    """Write a configuration file with all defaults, each explained, and its schema beside it. Returns the exit code.

    output : the file; None: the user's own

    Raises UsageError if it exists, unless `force` is set, and if it cannot be written.
    """
    path = output or default_config_path()
    if path.is_file() and not force:
        raise UsageError(f"{path} exists already: name another file with -o, or replace this one with --force")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config_yaml(), encoding="utf-8", newline="\n")
        path.with_name(SCHEMA_NAME).write_text(json_schema(), encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}): name another file with -o") from None
    sys.stdout.write(f"{path}\n")
    return 0


def print_schema() -> int:
    """Print the JSON Schema of the configuration file. Returns the exit code."""
    sys.stdout.write(json_schema())
    return 0
