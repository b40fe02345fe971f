"""What a sink is."""

from typing import Protocol

from streamer.events import Event


class Sink(Protocol):
    """Takes the events of one session in order and does something with them. Called from one thread at a time."""

    def handle(self, event: Event) -> None:
        """Take the next event."""
        ...

    def close(self) -> None:
        """Write what is still held back. What the sink was given to write to stays open. May be called again."""
        ...


def printable(text: str) -> str:
    """Return text of the same length that cannot steer a terminal or break a line.

    Text may come from a daemon on another machine: control characters, line breaks among them, become spaces.
    """
    return "".join(char if char.isprintable() else " " for char in text)


def one_line(text: str) -> str:
    """Return text as one line with single spaces and none at its ends."""
    return " ".join(printable(text).split())
