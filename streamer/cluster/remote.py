"""A session as its gateway has it: what goes to the worker that owns it, what comes back, and how it moves.

There is one way to move it: its owner lets it go, where it lives; a worker that has room takes it, from the newest
checkpoint; and what that does not have is sent again. All of this runs on one event loop.
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
from streamer.audio.constants import SAMPLE_RATE
from streamer.cluster.bus import Bus
from streamer.cluster.kept import Kept
from streamer.cluster.log import SessionLog
from streamer.cluster.messages import (
    VERSION,
    WORKERS,
    Checkpoint,
    Do,
    Open,
    Opened,
    Refused,
    Release,
    Released,
    Told,
)
from streamer.cluster.metrics import REASONS
from streamer.cluster.placement import Workers
from streamer.engine.eventlog import EventLog
from streamer.engine.state import SessionState
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
from streamer.protocols.native import SessionOptions, StreamStart

logger = logging.getLogger(__name__)

RELEASE_S = 2.0  # that a worker has to let a session go; then it is opened elsewhere all the same, which fences it
OPEN_S = 6.0  # that it has to take one: a little longer than it gives itself
RETRY_S = 0.2  # from one round of asking to the next, where nobody takes a session
MAX_ASKED = 4  # workers in a round
OTHER_MODEL_S = 5.0  # so long a session waits for a worker with its model; then any takes it, behind a gap

# A worker is left, where another has room, that is so far behind, and so long gets on at less than this share of the
# pace of speech.
SLOW_SAMPLES = 2 * SAMPLE_RATE
STUCK_S = 5.0
LEAST_PACE = 0.5

QUIET_S = 2.0  # within which a worker tells of each session, where NATS stores
SILENT_S = 10.0  # and one that says nothing of it: longer than NATS takes to choose a leader, when nothing is stored
RESEND_S = 2.0  # what has not come to the worker by then is sent again
WAIT_S = 5.0  # a client is told when no worker has said anything of its session for so long

# Of another rate's audio this much comes before what is needed, so that a resampler that begins anew sounds the same.
WARM_SAMPLES = SAMPLE_RATE // 4

# Reports of a session that may wait to be taken in; the log has what is dropped.
MAX_REPORTS = 1000

# Refusals that another worker would repeat.
_FINAL = (ConfigError.code, ProtocolError.code, ModelError.code)
_ERRORS = {cls.code: cls for cls in (BusyError, ConfigError, ModelError, ProtocolError, SessionStateError)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What all sessions of a gateway share."""

    gateway: str
    bus: Bus
    log: SessionLog
    workers: Workers

    # Told why a session moves; and of each stall, in seconds.
    on_move: Callable[[str], None] = lambda why: None
    on_stall: Callable[[str, float], None] = lambda why, stall_s: None

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()


class State(enum.Enum):
    """Of a session at its gateway."""

    OPENING = "no worker has had it for this gateway yet"
    SERVED = "a worker transcribes it"
    MOVING = "another worker is asked to go on with it"
    CLOSED = "this gateway has nothing to do with it any longer"


