"""The interface of sinks."""

from typing import Protocol

from streamer.events import Event


class Sink(Protocol):
    """Handles the events of one session in order. Called from one thread at a time.

    A sink may also have `tick()`, which is called about once a second while no event comes, and may raise OSError; and
    `live`, which is true if older captions are useless to its viewers.
    """

    def handle(self, event: Event) -> None:
        """Handle the next event. If this raises, the event may be passed again; completed steps are not repeated."""
        ...

    def close(self) -> None:
        """Write what is held back. A stream of the caller stays open. May be called again."""
        ...
