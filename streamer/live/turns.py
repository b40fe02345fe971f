"""Work beside live sessions: each call of a graph waits until captions leave time for it."""

import math
import time
from collections.abc import Callable

from streamer.live.recordings import LOOK_S

# A call for a recording, which nobody hears live, waits for captions no longer than this.
RECORDED_PATIENCE_S = 0.1

# A call that has waited this long is taken to need half as long as the last one, or one slow call would be the last.
HALVE_S = 10.0


class Turns:
    """The turns of one thread, which encodes a window and then decodes it as often as it likes."""

    def __init__(self, is_free_for: Callable[[float], bool]) -> None:
        """`is_free_for` says whether captions need no time for so many seconds."""
        self._is_free_for = is_free_for
        # When the window at hand is late; calls that were made for it, and when the last began; what a call of encoder,
        # cross-KV and decoder took last.
        self._until_s = math.inf
        self._n_calls = 0
        self._called_s = 0.0
        self._took_s = [0.0, 0.0, 0.0]

    def begin(self, until_s: float) -> None:
        """A window comes; `until_s` is its deadline by the monotonic clock, infinity for a recording."""
        self._until_s, self._n_calls = until_s, 0

    def wait(self) -> None:
        """Wait for the next call (`WhisperModel.call_before`). Raises TimeoutError where the deadline comes first."""
        now_s = time.monotonic()
        if self._n_calls:
            self._took_s[min(self._n_calls, 3) - 1] = now_s - self._called_s
        patient_until_s = now_s + RECORDED_PATIENCE_S if self._until_s == math.inf else math.inf
        halve_at_s = now_s + HALVE_S
        while not self._is_free_for(self._took_s[min(self._n_calls, 2)]) and now_s < patient_until_s:
            if now_s >= min(halve_at_s, self._until_s):
                self._took_s = [took_s / 2 for took_s in self._took_s]
                halve_at_s = now_s + HALVE_S
            if now_s >= self._until_s:
                raise TimeoutError
            time.sleep(LOOK_S)
            now_s = time.monotonic()
        self._n_calls, self._called_s = self._n_calls + 1, now_s
