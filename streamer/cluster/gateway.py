"""A gateway: the daemon's front, behind which workers elsewhere transcribe what clients send."""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

from prometheus_client import CollectorRegistry

from streamer import __version__
from streamer.audio.pcm import PcmDecoder
from streamer.cluster.bus import Bus, Reply, machine_name
from streamer.cluster.jobs import Jobs
from streamer.cluster.local import local_nats, usual_port
from streamer.cluster.log import SessionLog
from streamer.cluster.messages import (
    ALIVE_GATEWAYS,
    ALIVE_WORKERS,
    BEAT_S,
    GATEWAYS,
    LOST_S,
    VERSION,
    WORKERS,
    Checkpoint,
    GatewayAlive,
    Leave,
    ToGateway,
    Told,
    WorkerAlive,
    decoded,
)
from streamer.cluster.metrics import register_cluster
from streamer.cluster.placement import Workers
from streamer.cluster.recordings import ClusterRecordings
from streamer.cluster.remote import Cluster, Remote, first_frame
from streamer.cluster.stopping import stopped_by_signals
from streamer.engine.eventlog import EventLog
from streamer.engine.state import SessionState
from streamer.errors import BusyError, ClusterError, ClusterMessageError, ConfigError, UnknownSessionError
from streamer.languages import LANGUAGE_NAMES
from streamer.outside import one_line
from streamer.protocols.native import StreamStart
from streamer.server.front import Server
from streamer.server.interfaces import Services
from streamer.server.metrics import register_process
from streamer.sessions.streams import SESSION_NAME_BYTES, ClientStream, StreamOwner, StreamSlots
from streamer.settings.load import default_token_path
from streamer.settings.table import Settings

logger = logging.getLogger(__name__)

LOOK_S = 0.2  # from one look for lost workers to the next
RESUME_S = 20.0  # that a worker has to go on with the session of a client that has come to another gateway
SETTLE_S = 1.0  # that a gateway which has just begun waits for workers' signs of life, before it says there are none

# Partials are numbered and not stored: a client may have seen so many behind what is. Who says more is mistaken.
MAX_UNSTORED = 10_000

# Sessions that were given up, of which a worker may not know yet.
MAX_LEFT = 10_000


async def run_gateway(settings: Settings) -> int:
    """Serve clients until it is told to stop; return the exit code. Raises StreamerError where it cannot start."""
    if settings.server.history:
        raise ConfigError("server.history is set, and a gateway keeps no history: leave it out")
    stop = asyncio.Event()
    with stopped_by_signals(stop):
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
            streams.on_stall = register_cluster(registry, streams)
            jobs = Jobs(bus, settings.cluster, streams.workers)
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
            describing = asyncio.create_task(_describe(server, streams))
            await stop.wait()
            describing.cancel()
            streams.draining = True
            recordings.stop()
    return 0


async def _describe(server: Server, streams: "ClusterStreams") -> None:
    """Serve those who ask first what transcribes, when there is a worker that says so."""
    while not (workers := streams.workers()):
        await asyncio.sleep(BEAT_S)
    await server.serve_model(workers[0].model.partition(" ")[0], tuple(LANGUAGE_NAMES))


