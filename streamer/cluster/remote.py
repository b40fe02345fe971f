"""A session as its gateway has it: what goes to the worker that owns it, what comes back, and how it moves.

There is one way to move it: its owner lets it go, where it lives; a worker that has room takes it, from the newest
checkpoint; and what that does not have is sent again. All of this runs on one event loop.
"""

import asyncio
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
from streamer.cluster.log import SessionLog, UnreadableRecordError
from streamer.cluster.messages import (
    VERSION,
    WORKERS,
    Checkpoint,
    Do,
    Leave,
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

# What a worker says of a session while it is known that another will follow; the log has what is dropped.
MAX_TOLD = 1000

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


class Remote:
    """A session at a worker: to `sessions.streams.ClientStream` what the daemon's own is. No call of it waits.

    `open` or `take_up` finds it an owner; then it moves by itself where that is needed, until it is closed.
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

        epoch : of its newest record, where it is not new
        on_lost : called when it goes on at another gateway
        """
        self._cluster = cluster
        self.feed = feed
        self.session = feed.session
        self.logger = logging.LoggerAdapter(logger, {"session": feed.session})
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
        # Records up to this sequence of the log are not read again: one of them cannot be.
        self._unreadable = 0
        # Up to where what comes was heard before: commands there have taken effect, and audio before `ring.first` is
        # there to warm the resampler.
        self._heard_before = 0
        self._n_warming = 0
        self._begun = self.closed = False
        # Number of the newest `set`.
        self._set = 0
        # What the worker told that waits: for a hole before it to be filled, or for its answer that it is the owner.
        self._told: deque[Told] = deque(maxlen=MAX_TOLD)
        self._opening = False
        # When the worker told of the session last, when it had got on, and when anything was sent again.
        self._told_s = self._advanced_s = self._resent_s = cluster.now_s()
        self._progress = (0, 0)
        self._advanced = 0
        # How far it had audio and commands when it told last, and since when.
        self._came, self._came_s = (0, 0), cluster.now_s()
        # When a worker told of it last, whatever excuses there are; whether its client knows that this was long ago.
        self._served_s = cluster.now_s()
        self._wait_told = False
        # Why it moves or moved, and since when nothing was told; None when it goes on.
        self._stall: tuple[str, float] | None = None
        # Set when there may be something to send.
        self._wake = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._filling: asyncio.Task[None] | None = None

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

    def close(self, *, leave: bool) -> None:
        """Have nothing to do with it any more; with `leave` nobody has."""
        if self.closed:
            return
        self.closed = True
        for task in (self._sending, self._moving, self._filling):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if leave and self.worker and not self.feed.closed:
            farewell = Leave(session=self.session, epoch=self.epoch)
            _keep_task(asyncio.create_task(self._cluster.bus.publish(f"{WORKERS}.{self.worker}", farewell)))
        self.worker = ""

    # How it gets to a worker.

    async def open(self) -> None:
        """Have a worker begin the session. Raises BusyError where none has room, ConfigError, ProtocolError, ..."""
        reason = await self._ask_around(avoid=(), must=False, model=None)
        if reason is not None:
            raise reason

    async def catch_up(self, seq: int) -> None:
        """Take in what its log has behind an event's number, where it comes from another gateway."""
        while not await self._read_log(seq):
            await asyncio.sleep(RETRY_S)

    async def take_up(self, since_s: float, timeout_s: float) -> None:
        """Have a worker go on with it. Raises BusyError where none does within `timeout_s`."""
        self._stall = "resumed", since_s
        self._cluster.on_move("resumed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._find_owner("")
        except TimeoutError:
            raise BusyError("no worker goes on with the session for now: try again in a moment") from None

    def move(self, why: str) -> None:
        """Have another worker go on with it; nothing where that is under way."""
        if self._moving is None and not self.closed and not self.feed.closed:
            self._moving = asyncio.create_task(self._move(why))

    def watch(self, now_s: float) -> None:
        """Move it where its worker is lost, says nothing of it, or does not get on while another could."""
        if not self.worker or self._moving is not None or self._opening or self.feed.closed:
            return
        workers, ring = self._cluster.workers, self.ring
        if workers.is_lost(self.worker, now_s):
            self.move("lost")
        elif now_s - self._told_s > SILENT_S:
            self.move("silent")
        elif now_s - self._told_s > QUIET_S:
            pass  # while NATS stores nothing, nobody tells how far he is: to move it would take the longer
        elif now_s - self._advanced_s > STUCK_S and ring.head - self._advanced > SLOW_SAMPLES:
            self.move("slow")

    def excuse(self, now_s: float) -> None:
        """Take it that its worker could not be heard until now, as nobody could."""
        self._told_s = self._advanced_s = now_s

    def tell_wait(self, now_s: float) -> None:
        """Tell the client, once, that no worker has served it for long."""
        if self._wait_told or not self._begun or self.feed.closed or now_s - self._served_s < WAIT_S:
            return
        self._wait_told = True
        self.logger.warning("no worker has said anything of the session for %g s", WAIT_S)
        text = f"no worker has transcribed for {WAIT_S:g} s: the audio is kept, and its text comes when one is there"
        self.feed.notify(Error(code="waiting", message=text, fatal=False))

    def resend(self) -> None:
        """Send again what the worker, as far as is known, does not have."""
        self._resent_s = self._cluster.now_s()
        self.ring.rewind(*self._came)
        self._wake.set()

    async def is_elsewhere(self) -> bool:
        """Whether another gateway has had it moved: then who wrote the log last was asked by that."""
        try:
            last = await self._cluster.log.last(self.session)
        except ClusterError:
            return False
        if last is None or last.record.epoch <= self.epoch:
            return False
        if last.record.gateway != self._cluster.gateway:
            return True
        self.epoch = last.record.epoch  # it was opened for us, when we waited no longer: who follows comes behind that
        return False

    def lose(self) -> None:
        """Leave it to another gateway, and say so to whom is still here."""
        self.close(leave=False)
        text = "the session goes on at another gateway, where somebody came with its name: begin another"
        self.feed.append(Error(code=UnknownSessionError.code, message=text, fatal=True))
        self.feed.close()
        self._on_lost()

    # What the worker says.

    def told(self, told: Told) -> None:
        """Take what a worker tells of it."""
        self._told.append(told)
        self._take_told()

    def _take_told(self) -> None:
        while self._told and self._filling is None and not self.closed:
            told = self._told[0]
            if self._opening:
                if told.epoch > self.epoch:
                    return  # the answer that it is the owner is on its way
                # The next owner begins behind the numbers that were seen: what it does not know is not heard of.
            elif told.epoch == self.epoch:
                if self._number < told.number - told.stored:
                    self._filling = asyncio.create_task(self._fill(told.number - told.stored))
                    return
                self._heed(told)
            self._told.popleft()

    def _heed(self, told: Told) -> None:
        now_s = self._told_s = self._served_s = self._cluster.now_s()
        self._wait_told = False
        self._number = max(self._number, told.number)
        self._put(told.events)
        self._note(told.checkpoint)
        heard = told.checkpoint.state.heard
        read = told.checkpoint.state.read
        keeps_pace = read - self._advanced >= LEAST_PACE * SAMPLE_RATE * (now_s - self._advanced_s)
        if keeps_pace or self.ring.head - read <= SLOW_SAMPLES:
            self._advanced, self._advanced_s = read, now_s
        if (told.checkpoint.seq, heard) != self._progress:
            self._progress = told.checkpoint.seq, heard
            self._end_stall(now_s)
        elif heard >= self.ring.head - SAMPLE_RATE // 10:
            self._end_stall(now_s)
        if (told.head, told.command) != self._came:
            self._came, self._came_s = (told.head, told.command), now_s
        waited_s = now_s - max(self._resent_s, 0.0 if told.missing else self._came_s)
        if waited_s > (RETRY_S if told.missing else RESEND_S) and self._came < self.ring.sent:
            self.resend()

    def _end_stall(self, now_s: float) -> None:
        if self._stall is not None:
            (why, since_s), self._stall = self._stall, None
            self._cluster.on_stall(why, now_s - since_s)

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

    async def _fill(self, number: int) -> None:
        """Read from the log what was not heard of, up to a record's number at least; then take what waits."""
        try:
            await self.catch_up(self.feed.last_seq)
        finally:
            self._filling = None
        self._number = max(self._number, number)  # what is not there any more cannot be waited for
        self._take_told()

    async def _read_log(self, seq: int) -> bool:
        """Take in the records that tell of events behind a number; return whether all could be read."""
        try:
            records = await self._cluster.log.read(self.session, after=self._unreadable, seq=seq)
        except UnreadableRecordError as error:
            self.logger.warning("a record of the session is left out: %s", one_line(error))
            self._unreadable = max(self._unreadable, error.sequence)
            return False
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

    async def _move(self, why: str) -> None:
        cluster, old = self._cluster, self.worker
        try:
            if why in ("load", "failing", "slow") and not self._another(old, room=True):
                return
            if await self.is_elsewhere():
                self.lose()
                return
            if why == "silent" and cluster.now_s() - self._told_s < SILENT_S:
                return  # it was NATS that was silent
            while why == "drain" and not self._another(old) and not cluster.workers.is_lost(old, cluster.now_s()):
                await asyncio.sleep(RETRY_S)  # nobody loses by that: it still transcribes
            reason = why if why in REASONS else "failing"  # a worker of another version may say something else
            if why != "lost":
                await self.release_from(old)
            self._stall = reason, self._told_s
            self.worker = ""
            cluster.on_move(reason)
            await self._find_owner(old)
            if self.worker:
                self.logger.info("the session moved from %s to %s (%s)", old, self.worker, reason)
        except Exception:
            self.logger.exception("a session could not be moved: it is tried again")
            self.worker = old
        finally:
            self._moving = None
        self._take_told()

    def _another(self, worker: str, *, room: bool = False) -> bool:
        """Whether there is another worker that could go on with it."""
        workers, now_s = self._cluster.workers, self._cluster.now_s()
        return workers.another(now_s, model=self.checkpoint.model, than=worker, room=room)

    async def release_from(self, worker: str) -> None:
        """Have a worker let it go, and note how it was then. Who does not answer is fenced when it is opened."""
        try:
            request = Release(session=self.session, gateway=self._cluster.gateway)
            answer = await self._ask(worker, request, RELEASE_S)
        except ClusterError as error:
            self.logger.debug("%s does not let the session go: %s", worker, one_line(error))
            return
        if isinstance(answer, Released) and answer.epoch >= self.epoch:
            self.epoch = answer.epoch
            self._told_s = self._cluster.now_s()
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
        self._opening = True
        try:
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
        finally:
            self._opening = False
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
        state = opened.checkpoint.state
        self.worker, self.epoch, self.checkpoint = worker, opened.epoch, opened.checkpoint
        self.logger.info("worker %s has the session (epoch %d)", worker, opened.epoch)
        self._told_s = self._advanced_s = self._resent_s = self._served_s = self._cluster.now_s()
        self._progress, self._advanced = (opened.checkpoint.seq, state.heard), state.read
        self._came, self._came_s = (state.needed_from, opened.checkpoint.command), self._told_s
        if not self._begun:
            self._begun = True
            self.ring, self._heard_before = self._kept_from(opened.checkpoint), state.heard
            self._sending = asyncio.create_task(self._send())
        if state.needed_from < self.ring.first:
            self.logger.error("a worker wants audio again that is not kept any more")
        self.ring.release(state.needed_from, state.heard, opened.checkpoint.command)
        self.ring.rewind(*self._came)
        if self._filling is None and self._number < opened.number - 1:
            self._filling = asyncio.create_task(self._fill(opened.number))
        elif self._filling is None:
            self._number = max(self._number, opened.number)
        self._wake.set()
        asyncio.get_running_loop().call_soon(self._take_told)

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


# Messages on their way, which nobody waits for.
_tasks: set[asyncio.Task[None]] = set()


def _keep_task(task: asyncio.Task[None]) -> None:
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
