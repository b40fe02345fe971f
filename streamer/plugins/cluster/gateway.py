"""A gateway: the daemon's front, behind which workers elsewhere transcribe what clients send."""

import asyncio
import contextlib
import logging
import math
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry

from streamer import signals
from streamer.audio.pcm import PcmDecoder
from streamer.daemon.streams import SESSION_NAME_BYTES, ClientStream, StreamOwner, StreamSlots
from streamer.engine.eventlog import EventLog
from streamer.errors import BusyError, ClusterError, ClusterMessageError, ConfigError, UnknownSessionError
from streamer.languages import LANGUAGE_NAMES
from streamer.plugins.cluster.asking import GatewayContext
from streamer.plugins.cluster.bus import Bus, Reply, machine_name
from streamer.plugins.cluster.gateway_session import GatewaySession
from streamer.plugins.cluster.jobs import Jobs
from streamer.plugins.cluster.local import local_nats, usual_port
from streamer.plugins.cluster.log import SessionLog
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
from streamer.protocols.native import StreamStart
from streamer.server.front import Server
from streamer.server.interfaces import Services
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


async def run_gateway(settings: Settings) -> int:
    """Serve clients until a signal stops it; return the exit code. Raises StreamerError if it cannot start."""
    if settings.server.history or settings.server.history_audio != "none":
        name = "history" if settings.server.history else "history_audio"
        raise ConfigError(f"server.{name} is set, and a gateway keeps no history: leave it out")
    stop = asyncio.Event()
    with signals.handled(asyncio.get_running_loop(), stop.set):
        async with contextlib.AsyncExitStack() as stack:
            if not settings.cluster.nats:
                url = await stack.enter_async_context(local_nats(port=usual_port()))
                settings = settings.having({"cluster.nats": (url,)})
                logger.info("NATS runs beside this gateway; a worker joins with: streamer worker --nats %s", url)
            name = machine_name(settings.cluster)
            bus = await Bus.connect(settings.cluster, name)
            stack.push_async_callback(bus.close)
            log = SessionLog(bus, settings.cluster)
            await log.prepare()
            registry = CollectorRegistry()
            register_process(registry)
            streams = ClusterStreams(settings, bus, log, name)
            streams.on_stall = register_cluster(registry, streams.neighbours)
            jobs = Jobs(bus, streams.neighbours.workers)
            recordings = ClusterRecordings(jobs)
            services = Services(streams=streams, health=streams.health, recordings=recordings)
            server = Server(settings.server, services, registry, default_token_path())
            await streams.start()
            stack.push_async_callback(streams.close)
            await jobs.start()
            stack.push_async_callback(jobs.close)
            url = await server.start()
            stack.push_async_callback(server.stop)
            logger.info("gateway %s listens on %s", name, url)
            describing = asyncio.create_task(_describe(server, streams.neighbours))
            await stop.wait()
            describing.cancel()
            streams.draining = True
            recordings.stop()
    return 0


async def _describe(server: Server, neighbours: Neighbours) -> None:
    """Serve protocols whose clients first ask for the model, once a worker has reported one."""
    while not (workers := neighbours.workers()):
        await asyncio.sleep(BEAT_S)
    await server.serve_model(workers[0].model.partition(" ")[0], tuple(LANGUAGE_NAMES))


