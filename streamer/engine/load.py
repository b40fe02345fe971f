"""How much of the machine the sessions need; from that, whether there is room for another one."""

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_LOAD = 0.9  # largest share of each thread's time for sessions; the rest is for passes that take long

# How many of the newest passes the cost of one is estimated from; with fewer than the least, nothing is known.
N_PASSES = 32
MIN_PASSES = 3

ACTIVITY_S = 30.0  # in which a session proves silent: the weight of earlier audio falls to less than a third
HESITATION_S = 2.0  # without audio, in which a client still counts as sending


class Activity:
    """The share of its recent time in which a session spoke. A new session is taken to speak without a pause."""

    def __init__(self, now_s: float) -> None:
        self._share, self._now_s = 1.0, now_s

    def note(self, duration_s: float, now_s: float, *, speech: bool) -> None:
        """Take some audio, much shorter than ACTIVITY_S, with speech in it or without."""
        self._share += (speech - self._share) * min(1.0, duration_s / ACTIVITY_S)
        self._now_s = now_s

    def share(self, now_s: float) -> float:
        """Return the share, 0 to 1. It falls with the clock while no audio comes."""
        return self._share * math.exp(min(0.0, self._now_s + HESITATION_S - now_s) / ACTIVITY_S)


@dataclass(frozen=True, slots=True)
class Load:
    """What the sessions need at the slowest acceptable pace."""

    # Share of the time that all work takes, above 1 if captions cannot keep that pace. 0 while nothing is known.
    ratio: float

    # Sessions of unbroken speech for which there is time, at least one; None while nothing is known.
    capacity: int | None
    room: bool  # whether there is time for one more. A session that would be alone has all there is, however slow.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass cost, and which audio it covered."""

    busy_s: float  # since the last pass, with a busy thread; two at once count once, as they may share a processor
    encode_s: float
    decode_s: float
    n_calls: int  # of the decoder
    n_tokens: int  # of the hypothesis, including the stable ones
    window_s: float
    new_s: float  # of the window's audio that was in no pass before

    def cost_s(self, pace_s: float) -> float:
        """Return what it would have cost `pace_s` after the last: a new token takes a call of the decoder."""
        if not self.n_calls:
            return self.busy_s
        n_more = max(0.0, pace_s - self.new_s) * self.n_tokens / self.window_s
        return self.busy_s * (1.0 + self.decode_s / (self.encode_s + self.decode_s) * n_more / self.n_calls)


class BusyTime:
    """Time in which at least one of several threads is busy."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Busy threads.
        self.n_busy = 0
        # Time up to which it has been added up, and the sum since the last `take`.
        self._until_s = 0.0
        self._busy_s = 0.0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count the calling thread as busy."""
        with self._lock:
            self._add_up()
            self.n_busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._add_up()
                self.n_busy -= 1

    def take(self) -> float:
        """Return the time since the last call."""
        with self._lock:
            self._add_up()
            busy_s, self._busy_s = self._busy_s, 0.0
            return busy_s

    def _add_up(self) -> None:
        now_s = self._clock()
        if self.n_busy:
            self._busy_s += now_s - self._until_s
        self._until_s = now_s


class LoadMeter:
    """Measures what a pass costs by the clock, so that other work on the machine counts, too."""

    def __init__(self, max_pace_s: float) -> None:
        """Make a meter; `max_pace_s` is the time from one pass of a session to the next that is still acceptable."""
        self._max_pace_s = max_pace_s
        # Cost of the newest passes at that pace, and of listening to a second of audio.
        self._pass_s: deque[float] = deque(maxlen=N_PASSES)
        self._listen_share: deque[float] = deque(maxlen=N_PASSES)

    def take_listening(self, cost_s: float, duration_s: float) -> None:
        self._listen_share.append(cost_s / duration_s)

    def take_pass(self, measured: Pass) -> None:
        self._pass_s.append(measured.cost_s(self._max_pace_s))

    def load(self, activities: Collection[float]) -> Load:
        """Return the load of sessions, each with the share of its time in which there is something to transcribe."""
        if len(self._pass_s) < MIN_PASSES:
            return Load(0.0, None, room=True)
        # The median: of a few passes one may stand out, the first above all.
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
