"""Limits how fast tokens can be guessed."""

import logging
import math
from collections import Counter

from streamer.outside import network_of, printable

logger = logging.getLogger(__name__)

MAX_WRONG = 20  # wrong tokens a minute from one address: more than a person mistypes or a page with an old one sends
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000  # counted separately, about 1 MB; further ones are counted together


class Guesses:
    """Counts wrong tokens of the current minute by network, see `network_of`."""

    def __init__(self) -> None:
        self._wrong: Counter[str] = Counter()
        self._since = -math.inf
        self._warned = False  # that some are slowed

    def count_wrong(self, address: str, now: float) -> float:
        """Count a wrong token at `now`, in seconds; return 0 within the limit, else the seconds to the next minute."""
        if not 0 <= now - self._since < WINDOW_S:  # also if the clock was set back
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
