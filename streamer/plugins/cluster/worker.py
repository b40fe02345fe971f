"""A worker: an engine that transcribes sessions for gateways, as many as it keeps in real time."""

import asyncio
import contextlib
import hashlib
import logging
import math
import re
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

import msgspec

from streamer import signals
from streamer.after.postprocessing import PostProcessing
from streamer.check import check_options
from streamer.engine.decoder import make_engine
from streamer.engine.load import MAX_LOAD
from streamer.engine.yielding import watch_beside_live
from streamer.errors import (
    BusyError,
    ClusterError,
    ClusterMessageError,
    ConfigError,
    FencedError,
    SessionStateError,
    StoppingError,
    StreamerError,
    UnknownSessionError,
)
from streamer.events import End, from_json
from streamer.outside import one_line
from streamer.plugins.cluster.bus import Bus, Reply, machine_name
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    ALIVE_WORKERS,
    BEAT_S,
    LOST_S,
    VERSION,
    WORKERS,
    AudioBlock,
    Leave,
    Message,
    Opened,
    OpenSession,
    Refused,
    SessionCheckpoint,
    SessionCommand,
    ToWorker,
    WorkerAlive,
    decoded,
)
from streamer.plugins.cluster.neighbours import Neighbours
from streamer.plugins.cluster.placement import wants_to_give
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.work import JobCounts, serve_jobs
from streamer.plugins.cluster.worker_session import WorkerContext, WorkerSession, WorkerState, newest
from streamer.settings.table import Settings
from streamer.setup.models import unless_stopped
from streamer.whisper.model import WhisperModel
from streamer.whisper.option_checks import check_options_of_model

logger = logging.getLogger(__name__)

DRAIN_S = 10.0  # in which other workers take over the sessions of one that stops
GIVE_S = 5.0  # in which another takes over one session of an overloaded worker, before it offers the next
EXCUSED_S = 3.0  # for which audio may be late once its gateway is alive again
OPEN_S = 5.0  # in which to open a session: then its gateway asks another worker

# An engine that runs no further graph for this long is of no use for captions: sessions move elsewhere.
STUCK_S = 30.0


async def run_worker(settings: Settings, load: Callable[[], WhisperModel]) -> int:
    """Transcribe for gateways until a signal stops it; return the exit code.

    `load` loads the model. Raises StreamerError if the worker cannot start.
    """
    if settings.speakers.enabled:
        raise ConfigError(
            "speakers.enabled is true, but workers cannot label speakers, because labels do not move with a session:"
            " disable it"
        )
    check_options(settings, streaming=True)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    begin_s = loop.time()
    with signals.handled(loop, stop.set):
        name = machine_name(settings.of(ClusterSettings))
        bus = await Bus.connect(settings.of(ClusterSettings), name)
        try:
            log = SessionLog(bus, settings.of(ClusterSettings))
            await log.prepare()
            model = await unless_stopped(load, stop)
            if model is None:
                return 0
            check_options_of_model(settings.decoding, model)
            engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
            engine.start()
            watch_beside_live(model, engine.wait_idle)
            try:
                context = WorkerContext(
                    worker=name,
                    bus=bus,
                    log=log,
                    settings=settings,
                    model=model,
                    identity=identity_of(model),
                    engine=engine,
                    enrichment=PostProcessing(settings, model, engine),
                )
                # A worker of the same name may just have died: gateways must notice before this one is alive.
                await asyncio.sleep(begin_s + LOST_S + BEAT_S - loop.time())
                logger.info("worker %s transcribes with %s", name, context.identity)
                await ClusterWorker(context).run(stop)
            finally:
                await asyncio.to_thread(engine.stop)
        finally:
            await bus.close()
    return 0


def identity_of(model: WhisperModel) -> str:
    """Return a model's name and a hash of its vocabulary."""
    return f"{model.name} {hashlib.sha256(model.tokenizer.to_json()).hexdigest()[:8]}"


