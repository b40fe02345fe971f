"""What an engine shares with the sessions that it serves, and what it counts for the metrics page."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from streamer.events import GapReason
from streamer.whisper.result import Hypothesis


@dataclass(slots=True)
class EngineStats:
    """What the engine has done, for the metrics page."""

    encodes: int = 0
    decodes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    # Calls of the decoder; tokens found; tokens given before these, and those of them that are of stable words.
    decoder_calls: int = 0
    decoder_tokens: int = 0
    given_tokens: int = 0
    settled_tokens: int = 0
    windows_replaced: int = 0
    failures: int = 0
    # Seconds of audio published as gaps, by reason; that came in, lost or not, by source.
    gap_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(get_args(GapReason), 0.0))
    audio_s: dict[str, float] = field(default_factory=lambda: {"own": 0.0, "client": 0.0})
    # Called with the seconds that a pass took; with the event that first shows live audio, and its age.
    on_encode: Callable[[float], object] = lambda cost_s: None
    on_decode: Callable[[float], object] = lambda cost_s: None
    on_delay: Callable[[str, float], object] = lambda event_type, delay_s: None

    def count_encoded(self, cost_s: float) -> None:
        self.encodes += 1
        self.encode_s += cost_s
        self.on_encode(cost_s)

    def count_decoded(self, hypothesis: Hypothesis, cost_s: float) -> None:
        self.decodes += 1
        self.decode_s += cost_s
        self.decoder_calls += hypothesis.n_calls
        self.decoder_tokens += hypothesis.n_sampled
        self.given_tokens += hypothesis.n_given
        self.settled_tokens += hypothesis.n_begins_with
        self.on_decode(cost_s)


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
