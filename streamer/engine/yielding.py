"""Lets live sessions go first: other work waits before each call of a graph until captions leave time for it."""

import math
import time
from collections.abc import Callable

from streamer.whisper.model import WhisperModel

# Work without a deadline waits no longer than this, plus this many times the time that it has computed: it gets at
# least a fifth of the time, however busy captions are.
PATIENCE_S = 2.0
PATIENCE = 4.0

# Before a deadline captions have to leave as much time as a call took last, up to this: one slow call is not the last.
MAX_NEEDED_S = 0.5

CHECK_S = 0.1  # between two checks whether the work is still wanted

# `Engine.wait_idle`: timeout and time that captions have to leave, in seconds.
WaitIdle = Callable[[float, float], bool]


def watch_beside_live(model: WhisperModel, wait_idle: WaitIdle) -> None:
    """Have a model's accelerators tried out, if possible when captions leave time for it."""

    def wait() -> None:
        wait_idle(PATIENCE_S, MAX_NEEDED_S)

    model.watch(wait)


class YieldToLive:
    """Lets captions go before the work of one thread, which encodes a window and decodes it, over and over."""

    def __init__(self, wait_idle: WaitIdle, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called while the work waits; what it raises ends the work."""
        self._wait_idle = wait_idle
        self._check = check
        # Duration of the last call of the encoder, and of cross-KV or the decoder.
        self._took_s = [0.0, 0.0]
        self.begin()

    def begin(self, until_s: float = math.inf) -> None:
        """Begin a passage, which is late at `until_s` by the monotonic clock, or a recording, which never is."""
        self._until_s = until_s
        self._begin_s = time.monotonic()
        self._end_s: float | None = None
        self._waited_s = 0.0
        # Calls so far, and when the last began.
        self._n_calls = 0
        self._called_s = 0.0

    def end(self) -> None:
        """Stop counting the time."""
        self._end_s = time.monotonic()

    @property
    def work_s(self) -> float:
        """Seconds that the work has taken, without waiting."""
        return (self._end_s or time.monotonic()) - self._begin_s - self._waited_s

    def wait(self) -> None:
        """Wait for the next call (`WhisperModel.call_before`).

        Raises TimeoutError if the deadline comes first, and what `check` raises.
        """
        now_s = begin_s = time.monotonic()
        if self._n_calls:
            self._took_s[min(self._n_calls, 2) - 1] = begin_s - self._called_s
        if self._until_s < math.inf:
            give_up_s, needed_s = self._until_s, min(self._took_s[min(self._n_calls, 1)], MAX_NEEDED_S)
        else:
            give_up_s, needed_s = begin_s + PATIENCE_S + PATIENCE * self.work_s - self._waited_s, 0.0
        self._check()
        while not self._wait_idle(max(0.0, min(CHECK_S, give_up_s - now_s)), needed_s):
            self._check()
            now_s = time.monotonic()
            if now_s >= self._until_s:
                raise TimeoutError
            if now_s >= give_up_s:
                break
        self._called_s = time.monotonic()
        self._waited_s += self._called_s - begin_s
        self._n_calls += 1
