"""What the command line says of the settings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamer import log
from streamer.errors import UsageError
from streamer.settings.load import load_settings
from streamer.settings.registry import SETTINGS
from streamer.settings.table import Settings


@dataclass(frozen=True, slots=True)
class Invocation:
    """The configuration file and the flags of a command."""

    # The file that --config names.
    config: Path | None

    # What flags say, by the dotted names of settings.
    overrides: Mapping[str, object]

    # Whether the daemon's token was read from standard input.
    token_from_stdin: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, object]) -> "Invocation":
        """Return that of parsed arguments. Raises UsageError if standard input should hold a token, and does not."""
        config = arguments.get("config")
        assert config is None or isinstance(config, Path)
        overrides = {name: value for name, value in arguments.items() if name in SETTINGS and value is not None}
        if arguments["debug"]:
            overrides["log.level"] = "debug"
        token_from_stdin = overrides.get("server.token_file") == "-"
        if token_from_stdin:
            from streamer.commands.token import read_token

            del overrides["server.token_file"]
            overrides["server.token"] = read_token("-")
        return cls(config, overrides, token_from_stdin)

    def load(self, more: Mapping[str, object] | None = None) -> Settings:
        """Read the settings; `more` wins over the flags. Raises ConfigError."""
        return load_settings(self.config, os.environ, {**self.overrides, **(more or {})})

    def settings(self) -> Settings:
        """Read the settings, and begin to log as they say. Raises UsageError."""
        settings = self.load()
        if self.token_from_stdin and settings.input.source == "-":
            raise UsageError("standard input cannot be both token and audio: name a file with --token-file")
        log.configure(settings.log)
        return settings
