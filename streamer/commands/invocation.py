"""What the command line says of the settings, and of a token."""

import getpass
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamer import log
from streamer.errors import UsageError
from streamer.outside import one_line
from streamer.server.watched import MAX_FILE_BYTES
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
            del overrides["server.token_file"]
            overrides["server.token"] = read_token("-")
        return cls(config, overrides, token_from_stdin)

    def load(self, more: Mapping[str, object] | None = None) -> Settings:
        """Read the settings; `more` wins over the flags. Raises ConfigError."""
        return load_settings(self.config, os.environ, {**self.overrides, **(more or {})})

    def settings(self, more: Mapping[str, object] | None = None) -> Settings:
        """Read the settings, of which `more` wins over the flags, and log as they say. Raises UsageError."""
        settings = self.load(more)
        if self.token_from_stdin and settings.input.source == "-":
            raise UsageError("standard input cannot be both token and audio: name a file with --token-file")
        log.configure(settings.log)
        return settings


def read_token(file: str) -> str:
    """Return the token that a file holds alone; `-` is standard input. Raises UsageError."""
    try:
        if file == "-":
            hidden = sys.stdin is not None and sys.stdin.isatty()
            text = getpass.getpass("token: ") if hidden else sys.stdin.read(MAX_FILE_BYTES) if sys.stdin else ""
        else:
            with open(file, encoding="utf-8") as opened:  # noqa: PTH123 - a name as it was given
                text = opened.read(MAX_FILE_BYTES)
    except (OSError, ValueError, EOFError) as error:  # ValueError: not UTF-8, or a name with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"token file {one_line(file):.200} cannot be read ({reason}): expected a file that holds the token alone"
        ) from None
    token = text.strip()
    if not token or token.startswith("{") or not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"token file {one_line(file):.200} holds no token: expected the token alone, as `streamer token new`"
            " prints it"
        )
    return token
