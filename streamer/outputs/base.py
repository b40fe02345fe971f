"""Interfaces of sinks."""

from typing import Protocol, runtime_checkable

from streamer.events import Event


class Sink(Protocol):
    """Takes the events of one session in order. Called from one thread at a time."""

    def handle(self, event: Event) -> None:
        """Handle the next event. If this raises, the event may be passed again; completed steps are not repeated."""
        ...

    def close(self) -> None:
        """Write what is held back. A stream of the caller stays open. May be called again."""
        ...


@runtime_checkable
class TickingSink(Sink, Protocol):
    """A sink that also acts without events."""

    def tick(self) -> None:
        """Do what is due. Called about once a second while no event comes. May raise OSError."""
        ...
