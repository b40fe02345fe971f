"""What fails in a session and is tried again: how often in a row, and when next. Pure, with the time as an argument."""

import math

# After a failure it is tried again, first so soon, then after twice as long each time, up to the longest.
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0

# From so many failures in a row on a session gives up: one on a recording ends, as nobody waits for it to be heard some
# other day; the others lose all that has come with each failure, so that they end soon after their audio.
MAX_FAILURES = 3


class Outage:
    """The failures of a session since something succeeded last."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # What failed last, in a few words; empty while all is well.
        self.reason = ""
        # Whether it failed in listening; else in transcribing.
        self.listening = False
        self.n_failures = 0
        self.retry_at_s = -math.inf

    @property
    def lasting(self) -> bool:
        """Whether it failed so often that it is not waited for any more."""
        return self.n_failures >= MAX_FAILURES

    def waits(self, now_s: float) -> bool:
        """Whether it is too soon to try again."""
        return now_s < self.retry_at_s

    def wait_no_longer(self) -> None:
        """Try again at once: the audio is complete."""
        self.retry_at_s = -math.inf

    def fail(self, reason: str, now_s: float, *, listening: bool) -> None:
        self.reason, self.listening = reason, listening
        pause_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0**self.n_failures)
        self.n_failures += 1
        self.retry_at_s = now_s + pause_s

    def succeed(self, *, listening: bool) -> bool:
        """Listening, or a window, succeeded. Returns whether an outage is over with it."""
        over = bool(self.reason) and listening == self.listening
        if over:
            self._reset()
        return over
