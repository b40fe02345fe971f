"""How much of the machine the sessions take: the basis on which a further one is accepted or refused."""

import math
import statistics
import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

MAX_LOAD = 0.9  # share of each thread's time that may be given away; the rest is for passes that take long

# Passes that the cost of one is taken from; with fewer than the least, nothing is known yet.
N_PASSES = 32
MIN_PASSES = 3

ACTIVITY_S = 30.0  # in which it shows that a session is silent: what was heard longer ago weighs less than a third
HESITATION_S = 2.0  # who sends nothing for no longer is still sending


class Activity:
    """How much of its recent time a session has spoken, 0 to 1. A new session is taken to speak without a pause."""

    def __init__(self, now_s: float) -> None:
        # The share at a moment, in seconds of the caller's clock.
        self._share = 1.0
        self._now_s = now_s

    def hear(self, duration_s: float, now_s: float, *, speech: bool) -> None:
        """Take a stretch of audio, much shorter than ACTIVITY_S, with speech in it or without."""
        self._share += (speech - self._share) * min(1.0, duration_s / ACTIVITY_S)
        self._now_s = now_s

    def share(self, now_s: float) -> float:
        """Return the share: of a session that has sent nothing for a while it falls with the clock."""
        return self._share * math.exp(min(0.0, self._now_s + HESITATION_S - now_s) / ACTIVITY_S)


@dataclass(frozen=True, slots=True)
class Load:
    """What sessions need, were each transcribed as rarely as is acceptable."""

    # Share of the time that all work takes; above 1 captions cannot be had at that pace. 0 while nothing is known.
    ratio: float

    # Sessions that speak without a pause for which there is time, at least one; None while nothing is known.
    capacity: int | None

    # Whether there is time for one more. A session that would be alone has all there is, however slow.
    room: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass took, and what it was over."""

    # Seconds since the last pass with a thread at work: two at once count once, as they may share a processor.
    busy_s: float

    # Seconds that each of the two took.
    encode_s: float
    decode_s: float

    # Calls of the decoder, and tokens of the hypothesis, the settled ones included.
    n_calls: int
    n_tokens: int

    # Length of the window, and how much of it no pass had heard before, in seconds.
    window_s: float
    new_s: float

    def cost_s(self, pace_s: float) -> float:
        """Return what it would have cost `pace_s` after the last: a new token takes a call of the decoder."""
        if not self.n_calls:
            return self.busy_s
        n_more = max(0.0, pace_s - self.new_s) * self.n_tokens / self.window_s
        return self.busy_s * (1.0 + self.decode_s / (self.encode_s + self.decode_s) * n_more / self.n_calls)


class BusyTime:
    """Time in which at least one of several threads is at work, in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Threads at work.
        self.n_busy = 0
        # Time up to which it has been added up, and what came together since the last `take`.
        self._until_s = 0.0
        self._busy_s = 0.0

    def begin(self, now_s: float) -> None:
        with self._lock:
            self._add_up(now_s)
            self.n_busy += 1

    def end(self, now_s: float) -> None:
        with self._lock:
            self._add_up(now_s)
            self.n_busy -= 1

    def take(self, now_s: float) -> float:
        """Return the time since the last call."""
        with self._lock:
            self._add_up(now_s)
            busy_s, self._busy_s = self._busy_s, 0.0
            return busy_s

    def _add_up(self, now_s: float) -> None:
        if self.n_busy:
            self._busy_s += max(0.0, now_s - self._until_s)
        self._until_s = max(self._until_s, now_s)


class LoadMeter:
    """Measures what a pass costs: by the clock, so that what else the machine is busy with counts."""

    def __init__(self, max_pace_s: float) -> None:
        """Make a meter; `max_pace_s` is the time from one pass of a session to the next that is still acceptable."""
        self._max_pace_s = max_pace_s

        # Seconds that the newest passes would have taken at that pace, and that a second of audio took to listen to.
        self._pass_s: deque[float] = deque(maxlen=N_PASSES)
        self._listen_share: deque[float] = deque(maxlen=N_PASSES)

    def take_listening(self, cost_s: float, duration_s: float) -> None:
        """Take what it cost to look for speech in some audio."""
        self._listen_share.append(cost_s / duration_s)

    def take_pass(self, measured: Pass) -> None:
        self._pass_s.append(measured.cost_s(self._max_pace_s))

    def load(self, activities: Collection[float]) -> Load:
        """Return the load of sessions, each with the share of its time in which there is something to transcribe."""
        if len(self._pass_s) < MIN_PASSES:
            return Load(0.0, None, room=True)
        # Of a few passes one may stand out, the first above all: the median is what to expect.
        transcribe = statistics.median(self._pass_s) / self._max_pace_s
        listen = statistics.median(self._listen_share) if self._listen_share else 0.0
        n_speaking = sum(activities)

        def ratio(n_sessions: int, n_speaking: float) -> float:
            return n_sessions * listen + n_speaking * transcribe

        one = ratio(1, 1.0)
        return Load(
            ratio(len(activities), n_speaking),
            max(1, int(MAX_LOAD / one)) if one > 0 else None,
            room=not activities or ratio(len(activities) + 1, n_speaking + 1.0) <= MAX_LOAD,
        )