class ClusterWorker:
    """Opens, transcribes and gives away sessions for gateways. All of it runs on one event loop."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self.draining = False
        self.counters = {"fenced": 0.0, "moved_away": 0.0, "taken_over": 0.0}
        self._owned: dict[str, WorkerSession] = {}
        self._n_opening = 0
        # Set when a session is no longer owned.
        self._gone = asyncio.Event()
        # One request at a time about a session.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._answers: set[asyncio.Task[None]] = set()
        self._neighbours = Neighbours(context.bus)
        # The session that was offered to other workers last, and until when no other is.
        self._offered, self._offered_until_s = "", -math.inf
        self._recordings = JobCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Transcribe until `stop` is set; then have other workers take all sessions over."""
        bus, name, loop = self._context.bus, self._context.worker, asyncio.get_running_loop()
        await self._neighbours.start()
        await bus.subscribe(f"{WORKERS}.{name}", self._on_message)
        recordings = asyncio.create_task(self._serve_jobs())
        try:
            while not stop.is_set():
                await self._beat()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), BEAT_S)
        finally:
            recordings.cancel()  # another worker begins them anew
        self.draining, until_s = True, loop.time() + DRAIN_S
        while (self._owned or self._answers) and loop.time() < until_s:
            await self._beat()
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), BEAT_S)
        if self._owned:
            logger.warning("%d sessions were not taken over within %d s", len(self._owned), DRAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OPEN_S):
                    stopped = [owned.stop(keep=True) for owned in tuple(self._owned.values())]
                    await asyncio.gather(*stopped, return_exceptions=True)
        for answer in tuple(self._answers):
            answer.cancel()
        await asyncio.gather(recordings, return_exceptions=True)
        await bus.publish(f"{ALIVE_WORKERS}.{name}", self.alive)

    async def _serve_jobs(self) -> None:
        try:
            await serve_jobs(self._context, self._recordings)
        except Exception:
            logger.exception("this worker no longer transcribes recordings")

    @property
    def alive(self) -> WorkerAlive:
        """This worker's sign of life."""
        context = self._context
        load = context.engine.load
        return WorkerAlive(
            worker=context.worker,
            version=VERSION,
            model=context.identity,
            load=load.ratio,
            capacity=load.capacity or 0,
            sessions=len(self._owned),
            room=not self.draining and self._has_room(),
            draining=self.draining,
            failing=self._failing(),
            recordings=self._recordings.running,
            max_recordings=self._context.settings.of(ClusterSettings).max_recordings,
            counters={
                **self.counters,
                "audio_s": context.engine.stats.audio_s["client"],
                "recordings_done": self._recordings.done,
            },
        )

    async def _on_message(self, data: bytes, reply: Reply) -> None:
        message: ToWorker = decoded(data, ToWorker)  # type: ignore[arg-type]
        owned = self._owned.get(message.session)
        match message:
            case AudioBlock() | SessionCommand() if owned is not None:
                await owned.take(message)
            case Leave() if owned is not None and owned.epoch == message.epoch and not owned.over:
                owned.leave(moves=message.moves)
                self.counters["moved_away"] += message.moves
            case OpenSession():
                # In a task: the log may take its time, and audio of other sessions must not wait.
                answer = asyncio.create_task(self._answer(message, reply))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)

    async def _answer(self, request: OpenSession, reply: Reply) -> None:
        answer: Message
        async with self._locks.setdefault(request.session, asyncio.Lock()):
            try:
                async with asyncio.timeout(OPEN_S):
                    answer = await self._open(request)
            except TimeoutError:
                answer = Refused(code=ClusterError.code, message="NATS cannot store sessions: ask another worker")
            except StreamerError as error:
                answer = Refused(code=error.code, message=one_line(error))
            except Exception as error:
                logger.exception("a session could not be opened")
                answer = Refused(code=StreamerError.code, message=f"{type(error).__name__}: the worker's log has more")
        await reply(answer)

    async def _open(self, request: OpenSession) -> Opened:
        context, offered = self._context, request.checkpoint
        owned = self._owned.get(request.session)
        if self.draining and (owned is None or owned.over):
            raise StoppingError("the worker is stopping: ask another worker")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", request.gateway):
            raise ClusterMessageError("malformed name of a gateway: expected 1 to 64 characters of A-Z a-z 0-9 - and _")
        if offered.model != context.identity:
            raise SessionStateError(
                f"the session's model is {one_line(offered.model)!r:.80}, this worker's is {context.identity!r}: ask"
                " another worker, or continue behind a gap"
            )
        if not request.must and not self._has_room():
            raise BusyError("the worker is full: ask another worker")
        self._n_opening += 1
        try:
            here = None
            epoch, previous, stored = await self._look(request.session)
            if request.epoch < epoch:
                raise FencedError("outdated request: the session was opened again; use the epoch in its log")
            if (owned := self._owned.get(request.session)) is not None:  # for another gateway, or an answer was lost
                await owned.stop()
                here = owned.epoch, owned.checkpoint
                epoch, previous, stored = await self._look(request.session)
            newest_epoch, checkpoint = newest((request.epoch, offered), (epoch, stored) if stored else None, here)
            epoch = max(epoch, newest_epoch)
            seq = max(checkpoint.seq, request.seen)
            checkpoint = msgspec.structs.replace(checkpoint, seq=seq, command=checkpoint.state.mark)
            owned = WorkerSession(context, request, checkpoint, epoch=epoch + 1, sequence=previous)
            try:
                await owned.start()
            except BaseException:
                owned.drop()
                raise
        finally:
            self._n_opening -= 1
        self._owned[request.session] = owned
        owned.task.add_done_callback(lambda task: self._forget(owned))
        self.counters["taken_over"] += epoch > 0
        how = "goes on with" if epoch else "takes"
        logger.info("%s the session, for gateway %s", how, request.gateway, extra={"session": request.session})
        return Opened(epoch=owned.epoch, checkpoint=checkpoint, previous=previous, sequence=owned.sequence)

    async def _look(self, session: str) -> tuple[int, int, SessionCheckpoint | None]:
        """Return epoch and sequence of a session's newest record, and its checkpoint if its model is this one's."""
        last = await self._context.log.last(session)
        if last is None:
            return 0, 0, None
        record = last.record
        if record.events and isinstance(from_json(record.events[-1]), End):
            raise UnknownSessionError("the session has ended: there is nothing to continue")
        knows = record.checkpoint.model == self._context.identity
        return record.epoch, last.sequence, record.checkpoint if knows else None

    def _forget(self, owned: WorkerSession) -> None:
        if self._owned.get(owned.session) is owned:
            del self._owned[owned.session]
            fenced = owned.state is WorkerState.FENCED
            why = "another machine owns it" if fenced else "it has ended" if owned.ended else "it was given away"
            logger.info("no longer has the session: %s", why, extra={"session": owned.session})
        self.counters["fenced"] += owned.state is WorkerState.FENCED
        self._gone.set()

    def _has_room(self) -> bool:
        """Whether there is room for one more session, counting those whose audio is still to arrive again."""
        load = self._context.engine.load
        n_coming = self._n_opening + sum(owned.intake.restoring for owned in self._owned.values())
        if len(self._owned) + self._n_opening >= self._context.settings.server.max_streams or self._failing():
            return False
        share = MAX_LOAD / load.capacity if load.capacity else 0.0
        return load.room and (not n_coming or load.ratio + (n_coming + 1) * share <= MAX_LOAD)

    def _failing(self) -> str:
        """Return in a few words what keeps this worker from transcribing; empty if nothing does."""
        engine = self._context.engine
        if self._context.model.recovering:
            return "the model is started again, as its device failed"
        stuck = f"the engine has made no progress for more than {STUCK_S:g} s" if engine.stalled_s > STUCK_S else ""
        return stuck or one_line(engine.failing)[:200]

    async def _beat(self) -> None:
        await self._context.bus.publish(f"{ALIVE_WORKERS}.{self._context.worker}", self.alive)
        for owned in self._to_give():
            await owned.report(move="drain" if self.draining else "failing" if self._failing() else "load")
        self._leave_orphans()

    def _to_give(self) -> list[WorkerSession]:
        """Return sessions that others should take over: all while draining, else the one that moves fastest."""
        now_s, own = asyncio.get_running_loop().time(), self.alive
        if self.draining:
            return list(self._owned.values())
        if self._offered in self._owned and now_s < self._offered_until_s:
            return []
        if own.failing:
            wants = self._neighbours.known.another(now_s, model=own.model, than=own.worker, room=True)
        else:
            wants = wants_to_give(own, self._neighbours.workers())
        if not wants or not self._owned:
            return []
        self._offered = min(self._owned, key=lambda session: self._owned[session].n_replayed)
        self._offered_until_s = now_s + GIVE_S
        return [self._owned[self._offered]]

    def _leave_orphans(self) -> None:
        """Allow for late audio of sessions whose gateway is silent, and end those that no other gateway has taken."""
        self._neighbours.look(asyncio.get_running_loop().time(), BEAT_S)
        for owned in tuple(self._owned.values()):
            silent_s = self._neighbours.silent_s(owned.gateway)
            if not self._context.bus.connected or silent_s > 2 * BEAT_S:
                owned.live.excused_until_s = time.monotonic() + EXCUSED_S
            if silent_s > LOST_S + self._context.settings.server.resume_s:
                owned.leave()
