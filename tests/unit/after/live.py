"""A live session as its followers know it: a test writes its audio and its events."""

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np

from streamer.audio.ring import RingBuffer
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.live_session import LiveSession
from streamer.events import Event, Revision
from tests.waiting import WAIT_S


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
        """Write audio of one value."""
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
