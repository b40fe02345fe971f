"""What is added to captions and does not work for now: one line in the log, and in /healthz as long as it lasts."""

import logging
import time

from streamer.errors import StreamerError
from streamer.outside import printable

logger = logging.getLogger(__name__)

# The log is told of each no more often: it may come and go with each sentence.
QUIET_S = 60.0


class Failing:
    """Any thread may call any method."""

    def __init__(self) -> None:
        # Why a part does not work, by its name; those that work are not there.
        self.why: dict[str, str] = {}
        self._quiet_until_s: dict[str, float] = {}
        self._told: set[str] = set()

    def __str__(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in tuple(self.why.items()))

    def add(self, name: str, error: Exception) -> None:
        """Note that a part does not work, and tell that where it is new."""
        is_known = isinstance(error, StreamerError)
        why = str(error) if is_known else f"unexpected {type(error).__name__}: {error}"
        if name not in self.why and time.monotonic() >= self._quiet_until_s.get(name, 0.0):
            self._quiet_until_s[name] = time.monotonic() + QUIET_S
            self._told.add(name)
            logger.warning("%s does not work for now: %s", name, printable(why), exc_info=not is_known)
        self.why[name] = why

    def remove(self, name: str) -> None:
        """Note that a part works."""
        self.why.pop(name, None)
        if name in self._told:
            self._told.discard(name)
            logger.info("%s works again", name)
