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

from streamer.check import check_options
from streamer.cluster.bus import Bus, Reply, machine_name
from streamer.cluster.log import SessionLog, UnreadableRecordError
from streamer.cluster.messages import (
    ALIVE_GATEWAYS,
    ALIVE_WORKERS,
    BEAT_S,
    GATEWAYS,
    LOST_S,
    VERSION,
    WORKERS,
    Audio,
    Checkpoint,
    Do,
    GatewayAlive,
    Leave,
    Message,
    Move,
    Open,
    Opened,
    Refused,
    Release,
    Released,
    ToWorker,
    WorkerAlive,
    decoded,
)
from streamer.cluster.owned import Owned, Position, Workplace, newest
from streamer.cluster.placement import Workers, wants_to_give
from streamer.cluster.stopping import stopped_by_signals
from streamer.cluster.work import JobCounts, serve_jobs
from streamer.engine.load import MAX_LOAD
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
from streamer.sessions.decoder import make_engine
from streamer.sessions.enrich import Enrichment
from streamer.sessions.models import unless_stopped
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import check_options_of_model

logger = logging.getLogger(__name__)

DRAIN_S = 10.0  # that gateways have to take the sessions of a worker that stops
GIVE_S = 5.0  # that they have to take one of a worker that has too many, before another is offered
EXCUSED_S = 3.0  # that a client is waited for behind the last moment in which its gateway was not heard
OPEN_S = 5.0  # that opening a session may take: after that its gateway has asked another worker

# A turn of the engine that takes longer is of no use for captions: sessions are better off elsewhere.
STUCK_S = 30.0


async def run_worker(settings: Settings, load: Callable[[], WhisperModel]) -> int:
    """Transcribe for gateways until it is told to stop; return the exit code.

    `load` loads the model. Raises StreamerError where the worker cannot start.
    """
    if settings.speakers.enabled:
        raise ConfigError(
            "speakers.enabled is true, and labels of speakers do not move from worker to worker with a session: leave"
            " it out"
        )
    check_options(settings, streaming=True)
    stop, begin_s = asyncio.Event(), asyncio.get_running_loop().time()
    with stopped_by_signals(stop):
        name = machine_name(settings.cluster)
        bus = await Bus.connect(settings.cluster, name)
        try:
            log = SessionLog(bus, settings.cluster)
            await log.prepare()
            model = await unless_stopped(load, stop)
            if model is None:
                return 0
            check_options_of_model(settings.decoding, model)
            engine = make_engine(model, settings.decoding, max_pace_s=settings.stream.max_pace_s)
            engine.start()
            try:
                place = Workplace(
                    worker=name,
                    bus=bus,
                    log=log,
                    settings=settings,
                    model=model,
                    identity=identity_of(model),
                    engine=engine,
                    enrichment=Enrichment(settings, model, engine),
                )
                # One of the same name may have died just now: gateways shall notice, and not take this one for it.
                await asyncio.sleep(begin_s + LOST_S + BEAT_S - asyncio.get_running_loop().time())
                logger.info("worker %s transcribes with %s", name, place.identity)
                await Worker(place).run(stop)
            finally:
                await asyncio.to_thread(engine.stop)
        finally:
            await bus.close()
    return 0


def identity_of(model: WhisperModel) -> str:
    """Return a model's name, and what its tokens mean, in a few digits."""
    return f"{model.name} {hashlib.sha256(model.tokenizer.to_json()).hexdigest()[:8]}"


