"""How much of the machine the sessions take: the basis on which a further one is accepted or refused."""

import math
import statistics
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

# Share of each thread's time that may be given away; the rest is for passes that take longer than most.
MAX_LOAD = 0.9

# Passes that the cost of one is taken from; with fewer than the least, nothing is known yet.
N_PASSES = 32
MIN_PASSES = 3

# Time in which it shows that a session is silent: what was heard longer ago weighs less than a third.
ACTIVITY_S = 30.0

# Who sends nothing for no longer than this is still sending.
HESITATION_S = 2.0


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

    # Share of the time that listening and encoding take, or decoding, whichever is more; above 1 captions cannot be had
    # at that pace. 0 while nothing is known.
    ratio: float

    # Sessions that speak without a pause for which there is time, at least one; None while nothing is known.
    capacity: int | None

    # Whether there is time for one more. A session that would be alone has all there is, however slow.
    room: bool


class LoadMeter:
    """Measures what a pass costs: by the clock, so that what else the machine is busy with counts."""

    def __init__(self, max_pace_s: float) -> None:
        """Make a meter; `max_pace_s` is the time from one pass of a session to the next that is still acceptable."""
        self._max_pace_s = max_pace_s

        # Seconds that the newest passes took to encode and to decode, and that a second of audio took to listen to.
        self._encode_s: deque[float] = deque(maxlen=N_PASSES)
        self._decode_s: deque[float] = deque(maxlen=N_PASSES)
        self._listen_share: deque[float] = deque(maxlen=N_PASSES)

    def take_listening(self, cost_s: float, duration_s: float) -> None:
        """Take what it cost to look for speech in some audio."""
        self._listen_share.append(cost_s / duration_s)

    def take_encode(self, cost_s: float) -> None:
        """Take what it cost to encode a window."""
        self._encode_s.append(cost_s)

    def take_decode(self, cost_s: float) -> None:
        """Take what it cost to decode a window."""
        self._decode_s.append(cost_s)

    def load(self, activities: Collection[float]) -> Load:
        """Return the load of sessions, each with the share of its time in which there is something to transcribe."""
        if min(len(self._encode_s), len(self._decode_s)) < MIN_PASSES:
            return Load(0.0, None, room=True)
        # Of a few passes one may stand out, the first above all: the median is what to expect.
        encode = statistics.median(self._encode_s) / self._max_pace_s
        decode = statistics.median(self._decode_s) / self._max_pace_s
        listen = statistics.median(self._listen_share) if self._listen_share else 0.0
        n_speaking = sum(activities)

        def ratio(n_sessions: int, n_speaking: float) -> float:
            return max(n_sessions * listen + n_speaking * encode, n_speaking * decode)

        one = ratio(1, 1.0)
        return Load(
            ratio(len(activities), n_speaking),
            max(1, int(MAX_LOAD / one)) if one > 0 else None,
            room=not activities or ratio(len(activities) + 1, n_speaking + 1.0) <= MAX_LOAD,
        )
