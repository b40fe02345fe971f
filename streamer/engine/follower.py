"""What follows a session's events and adds to them: the base class of all that `after` does for live sessions."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

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


@contextmanager
def surviving(logger: "logging.LoggerAdapter[logging.Logger]", message: str, *values: object) -> Iterator[None]:
    """Log what a block raises, with a message of what that costs."""
    try:
        yield
    except Exception:
        logger.exception(message, *values)


class Followers(Follower):
    """All followers of a session, in order, as one that never fails."""

    def __init__(self, logger: "logging.LoggerAdapter[logging.Logger]") -> None:
        self._logger = logger
        self._all: tuple[Follower, ...] = ()

    def add(self, *followers: Follower) -> None:
        """Have more of them follow, before the session is at work."""
        self._all += followers

    def label(self, event: Event) -> Event:
        for follower in self._all:
            with surviving(self._logger, "a %s event is published without a label", event.type):
                event = follower.label(event)
        return event

    def see(self, event: Event) -> None:
        for follower in self._all:
            with surviving(self._logger, "a %s event is not followed", event.type):
                follower.see(event)

    def judge(self, start: int, end: int) -> bool:
        for follower in self._all:
            with surviving(self._logger, "a turn is not judged"):
                if follower.judge(start, end):
                    return True
        return False

    def finish(self, then: Callable[[], object]) -> None:
        """Have one after the other finish, and call `then` behind the last."""
        for follower in reversed(self._all):
            then = partial(self._finish, follower, then)
        then()

    def _finish(self, follower: Follower, then: Callable[[], object]) -> None:
        try:
            follower.finish(then)
        except Exception:
            self._logger.exception("what follows a session could not be finished")
            then()
