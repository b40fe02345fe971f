"""Failures of a session and when to try again. Pure, with the time as an argument."""

import math
from dataclasses import dataclass

# Pause after the first failure; it doubles with each further one, up to the longest.
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0

# Failures in a row after which a recording ends with an error. A live session then loses all audio with each further.
MAX_FAILURES = 3


@dataclass(slots=True)
class Outage:
    """The failures of a session since the last success; none to begin with."""

    reason: str = ""  # message of the last failure
    listening: bool = False  # whether it was in speech detection; else in transcribing a window
    n_failures: int = 0
    pause_s: float = 0.0
    retry_at_s: float = -math.inf

    @property
    def lasting(self) -> bool:
        """Whether there were too many failures in a row for the session to wait for a recovery."""
        return self.n_failures >= MAX_FAILURES

    def waits(self, now_s: float) -> bool:
        """Return whether it is too soon to try again."""
        return now_s < self.retry_at_s

    def fail(self, reason: str, now_s: float, *, listening: bool) -> None:
        self.reason, self.listening = reason, listening
        self.pause_s = min(2 * self.pause_s or FIRST_RETRY_S, LONGEST_RETRY_S)
        self.retry_at_s = now_s + self.pause_s
        self.n_failures += 1

    def ended_by(self, *, listening: bool) -> bool:
        """Return whether a success of speech detection, or of a window, ends it: what failed last works again."""
        return bool(self.reason) and listening == self.listening