class ClusterStreams:
    """Opens sessions for clients at workers (see `server.interfaces.Streams`), and has them move where that is needed.

    All of it runs on the server's loop.
    """

    def __init__(self, settings: Settings, bus: Bus, log: SessionLog, gateway: str) -> None:
        self._settings = settings
        self._bus = bus
        self._log = log
        self._gateway = gateway
        self._workers = Workers()
        self._cluster = Cluster(
            gateway=gateway,
            bus=bus,
            log=log,
            workers=self._workers,
            on_move=self._count_move,
            on_stall=lambda why, stall_s: self.on_stall(why, stall_s),
        )
        # Told of each stall: why, and for how many seconds nothing came.
        self.on_stall: Callable[[str, float], None] = lambda why, stall_s: None
        self._places = StreamSlots(settings.server)
        # Sessions that are open or being opened, by name.
        self._remotes: dict[str, Remote] = {}
        # Sessions that nobody wants any more, the newest last, and from when on.
        self._left: OrderedDict[str, float] = OrderedDict()
        self._leaving: set[asyncio.Task[None]] = set()
        # Other gateways, and when they were heard.
        self._gateways: dict[str, tuple[GatewayAlive, float]] = {}
        self._counters: Counter[str] = Counter()
        # Since when workers have been heard without a break; None while none is: we may be cut off ourselves.
        self._whole_since_s: float | None = None
        # Since when NATS has been there without a break; None while it is not. What was heard last of the workers that
        # the log says are there.
        self._connected_since_s: float | None = None
        self._noted: dict[str, WorkerAlive] = {}
        # One client at a time that comes back to a session.
        self._coming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: list[asyncio.Task[None]] = []
        self._begin_s = time.monotonic()
        self.draining = False

    async def start(self) -> None:
        """Listen to workers and other gateways, and say that this one is there."""
        self._bus.on_reconnected = self._come_back
        await self._bus.subscribe(f"{ALIVE_WORKERS}.*", self._hear_worker)
        await self._bus.subscribe(f"{ALIVE_GATEWAYS}.*", self._hear_gateway)
        await self._bus.notice_absence(self._miss)
        await self._bus.subscribe(f"{GATEWAYS}.{self._gateway}", self._hear)
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._watch())]

    async def close(self) -> None:
        """Stop. Sessions stay at their workers, for the gateways that their clients come to."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for remote in tuple(self._remotes.values()):
            remote.close(leave=False)

    async def open(self, start: StreamStart, *, tenant: str = "") -> ClientStream:
        """Open a session at a worker.

        Raises BusyError where there is no worker, none has room, or the caller's token has its share; what a worker
        says of options that its model cannot follow; ConfigError where it asks for a history.
        """
        if start.keep:
            raise ConfigError("keep is true, but a gateway keeps no history: leave keep out")
        await self._settle()
        self._check_share(tenant)
        spare = self._places.spare(n_opening=len(self._remotes) - len(self._places.streams))
        pcm = PcmDecoder(start.format, start.sample_rate, start.channels)
        name = secrets.token_urlsafe(SESSION_NAME_BYTES)
        checkpoint = Checkpoint(
            version=VERSION, model="", start=start, tenant=tenant, seq=0, command=0, state=SessionState()
        )
        remote = self._add(EventLog(name, self._settings.server.history_events), checkpoint)
        await self._unless_left(remote, remote.open())
        if spare is not None:
            self._places.give_up(spare)
        return self._serve(remote, pcm)

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> ClientStream:
        """Return the stream of a session, which another gateway may have had.

        Raises UnknownSessionError if there is none, or it was opened with the token of another name; BusyError if no
        worker goes on with it for now.
        """
        async with self._coming.setdefault(session, asyncio.Lock()):
            remote = self._remotes.get(session)
            if remote is not None and self._bus.connected and await remote.is_elsewhere():
                remote.lose()
            stream = self._places.come_back(session, tenant)
            return stream if stream is not None else await self._take_up(session, after, tenant)

    def abandon_unreachable(self, tenants: Collection[str]) -> None:
        self._places.abandon_unreachable(tenants)

    async def _take_up(self, session: str, after: int, tenant: str) -> ClientStream:
        """Go on with a session that is not known here, from its log and what its worker knows."""
        begin_s = self._cluster.now_s()
        unknown = UnknownSessionError(
            f"the session is not known: a stream is kept for {self._settings.server.resume_s:g} s after its connection"
            f" broke (server.resume_s), its log for {self._settings.cluster.keep_s:g} s (cluster.keep_s); start another"
        )
        await self._settle()
        try:
            last = await self._log.last(session)
        except ClusterMessageError:
            raise unknown from None
        except ClusterError as error:
            raise BusyError(f"the session's log cannot be read for now: {error}") from None
        if last is None or last.record.checkpoint.tenant != tenant:
            raise unknown
        spare = self._places.spare(n_opening=len(self._remotes) - len(self._places.streams))
        feed = EventLog(session, self._settings.server.history_events)
        remote = self._add(feed, last.record.checkpoint, epoch=last.record.epoch)
        # Who is told to try again comes back to it: until then it goes on, where a worker has taken it too late.
        fetching = self._fetch(remote, last.record.worker, after, begin_s)
        await self._unless_left(remote, fetching, keep_s=self._settings.server.resume_s)
        if spare is not None:
            self._places.give_up(spare)
        checkpoint = remote.checkpoint
        start, needed_from = checkpoint.start, remote.ring.first
        pcm = PcmDecoder(start.format, start.sample_rate, start.channels)
        pcm.frames_decoded, position = first_frame(needed_from, start)
        remote.warm_up(needed_from - position)
        return self._serve(remote, pcm)

    async def _fetch(self, remote: Remote, worker: str, after: int, since_s: float) -> None:
        """Take a session up: from the worker that had it, where that lives, and from the log; and find a worker."""
        if not self._workers.is_lost(worker, self._cluster.now_s()):
            await remote.release_from(worker)
        await remote.catch_up(after if after <= remote.checkpoint.seq + MAX_UNSTORED else 0)
        feed = remote.feed
        if feed.closed:
            return
        known = max(feed.last_seq, remote.checkpoint.seq)
        feed.skip_to(after if known < after <= known + MAX_UNSTORED else known)
        await remote.take_up(since_s, RESUME_S)
        if remote.closed:
            raise BusyError("another client has come back to the session: try again in a moment")

    def _check_share(self, tenant: str) -> None:
        """Raise BusyError where a token has all the streams that it may have, in the whole cluster."""
        most = self._settings.cluster.max_streams_per_token
        if not most or not tenant:
            return
        n_open = sum(other.sessions.get(tenant, 0) for other in self.gateways())
        if n_open >= most:
            raise BusyError(
                f"token {tenant} has {n_open} streams open in all, and may have {most}"
                " (cluster.max_streams_per_token): end one first"
            )

    def _add(self, feed: EventLog, checkpoint: Checkpoint, *, epoch: int = 0) -> Remote:
        name = feed.session
        remote = Remote(self._cluster, feed, checkpoint, epoch=epoch, on_lost=lambda: self._forget(name, remote))
        self._remotes[name] = remote
        self._left.pop(name, None)
        return remote

    def _serve(self, remote: Remote, pcm: PcmDecoder) -> ClientStream:
        name = remote.session

        def leave() -> None:
            remote.close(leave=True)
            self._forget(name, remote)

        owner = StreamOwner(
            choose=lambda options: partial(remote.change, options),
            report=remote.report,
            keep=lambda: self._places.keep(name),
            leave=leave,
            tenant=remote.checkpoint.tenant,
            outlives=True,
        )
        stream = ClientStream(remote, remote.feed, pcm, remote.checkpoint.start, owner)
        remote.on_options = partial(setattr, stream, "options")
        self._places.add(name, stream)
        return stream

    async def _unless_left(self, remote: Remote, opening: Coroutine[None, None, None], *, keep_s: float = 0.0) -> None:
        """Open a session; where nobody waits for it any more, or nobody has it, it is given up after `keep_s`."""
        try:
            await opening
        except BaseException:
            remote.close(leave=not keep_s)
            self._forget(remote.session, remote, keep_s)
            raise

    def _forget(self, name: str, remote: Remote, keep_s: float = 0.0) -> None:
        if self._remotes.get(name) is not remote:
            return
        del self._remotes[name]
        self._places.remove(name)
        self._left[name] = self._cluster.now_s() + keep_s
        if len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)

    async def _settle(self) -> None:
        """Give workers the time to say that they are there, where this gateway has just begun."""
        while not self._workers.heard_any(self._cluster.now_s()) and time.monotonic() - self._begin_s < SETTLE_S:
            await asyncio.sleep(0.05)

    # What is heard.

    async def _hear(self, data: bytes, _reply: Reply) -> None:
        message: ToGateway = decoded(data, ToGateway)  # type: ignore[arg-type]
        remote = self._remotes.get(message.session)
        if remote is None:
            left_s = self._left.get(message.session, math.inf)
            if left_s <= self._cluster.now_s() and isinstance(message, Told):
                leaving = asyncio.create_task(self._leave(message))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
        elif isinstance(message, Told):
            remote.told(message)
        elif message.epoch == remote.epoch:
            remote.move(message.why)

    async def _leave(self, told: Told) -> None:
        """Tell whoever has it that nobody wants a session any more: it was being opened as its client left."""
        with contextlib.suppress(ClusterError):
            last = await self._log.last(told.session)
            if last is not None and last.record.epoch == told.epoch:
                leave = Leave(session=told.session, epoch=told.epoch)
                await self._bus.publish(f"{WORKERS}.{last.record.worker}", leave)

    async def _hear_worker(self, data: bytes, _reply: Reply) -> None:
        self._workers.take(decoded(data, WorkerAlive), self._cluster.now_s())

    def _miss(self, subject: str) -> None:
        """Nobody is where something was sent."""
        self._workers.miss(subject.removeprefix(f"{WORKERS}."), self._cluster.now_s())

    async def _hear_gateway(self, data: bytes, _reply: Reply) -> None:
        alive = decoded(data, GatewayAlive)
        if alive.gateway != self._gateway:
            self._gateways[alive.gateway] = alive, self._cluster.now_s()

    # What is said and watched.

    def workers(self) -> Sequence[WorkerAlive]:
        """Return the newest sign of life of each worker that is not lost. Requests about models ask in threads."""
        return self._workers.alive(time.monotonic())  # the loop's clock

    def gateways(self) -> Sequence[GatewayAlive]:
        """Return the newest sign of life of each gateway that is not lost, this one's first."""
        now_s = self._cluster.now_s()
        self._gateways = {name: heard for name, heard in self._gateways.items() if now_s - heard[1] <= LOST_S}
        return [self.alive, *(alive for alive, _ in self._gateways.values())]

    @property
    def alive(self) -> GatewayAlive:
        """What this gateway says of itself."""
        return GatewayAlive(
            gateway=self._gateway,
            version=VERSION,
            sessions=dict(Counter(remote.checkpoint.tenant for remote in self._remotes.values())),
            draining=self.draining,
            counters={name: float(count) for name, count in self._counters.items()},
        )

    def health(self) -> Mapping[str, object]:
        """Return what `/healthz` shows."""
        workers = self.workers()
        failure = "" if self._bus.connected else "the connection to NATS is lost"
        failure = failure or ("" if workers else "no worker is heard")
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
            "streams": len(self._remotes),
            "load": round(sum(worker.load for worker in workers) / len(workers), 3) if workers else 0.0,
            "uptime_s": round(time.monotonic() - self._begin_s, 1),
        }

    async def _beat(self) -> None:
        while True:
            await self._bus.publish(f"{ALIVE_GATEWAYS}.{self._gateway}", self.alive)
            await asyncio.sleep(BEAT_S)

    async def _watch(self) -> None:
        """Have sessions moved whose worker is lost, unless it may be this gateway that is."""
        before_s = self._cluster.now_s()
        while True:
            now_s = self._cluster.now_s()
            stalled = now_s - before_s > BEAT_S + LOOK_S  # this process was stopped: what was said waits to be read
            if stalled or not (self._bus.connected and self._workers.heard_any(now_s)):
                self._whole_since_s = None
            elif self._whole_since_s is None:
                self._whole_since_s = now_s
            whole = self._whole_since_s is not None and now_s - self._whole_since_s > LOST_S
            if stalled or not self._bus.connected:
                self._connected_since_s = None
            elif self._connected_since_s is None:
                self._connected_since_s = now_s
            elif now_s - self._connected_since_s > LOST_S:
                self._note_workers(now_s)
            for remote in tuple(self._remotes.values()):
                remote.watch(now_s) if whole else remote.excuse(now_s)
                if not stalled:
                    remote.tell_wait(now_s)
            before_s = now_s
            await asyncio.sleep(LOOK_S)

    def _note_workers(self, now_s: float) -> None:
        """Log which workers have come and which have gone, and that none is left."""
        alive = {worker.worker: worker for worker in self._workers.alive(now_s)}
        for name in sorted(alive.keys() - self._noted.keys()):
            logger.info("worker %s joins, with %s", name, one_line(alive[name].model)[:80])
        for name in sorted(self._noted.keys() - alive.keys()):
            if self._noted[name].draining:
                logger.info("worker %s has left", name)
            else:
                logger.warning("worker %s is lost: it has not been heard for %g s", name, LOST_S)
        if self._noted and not alive:
            logger.error("no worker is left: sessions wait for one; start it with `streamer worker --nats URL`")
        self._noted = alive

    def _come_back(self) -> None:
        """NATS is back: what was sent last may not have come, and what was told may not have been heard."""
        self._whole_since_s = self._connected_since_s = None
        for remote in self._remotes.values():
            remote.resend()

    def _count_move(self, why: str) -> None:
        self._counters[f"moves_{why}"] += 1
