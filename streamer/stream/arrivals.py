"""When a session's audio came: what has waited for too long, and whether it comes faster than it can be spoken."""

import threading
from collections import deque

from streamer.audio.constants import SAMPLE_RATE

# How finely arrivals are told apart.
STEP_S = 0.1

# Audio this far ahead of the clock was not spoken while it was sent: it comes from a recording. Live audio is ahead by
# what is sent at a time, and by a clock that is not quite ours.
RECORDED_AHEAD_S = 3.0


class Arrivals:
    """Notes at which time the audio of the last `keep_s` seconds came. One thread notes, another asks."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s

        # Guards what follows; held for a few steps, never while anything is waited for.
        self._lock = threading.Lock()

        # Time of a step, and how much audio there was at its end; the oldest may be older than `keep_s`.
        self._steps: deque[tuple[float, int]] = deque()

        # When the first audio came; None before.
        self._begin_s: float | None = None

        # Whether the audio has ever been too far ahead of the clock to be live.
        self.recorded = False

    def note(self, head: int, now_s: float) -> None:
        """Note that there are `head` samples at a time; both only grow."""
        with self._lock:
            if self._begin_s is None:
                self._begin_s = now_s
            if head / SAMPLE_RATE - (now_s - self._begin_s) > RECORDED_AHEAD_S:
                self.recorded = True
            if self._steps and now_s - self._steps[-1][0] < STEP_S:
                # Said to have come at the step's beginning: up to a step too old.
                self._steps[-1] = (self._steps[-1][0], head)
                return
            self._steps.append((now_s, head))
            while len(self._steps) > 1 and self._steps[1][0] <= now_s - self._keep_s:
                self._steps.popleft()

    def position_at(self, time_s: float) -> int:
        """Return how much audio there was at a time, 0 where that is longer ago than is kept."""
        with self._lock:
            position = 0
            for step_s, head in self._steps:
                if step_s > time_s:
                    break
                position = head
            return position
