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
