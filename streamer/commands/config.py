"""`streamer config show`, `init` and `schema`: the settings that hold, a file to begin with, and what editors check."""

import os
import sys
from pathlib import Path
from typing import Annotated

from streamer.commands.invocation import Invocation
from streamer.commands.run import RUN
from streamer.commands.signature import MODEL, Arg, Flags
from streamer.errors import UsageError
from streamer.settings.documents import SCHEMA_NAME, config_yaml, json_schema, settings_yaml
from streamer.settings.load import config_path, default_config_path, given_values
from streamer.settings.registry import SETTINGS


def show(invocation: Annotated[Invocation, Flags((*RUN, *MODEL), decoding="all")]) -> int:
    """Print each setting as config.yaml has it, and where it comes from.

    That is a default, the file, an environment variable or a flag. Tokens and keys are masked.

    Example: streamer config show --model base.en
    """
    from streamer.audio.sources.address import is_address, shown

    given = given_values(invocation.config, os.environ, invocation.overrides)
    values = {name: given[name].value if name in given else setting.default for name, setting in SETTINGS.items()}
    if is_address(str(values["input.source"])):
        values["input.source"] = shown(str(values["input.source"]))
    values.update({name: "***" for name, setting in SETTINGS.items() if setting.secret and values[name]})
    origins = {name: given[name].where if name in given else "default" for name in SETTINGS}
    path = config_path(invocation.config, os.environ)
    sys.stdout.write(f"# {path}{'' if path.is_file() else ' (not there)'}\n{settings_yaml(values, origins)}")
    return 0


def init(
    *,
    output: Annotated[
        Path | None, Arg("where to write (default: the user's configuration directory)", "FILE", ("-o",))
    ] = None,
    force: Annotated[bool, Arg("replace FILE if it exists")] = False,
) -> int:
    """Write a configuration file with all defaults, each explained, its schema beside it, and print where it is.

    Example: streamer config init
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


def schema() -> int:
    """Print the JSON Schema of the configuration file, by which editors complete and check it.

    Example: streamer config schema
    """
    sys.stdout.write(json_schema())
    return 0
