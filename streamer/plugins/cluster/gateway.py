"""A gateway: the daemon's front, behind which workers elsewhere transcribe what clients send."""

import asyncio
import contextlib
import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from prometheus_client import CollectorRegistry

from streamer import descriptors, signals
from streamer.daemon.backend import Backend
from streamer.daemon.clients import ClientStreams
from streamer.engine.eventlog import EventLog
from streamer.errors import BusyError, ClusterError, ClusterMessageError, ConfigError, UnknownSessionError
from streamer.languages import LANGUAGE_NAMES
from streamer.plugins.cluster.asking import GatewayContext
from streamer.plugins.cluster.bus import Bus, Reply, machine_name
from streamer.plugins.cluster.gateway_session import GatewaySession
from streamer.plugins.cluster.gateway_stream import GatewayStream
from streamer.plugins.cluster.jobs import Jobs
from streamer.plugins.cluster.local import local_nats, usual_port
from streamer.plugins.cluster.log import SessionLog, Stored
from streamer.plugins.cluster.messages import (
    ALIVE_GATEWAYS,
    BEAT_S,
    GATEWAYS,
    WORKERS,
    GatewayAlive,
    Leave,
    SessionCheckpoint,
    SessionUpdate,
    decoded,
)
from streamer.plugins.cluster.metrics import register_cluster
from streamer.plugins.cluster.neighbours import WATCH_S, Neighbours
from streamer.plugins.cluster.recordings import ClusterRecordings
from streamer.plugins.cluster.replay import first_frame
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.protocols.native import StreamStart
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.server.metrics import register_process
from streamer.session.state import SessionState
from streamer.settings.load import default_token_path
from streamer.settings.table import Settings
from streamer.version import __version__

logger = logging.getLogger(__name__)

RESUME_S = 20.0  # that a worker has to take over the session of a client that has come to another gateway

# Partials have numbers and are not stored: the highest number behind the log's that a client may have seen.
MAX_UNSTORED = 10_000

MAX_LEFT = 10_000  # sessions whose clients have left, and which a worker may still own


def serve(settings: Settings) -> int:
    """Serve clients until a signal stops it; return the exit code. Raises StreamerError."""
    descriptors.raise_limit()
    return asyncio.run(run_gateway(settings))


async def run_gateway(settings: Settings) -> int:
    """Serve clients until a signal comes; see `serve`."""
    if settings.server.history or settings.server.history_audio != "none":
        name = "history" if settings.server.history else "history_audio"
        raise ConfigError(f"server.{name} is set, but a gateway stores no history: remove it")
    stop = asyncio.Event()
    with signals.handled(asyncio.get_running_loop(), stop.set):
        async with contextlib.AsyncExitStack() as stack:
            if not settings.of(ClusterSettings).nats:
                url = await stack.enter_async_context(local_nats(port=usual_port()))
                cluster = msgspec.structs.replace(settings.of(ClusterSettings), nats=(url,))
                settings = msgspec.structs.replace(settings, plugins=(cluster, *settings.plugins))
                logger.info("NATS runs beside this gateway; a worker joins with: streamer worker --nats %s", url)
            name = machine_name(settings.of(ClusterSettings))
            bus = await Bus.connect(settings.of(ClusterSettings), name)
            stack.push_async_callback(bus.close)
            log = SessionLog(bus, settings.of(ClusterSettings))
            await log.prepare()
            registry = CollectorRegistry()
            register_process(registry)
            backend = ClusterBackend(settings, bus, log, name)
            backend.on_stall = register_cluster(registry, backend.neighbours)
            jobs = Jobs(bus, backend.neighbours.workers)
            recordings = ClusterRecordings(jobs)
            streams = ClientStreams(settings.server, backend)
            services = Services(streams=streams, health=backend.health, recordings=recordings)
            server = Server(settings.server, services, registry, default_token_path())
            await backend.start()
            stack.push_async_callback(backend.close)
            await jobs.start()
            stack.push_async_callback(jobs.close)
            url = await server.start()
            stack.push_async_callback(server.stop)
            logger.info("gateway %s listens on %s", name, url)
            describing = asyncio.create_task(_describe(server, backend.neighbours))
            await stop.wait()
            describing.cancel()
            backend.draining = True
            recordings.stop()
    return 0