class ClusterStreams:
    """Opens clients' sessions at workers (see `server.interfaces.Streams`), and moves them if they must.

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
        self._slots = StreamSlots(settings.server)
        # Sessions that are open or being opened, by name.
        self._sessions: dict[str, GatewaySession] = {}
        # Sessions whose clients have left, the newest last, and from when on a worker that reports one is to end it.
        self._left: OrderedDict[str, float] = OrderedDict()
        self._counters: Counter[str] = Counter()
        # One client at a time resumes a session.
        self._resuming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
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

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        """Open a session at a worker.

        Raises BusyError if there is no worker, or none has room; ConfigError for a history, and what a worker answers
        to options that its model cannot follow.
        """
        if start.keep:
            raise ConfigError("keep is true, but a gateway keeps no history: leave keep out")
        await self.neighbours.settle()
        pcm = PcmDecoder(start.format, start.sample_rate, start.channels)
        feed = EventLog(secrets.token_urlsafe(SESSION_NAME_BYTES), self._settings.server.history_events)
        checkpoint = SessionCheckpoint(model="", start=start, tenant=tenant, seq=0, command=0, state=SessionState())
        return self._serve(await self._admit(feed, checkpoint, GatewaySession.open), pcm)

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        """Return the stream of a session, which another gateway may have had.

        Raises UnknownSessionError if it is unknown, or was opened with the token of another name; BusyError if no
        worker goes on with it for now.
        """
        async with self._resuming.setdefault(session, asyncio.Lock()):
            known = self._sessions.get(session)
            if known is not None and self._bus.connected and await known.is_elsewhere():
                known.lose()
            stream = self._slots.come_back(session, tenant)
            return stream if stream is not None else await self._take_over(session, after, tenant)

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        self._slots.abandon_unreachable(tenants)

    async def _take_over(self, name: str, after: int, tenant: str) -> ClientStream:
        """Resume a session of another gateway, from its log and its worker's state."""
        begin_s = self._context.now_s()
        unknown = UnknownSessionError(
            f"the session is not known: a stream is kept for {self._settings.server.resume_s:g} s after its connection"
            f" broke (server.resume_s), its log for {self._settings.cluster.keep_s:g} s (cluster.keep_s); start another"
        )
        await self.neighbours.settle()
        try:
            last = await self._log.last(name)
        except ClusterMessageError:
            raise unknown from None
        except ClusterError as error:
            raise BusyError(f"the session's log cannot be read for now: {error}") from None
        if last is None or last.record.checkpoint.tenant != tenant:
            raise unknown
        worker = last.record.worker

        async def fetch(session: GatewaySession) -> None:
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
                raise BusyError("another client has come back to the session: try again in a moment")

        feed = EventLog(name, self._settings.server.history_events)
        # A client that is refused tries again: for that long a worker keeps the session that it has taken too late.
        keep_s = self._settings.server.resume_s
        session = await self._admit(feed, last.record.checkpoint, fetch, epoch=last.record.epoch, keep_s=keep_s)
        start, needed_from = session.checkpoint.start, session.outbox.ring.first
        pcm = PcmDecoder(start.format, start.sample_rate, start.channels)
        pcm.frames_decoded, position = first_frame(needed_from, start)
        session.outbox.warm_up(needed_from - position)
        return self._serve(session, pcm)

    async def _admit(
        self,
        feed: EventLog,
        checkpoint: SessionCheckpoint,
        begin: Callable[[GatewaySession], Awaitable[None]],
        *,
        epoch: int = 0,
        keep_s: float = 0.0,
    ) -> GatewaySession:
        """Begin a session in a free slot. If that fails, or its client leaves meanwhile, it ends after `keep_s`."""
        spare = self._slots.spare(n_opening=len(self._sessions) - len(self._slots.streams))
        session = GatewaySession(self._context, feed, checkpoint, epoch=epoch, on_lost=lambda: self._forget(session))
        self._sessions[feed.session] = session
        self._left.pop(feed.session, None)
        try:
            await begin(session)
        except BaseException:
            session.close()
            self._forget(session, keep_s)
            raise
        if spare is not None:
            self._slots.give_up(spare)
        return session

    def _serve(self, session: GatewaySession, pcm: PcmDecoder) -> ClientStream:
        name = session.feed.session

        def leave() -> None:
            session.close()
            self._forget(session)

        owner = StreamOwner(
            choose=lambda options: partial(session.outbox.change, options),
            report=session.outbox.report,
            keep=lambda: self._slots.keep(name),
            leave=leave,
            tenant=session.checkpoint.tenant,
            outlives=True,
        )
        stream = ClientStream(session.outbox, session.feed, pcm, session.checkpoint.start, owner)
        session.on_options = partial(setattr, stream, "options")
        self._slots.add(name, stream)
        return stream

    def _forget(self, session: GatewaySession, keep_s: float = 0.0) -> None:
        name = session.feed.session
        if self._sessions.get(name) is not session:
            return
        del self._sessions[name]
        self._slots.remove(name)
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
