"""What an engine shares with the sessions that it serves, and with its threads."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamer.engine.stats import EngineStats


@dataclass(slots=True)
class Host:
    """An engine, as its sessions see it. The defaults are for a session that none serves yet."""

    clock: Callable[[], float] = time.monotonic
    stats: EngineStats = field(default_factory=EngineStats)
    news: threading.Event = field(default_factory=threading.Event)  # is set when a session has news for the engine
    prepared_s: float = -math.inf  # when the model was last loaded again

    # Guards what follows: the sessions, in the order of their turns, longest ago first; when the last one ended.
    lock: threading.Lock = field(default_factory=threading.Lock)
    sessions: tuple[Any, ...] = ()
    empty_since_s: float = -math.inf

    def remove(self, live: object) -> None:
        """Serve a session no longer: it is over."""
        with self.lock:
            self.empty_since_s = self.clock()  # first: the engine's `idle_s` takes no lock
            self.sessions = tuple(other for other in self.sessions if other is not live)
        self.news.set()