async def _describe(server: Server, neighbours: Neighbours) -> None:
    """Serve protocols whose clients first ask for the model, once a worker has reported one."""
    while not (workers := neighbours.workers()):
        await asyncio.sleep(BEAT_S)
    await server.serve_model(workers[0].model.partition(" ")[0], tuple(LANGUAGE_NAMES))


class ClusterBackend(Backend):
    """Opens clients' sessions at workers, and moves them if they must.

    All of it runs on the server's loop.
    """

    def __init__(self, settings: Settings, bus: Bus, log: SessionLog, gateway: str) -> None:
        self._settings = settings
        self._bus = bus
        self._log = log
        self._gateway = gateway
        self.neighbours = Neighbours(bus, lambda: self.alive)
        self._context = GatewayContext(
            gateway=gateway,
            bus=bus,
            log=log,
            workers=self.neighbours.known,
            on_move=lambda why: self._counters.update([f"moves_{why}"]),
            on_stall=lambda why, stall_s: self.on_stall(why, stall_s),
        )
        # Called with the reason and the seconds of each stall.
        self.on_stall: Callable[[str, float], None] = lambda why, stall_s: None
        # Sessions that are open or being opened, by name.
        self._sessions: dict[str, GatewaySession] = {}
        # Sessions whose clients have left, the newest last, and from when on a worker that reports one is to end it.
        self._left: OrderedDict[str, float] = OrderedDict()
        self._counters: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self.draining = False

    async def start(self) -> None:
        """Subscribe to workers and other gateways, and report that this one is alive."""
        self._bus.on_reconnected = self._on_reconnected
        await self.neighbours.start()
        await self._bus.notice_absence(self.neighbours.miss)
        await self._bus.subscribe(f"{GATEWAYS}.{self._gateway}", self._on_update)
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._watch())]

    async def close(self) -> None:
        """Stop. Sessions stay at their workers, for the gateways that their clients come to."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in tuple(self._sessions.values()):
            session.close()

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> GatewayStream:
        """Open a session at a worker.

        Raises BusyError if there is no worker, or none has room; ConfigError for a history, and what a worker answers
        to options that its model cannot follow.
        """
        if start.keep:
            raise ConfigError("keep is true, but a gateway stores no history: remove keep")
        await self.neighbours.settle()
        checkpoint = SessionCheckpoint(model="", start=start, tenant=tenant, seq=0, command=0, state=SessionState())
        session = self._session(name, checkpoint)
        await self._begin(session, session.open())
        return session.stream

    async def knows(self, name: str, *, tenant: str) -> bool:
        await self.neighbours.settle()
        last = await self._last(name)
        return last is not None and last.record.checkpoint.tenant == tenant

    async def resume(self, name: str, *, after: int) -> GatewayStream:
        """Continue a session of another gateway, from its log and its worker's state."""
        begin_s = self._context.now_s()
        last = await self._last(name)
        if last is None:
            raise UnknownSessionError("the session has expired (cluster.keep_s): start a new one")
        session = self._session(name, last.record.checkpoint, last.record.epoch)
        # A client that is refused tries again: for that long a worker keeps the session that it has taken too late.
        keep_s = self._settings.server.resume_s
        await self._begin(session, self._fetch(session, last.record.worker, after, begin_s), keep_s)
        stream = session.stream
        n_frames, position = first_frame(stream.ring.first, session.checkpoint.start)
        stream.go_on_from(n_frames)
        stream.warm_up(stream.ring.first - position)
        return stream

    async def _last(self, name: str) -> Stored | None:
        """Return the newest record of a session, or None. Raises BusyError."""
        try:
            return await self._log.last(name)
        except ClusterMessageError:
            return None
        except ClusterError as error:
            raise BusyError(f"cannot read the session's log: {error}; try again in a moment") from None

    async def _fetch(self, session: GatewaySession, worker: str, after: int, begin_s: float) -> None:
        """Have a session that `worker` has for another gateway continued for this one."""
        seq = after if after <= session.checkpoint.seq + MAX_UNSTORED else 0
        while not await session.read_log(seq):
            await asyncio.sleep(BEAT_S)
        feed = session.feed
        if feed.closed:
            return
        known = max(feed.last_seq, session.checkpoint.seq)
        feed.skip_to(after if known < after <= known + MAX_UNSTORED else known)
        is_lost = self.neighbours.known.is_lost(worker, self._context.now_s())
        await session.take_over("" if is_lost else worker, begin_s, RESUME_S)
        if session.closed:
            raise BusyError("another client is resuming the session: try again in a moment")

    def _session(self, name: str, checkpoint: SessionCheckpoint, epoch: int = 0) -> GatewaySession:
        feed = EventLog(name, self._settings.server.history_events)
        return GatewaySession(self._context, feed, checkpoint, epoch=epoch, on_gone=self._forget)

    async def _begin(self, session: GatewaySession, begin: Awaitable[None], keep_s: float = 0.0) -> None:
        """Begin a session. If that fails, or its client leaves meanwhile, it ends after `keep_s`."""
        self._sessions[session.feed.session] = session
        self._left.pop(session.feed.session, None)
        try:
            await begin
        except BaseException:
            session.close()
            self._forget(session, keep_s)
            raise
        session.stream.options = session.checkpoint.start

    def _forget(self, session: GatewaySession, keep_s: float = 0.0) -> None:
        name = session.feed.session
        if self._sessions.get(name) is not session:
            return
        del self._sessions[name]
        self._left[name] = self._context.now_s() + keep_s
        if len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)

    async def _on_update(self, data: bytes, _reply: Reply) -> None:
        update = decoded(data, SessionUpdate)
        if (session := self._sessions.get(update.session)) is not None:
            session.take_update(update)
        elif self._left.get(update.session, math.inf) <= self._context.now_s():
            await self._bus.publish(f"{WORKERS}.{update.worker}", Leave(session=update.session, epoch=update.epoch))

    def _on_reconnected(self) -> None:
        """Send again what may not have arrived while NATS was away."""
        for session in self._sessions.values():
            session.resend()

    @property
    def alive(self) -> GatewayAlive:
        """This gateway's sign of life."""
        return GatewayAlive(
            gateway=self._gateway,
            sessions=len(self._sessions),
            draining=self.draining,
            counters={name: float(count) for name, count in self._counters.items()},
        )

    def health(self) -> Mapping[str, object]:
        """Return the body of `/healthz`."""
        workers = self.neighbours.workers()
        failure = "" if self._bus.connected else "the connection to NATS is lost"
        failure = failure or ("" if workers else "no worker is alive")
        return {
            "status": "stopping" if self.draining else "failing" if failure else "ok",
            **({"failure": failure} if failure else {}),
            "version": __version__,
            "input": "none",
            "model": ", ".join(sorted({worker.model.partition(" ")[0] for worker in workers})),
            "device": {},
            "gateway": self._gateway,
            "nats": "connected" if self._bus.connected else "away",
            "workers": len(workers),
            "streams": len(self._sessions),
            "load": round(sum(worker.load for worker in workers) / len(workers), 3) if workers else 0.0,
            "uptime_s": round(self._context.now_s() - self.neighbours.begin_s, 1),
        }

    async def _beat(self) -> None:
        while True:
            await self._bus.publish(f"{ALIVE_GATEWAYS}.{self._gateway}", self.alive)
            await asyncio.sleep(BEAT_S)

    async def _watch(self) -> None:
        """Have sessions of lost workers moved, unless this gateway may be cut off itself."""
        while True:
            now_s = self._context.now_s()
            whole, stalled = self.neighbours.look(now_s)
            for session in tuple(self._sessions.values()):
                session.watch(now_s, whole=whole, stalled=stalled)
            await asyncio.sleep(WATCH_S)
