"""Limits of the number of connections: in total, and from one address."""

from collections import Counter

from streamer.outside import network_of
from streamer.server.access import Refusal


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
            text = f"all {self.max_connections} connections are taken (server.max_connections): try again later"
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
            text = f"{most} connections from this address are open (server.max_connections_per_address): close some"
            return Refusal(503, text, "connections_per_address")
        self._open[network] += 1
        return None

    def leave_address(self, address: str) -> None:
        network = network_of(address)
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]
