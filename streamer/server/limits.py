"""Limits of connections, in total and from one address, and of wrong tokens."""

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamer.outside import network_of, printable

logger = logging.getLogger(__name__)

MAX_WRONG = 20  # wrong tokens a minute from one address: more than a person mistypes or a page with an old one sends
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000  # counted separately, about 1 MB; further ones are counted together


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused."""

    status: int
    message: str
    reason: str  # a label of the metrics
    headers: Mapping[str, str] = field(default_factory=dict)  # of the response
    delay_s: float = 0.0  # of the response


class Limits:
    """Counts connections."""

    def __init__(self, max_connections: int, max_per_address: int) -> None:
        self.max_connections = max_connections
        self.max_per_address = max_per_address
        # Open connections by network, see `network_of`; no count is 0.
        self._open: Counter[str] = Counter()
        self.n_open = 0

    def enter(self, address: str) -> Refusal | None:
        """Count a connection from `address` (empty: only in total); return a refusal if there are too many."""
        if self.n_open >= self.max_connections:
            most = self.max_connections
            text = f"{most} connections are open, the most allowed (server.max_connections): try again later"
            return Refusal(503, text, "connections")
        full = self.enter_address(address) if address else None
        if full is None:
            self.n_open += 1
        return full

    def leave(self, address: str) -> None:
        """Stop counting a connection."""
        self.n_open -= 1
        if address:
            self.leave_address(address)

    def enter_address(self, address: str) -> Refusal | None:
        """Count a connection for an address only, as of a proxy's client; return a refusal if it has too many."""
        network = network_of(address)
        if self._open[network] >= self.max_per_address:
            most = self.max_per_address
            setting = "server.max_connections_per_address"
            text = f"{most} connections from this address are open, the most allowed ({setting}): close one"
            return Refusal(503, text, "connections_per_address")
        self._open[network] += 1
        return None

    def leave_address(self, address: str) -> None:
        network = network_of(address)
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]


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
            text = "more than %d wrong tokens within a minute from %s: further answers to it are delayed"
            logger.warning(text, MAX_WRONG, printable(address)[:60])
        return self._since + WINDOW_S - now
