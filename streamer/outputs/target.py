"""What `--to` names, of which plug-ins make sinks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import ConfigError
from streamer.outputs.subtitles.cues import SubtitleOptions
from streamer.settings.registry import value_of
from streamer.settings.table import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What `--to KIND:ARGUMENT` asks for, of which a plug-in makes a sink."""

    argument: str
    settings: Settings
    lines: SubtitleOptions

    # Returns the Unix time of a second of the session's audio, to some 0.2 s.
    said_at: Callable[[float], float]

    def secret(self, name: str) -> str:
        """Return a setting's value by its dotted name, or what the file holds that it names as `@FILE`."""
        return read_secret(str(value_of(self.settings, name)), name)

    def address(self, name: str) -> str:
        """Return the argument, or without one a setting's value, or what the file holds that it names as `@FILE`."""
        return read_secret(self.argument or str(value_of(self.settings, name)), name)


def read_secret(text: str, name: str) -> str:
    """Return the value of a setting, or of the file that it names as `@FILE`. Raises ConfigError."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"cannot read the file that {name} names ({reason}): check the path after @") from None
