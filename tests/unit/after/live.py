"""A live session as its followers know it: a test writes its audio and its events."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from streamer.after import queues
from streamer.audio.ring import RingBuffer
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.live_session import LiveSession
from streamer.events import Event, Final, Revision
from streamer.worker import Work, once
from tests.builders import final
from tests.waiting import WAIT_S, wait_until


def finals_of(spoken: str, language: str = "en") -> list[Final]:
    """Return finals without words, of "text start end" in seconds; the language may follow. Commas divide them."""
    found = []
    for each in spoken.split(", "):
        text, start, end, *other = each.split()
        found.append(final(text, start=float(start), end=float(end), words=(), language=[language, *other][-1]))
    return found


class Live:
    """A session, what follows it, and what was published."""

    def __init__(self, audio_s: float = 0.0, *, buffer_s: int = 60, name: str = "abc", **settings: object) -> None:
        """With `audio_s` seconds of silence; `settings` are those of the session that a test is about."""
        self.log = EventLog(name, 1000)
        self.events: list[Event] = []
        self.log.subscribe(self.events.append)
        self.ring = RingBuffer(buffer_s * SAMPLE_RATE)
        self.write(audio_s)
        self.settings = SimpleNamespace(**{"task": "transcribe", "translated": True, "options": None, **settings})
        self.settings.gate = SimpleNamespace(turns=False)
        self.recorded = False
        # Whether speech was detected in all audio.
        self.detecting = True
        # How turns were judged.
        self.judged: list[tuple[int, float | None]] = []
        self.followers: list[Follower] = []

    @property
    def session(self) -> LiveSession:
        return cast(LiveSession, self)

    @property
    def position(self) -> int:
        return self.ring.head if self.detecting else 0

    def judge(self, end: int, probability: float | None) -> None:
        self.judged.append((end, probability))

    def write(self, seconds: float, level: float = 0.0) -> None:
        self.ring.write(np.full(round(seconds * SAMPLE_RATE), level, dtype=np.float32))

    def follow(self, *followers: Follower) -> None:
        self.followers += followers
        for follower in followers:
            self.log.subscribe(follower.see)

    def publish(self, *events: Event) -> None:
        for event in events:
            for follower in self.followers:
                event = follower.label(event)
            self.log.append(event)

    def finish(self) -> list[Event]:
        """End the session, and return all that was published, when its followers are done."""
        over = threading.Event()
        then: Callable[[], object] = over.set
        for follower in reversed(self.followers):
            then = partial(follower.finish, then)
        then()
        assert over.wait(WAIT_S)
        self.log.close()
        return self.events

    @property
    def revisions(self) -> list[Revision]:
        return [event for event in self.events if isinstance(event, Revision)]


def check_freed(make: Callable[[], Live], is_at_work: Callable[[], bool]) -> None:
    """Check that a session is freed without garbage collection when its client leaves while a model is at work."""
    gc.collect()
    gc.disable()
    try:
        live = make()
        wait_until(is_at_work)
        left = [weakref.ref(part) for part in (*live.followers, live.ring, live.log)]
        live.log.close()
        vars(live).clear()  # as a session that is over lets go of its followers
        del live
        wait_until(lambda: not any(part() for part in left))  # the thread may be at its last step
    finally:
        gc.enable()


class Hanging:
    """What a model calls before it answers, so that it hangs in a block."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.let_go.wait(WAIT_S)

    @contextmanager
    def session(self, live: Live) -> Iterator[list[Event]]:
        """Give what a session published up to its end, which comes though the model hangs."""
        assert self.begun.wait(WAIT_S)
        yield live.finish()
        self.let_go.set()


def patience(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the end of a session wait for a moment only; return for how many seconds it would have waited."""
    waited_s: list[float] = []

    def soon(then: Work, within_s: float, late: Work) -> Callable[[], None]:
        waited_s.append(within_s)
        return once(then, 0.01, late)

    monkeypatch.setattr(queues, "once", soon)
    return waited_s
