"""Limits how fast tokens are guessed, and reports guesses. Pure: the time comes as an argument."""

import math
from collections import OrderedDict

from streamer.outside import network_of, printable

MAX_WRONG = 20  # wrong tokens from one address in a row: more than a person mistypes or a page with an old one sends
REFILL_S = 3.0  # until one more is answered as those were
MAX_ADDRESSES = 10_000  # remembered, the newest; some 2 MB
REPORT_S = 60.0  # from one line of the log to the next


class Guesses:
    """Wrong tokens, counted for each address: a token bucket that wrong ones empty.

    Addresses count by `network_of`.
    """

    def __init__(self) -> None:
        # By address, the one that was heard of last at the end: how many were wrong and are not forgiven, and when that
        # was counted. Who is not in it has not guessed.
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        # Since the last report: wrong tokens, how many of them were beyond the limit, and an address of each.
        self._n_wrong = 0
        self._n_slowed = 0
        self._addresses: set[str] = set()
        self._reported = -math.inf

    def count_wrong(self, address: str, now: float) -> float:
        """Count a wrong token; return 0 within the limit, beyond it the seconds until another is within it again."""
        network = network_of(address)
        if len(self._addresses) < MAX_ADDRESSES:
            self._addresses.add(network)
        self._n_wrong += 1
        wrong = self._forgiven(network, now)
        wait_s = max(0.0, (wrong - MAX_WRONG + 1) * REFILL_S)
        if wait_s:
            self._n_slowed += 1
            return wait_s
        self._wrong[network] = wrong + 1, now
        self._wrong.move_to_end(network)
        if len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)
        return 0.0

    def report(self, now: float) -> str | None:
        """Return a line for the log, where there is news: at once for the first, then no more than one a minute."""
        if not self._addresses or 0 <= now - self._reported < REPORT_S:
            return None
        first = sorted(self._addresses)[0]
        more = f" and {len(self._addresses) - 1} more" if len(self._addresses) > 1 else ""
        slowed = f", {self._n_slowed} of them answered late" if self._n_slowed else ""
        line = f"wrong tokens: {self._n_wrong}{slowed}, from {printable(first)[:60]}{more}"
        self._n_wrong = self._n_slowed = 0
        self._addresses.clear()
        self._reported = now
        return line

    def _forgiven(self, network: str, now: float) -> float:
        """Return how many wrong tokens of an address are not forgiven yet."""
        wrong, counted = self._wrong.get(network, (0.0, now))
        if now < counted:  # the clock was set back
            self._wrong[network] = wrong, now
        return max(0.0, wrong - max(0.0, now - counted) / REFILL_S)
