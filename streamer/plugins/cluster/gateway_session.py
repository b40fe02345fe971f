"""A client's session at its gateway: which worker has it, what comes back from there, and how it moves.

There is one way to move a session: a worker with room takes it over from the newest checkpoint, which fences the one
that had it; and the audio and commands that the checkpoint does not have are sent again. All of this runs on one event
loop.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from streamer.engine.eventlog import EventLog
from streamer.errors import BusyError, ClusterError, StreamerError, UnknownSessionError
from streamer.events import Error, from_json
from streamer.outside import one_line
from streamer.plugins.cluster.asking import FINAL, GatewayContext, ask, offer
from streamer.plugins.cluster.gateway_stream import GatewayStream
from streamer.plugins.cluster.messages import WORKERS, Leave, Opened, OpenSession, SessionCheckpoint, SessionUpdate
from streamer.plugins.cluster.metrics import REASONS
from streamer.plugins.cluster.progress import WAIT_S, WorkerProgress

logger = logging.getLogger(__name__)

RETRY_S = 0.2  # between two rounds of asking workers
MAX_ASKED = 4  # workers in a round
OTHER_MODEL_S = 5.0  # for which a session waits for a worker with its model; then any takes it over, behind a gap

MAX_UPDATES = 1000  # that may wait to be processed; the log has what is dropped


class GatewayState(enum.Enum):
    """State of a session at its gateway."""

    OPENING = "no worker has owned it for this gateway yet"
    SERVED = "a worker transcribes it"
    MOVING = "another worker is asked to take it over"
    CLOSED = "this gateway no longer has anything to do with it"


class GatewaySession:
    """A session at a worker. `open` or `take_over` finds one; from then on one task, `_run`, does all that waits.

    It processes updates, reads from the log what is missing, and moves the session if it must.
    """

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
        self._context = context
        self.feed = feed
        self.logger = logging.LoggerAdapter(logger, {"session": feed.session})
        self.state = GatewayState.OPENING
        # The newest one known; its owner's epoch, and the sequence of the newest record known.
        self.checkpoint = checkpoint
        self.epoch = epoch
        self._sequence = 0
        # What the client sends.
        self.stream = GatewayStream(context.bus, feed, checkpoint, self.abandon, self.is_here)
        self._on_gone = on_gone
        self._updates: deque[SessionUpdate] = deque(maxlen=MAX_UPDATES)
        self._progress = WorkerProgress(context.now_s())
        # Why it is to move; empty if it is not.
        self._why = ""
        # Set when there may be something for `_run` to do.
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def closed(self) -> bool:
        return self.state is GatewayState.CLOSED

    async def open(self) -> None:
        """Have a worker begin the session. Raises BusyError if none has room, ConfigError, ProtocolError, ..."""
        context = self._context
        reason = await self._ask(context.workers.choose(context.now_s(), model=None), must=False)
        if reason is not None:
            raise reason

    async def take_over(self, owner: str, since_s: float, timeout_s: float) -> None:
        """Have a worker continue it for this gateway, its owner if possible. Raises BusyError if none does in time."""
        self._progress.stall = "resumed", since_s
        self._context.on_move("resumed")
        try:
            async with asyncio.timeout(timeout_s):
                await self._find_worker(owner=owner)
        except TimeoutError:
            raise BusyError("no worker has taken over the session yet: try again in a moment") from None

    async def read_log(self, seq: int) -> bool:
        """Process the records with events behind a number; return whether the log could be read."""
        try:
            records = await self._context.log.read(self.feed.session, seq=seq)
        except ClusterError as error:
            self.logger.debug("the log cannot be read for now: %s", one_line(error))
            return False
        for record, sequence in records:
            self._sequence = max(self._sequence, sequence)
            _publish(self.feed, record.events)
            if record.epoch == self.epoch:
                self._keep(record.checkpoint)
        return True

    async def is_here(self) -> bool:
        """Whether this gateway has it; leave it if another has: the worker that wrote its newest record names that."""
        try:
            last = await self._context.log.last(self.feed.session) if self._context.bus.connected else None
        except ClusterError:
            last = None
        if last is not None and last.record.epoch > self.epoch:
            if last.record.gateway == self._context.gateway:
                self.epoch = last.record.epoch  # a worker opened it for us after we had stopped waiting
            else:
                self.abandon()
                text = "the session continues at another gateway, where a client has resumed it: start a new one"
                self.feed.append(Error(code=UnknownSessionError.code, message=text, fatal=True))
                self.feed.close()
        return not self.closed

    def abandon(self) -> None:
        """Leave it: its client has left, or is at another gateway."""
        self.close()
        self._on_gone(self)

    def close(self) -> None:
        """Stop serving it. Its worker keeps it."""
        self.state = GatewayState.CLOSED
        self.stream.send_to("", 0)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def take_update(self, update: SessionUpdate) -> None:
        """Take what its worker reports."""
        self._updates.append(update)
        self._changed.set()

    def resend(self) -> None:
        """Send again what has not arrived at the worker, as far as is known."""
        self._progress.resent_s = self._context.now_s()
        self.stream.rewind(*self._progress.arrived)

    def watch(self, now_s: float, *, whole: bool, stalled: bool) -> None:
        """Move it if its worker is lost, silent or slow, and warn the client, once, if none has served it for long.

        whole : else this gateway may be cut off itself
        stalled : whether this process was stopped, and messages wait to be read
        """
        if not whole:
            self._progress.excuse(now_s)
        elif self.state is GatewayState.SERVED:
            lost = self._context.workers.is_lost(self.stream.worker, now_s)
            if why := "lost" if lost else self._progress.fault(self.stream.ring.head, now_s):
                self._must_move(why)
        if self._why or self._updates:
            self._changed.set()
        if stalled or self.state is GatewayState.OPENING or self.feed.closed or not self._progress.must_warn(now_s):
            return
        self.logger.warning("no worker has reported on the session for %g s", WAIT_S)
        text = f"no worker has been available for {WAIT_S:g} s: audio is kept, and its text follows when one is back"
        self.feed.notify(Error(code="waiting", message=text, fatal=False))

    async def _run(self) -> None:
        """Do what has to be done, again and again. What fails is tried again: `watch` calls for that."""
        while not self.closed:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._process_updates()
                if self._why and not self.feed.closed:
                    await self._move()
                    await self._process_updates()
            except Exception:
                self.logger.exception("an update is left out, or a move is tried again")

    async def _process_updates(self) -> None:
        """Process updates in order; records missing before one are read from the log."""
        while self._updates and not self.closed:
            update = self._updates[0]
            if update.epoch == self.epoch and self._sequence < update.previous:
                if not await self.read_log(self.feed.last_seq):
                    return
                self._sequence = max(self._sequence, update.previous)  # records that the log no longer has never come
                continue
            self._updates.popleft()
            if update.epoch == self.epoch:
                self._process(update)

    def _process(self, update: SessionUpdate) -> None:
        now_s, ring, progress = self._context.now_s(), self.stream.ring, self._progress
        progress.note(update, ring.head, now_s)
        self._sequence = max(self._sequence, update.sequence)
        _publish(self.feed, update.events)
        self._keep(update.checkpoint)
        if (stall := progress.ended_stall(update, ring.head)) is not None:
            self._context.on_stall(stall[0], now_s - stall[1])
        if update.move:
            self._must_move(update.move)
        if progress.must_resend(update.missing, ring.sent, now_s):
            self.resend()

    def _keep(self, checkpoint: SessionCheckpoint) -> None:
        """Keep a checkpoint that is newer, and drop the audio and commands that it makes needless."""
        if _age(checkpoint) < _age(self.checkpoint):
            return
        self.checkpoint = checkpoint
        self.stream.ring.release(checkpoint.state.needed_from, checkpoint.state.received, checkpoint.command)
        if checkpoint.command >= self.stream.newest_set:
            self.stream.options = checkpoint.start  # as its worker applies them, and no newer ones are on their way

    def _must_move(self, why: str) -> None:
        """Have another worker take it over, unless one is being asked already."""
        if self.state is GatewayState.SERVED and not self.feed.closed:
            self._why = why if why == "lost" else self._why or why
            self._changed.set()

    async def _move(self) -> None:
        """Have another worker take it over. A drain waits until there is one; `watch` has it tried again."""
        context, old, why = self._context, self.stream.worker, self._why
        now_s = context.now_s()
        another = partial(context.workers.another, now_s, model=self.checkpoint.model, than=old)
        if why == "drain" and not another(room=False) and not context.workers.is_lost(old, now_s):
            return
        self._why = ""
        if why in ("load", "failing", "slow") and not another(room=True):
            return
        self.state = GatewayState.MOVING
        try:
            if not await self.is_here():
                return
            if why == "silent" and self._progress.fault(self.stream.ring.head, context.now_s()) != why:
                return  # NATS was silent, not the worker
            reason = why if why in REASONS else "failing"  # a worker of another version may give another
            self._progress.stall = reason, self._progress.reported_s
            context.on_move(reason)
            leave = Leave(session=self.feed.session, epoch=self.epoch, moves=True)
            await context.bus.publish(f"{WORKERS}.{old}", leave)
            self.stream.send_to("", 0)
            await self._find_worker(old=old)
            if self.stream.worker:
                self.logger.info("the session moved from %s to %s (%s)", old, self.stream.worker, reason)
        finally:
            if not self.closed:
                self.state = GatewayState.SERVED

    async def _find_worker(self, *, owner: str = "", old: str = "") -> None:
        """Ask until a worker takes it over: its owner, else one with room, then any other, then the old one as well."""
        context = self._context
        began_s, logged = context.now_s(), ""
        if owner and await self._ask([owner], must=True) is None:
            return
        while not self.closed:
            waited_s = context.now_s() - began_s
            model = self.checkpoint.model if waited_s < OTHER_MODEL_S else None
            for avoid, must in (([old], False), ([old], True), ([], True)):
                reason = await self._ask(context.workers.choose(context.now_s(), model=model, avoid=avoid), must=must)
                if reason is None:
                    return
            if str(reason) != logged and waited_s > 1.0:
                logged = str(reason)
                self.logger.warning("the session waits for a worker: %s", logged)
            await asyncio.sleep(RETRY_S)
            await self.is_here()

    async def _ask(self, workers: Sequence[str], *, must: bool) -> StreamerError | None:
        """Ask some workers to own it, one after the other; return why none does, None if one does."""
        context = self._context
        reason: StreamerError = BusyError(
            "no worker is available: start one with `streamer worker --nats URL`, or try again in a moment"
        )
        for worker in workers[:MAX_ASKED]:
            request = OpenSession(
                session=self.feed.session,
                gateway=context.gateway,
                checkpoint=offer(self.checkpoint, context.workers.model(worker), is_new=not self.epoch),
                epoch=self.epoch,
                seen=self.feed.last_seq,
                head=max(self.stream.ring.head, self.checkpoint.state.received),
                must=must,
            )
            try:
                self._begin_at(worker, await ask(context, worker, request))
            except StreamerError as error:
                reason = error
            else:
                return None
            if isinstance(reason, UnknownSessionError) and self.epoch:
                await self.read_log(self.feed.last_seq)
                if self.feed.closed:  # it ended before its worker was lost
                    return None
            if isinstance(reason, FINAL) and not self.epoch:
                return reason
        return reason

    def _begin_at(self, worker: str, opened: Opened) -> None:
        """Note that a worker owns it from now on, and send what that does not have."""
        checkpoint, stream = opened.checkpoint, self.stream
        self.epoch, self.checkpoint = opened.epoch, checkpoint
        self.logger.info("worker %s has the session (epoch %d)", worker, opened.epoch)
        self._progress.begin(checkpoint, self._context.now_s())
        if self.state is GatewayState.OPENING:
            self.state = GatewayState.SERVED
            stream.begin(checkpoint)
            self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(stream.run())]
        if checkpoint.state.needed_from < stream.ring.first:
            self.logger.error("a worker needs audio again that is no longer kept")
        stream.ring.release(checkpoint.state.needed_from, checkpoint.state.received, checkpoint.command)
        stream.send_to(worker, opened.epoch)
        stream.rewind(*self._progress.arrived)
        if self._sequence >= opened.previous:  # else the first update has the missing records read
            self._sequence = max(self._sequence, opened.sequence)
        self._changed.set()


def _age(checkpoint: SessionCheckpoint) -> tuple[int, int, int]:
    return checkpoint.seq, checkpoint.state.received, checkpoint.command


def _publish(feed: EventLog, events: Collection[str]) -> None:
    for text in events:
        try:
            feed.put(from_json(text))
        except StreamerError as error:
            logger.warning("an event of a worker is left out: %s", one_line(error), extra={"session": feed.session})
