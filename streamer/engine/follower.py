"""What follows a session's events and adds to them: the base class of all that `after` does for live sessions."""

from collections.abc import Callable

from streamer.events import Event


class Follower:
    """Follows one session. It is called under the session's lock, from the engine's threads: each call returns at once.

    What a call raises costs the session nothing: it is logged, and the event is published as it was.
    """

    def label(self, event: Event) -> Event:
        """Return an event as it is to be published; its words are there even if they are not published."""
        return event

    def see(self, event: Event) -> None:
        """Take an event that was published, with its number."""

    def judge(self, start: int, end: int) -> bool:
        """Judge whether a turn, audio from one sample to another, is over; return whether the session is answered."""
        return False

    def finish(self, then: Callable[[], object]) -> None:
        """Everything is final: call `then`, once, when nothing more is to be added. It may be called at once."""
        then()
