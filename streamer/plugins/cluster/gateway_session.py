"""A client's session at its gateway: what is sent to the worker that owns it, what comes back, and how it moves.

There is one way to move a session: its worker releases it, if it is alive; a worker with room takes it over from the
newest checkpoint; and the audio and commands that the checkpoint does not have are sent again. All of this runs on one
event loop.
"""

import asyncio
import enum
import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.backend import Session
from streamer.engine.eventlog import EventLog
from streamer.errors import (
    BusyError,
    ClusterError,
    ConfigError,
    ModelError,
    ProtocolError,
    SessionStateError,
    StreamerError,
    UnknownSessionError,
)
from streamer.events import Error, from_json
from streamer.outside import one_line
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    VERSION,
    WORKERS,
    Opened,
    OpenSession,
    Refused,
    Release,
    Released,
    SessionCheckpoint,
    SessionCommand,
    SessionUpdate,
)
from streamer.plugins.cluster.metrics import REASONS
from streamer.plugins.cluster.placement import Workers
from streamer.plugins.cluster.replay import ReplayBuffer
from streamer.protocols.native import Command, StreamStart
from streamer.session.state import SessionState

logger = logging.getLogger(__name__)

RELEASE_S = 2.0  # that a worker has to release a session; then another one opens it, which fences the first
OPEN_S = 6.0  # that a worker has to open a session: a little longer than it gives itself
RETRY_S = 0.2  # between two rounds of asking workers
MAX_ASKED = 4  # workers in a round
OTHER_MODEL_S = 5.0  # for which a session waits for a worker with its model; then any takes it over, behind a gap

# A session leaves its worker if another has room, the worker is this far behind, and for STUCK_S it transcribes at less
# than this share of the pace of speech.
SLOW_SAMPLES = 2 * SAMPLE_RATE
STUCK_S = 5.0
LEAST_PACE = 0.5

QUIET_S = 2.0  # within which a worker reports on each session while NATS stores records
SILENT_S = 10.0  # without a report a session moves: longer than NATS takes to elect a leader, when nothing is stored
RESEND_S = 2.0  # after which what has not arrived at the worker is sent again
WAIT_S = 5.0  # without a report a client is warned

# Audio of another sample rate is sent again from this much before the position needed, to warm the new resampler.
WARM_SAMPLES = SAMPLE_RATE // 4

MAX_UPDATES = 1000  # that may wait to be processed; the log has what is dropped

