"""Interfaces of sinks."""

from typing import Protocol, runtime_checkable

from streamer.events import Event


class Sink(Protocol):
    """Takes the events of one session in order. Called from one thread at a time."""

    def handle(self, event: Event) -> None:
        """Take the next event. One that raised may be passed again: what is done is then not done twice."""
        ...

    def close(self) -> None:
        """Write what is still held back. The stream it writes to stays open. May be called again."""
        ...


@runtime_checkable
class TickingSink(Sink, Protocol):
    """A sink that also acts when time passes."""

    def tick(self) -> None:
        """Do what is due. Called about once a second while no event comes. May raise OSError."""
        ...
