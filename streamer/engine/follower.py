"""What follows a session's events and adds to them: the base class of all that `after` does for live sessions."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from streamer.events import Event

Logger: TypeAlias = "logging.LoggerAdapter[logging.Logger]"


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
def surviving(logger: Logger, message: str, *values: object) -> Iterator[None]:
    """Log what a block raises, with a message of what that costs."""
    try:
        yield
    except Exception:
        logger.exception(message, *values)


def judge(followers: Sequence[Follower], start: int, end: int, logger: Logger) -> bool:
    """Have a turn judged by the first that does so; return whether the session is answered."""
    for follower in followers:
        with surviving(logger, "a turn is not judged"):
            if follower.judge(start, end):
                return True
    return False


def finish(followers: Sequence[Follower], then: Callable[[], object], logger: Logger) -> None:
    """Have one after the other finish, and call `then` behind the last."""
    if not followers:
        then()
        return
    following = partial(finish, followers[1:], then, logger)
    try:
        followers[0].finish(following)
    except Exception:
        logger.exception("what follows a session could not be finished")
        following()