# Refusals that another worker would repeat.
_FINAL = (ConfigError.code, ProtocolError.code, ModelError.code)
_ERRORS = {cls.code: cls for cls in (BusyError, ConfigError, ModelError, ProtocolError, SessionStateError)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayContext:
    """What all sessions of a gateway share."""

    gateway: str
    bus: Bus
    log: SessionLog
    workers: Workers

    # Called with the reason of each move; and with the reason and the seconds of each stall.
    on_move: Callable[[str], None] = lambda why: None
    on_stall: Callable[[str, float], None] = lambda why, stall_s: None

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()


class GatewayState(enum.Enum):
    """State of a session at its gateway."""

    OPENING = "no worker has owned it for this gateway yet"
    SERVED = "a worker transcribes it"
    MOVING = "another worker is asked to take it over"
    CLOSED = "this gateway no longer has anything to do with it"


class WorkerProgress:
    """How far a session's worker is known to be, and since when. No I/O; times are the loop's, in seconds."""

    def __init__(self, now_s: float) -> None:
        # When the worker reported last, or could not be expected to; when it did, or the client was warned.
        self.reported_s = self._served_s = now_s
        # Position up to which it had transcribed, and when it last kept pace with speech.
        self._read, self._kept_pace_s = 0, now_s
        # Position and command that had arrived there, and since when; when anything was sent again.
        self.arrived = (0, 0)
        self._arrived_s = self.resent_s = now_s
        # Why the session moved, and when its former worker reported last; None once the new one makes progress.
        self.stall: tuple[str, float] | None = None
        # Number of the newest event and end of the processed audio when the worker took the session over.
        self._began = (0, 0)

    def begin(self, checkpoint: SessionCheckpoint, now_s: float) -> None:
        """Note that a worker takes the session over at a checkpoint."""
        state = checkpoint.state
        self.reported_s = self._kept_pace_s = self._arrived_s = self.resent_s = now_s
        self._began, self._read = (checkpoint.seq, state.received), state.read
        self.arrived = state.needed_from, checkpoint.command

    def note(self, update: SessionUpdate, head: int, now_s: float) -> None:
        """Note what a worker reports; `head` is the end of the audio at the gateway."""
        self.reported_s = self._served_s = now_s
        state = update.checkpoint.state
        keeps_pace = state.read - self._read >= LEAST_PACE * SAMPLE_RATE * (now_s - self._kept_pace_s)
        if keeps_pace or head - state.read <= SLOW_SAMPLES:
            self._read, self._kept_pace_s = state.read, now_s
        if (update.head, update.command) != self.arrived:
            self.arrived, self._arrived_s = (update.head, update.command), now_s

    def ended_stall(self, update: SessionUpdate, head: int) -> tuple[str, float] | None:
        """Return the stall that ends as the new worker has published something, or has nothing left to do."""
        processed = update.checkpoint.state.received
        if (update.checkpoint.seq, processed) == self._began and processed < head - SAMPLE_RATE // 10:
            return None
        stall, self.stall = self.stall, None
        return stall

    def excuse(self, now_s: float) -> None:
        """Expect no report before now: this gateway was cut off from all workers."""
        self.reported_s = self._kept_pace_s = now_s

    def fault(self, head: int, now_s: float) -> str:
        """Return why another worker should take the session over; empty if none should."""
        silent_s = now_s - self.reported_s
        if silent_s > SILENT_S:
            return "silent"
        # While NATS stores nothing, no worker reports, and a move would take longer than the wait.
        is_slow = now_s - self._kept_pace_s > STUCK_S and head - self._read > SLOW_SAMPLES
        return "slow" if is_slow and silent_s <= QUIET_S else ""

    def must_resend(self, missing: bool, sent: tuple[int, int], now_s: float) -> bool:
        """Whether what was sent seems lost; `missing`: the worker reports so."""
        waited_s = now_s - max(self.resent_s, 0.0 if missing else self._arrived_s)
        return waited_s > (RETRY_S if missing else RESEND_S) and self.arrived < sent

    def must_warn(self, now_s: float) -> bool:
        """Whether to warn the client that no worker serves it: once, until one does again."""
        if now_s - self._served_s < WAIT_S:
            return False
        self._served_s = math.inf
        return True


class GatewaySession(Session):
    """A session at a worker.

    `open` or `take_over` finds a worker. From then on one task, `_run`, reconciles: it processes updates, reads from
    the log what is missing, and moves the session if it must. Another, `_send`, sends.
    """

    outlives = True

    def __init__(
        self,
        context: GatewayContext,
        feed: EventLog,
        checkpoint: SessionCheckpoint,
        *,
        epoch: int = 0,
        on_gone: Callable[["GatewaySession"], None],
    ) -> None:
        """Make a session without a worker; its events are put into `feed`.

        epoch : of its newest record, if it is not new
        on_gone : called when its client has left, or another gateway takes it
        """
        super().__init__(feed, checkpoint.start)
        self._context = context
        self.logger = logging.LoggerAdapter(logger, {"session": feed.session})
        self.state = GatewayState.OPENING
        # The newest one known.
        self.checkpoint = checkpoint
        self.ring = self._buffer_from(checkpoint)
        self._on_gone = on_gone
        # The worker that owns it, empty if none does; its epoch, and number of the newest record known.
        self.worker = ""
        self.epoch = epoch
        self._number = 0
        # Audio before this was processed elsewhere before: the client's commands there have taken effect.
        self._processed_before = 0
        # Samples that are still to come only to warm the resampler.
        self._n_warming = 0
        # Number of the newest `set`.
        self._set = 0
        self._updates: deque[SessionUpdate] = deque(maxlen=MAX_UPDATES)
        self._progress = WorkerProgress(context.now_s())
        # Why it is to move; empty if it is not.
        self._why = ""
        # Set when there may be something to reconcile, and something to send.
        self._changed, self._wake = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def session(self) -> str:
        return self.feed.session

    @property
    def closed(self) -> bool:
        return self.state is GatewayState.CLOSED

    # Called for the client.

    @property
    def free(self) -> int:
        return self.ring.free

    def write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono, shape (n,)."""
        n_warming = min(self._n_warming, len(samples))
        self._n_warming -= n_warming
        self.ring.write(samples[n_warming:])
        self._wake.set()

    def command(self, command: Command) -> None:
        self._command(command)

    def end(self) -> None:
        # A worker waits for all audio that was processed before: what the client does not send again is silence.
        self.ring.write(np.zeros(max(0, self._processed_before - self.ring.head), np.float32))
        self._command("end")

    def check(self, options: StreamStart) -> None:
        """Nothing is raised: the worker reports what its model cannot follow."""

    def change(self, options: StreamStart) -> None:
        self._command("set", options=options)
        self._set = self.ring.command

    def report(self, error: Error) -> None:
        self._command("report", code=error.code, message=error.message, fatal=error.fatal)

    def warm_up(self, n_samples: int) -> None:
        """Drop the first samples to come: they only warm the resampler."""
        self._n_warming = n_samples

    def abandon(self) -> None:
        self.close()
        self._on_gone(self)

    async def is_here(self) -> bool:
        if self._context.bus.connected and await self.is_elsewhere():
            self.lose()
        return not self.closed

    def close(self) -> None:
        """Stop serving it. Its worker keeps it."""
        if self.closed:
            return
        self.state, self.worker = GatewayState.CLOSED, ""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    # How it gets a worker.

    async def open(self) -> None:
        """Have a worker begin the session. Raises BusyError if none has room, ConfigError, ProtocolError, ..."""
        reason = await self._ask_around(avoid=(), must=False, model=None)
        if reason is not None:
            raise reason

    async def catch_up(self, seq: int) -> None:
        """Read from the log the events behind a number, as long as it takes."""
        while not await self._read_log(seq):
            await asyncio.sleep(RETRY_S)

    async def take_over(self, since_s: float, timeout_s: float) -> None:
        """Have a worker continue it for this gateway. Raises BusyError if none does within `timeout_s`."""
        self._progress.stall = "resumed", since_s
        self._context.on_move("resumed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._find_worker("")
        except TimeoutError:
            raise BusyError("no worker goes on with the session for now: try again in a moment") from None

    def move(self, why: str) -> None:
        """Have another worker take it over, unless one is being asked already."""
        if self.state is GatewayState.SERVED and not self.feed.closed:
            self._why = why if why == "lost" else self._why or why
            self._changed.set()

    def watch(self, now_s: float, *, whole: bool) -> None:
        """Move it if its worker is lost, silent or slow, unless this gateway may be cut off itself (not `whole`)."""
        if not whole:
            self._progress.excuse(now_s)
        elif self.state is GatewayState.SERVED:
            lost = self._context.workers.is_lost(self.worker, now_s)
            if why := "lost" if lost else self._progress.fault(self.ring.head, now_s):
                self.move(why)
        if self._why or self._updates:
            self._changed.set()

    def warn_of_wait(self, now_s: float) -> None:
        """Warn the client, once, if no worker has served it for long."""
        if self.state is GatewayState.OPENING or self.feed.closed or not self._progress.must_warn(now_s):
            return
        self.logger.warning("no worker has reported on the session for %g s", WAIT_S)
        text = f"no worker has transcribed for {WAIT_S:g} s: the audio is kept, and its text comes when one is there"
        self.feed.notify(Error(code="waiting", message=text, fatal=False))

    def resend(self) -> None:
        """Send again what has not arrived at the worker, as far as is known."""
        self._progress.resent_s = self._context.now_s()
        self.ring.rewind(*self._progress.arrived)
        self._wake.set()

    async def is_elsewhere(self) -> bool:
        """Whether another gateway has taken it: the worker that wrote its newest record names its gateway there."""
        try:
            last = await self._context.log.last(self.session)
        except ClusterError:
            return False
        if last is None or last.record.epoch <= self.epoch:
            return False
        if last.record.gateway != self._context.gateway:
            return True
        self.epoch = last.record.epoch  # a worker opened it for us after we had stopped waiting
        return False

    def lose(self) -> None:
        """Leave it to another gateway, and inform the client that is still here."""
        self.close()
        text = "the session goes on at another gateway, where a client came with its name: begin another"
        self.feed.append(Error(code=UnknownSessionError.code, message=text, fatal=True))
        self.feed.close()
        self._on_gone(self)
        self.on_lost()

    # Updates from the worker.

    def take_update(self, update: SessionUpdate) -> None:
        self._updates.append(update)
        self._changed.set()

    async def _run(self) -> None:
        while not self.closed:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reconcile()
            except Exception:
                self.logger.exception("an update is left out, or a move is tried again")

    async def _reconcile(self) -> None:
        """Process updates, and move it if it must. What fails is tried again: `watch` calls for that."""
        await self._process_updates()
        if self._why and not self.feed.closed:
            await self._move()
            await self._process_updates()

    async def _process_updates(self) -> None:
        """Process updates in order; records missing before one are read from the log."""
        while self._updates and not self.closed:
            update = self._updates[0]
            n_before = update.number - update.stored
            if update.epoch == self.epoch and self._number < n_before:
                if not await self._read_log(self.feed.last_seq):
                    return
                self._number = max(self._number, n_before)  # records that the log no longer has never come
                continue
            self._updates.popleft()
            if update.epoch == self.epoch:
                self._process(update)

    def _process(self, update: SessionUpdate) -> None:
        now_s, head, progress = self._context.now_s(), self.ring.head, self._progress
        progress.note(update, head, now_s)
        self._number = max(self._number, update.number)
        self._publish(update.events)
        self._keep(update.checkpoint)
        if (stall := progress.ended_stall(update, head)) is not None:
            self._context.on_stall(stall[0], now_s - stall[1])
        if update.move:
            self.move(update.move)
        if progress.must_resend(update.missing, self.ring.sent, now_s):
            self.resend()

    def _publish(self, events: Collection[str]) -> None:
        for text in events:
            try:
                self.feed.put(from_json(text))
            except StreamerError as error:
                self.logger.warning("an event of a worker is left out: %s", one_line(error))

    def _keep(self, checkpoint: SessionCheckpoint) -> None:
        """Keep a checkpoint that is newer, and drop the audio and commands that it makes needless."""
        if _age(checkpoint) < _age(self.checkpoint):
            return
        self.checkpoint = checkpoint
        self.ring.release(checkpoint.state.needed_from, checkpoint.state.received, checkpoint.command)
        if checkpoint.command >= self._set:
            self.options = checkpoint.start  # as its worker applies them, and no newer ones are on their way

    async def _read_log(self, seq: int) -> bool:
        """Process the records with events behind a number; return whether the log could be read."""
        try:
            records = await self._context.log.read(self.session, seq=seq)
        except ClusterError as error:
            self.logger.debug("the log cannot be read for now: %s", one_line(error))
            return False
        for record, _ in records:
            self._number = max(self._number, record.number)
            self._publish(record.events)
            if record.epoch == self.epoch:
                self._keep(record.checkpoint)
        return True

    # How it moves.

    async def _move(self) -> None:
        """Have another worker take it over. A drain waits until there is one; `watch` has it tried again."""
        context, old, why = self._context, self.worker, self._why
        if why == "drain" and not self._another() and not context.workers.is_lost(old, context.now_s()):
            return
        self._why = ""
        if why in ("load", "failing", "slow") and not self._another(room=True):
            return
        self.state = GatewayState.MOVING
        try:
            if await self.is_elsewhere():
                self.lose()
                return
            if why == "silent" and self._progress.fault(self.ring.head, context.now_s()) != why:
                return  # NATS was silent, not the worker
            reason = why if why in REASONS else "failing"  # a worker of another version may give another
            if why != "lost":
                await self.release_from(old)
            self._progress.stall = reason, self._progress.reported_s
            self.worker = ""
            context.on_move(reason)
            await self._find_worker(old)
            if self.worker:
                self.logger.info("the session moved from %s to %s (%s)", old, self.worker, reason)
        except Exception:
            self.worker = old
            raise
        finally:
            if not self.closed:
                self.state = GatewayState.SERVED

    def _another(self, *, room: bool = False) -> bool:
        """Whether another worker could take it over."""
        context = self._context
        return context.workers.another(context.now_s(), model=self.checkpoint.model, than=self.worker, room=room)

    async def release_from(self, worker: str) -> None:
        """Have a worker release it, and keep its last state. A worker that does not answer is fenced by the next."""
        try:
            request = Release(session=self.session, gateway=self._context.gateway)
            answer = await self._ask(worker, request, RELEASE_S)
        except ClusterError as error:
            self.logger.debug("%s does not release the session: %s", worker, one_line(error))
            return
        if isinstance(answer, Released) and answer.epoch >= self.epoch:
            await self._process_updates()
            self.epoch = answer.epoch
            self._progress.reported_s = self._context.now_s()
            self._keep(answer.checkpoint)

    async def _find_worker(self, old: str) -> None:
        """Ask until a worker takes it over: one with room, then any other, then the old one as well."""
        began_s, logged = self._context.now_s(), ""
        while not self.closed:
            for avoid, must in (([old], False), ([old], True), ([], True)):
                waited = self._context.now_s() - began_s > OTHER_MODEL_S
                reason = await self._ask_around(avoid=avoid, must=must, model=None if waited else self.checkpoint.model)
                if reason is None:
                    return
            if str(reason) != logged and self._context.now_s() - began_s > 1.0:
                logged = str(reason)
                self.logger.warning("the session waits for a worker: %s", logged)
            await asyncio.sleep(RETRY_S)
            if await self.is_elsewhere():
                self.lose()

    async def _ask_around(self, *, avoid: Collection[str], must: bool, model: str | None) -> StreamerError | None:
        """Ask some workers to own it, one after the other; return why none does, None if one does."""
        context = self._context
        reason: StreamerError = BusyError(
            "no worker takes sessions now: start one with `streamer worker --nats URL`, or try again in a moment"
        )
        for worker in context.workers.choose(context.now_s(), model=model, avoid=avoid)[:MAX_ASKED]:
            request = OpenSession(
                session=self.session,
                gateway=context.gateway,
                checkpoint=self._offer(context.workers.model(worker)),
                epoch=self.epoch,
                seen=self.feed.last_seq,
                head=max(self.ring.head, self.checkpoint.state.received),
                must=must,
            )
            try:
                answer = await self._ask(worker, request, OPEN_S)
            except ClusterError as error:
                reason = BusyError(f"no worker takes the session for now: {one_line(error)}")
                continue
            if isinstance(answer, Opened):
                self._begin_at(worker, answer)
                return None
            refusal = answer if isinstance(answer, Refused) else Refused(code="", message="an unexpected answer")
            reason = _ERRORS.get(refusal.code, BusyError)(f"{one_line(refusal.message):.500}")
            if refusal.code == UnknownSessionError.code and self.epoch:
                await self._read_log(self.feed.last_seq)
                if self.feed.closed:  # it ended before its worker was lost
                    return None
            if refusal.code in _FINAL and not self.epoch:
                return reason
        return reason

    def _offer(self, model: str) -> SessionCheckpoint:
        """Return the checkpoint for a worker with a model; another model continues behind a gap."""
        known = self.checkpoint
        if not self.epoch or (known.version, known.model) == (VERSION, model):
            return msgspec.structs.replace(known, version=VERSION, model=model)
        state = known.state
        behind = SessionState.behind_loss(
            state.published_until, state.received, state.transcript.segment, mark=state.mark
        )
        paused_from = None if state.paused_from is None else behind.needed_from
        behind = msgspec.structs.replace(behind, paused_from=paused_from, ended=state.ended)
        return msgspec.structs.replace(known, version=VERSION, model=model, state=behind)

    def _begin_at(self, worker: str, opened: Opened) -> None:
        """Note that a worker owns it from now on, and send what that does not have."""
        checkpoint = opened.checkpoint
        self.worker, self.epoch, self.checkpoint = worker, opened.epoch, checkpoint
        self.logger.info("worker %s has the session (epoch %d)", worker, opened.epoch)
        self._progress.begin(checkpoint, self._context.now_s())
        if self.state is GatewayState.OPENING:
            self.state = GatewayState.SERVED
            self.ring, self._processed_before = self._buffer_from(checkpoint), checkpoint.state.received
            self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._send())]
        if checkpoint.state.needed_from < self.ring.first:
            self.logger.error("a worker needs audio again that is no longer kept")
        self.ring.release(checkpoint.state.needed_from, checkpoint.state.received, checkpoint.command)
        self.ring.rewind(*self._progress.arrived)
        if self._number >= opened.number - 1:  # else the first update has the missing records read
            self._number = max(self._number, opened.number)
        self._changed.set()
        self._wake.set()

    async def _ask(self, worker: str, message: OpenSession | Release, timeout_s: float) -> Opened | Released | Refused:
        """Ask a worker, while it is alive. Raises ClusterError."""
        context = self._context
        asking: asyncio.Task[Opened | Released | Refused] = asyncio.create_task(
            context.bus.request(f"{WORKERS}.{worker}", message, Opened | Released | Refused, timeout_s=timeout_s)
        )
        try:
            while not (await asyncio.wait({asking}, timeout=RETRY_S))[0]:
                if context.workers.is_lost(worker, context.now_s()):
                    raise ClusterError(f"worker {worker} is silent")
            return asking.result()
        finally:
            asking.cancel()

    # What is sent to the worker.

    def _buffer_from(self, checkpoint: SessionCheckpoint) -> ReplayBuffer:
        start = checkpoint.start
        exact = (start.format, start.sample_rate, start.channels) == ("s16le", SAMPLE_RATE, 1)
        position = checkpoint.state.needed_from
        ring = ReplayBuffer(self.session, wide=not exact, position=position, command=checkpoint.command)
        ring.on_room = lambda: self.on_room()
        return ring

    def _command(self, what: str, **more: object) -> None:
        if what != "report" and self.ring.head < self._processed_before:
            return  # it took effect before the session came here
        command = SessionCommand(session=self.session, epoch=0, position=0, command=0, what=what, **more)  # type: ignore[arg-type]
        self.ring.put(command)
        self._wake.set()

    async def _send(self) -> None:
        bus = self._context.bus
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.worker and bus.connected and (item := self.ring.take(self.epoch)) is not None:
                await bus.publish(f"{WORKERS}.{self.worker}", item)


def first_frame(position: int, start: StreamStart) -> tuple[int, int]:
    """Return the frame at the client's rate from which to send audio again, and the position that it becomes.

    A resampler that begins there yields, from `position` on, the samples of one that began with the session: frames on
    the grid that both rates share become whole positions, and it begins early enough to be warm.
    """
    if start.sample_rate == SAMPLE_RATE:
        return position, position
    common = math.gcd(start.sample_rate, SAMPLE_RATE)
    n_steps = max(0, (position - WARM_SAMPLES) // (SAMPLE_RATE // common))
    return n_steps * (start.sample_rate // common), n_steps * (SAMPLE_RATE // common)


def _age(checkpoint: SessionCheckpoint) -> tuple[int, int, int]:
    return checkpoint.seq, checkpoint.state.received, checkpoint.command