class Progress:
    """How far a session's worker is known to be, and since when. No I/O; times are the loop's, in seconds."""

    def __init__(self, now_s: float) -> None:
        # When the worker reported last, or could not be expected to; when it reported, or its client was warned.
        self.reported_s = self._served_s = now_s
        # Up to where it had transcribed, and when it last kept pace with that.
        self._read, self._kept_pace_s = 0, now_s
        # The audio and the command that had come to it, and since when; when anything was sent again.
        self.came = (0, 0)
        self._came_s = self.resent_s = now_s
        # Why the session moved, and when its old worker reported last; None as soon as the new one gets on.
        self.stall: tuple[str, float] | None = None
        # Number of the newest event, and what was heard, when the worker took the session.
        self._began = (0, 0)

    def begin(self, checkpoint: Checkpoint, now_s: float) -> None:
        """Note that a worker goes on from a checkpoint."""
        state = checkpoint.state
        self.reported_s = self._kept_pace_s = self._came_s = self.resent_s = now_s
        self._began, self._read = (checkpoint.seq, state.heard), state.read
        self.came = state.needed_from, checkpoint.command

    def take(self, told: Told, head: int, now_s: float) -> None:
        """Note what a worker reports; `head` is the end of the audio that there is."""
        self.reported_s = self._served_s = now_s
        state = told.checkpoint.state
        keeps_pace = state.read - self._read >= LEAST_PACE * SAMPLE_RATE * (now_s - self._kept_pace_s)
        if keeps_pace or head - state.read <= SLOW_SAMPLES:
            self._read, self._kept_pace_s = state.read, now_s
        if (told.head, told.command) != self.came:
            self.came, self._came_s = (told.head, told.command), now_s

    def gets_on(self, told: Told, head: int) -> bool:
        """Whether a worker has done something since it took the session, or has nothing left to do."""
        heard = told.checkpoint.state.heard
        return (told.checkpoint.seq, heard) != self._began or heard >= head - SAMPLE_RATE // 10

    def excuse(self, now_s: float) -> None:
        """Expect nothing before now: no worker could be heard."""
        self.reported_s = self._kept_pace_s = now_s

    def fault(self, head: int, now_s: float) -> str:
        """Return why another worker should go on with the session; empty if this one should."""
        silent_s = now_s - self.reported_s
        if silent_s > SILENT_S:
            return "silent"
        # While NATS stores nothing, no worker reports how far it is: to move the session would take longer.
        is_slow = now_s - self._kept_pace_s > STUCK_S and head - self._read > SLOW_SAMPLES
        return "slow" if is_slow and silent_s <= QUIET_S else ""

    def is_lossy(self, missing: bool, sent: tuple[int, int], now_s: float) -> bool:
        """Whether what was sent did not come, as far as is known, and has to be sent again."""
        waited_s = now_s - max(self.resent_s, 0.0 if missing else self._came_s)
        return waited_s > (RETRY_S if missing else RESEND_S) and self.came < sent

    def must_warn(self, now_s: float) -> bool:
        """Whether the client is to be warned that no worker serves it: once, until one does again."""
        if now_s - self._served_s < WAIT_S:
            return False
        self._served_s = math.inf
        return True