class Worker:
    """What a worker does for gateways; all of it runs on one event loop."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self.draining = False
        self.counters = {"fenced": 0.0, "moved_away": 0.0, "taken_over": 0.0}
        self._owned: dict[str, Owned] = {}
        self._n_opening = 0
        # Set when a session is not owned any more.
        self._gone = asyncio.Event()
        # One request at a time about a session.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._answers: set[asyncio.Task[None]] = set()
        self._others = Workers()
        # How many signs of life in a row gateways have left out that have sessions here.
        self._silent_beats: dict[str, int] = {}
        # The session that was offered last, to be taken elsewhere, and until when nothing else is.
        self._offered, self._offered_until_s = "", -math.inf
        self._recordings = JobCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Transcribe until `stop` is set; then have all sessions taken elsewhere."""
        bus, name, loop = self._place.bus, self._place.worker, asyncio.get_running_loop()
        await bus.subscribe(f"{ALIVE_WORKERS}.*", self._hear_worker)
        await bus.subscribe(f"{ALIVE_GATEWAYS}.*", self._hear_gateway)
        await bus.subscribe(f"{WORKERS}.{name}", self._hear)
        recordings = asyncio.create_task(self._serve_jobs())
        try:
            while not stop.is_set():
                await self._beat()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), BEAT_S)
        finally:
            recordings.cancel()  # another worker begins them anew
        self.draining, until_s = True, loop.time() + DRAIN_S
        while (self._owned or self._n_opening) and loop.time() < until_s:
            await self._beat()
            self._gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), BEAT_S)
        if self._owned:
            logger.warning("%d sessions were not taken elsewhere within %d s", len(self._owned), DRAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OPEN_S):
                    released = [owned.release(keep=True) for owned in tuple(self._owned.values())]
                    await asyncio.gather(*released, return_exceptions=True)
        for answer in tuple(self._answers):
            answer.cancel()
        await asyncio.gather(recordings, return_exceptions=True)
        await self._say_alive()

    async def _serve_jobs(self) -> None:
        try:
            await serve_jobs(self._place, self._recordings)
        except Exception:
            logger.exception("this worker transcribes no recordings any more")

    @property
    def alive(self) -> WorkerAlive:
        """What this worker says of itself."""
        place = self._place
        load = place.engine.load
        return WorkerAlive(
            worker=place.worker,
            version=VERSION,
            model=place.identity,
            load=load.ratio,
            capacity=load.capacity or 0,
            sessions=len(self._owned),
            room=not self.draining and self._has_room(),
            draining=self.draining,
            failing=self._failing(),
            recordings=self._recordings.running,
            max_recordings=self._place.settings.cluster.max_recordings,
            counters={
                **self.counters,
                "audio_s": place.engine.stats.audio_s["client"],
                "recordings_done": self._recordings.done,
            },
        )

    async def _hear(self, data: bytes, reply: Reply) -> None:
        message: ToWorker = decoded(data, ToWorker)  # type: ignore[arg-type]
        owned = self._owned.get(message.session)
        match message:
            case Audio() | Do() if owned is not None:
                await owned.take(message)
            case Leave() if owned is not None and owned.epoch == message.epoch:
                owned.leave()
            case Open() | Release():
                # Not here: the log may take its time, and audio of other sessions comes meanwhile.
                answer = asyncio.create_task(self._answer(message, reply))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)

    async def _answer(self, request: Open | Release, reply: Reply) -> None:
        answer: Message
        async with self._locks.setdefault(request.session, asyncio.Lock()):
            try:
                async with asyncio.timeout(OPEN_S):
                    answer = await (self._open(request) if isinstance(request, Open) else self._release(request))
            except TimeoutError:
                answer = Refused(code=ClusterError.code, message="NATS stores nothing for now: ask another worker")
            except StreamerError as error:
                answer = Refused(code=error.code, message=one_line(error))
            except Exception as error:
                logger.exception("a session could not be opened or released")
                answer = Refused(code=StreamerError.code, message=f"{type(error).__name__}: the worker's log has more")
        await reply(answer)

    async def _open(self, request: Open) -> Opened:
        place, offered = self._place, request.checkpoint
        if self.draining:
            raise StoppingError("the worker is about to stop: ask another")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", request.gateway):
            raise ClusterMessageError("the gateway's name is none: expected letters of A-Z a-z 0-9 - and _")
        if (offered.version, offered.model) != (VERSION, place.identity):
            raise SessionStateError(
                f"the session is one of version {offered.version} with model {one_line(offered.model)!r:.80}: expected"
                f" {VERSION} and {place.identity!r}; ask another worker, or go on behind a gap"
            )
        if not request.must and not self._has_room():
            raise BusyError("the worker keeps no further session in real time: ask another")
        self._n_opening += 1
        try:
            here = None
            behind, stored = await self._look(request.session)
            if request.epoch < behind.epoch:
                raise FencedError("the session was opened elsewhere since: ask with the epoch that its log has")
            if (owned := self._owned.get(request.session)) is not None:  # whoever asked before has heard no answer
                released = await owned.release()
                here = released.epoch, released.checkpoint
                behind, stored = await self._look(request.session)
            epoch, checkpoint = newest((request.epoch, offered), stored, here)
            behind = behind._replace(epoch=max(epoch, behind.epoch))
            seq = max(checkpoint.seq, request.seen)
            checkpoint = msgspec.structs.replace(checkpoint, seq=seq, command=checkpoint.state.mark)
            owned = Owned(place, request, checkpoint, behind=behind, on_over=self._forget)
            try:
                await owned.start()
            except BaseException:
                owned.drop()
                raise
        finally:
            self._n_opening -= 1
        self._owned[request.session] = owned
        self.counters["taken_over"] += behind.epoch > 0
        how = "goes on with" if behind.epoch else "takes"
        logger.info("%s the session, for gateway %s", how, request.gateway, extra={"session": request.session})
        return Opened(epoch=owned.epoch, checkpoint=checkpoint, number=owned.number)

    async def _look(self, session: str) -> tuple[Position, tuple[int, Checkpoint] | None]:
        """Return where a session's log stands, and with which checkpoint, where this worker can go on from it."""
        try:
            last = await self._place.log.last(session)
        except UnreadableRecordError as error:
            return Position(error.epoch, error.number, error.sequence), None
        if last is None:
            return Position(), None
        record = last.record
        if record.events and isinstance(from_json(record.events[-1]), End):
            raise UnknownSessionError("the session has ended: there is nothing to go on with")
        able = (record.checkpoint.version, record.checkpoint.model) == (VERSION, self._place.identity)
        behind = Position(record.epoch, record.number, last.sequence)
        return behind, (record.epoch, record.checkpoint) if able else None

    async def _release(self, request: Release) -> Released:
        owned = self._owned.get(request.session)
        if owned is None:
            raise UnknownSessionError("the session is not here: it has ended, or another worker has it")
        released = await owned.release()
        self.counters["moved_away"] += 1
        return released

    def _forget(self, owned: Owned) -> None:
        if self._owned.get(owned.session) is owned:
            del self._owned[owned.session]
            why = "another machine owns it" if owned.fenced else "it has ended" if owned.ended else "it was given away"
            logger.info("no longer has the session: %s", why, extra={"session": owned.session})
        self.counters["fenced"] += owned.fenced
        self._gone.set()

    def _has_room(self) -> bool:
        """Whether there is room for one more, beside those whose audio is still to come again."""
        load = self._place.engine.load
        n_coming = self._n_opening + sum(not owned.at_work for owned in self._owned.values())
        if len(self._owned) + self._n_opening >= self._place.settings.server.max_streams or self._failing():
            return False
        share = MAX_LOAD / load.capacity if load.capacity else 0.0
        return load.room and (not n_coming or load.ratio + (n_coming + 1) * share <= MAX_LOAD)

    def _failing(self) -> str:
        """Say in a few words what keeps this worker from transcribing; nothing where all is well."""
        engine = self._place.engine
        if self._place.model.recovering:
            return "the model is started again, as its device failed"
        stuck = f"the engine has been at one turn for more than {STUCK_S:g} s" if engine.turn_s > STUCK_S else ""
        return stuck or one_line(engine.failing)[:200]

    async def _beat(self) -> None:
        await self._say_alive()
        for session in self._to_give():
            owned = self._owned[session]
            why = "drain" if self.draining else "failing" if self._failing() else "load"
            await self._place.bus.publish(
                f"{GATEWAYS}.{owned.gateway}", Move(session=session, epoch=owned.epoch, why=why)
            )
        self._leave_orphans()

    async def _say_alive(self) -> None:
        await self._place.bus.publish(f"{ALIVE_WORKERS}.{self._place.worker}", self.alive)

    def _to_give(self) -> list[str]:
        """Return the sessions that another worker should take: all that are left, or the one that is moved easiest."""
        now_s, own = asyncio.get_running_loop().time(), self.alive
        if self.draining:
            return list(self._owned)
        if self._offered in self._owned and now_s < self._offered_until_s:
            return []
        if own.failing:
            wants = self._others.another(now_s, model=own.model, than=own.worker, room=True)
        else:
            wants = wants_to_give(own, self._others.alive(now_s))
        if not wants or not self._owned:
            return []
        self._offered = min(self._owned, key=lambda session: self._owned[session].n_replayed)
        self._offered_until_s = now_s + GIVE_S
        return [self._offered]

    def _leave_orphans(self) -> None:
        """Wait for those whose gateway is not heard, and end sessions for which no other has come in time."""
        connected = self._place.bus.connected
        gateways = {owned.gateway for owned in self._owned.values()}
        self._silent_beats = {
            gateway: self._silent_beats.get(gateway, 0) + (1 if connected else 0) for gateway in gateways
        }
        for owned in tuple(self._owned.values()):
            if not connected or self._silent_beats[owned.gateway] > 1:
                owned.runner.excused_until_s = time.monotonic() + EXCUSED_S
            if self._silent_beats[owned.gateway] * BEAT_S > LOST_S + self._place.settings.server.resume_s:
                owned.leave()

    async def _hear_worker(self, data: bytes, _reply: Reply) -> None:
        self._others.take(decoded(data, WorkerAlive), asyncio.get_running_loop().time())

    async def _hear_gateway(self, data: bytes, _reply: Reply) -> None:
        self._silent_beats[decoded(data, GatewayAlive).gateway] = 0
