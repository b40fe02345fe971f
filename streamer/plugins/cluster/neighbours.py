"""The cluster's machines as a gateway or worker sees them, by their signs of life; and whether it is cut off."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from streamer.outside import one_line
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.messages import (
    ALIVE_GATEWAYS,
    ALIVE_WORKERS,
    BEAT_S,
    LOST_S,
    WORKERS,
    GatewayAlive,
    WorkerAlive,
    decoded,
)
from streamer.plugins.cluster.placement import Workers

logger = logging.getLogger(__name__)

WATCH_S = 0.2  # between two looks at all machines
SETTLE_S = 1.0  # for which a gateway that has just started waits for workers, before it reports that none is alive


class Neighbours:
    """The machines that are alive. Times are the loop's, which are the monotonic clock's."""

    def __init__(self, bus: Bus, own: Callable[[], GatewayAlive] | None = None) -> None:
        """`own` returns this gateway's sign of life; None: this machine is a worker."""
        self._bus = bus
        self._own = own
        self.known = Workers()
        # Other gateways, and when they last reported.
        self._gateways: dict[str, tuple[GatewayAlive, float]] = {}
        self.begin_s = self._before_s = time.monotonic()
        # When NATS was last away, or this process stopped; and when no worker was alive.
        self._cut_off_s = self._alone_s = self.begin_s
        # Workers that were alive when their comings and goings were logged last.
        self._logged: dict[str, WorkerAlive] = {}

    async def start(self) -> None:
        """Subscribe to signs of life."""
        await self._bus.subscribe(f"{ALIVE_WORKERS}.*", self._on_worker)
        await self._bus.subscribe(f"{ALIVE_GATEWAYS}.*", self._on_gateway)

    async def settle(self) -> None:
        """Wait for workers' signs of life, if this gateway has just started."""
        while not self.workers() and time.monotonic() - self.begin_s < SETTLE_S:
            await asyncio.sleep(0.05)

    def workers(self) -> Sequence[WorkerAlive]:
        """Return the newest sign of life of each worker that is not lost. Any thread may call it."""
        return self.known.alive(time.monotonic())

    def gateways(self) -> Sequence[GatewayAlive]:
        """Return the newest sign of life of each gateway that is not lost, this one's first."""
        now_s = time.monotonic()
        self._gateways = {name: sign for name, sign in self._gateways.items() if now_s - sign[1] <= LOST_S}
        others = [alive for alive, _ in self._gateways.values()]
        return [self._own(), *others] if self._own is not None else others

    def silent_s(self, gateway: str) -> float:
        """Return the seconds since a gateway's last sign of life, not counting those when this machine was cut off.

        A gateway that was never seen counts from the first call.
        """
        now_s = time.monotonic()
        _, at_s = self._gateways.setdefault(gateway, (GatewayAlive(gateway=gateway), now_s))
        return now_s - max(at_s, self._cut_off_s)

    def look(self, now_s: float, every_s: float = WATCH_S) -> tuple[bool, bool]:
        """Return whether a silent machine is lost, and whether this process was stopped just now.

        While this machine may be cut off itself, silence proves nothing. Call it every `every_s`.
        """
        stalled = now_s - self._before_s > BEAT_S + every_s  # messages wait to be read
        self._before_s = now_s
        if stalled or not self._bus.connected:
            self._cut_off_s = now_s
        if not self.workers():
            self._alone_s = now_s
        if self._own is not None and now_s - self._cut_off_s > LOST_S:
            self._log_workers()
        return now_s - max(self._cut_off_s, self._alone_s) > LOST_S, stalled

    def _log_workers(self) -> None:
        """Log which workers have come and gone, and that none is left."""
        alive = {worker.worker: worker for worker in self.workers()}
        for name in sorted(alive.keys() - self._logged.keys()):
            logger.info("worker %s joins, with %s", name, one_line(alive[name].model)[:80])
        for name in sorted(self._logged.keys() - alive.keys()):
            if self._logged[name].draining:
                logger.info("worker %s has left", name)
            else:
                logger.warning("worker %s is lost: no sign of life for %g s", name, LOST_S)
        if self._logged and not alive:
            logger.error("no worker is left: sessions wait for one; start it with `streamer worker --nats URL`")
        self._logged = alive

    async def _on_worker(self, data: bytes, _reply: Reply) -> None:
        self.known.take(decoded(data, WorkerAlive), time.monotonic())

    def miss(self, subject: str) -> None:
        """Note that a worker's subject has no subscriber."""
        self.known.miss(subject.removeprefix(f"{WORKERS}."), time.monotonic())

    async def _on_gateway(self, data: bytes, _reply: Reply) -> None:
        alive = decoded(data, GatewayAlive)
        if self._own is None or alive.gateway != self._own().gateway:
            self._gateways[alive.gateway] = alive, time.monotonic()
