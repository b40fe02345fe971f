"""When a session's audio came: how long it has waited, and whether it comes faster than it can be spoken."""

import threading
from collections import deque

from streamer.constants import SAMPLE_RATE

STEP_S = 0.1  # resolution of arrival times
RECORDED_AHEAD_S = 3.0  # audio this far ahead of the clock is a recording; live audio comes a piece at a time
FORGOTTEN_S_PER_S = 0.005  # decay of a lead: clocks differ by a ten thousandth, which is seconds in a day
MOST_MADE_UP_FOR_S = 30.0  # of a pause in the audio, up to which later audio may be a backlog and not a recording


class Arrivals:
    """The arrival times of the last `keep_s` seconds. One thread notes them, any may ask."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._lock = threading.Lock()
        # Times, and how much audio there was a step later; the oldest may be older than `keep_s`.
        self._steps: deque[tuple[float, int]] = deque()
        # Seconds that the audio is ahead of the clock, negative behind it; when that was noted, None before the first
        # audio; whether the sender had to wait for room then.
        self._lead_s = 0.0
        self._noted_s: float | None = None
        self._held_back = False
        # End of the newest audio that came too far ahead of the clock to be live.
        self._recorded_until = -1

    def note(self, head: int, now_s: float, *, held_back: bool = False, again: bool = False) -> None:
        """Note that there are `head` samples at a time; both only grow.

        held_back : whether the sender has to wait for room
        again : whether the audio is sent again after it came elsewhere, which says nothing of its pace
        """
        with self._lock:
            if not again:
                self._note_lead(head, now_s, held_back=held_back)
            if self._steps and now_s - self._steps[-1][0] < STEP_S:
                self._steps[-1] = (self._steps[-1][0], head)
                return
            self._steps.append((now_s, head))
            while len(self._steps) > 1 and self._steps[1][0] <= now_s - self._keep_s:
                self._steps.popleft()

    def recorded(self, position: int) -> bool:
        """Return whether the audio at a position comes from a recording. Later audio may be live again."""
        return position <= self._recorded_until

    def position_at(self, time_s: float) -> int:
        """Return how much audio there was at a time, 0 if that is longer ago than is kept."""
        with self._lock:
            return next((head for step_s, head in reversed(self._steps) if step_s <= time_s), 0)

    def time_at(self, position: int) -> float | None:
        """Return when the audio up to a position came, up to a step too early; None if that is not known any more."""
        with self._lock:
            time_s = None
            for step_s, head in reversed(self._steps):
                if head < position:
                    return time_s
                time_s = step_s
            return None  # the oldest step may stand for all before it

    def _note_lead(self, head: int, now_s: float, *, held_back: bool) -> None:
        known = self._steps[-1][1] if self._steps else 0
        elapsed_s = 0.0 if self._noted_s is None else now_s - self._noted_s
        lead_s = self._lead_s - elapsed_s
        lead_s -= min(max(lead_s, 0.0), elapsed_s * FORGOTTEN_S_PER_S)
        if not self._held_back:
            lead_s = max(lead_s, -MOST_MADE_UP_FOR_S)
        self._lead_s = lead_s + (head - known) / SAMPLE_RATE
        self._noted_s, self._held_back = now_s, held_back
        # A sender that has to wait for room cannot be ahead of the clock.
        if self._lead_s > RECORDED_AHEAD_S or (held_back and self._recorded_until >= 0):
            self._recorded_until = head
