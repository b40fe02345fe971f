"""What does not work for now: a line in the log, a note in /healthz while it lasts, and when to try it again."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from streamer.errors import StreamerError
from streamer.outside import printable

logger = logging.getLogger(__name__)

# A part that fails again and again is logged once in this time.
QUIET_S = 60.0

# Pause after a part's first failure. It doubles with each further failure in a row, up to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


@dataclass(slots=True)
class _Part:
    """The failures of one part."""

    pause_s: float = 0.0  # after the last failure; 0 if it works
    retry_at_s: float = -math.inf
    quiet_until_s: float = -math.inf
    logged: bool = False  # whether the log says that it fails


class Health:
    """The parts that fail. Any thread may call any method."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # Why each part fails, by its name. Parts that work are missing.
        self.why: dict[str, str] = {}
        self._clock = clock
        self._parts: defaultdict[str, _Part] = defaultdict(_Part)

    def __str__(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in tuple(self.why.items()))

    def failed(self, name: str, error: Exception) -> None:
        """Note that a part fails, and log it unless the log says so already."""
        part, now_s = self._parts[name], self._clock()
        expected = isinstance(error, StreamerError)
        why = str(error) if expected else f"unexpected {type(error).__name__}: {error}"
        if name not in self.why and now_s >= part.quiet_until_s:
            part.quiet_until_s, part.logged = now_s + QUIET_S, True
            logger.warning("%s does not work for now: %s", name, printable(why), exc_info=not expected)
        self.why[name] = why
        part.pause_s = min(2 * part.pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        part.retry_at_s = now_s + part.pause_s

    def works(self, name: str) -> None:
        """Note that a part works."""
        part = self._parts[name]
        self.why.pop(name, None)
        part.pause_s = 0.0
        if part.logged:
            part.logged = False
            logger.info("%s works again", name)

    def waits(self, name: str) -> bool:
        """Return whether a part has failed, and it is too soon to try it again."""
        return name in self.why and self._clock() < self._parts[name].retry_at_s
