"""What an output is made of, here and in plug-ins: a sink, made of a target, that answers for each event."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import ConfigError
from streamer.events import Event
from streamer.outputs.subtitles.cues import SubtitleOptions
from streamer.settings.registry import value_of
from streamer.settings.table import Settings

MAX_WAITING = 1000
MAX_WAITING_LIVE = 100  # some minutes: older captions are useless for live viewers


@dataclass(frozen=True, slots=True)
class Delivered:
    """The event is where it belongs, or this sink does not show it."""


@dataclass(frozen=True, slots=True)
class Later:
    """The event cannot be taken now. It is delivered again after `delay_s` at least, and before any other event."""

    reason: str
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side rejects the event. After some further attempts it is dropped."""

    reason: str


Answer = Delivered | Later | Refused


class Sink(abc.ABC):
    """Takes the events of one session in order, one at a time, in a thread of its own.

    A sink may be given an event again that it did not take: steps that were completed must not be repeated. An OSError
    that it raises counts as `Later`; any other error is a bug, which is logged, and counts as `Refused`.
    """

    # Events that wait for it; of more the oldest are dropped.
    max_waiting: int = MAX_WAITING

    # Whether it gets partials, too, except those that are outdated when their turn comes.
    partials: bool = False

    # Seconds without an event after which `tick` is called; None: never.
    tick_s: float | None = None

    @abc.abstractmethod
    def deliver(self, event: Event) -> Answer:
        """Take the next event."""

    def tick(self) -> None:  # noqa: B027 - few have anything to do
        """Do what is due though no event comes. Raises OSError."""

    def close(self) -> None:  # noqa: B027 - not all hold anything
        """Write what is held back, and close what is open."""


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
