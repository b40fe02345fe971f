"""Limits how fast tokens are guessed. The time comes as an argument."""

import logging
import math
from collections import Counter

from streamer.outside import network_of, printable

logger = logging.getLogger(__name__)

MAX_WRONG = 20  # wrong tokens a minute from one address: more than a person mistypes or a page with an old one sends
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000  # counted apart, some 1 MB; further ones are counted together


class Guesses:
    """Wrong tokens of the present minute, by what `network_of` makes of their addresses."""

    def __init__(self) -> None:
        self._wrong: Counter[str] = Counter()
        self._since = -math.inf
        # Whether the log has that some are slowed.
        self._warned = False

    def count_wrong(self, address: str, now: float) -> float:
        """Count a wrong token; return 0 within the limit, beyond it the seconds until the next minute begins."""
        if not 0 <= now - self._since < WINDOW_S:  # a clock that is set back begins one, too
            self._wrong.clear()
            self._since, self._warned = now, False
            logger.warning("a wrong token from %s", printable(address)[:60])
        network = network_of(address)
        if network not in self._wrong and len(self._wrong) >= MAX_ADDRESSES:
            network = ""
        self._wrong[network] += 1
        if self._wrong[network] <= MAX_WRONG:
            return 0.0
        if not self._warned:
            self._warned = True
            text = "more than %d wrong tokens within a minute from %s: it is answered late"
            logger.warning(text, MAX_WRONG, printable(address)[:60])
        return self._since + WINDOW_S - now