class Remote:
    """A session at a worker: to `sessions.streams.ClientStream` what the daemon's own is. No call of a client waits.

    `open` or `take_up` finds a worker. From then on one task, `_run`, brings it to where it should be: it takes in what
    the worker reports, fills holes from the log, and moves the session if that is needed. Another, `_send`, sends.
    """

    def __init__(
        self,
        cluster: Cluster,
        feed: EventLog,
        checkpoint: Checkpoint,
        *,
        epoch: int = 0,
        on_lost: Callable[[], None],
    ) -> None:
        """Make a session that is at no worker yet; its events come in `feed`.

        epoch : of its newest record, if it is not new
        on_lost : called when it goes on at another gateway
        """
        self._cluster = cluster
        self.feed = feed
        self.logger = logging.LoggerAdapter(logger, {"session": feed.session})
        self.state = State.OPENING
        # The newest that is known.
        self.checkpoint = checkpoint
        self.ring = self._kept_from(checkpoint)
        # What the client has chosen, as its worker knows; called when that is known, while nothing newer is on its way.
        self.on_options: Callable[[SessionOptions], object] = lambda options: None
        self._on_lost = on_lost
        # The owner, empty while there is none; its epoch, and number of the newest record that is known.
        self.worker = ""
        self.epoch = epoch
        self._number = 0
        # Up to where what comes was heard before: commands there have taken effect, and audio before `ring.first` is
        # there to warm the resampler.
        self._heard_before = 0
        self._n_warming = 0
        # Number of the newest `set`.
        self._set = 0
        # What the worker has reported and is not taken in yet.
        self._reports: deque[Told] = deque(maxlen=MAX_REPORTS)
        self._progress = Progress(cluster.now_s())
        # Why it is to move; empty: it is not.
        self._why = ""
        # Set when there may be something to do, and something to send.
        self._changed, self._wake = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def session(self) -> str:
        return self.feed.session

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    # What the client's stream does.

    def write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono, shape (n,)."""
        n_warming = min(self._n_warming, len(samples))
        self._n_warming -= n_warming
        self.ring.write(samples[n_warming:])
        self._wake.set()

    def flush(self) -> None:
        self._do("flush")

    def pause(self) -> None:
        self._do("pause")

    def resume(self) -> None:
        self._do("resume")

    def clear(self) -> None:
        self._do("clear")

    def end(self) -> None:
        # A worker waits for all that was heard before: what the client does not send again is silence.
        self.ring.write(np.zeros(max(0, self._heard_before - self.ring.head), np.float32))
        self._do("end")

    def change(self, options: SessionOptions) -> None:
        self._do("set", options=options)
        self._set = self.ring.command

    def report(self, error: Error) -> None:
        self._do("report", code=error.code, message=error.message, fatal=error.fatal)

    def close(self) -> None:
        """Have nothing to do with it any longer. Its worker goes on with it."""
        if self.closed:
            return
        self.state = State.CLOSED
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.worker = ""

    # How it gets to a worker.

    async def open(self) -> None:
        """Have a worker begin the session. Raises BusyError if none has room, ConfigError, ProtocolError, ..."""
        reason = await self._ask_around(avoid=(), must=False, model=None)
        if reason is not None:
            raise reason

    async def catch_up(self, seq: int) -> None:
        """Take in what its log has behind an event's number, if it comes from another gateway."""
        while not await self._read_log(seq):
            await asyncio.sleep(RETRY_S)

    async def take_up(self, since_s: float, timeout_s: float) -> None:
        """Have a worker go on with it. Raises BusyError if none does within `timeout_s`."""
        self._progress.stall = "resumed", since_s
        self._cluster.on_move("resumed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._find_owner("")
        except TimeoutError:
            raise BusyError("no worker goes on with the session for now: try again in a moment") from None

    def move(self, why: str) -> None:
        """Have another worker go on with it; nothing if that is under way."""
        if self.state is State.SERVED and not self.feed.closed:
            self._why = why if why == "lost" else self._why or why
            self._changed.set()

    def watch(self, now_s: float, *, whole: bool) -> None:
        """Move it if its worker is lost, reports nothing, or does not get on; unless it may be this gateway that is cut
        off: not `whole`."""
        if not whole:
            self._progress.excuse(now_s)
        elif self.state is State.SERVED:
            lost = self._cluster.workers.is_lost(self.worker, now_s)
            if why := "lost" if lost else self._progress.fault(self.ring.head, now_s):
                self.move(why)
        if self._why or self._reports:
            self._changed.set()

    def warn_of_wait(self, now_s: float) -> None:
        """Inform the client, once, if no worker has served it for long."""
        if self.state is State.OPENING or self.feed.closed or not self._progress.must_warn(now_s):
            return
        self.logger.warning("no worker has said anything of the session for %g s", WAIT_S)
        text = f"no worker has transcribed for {WAIT_S:g} s: the audio is kept, and its text comes when one is there"
        self.feed.notify(Error(code="waiting", message=text, fatal=False))

    def resend(self) -> None:
        """Send again what the worker, as far as is known, does not have."""
        self._progress.resent_s = self._cluster.now_s()
        self.ring.rewind(*self._progress.came)
        self._wake.set()

    async def is_elsewhere(self) -> bool:
        """Whether another gateway has had it moved: then it was that one which asked who wrote the log last."""
        try:
            last = await self._cluster.log.last(self.session)
        except ClusterError:
            return False
        if last is None or last.record.epoch <= self.epoch:
            return False
        if last.record.gateway != self._cluster.gateway:
            return True
        self.epoch = last.record.epoch  # it was opened for us after we had stopped waiting: the next one comes behind
        return False

    def lose(self) -> None:
        """Leave it to another gateway, and inform the client that is still here."""
        self.close()
        text = "the session goes on at another gateway, where somebody came with its name: begin another"
        self.feed.append(Error(code=UnknownSessionError.code, message=text, fatal=True))
        self.feed.close()
        self._on_lost()

    # What the worker reports.

    def told(self, told: Told) -> None:
        """Take what a worker reports of it."""
        self._reports.append(told)
        self._changed.set()

    async def _run(self) -> None:
        while not self.closed:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._reconcile()
            except Exception:
                self.logger.exception("a report of a worker is left out, or a move is tried again")

    async def _reconcile(self) -> None:
        """Do what there is to do: nothing that fails is lost, `watch` has it tried again."""
        await self._take_reports()
        if self._why and not self.feed.closed:
            await self._move()
            await self._take_reports()

    async def _take_reports(self) -> None:
        """Take in what was reported, in order; what is missing before is read from the log."""
        while self._reports and not self.closed:
            told = self._reports[0]
            n_before = told.number - told.stored
            if told.epoch == self.epoch and self._number < n_before:
                if not await self._read_log(self.feed.last_seq):
                    return
                self._number = max(self._number, n_before)  # what is no longer there cannot be waited for
                continue
            self._reports.popleft()
            if told.epoch == self.epoch:
                self._take_report(told)

    def _take_report(self, told: Told) -> None:
        now_s, head, progress = self._cluster.now_s(), self.ring.head, self._progress
        progress.take(told, head, now_s)
        self._number = max(self._number, told.number)
        self._put(told.events)
        self._note(told.checkpoint)
        if progress.stall is not None and progress.gets_on(told, head):
            (why, since_s), progress.stall = progress.stall, None
            self._cluster.on_stall(why, now_s - since_s)
        if told.move:
            self.move(told.move)
        if progress.is_lossy(told.missing, self.ring.sent, now_s):
            self.resend()

    def _put(self, events: Collection[str]) -> None:
        for text in events:
            try:
                event = from_json(text)
            except StreamerError as error:
                self.logger.warning("an event of a worker is left out: %s", one_line(error))
                continue
            self.feed.put(event)

    def _note(self, checkpoint: Checkpoint) -> None:
        """Keep the newest checkpoint, and forget what it makes needless."""
        if _age(checkpoint) < _age(self.checkpoint):
            return
        self.checkpoint = checkpoint
        self.ring.release(checkpoint.state.needed_from, checkpoint.state.heard, checkpoint.command)
        if checkpoint.command >= self._set:
            self.on_options(checkpoint.start)

    async def _read_log(self, seq: int) -> bool:
        """Take in the records with events behind a number; return whether the log could be read."""
        try:
            records = await self._cluster.log.read(self.session, seq=seq)
        except ClusterError as error:
            self.logger.debug("the log cannot be read for now: %s", one_line(error))
            return False
        for record, _ in records:
            self._number = max(self._number, record.number)
            self._put(record.events)
            if record.epoch == self.epoch:
                self._note(record.checkpoint)
        return True

    # How it moves.

    async def _move(self) -> None:
        """Have another worker go on with it, if there is one; if there may be one later, `watch` has it tried again."""
        cluster, old, why = self._cluster, self.worker, self._why
        if why == "drain" and not self._another(old) and not cluster.workers.is_lost(old, cluster.now_s()):
            return  # nothing is lost by that: it still transcribes
        self._why = ""
        if why in ("load", "failing", "slow") and not self._another(old, room=True):
            return
        self.state = State.MOVING
        try:
            if await self.is_elsewhere():
                self.lose()
                return
            if why == "silent" and self._progress.fault(self.ring.head, cluster.now_s()) != why:
                return  # it was NATS that was silent
            reason = why if why in REASONS else "failing"  # a worker of another version may give another
            if why != "lost":
                await self.release_from(old)
            self._progress.stall = reason, self._progress.reported_s
            self.worker = ""
            cluster.on_move(reason)
            await self._find_owner(old)
            if self.worker:
                self.logger.info("the session moved from %s to %s (%s)", old, self.worker, reason)
        except Exception:
            self.worker = old
            raise
        finally:
            if not self.closed:
                self.state = State.SERVED

    def _another(self, worker: str, *, room: bool = False) -> bool:
        """Whether there is another worker that could go on with it."""
        workers, now_s = self._cluster.workers, self._cluster.now_s()
        return workers.another(now_s, model=self.checkpoint.model, than=worker, room=room)

    async def release_from(self, worker: str) -> None:
        """Have a worker let it go, and note how it was then. One that does not answer is fenced by the next."""
        try:
            request = Release(session=self.session, gateway=self._cluster.gateway)
            answer = await self._ask(worker, request, RELEASE_S)
        except ClusterError as error:
            self.logger.debug("%s does not let the session go: %s", worker, one_line(error))
            return
        if isinstance(answer, Released) and answer.epoch >= self.epoch:
            await self._take_reports()
            self.epoch = answer.epoch
            self._progress.reported_s = self._cluster.now_s()
            self._note(answer.checkpoint)

    async def _find_owner(self, old: str) -> None:
        """Ask until a worker goes on with it: one with room, then any, then the old one, too."""
        began_s, said = self._cluster.now_s(), ""
        while not self.closed:
            for avoid, must in (([old], False), ([old], True), ([], True)):
                waited = self._cluster.now_s() - began_s > OTHER_MODEL_S
                model = None if waited else self.checkpoint.model
                reason = await self._ask_around(avoid=avoid, must=must, model=model)
                if reason is None:
                    return
            if str(reason) != said and self._cluster.now_s() - began_s > 1.0:
                said = str(reason)
                self.logger.warning("the session waits for a worker: %s", said)
            await asyncio.sleep(RETRY_S)
            if await self.is_elsewhere():
                self.lose()

    async def _ask_around(self, *, avoid: Collection[str], must: bool, model: str | None) -> StreamerError | None:
        """Ask some workers to own it, one after the other; return why none does, None where one does."""
        cluster = self._cluster
        workers = cluster.workers.choose(cluster.now_s(), model=model, avoid=avoid)[:MAX_ASKED]
        reason: StreamerError = BusyError(
            "no worker takes sessions now: start one with `streamer worker --nats URL`, or try again in a moment"
        )
        for worker in workers:
            request = Open(
                session=self.session,
                gateway=cluster.gateway,
                checkpoint=self._offer(cluster.workers.model(worker)),
                epoch=self.epoch,
                seen=self.feed.last_seq,
                head=max(self.ring.head, self.checkpoint.state.heard),
                must=must,
            )
            try:
                answer = await self._ask(worker, request, OPEN_S)
            except ClusterError as error:
                reason = BusyError(f"no worker takes the session for now: {one_line(error)}")
                continue
            if isinstance(answer, Opened):
                self._own(worker, answer)
                return None
            refusal = answer if isinstance(answer, Refused) else Refused(code="", message="it says something else")
            reason = _ERRORS.get(refusal.code, BusyError)(f"{one_line(refusal.message):.500}")
            if refusal.code == UnknownSessionError.code and self.epoch:
                await self._read_log(self.feed.last_seq)
                if self.feed.closed:  # it ended before its worker was lost
                    return None
            if refusal.code in _FINAL and not self.epoch:
                return reason
        return reason

    def _offer(self, model: str) -> Checkpoint:
        """Return the checkpoint for a worker with a model: where it is another, the session goes on behind a gap."""
        known = self.checkpoint
        if not self.epoch or (known.version, known.model) == (VERSION, model):
            return msgspec.structs.replace(known, version=VERSION, model=model)
        state = known.state
        behind = SessionState.behind_loss(state.published_until, state.heard, state.transcript.segment, mark=state.mark)
        paused_from = None if state.paused_from is None else behind.needed_from
        behind = msgspec.structs.replace(behind, paused_from=paused_from, ended=state.ended)
        return msgspec.structs.replace(known, version=VERSION, model=model, state=behind)

    def _own(self, worker: str, opened: Opened) -> None:
        """A worker owns it from now on."""
        checkpoint = opened.checkpoint
        self.worker, self.epoch, self.checkpoint = worker, opened.epoch, checkpoint
        self.logger.info("worker %s has the session (epoch %d)", worker, opened.epoch)
        self._progress.begin(checkpoint, self._cluster.now_s())
        if self.state is State.OPENING:
            self.state = State.SERVED
            self.ring, self._heard_before = self._kept_from(checkpoint), checkpoint.state.heard
            self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._send())]
        if checkpoint.state.needed_from < self.ring.first:
            self.logger.error("a worker wants audio again that is not kept any more")
        self.ring.release(checkpoint.state.needed_from, checkpoint.state.heard, checkpoint.command)
        self.ring.rewind(*self._progress.came)
        if self._number >= opened.number - 1:  # else the first report has the hole filled
            self._number = max(self._number, opened.number)
        self._changed.set()
        self._wake.set()

    async def _ask(self, worker: str, message: Open | Release, timeout_s: float) -> Opened | Released | Refused:
        """Ask a worker, no longer than it is heard. Raises ClusterError."""
        cluster = self._cluster
        asking: asyncio.Task[Opened | Released | Refused] = asyncio.create_task(
            cluster.bus.request(f"{WORKERS}.{worker}", message, Opened | Released | Refused, timeout_s=timeout_s)
        )
        try:
            while not (await asyncio.wait({asking}, timeout=RETRY_S))[0]:
                if cluster.workers.is_lost(worker, cluster.now_s()):
                    raise ClusterError(f"worker {worker} is silent")
            return asking.result()
        finally:
            asking.cancel()

    # What goes there.

    def warm_up(self, n_samples: int) -> None:
        """The first samples that come are there to warm the resampler."""
        self._n_warming = n_samples

    def _kept_from(self, checkpoint: Checkpoint) -> Kept:
        start = checkpoint.start
        exact = (start.format, start.sample_rate, start.channels) == ("s16le", SAMPLE_RATE, 1)
        return Kept(self.session, wide=not exact, position=checkpoint.state.needed_from, command=checkpoint.command)

    def _do(self, what: str, **more: object) -> None:
        if what != "report" and self.ring.head < self._heard_before:
            return  # it took effect where the session was before
        self.ring.put(Do(session=self.session, epoch=0, position=0, command=0, what=what, **more))  # type: ignore[arg-type]
        self._wake.set()

    async def _send(self) -> None:
        bus = self._cluster.bus
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.worker and bus.connected and (item := self.ring.take(self.epoch)) is not None:
                await bus.publish(f"{WORKERS}.{self.worker}", item)


def first_frame(position: int, start: StreamStart) -> tuple[int, int]:
    """Return the frame at the client's own rate from which audio is to come again, and the position that it becomes.

    A resampler that begins there yields from `position` on what one does that has heard all: frames on the grid that
    both rates share become whole positions, and it begins early enough to be warm.
    """
    if start.sample_rate == SAMPLE_RATE:
        return position, position
    common = math.gcd(start.sample_rate, SAMPLE_RATE)
    n_steps = max(0, (position - WARM_SAMPLES) // (SAMPLE_RATE // common))
    return n_steps * (start.sample_rate // common), n_steps * (SAMPLE_RATE // common)


def _age(checkpoint: Checkpoint) -> tuple[int, int, int]:
    return checkpoint.seq, checkpoint.state.heard, checkpoint.command
