"""A session that this worker owns: audio and commands come in by position, events and checkpoints go out.

All events but partials are stored in the session's log before they are published. All of this runs on the event loop,
except `_on_event` and `_on_room`, which the engine's threads call.
"""

import asyncio
import contextlib
import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from streamer.after.postprocessing import PostProcessing
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session, ready_event, session_settings
from streamer.daemon.streams import MAX_WRITE_SAMPLES
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.runner import AudioKind
from streamer.errors import FencedError, SessionStateError, UsageError
from streamer.events import End, Error, Event, Final, Gap, Partial
from streamer.outside import one_line
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    GATEWAYS,
    VERSION,
    AudioBlock,
    OpenSession,
    Record,
    SessionCheckpoint,
    SessionCommand,
    SessionUpdate,
    unpack_samples,
)
from streamer.protocols.native import SessionOptions, StreamStart
from streamer.session.state import SessionState
from streamer.settings.table import Settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # between two updates of a session without events
CATCH_UP_S = 0.1  # the same while it is new here: its client waits for its progress
NEW_S = 5.0  # for which it is new, at most
RENEW_S = 30.0  # between two records of a session for which nothing arrives: another machine may own it by now


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What all sessions of a worker share."""

    worker: str
    bus: Bus
    log: SessionLog
    settings: Settings
    model: WhisperModel

    # See `WorkerAlive.model`.
    identity: str
    engine: Engine[EncodedWindow]
    enrichment: PostProcessing | None = None


class LogPosition(NamedTuple):
    """End of a session's log: epoch, number and sequence of its newest record."""

    epoch: int = 0
    number: int = 0
    sequence: int = 0


class WorkerState(enum.Enum):
    """State of a session at its worker."""

    RESTORING = "audio that another worker processed is still to arrive again"
    AT_WORK = "the engine serves it"
    LEFT = "it has ended, or was given away"
    FENCED = "another machine owns it, or is to"


class WorkerSession:
    """One session. `start` makes this worker its owner; it is over when it has ended, is released or fenced."""

    # Publishes what the session says, until it is over. Set by `start`.
    task: asyncio.Task[None]

    def __init__(
        self, context: WorkerContext, request: OpenSession, checkpoint: SessionCheckpoint, *, behind: LogPosition
    ) -> None:
        """Make a session that continues from a checkpoint, behind the end of its log.

        Raises SessionStateError if no worker can go on from it, ConfigError if the model cannot do what it asks for.
        """
        state, settings, model = checkpoint.state, context.settings, context.model
        _check_state(state, settings, model)
        self.session, self.gateway = request.session, request.gateway
        self.state = WorkerState.RESTORING
        self._context = context
        self._loop = asyncio.get_running_loop()
        # End of its log, with our epoch; when that record was stored; when anything arrived last.
        self._at = behind._replace(epoch=behind.epoch + 1)
        self._stored_s = self._came_s = self._loop.time()
        # The one that was published last.
        self.checkpoint = checkpoint
        # The client's options by the number of the command that set them; the first apply.
        self._starts: deque[tuple[int, StreamStart]] = deque([(checkpoint.command, checkpoint.start)])
        # End of the audio and number of the newest command that have arrived; whether something behind them is missing.
        self.head, self._command = state.needed_from, checkpoint.command
        self._missing = False
        # Audio, shape (n,), and commands that wait for room in the buffer.
        self._waiting: deque[Float32Array | SessionCommand] = deque()
        # It is new until this position is processed, or until this time.
        self._new_until = max(request.head - SAMPLE_RATE // 10, state.received + 1), self._loop.time() + NEW_S
        # Set when there may be something to publish; events to be published, oldest first.
        self._news = asyncio.Event()
        self._unpublished: deque[Event] = deque()
        self._events = EventLog(self.session, 1, after=checkpoint.seq)
        self._events.subscribe(self._on_event)
        self.runner = open_session(
            settings,
            model,
            self._events,
            SessionSource(kind=AudioKind.EITHER, options=checkpoint.start, state=state, live_from=request.head),
            enrichment=context.enrichment,
        )
        self.runner.ring.on_room = self._on_room
        if not checkpoint.seq:
            self._events.append(ready_event(model, self.runner.settings.language))

    @property
    def epoch(self) -> int:
        return self._at.epoch

    @property
    def number(self) -> int:
        """Of its newest record."""
        return self._at.number

    @property
    def over(self) -> bool:
        """Whether this worker no longer stores or publishes anything."""
        return self.state in (WorkerState.LEFT, WorkerState.FENCED)

    @property
    def n_replayed(self) -> int:
        """Samples that would have to be sent to another worker: few during silence."""
        return self.head - self.checkpoint.state.needed_from

    @property
    def ended(self) -> bool:
        """Whether its `end` has been published."""
        return self._events.closed

    async def start(self) -> None:
        """Become the owner, and set to work. Raises FencedError if another machine was faster."""
        await self._store((), self.checkpoint)
        self._go_on()
        self.task = asyncio.create_task(self._run())

    async def take(self, message: AudioBlock | SessionCommand) -> None:
        """Take the next audio or command. One that is known is dropped; if one is missing before it, that is reported.

        Raises ClusterMessageError if audio is malformed.
        """
        if self.over or message.epoch != self.epoch:
            return
        item: Float32Array | SessionCommand
        if isinstance(message, AudioBlock):
            samples = unpack_samples(message.data, wide=message.wide)
            is_next = message.position <= self.head and message.command <= self._command
            if is_next and message.position + len(samples) <= self.head:
                return
            item = samples[max(0, self.head - message.position) :]
            is_next &= self.head - self.runner.ring.head <= self.runner.ring.capacity_samples
        else:
            if message.command <= self._command:
                return
            is_next = message.position <= self.head and message.command == self._command + 1
            item = message
        if not is_next:
            if not self._missing:
                self._missing = True
                await self.report()
            return
        self._missing, self._came_s = False, self._loop.time()
        if isinstance(item, SessionCommand):
            self._command = item.command
        else:
            self.head += len(item)
        self._waiting.append(item)
        self._go_on()

    def leave(self, *, moves: bool = False) -> None:
        """Let go of it, for another worker (`moves`); else end it and its log: its client has left."""
        if moves:
            self.drop()
        elif not self.over:
            self.runner.close()
            self._events.close()

    async def stop(self, *, keep: bool = False) -> None:
        """Let go of it. Its events are stored; with `keep` its checkpoint as well.

        Raises FencedError if another machine owns it.
        """
        self.drop()
        await self.task
        if self.state is WorkerState.FENCED:
            raise FencedError("another worker owns the session by now")
        await self._publish(keep=keep)

    def drop(self, state: WorkerState = WorkerState.LEFT) -> None:
        """Stop transcribing it. Events that wait may still be published."""
        if self.over:
            return
        self.state = state
        self.runner.close()
        self.runner.ring.on_room = None
        self._waiting.clear()
        self._news.set()

    def _go_on(self) -> None:
        """Pass waiting audio and commands on, in order, as far as there is room."""
        runner = self.runner
        while self._waiting and not runner.over:
            item = self._waiting[0]
            if isinstance(item, SessionCommand):
                self._waiting.popleft()
                self._do(item)
                continue
            piece, rest = item[:MAX_WRITE_SAMPLES], item[MAX_WRITE_SAMPLES:]
            if runner.ring.free < len(piece):
                break
            self._waiting.popleft()
            if len(rest):
                self._waiting.appendleft(rest)
            runner.write(piece)
        if self.state is WorkerState.RESTORING and not runner.over and runner.restored:
            self.state = WorkerState.AT_WORK
            self._context.engine.add(runner)

    def _do(self, do: SessionCommand) -> None:
        """Have a command take effect at the end of the audio so far."""
        runner, number = self.runner, do.command
        match do.what:
            case "flush" | "pause" | "resume" | "clear" | "end":
                getattr(runner, do.what)(number)
            case "set":
                self._change(do.options or SessionOptions(), number)
            case "report":
                runner.mark(number, (Error(code=one_line(do.code), message=one_line(do.message), fatal=do.fatal),))
            case unknown:
                logger.warning("a gateway asks for %s, which this version does not know", one_line(unknown)[:60])
                runner.mark(number)

    def _change(self, options: SessionOptions, command: int) -> None:
        """Change the options, or publish why they cannot be."""
        chosen = {name: getattr(options, name) for name in SessionOptions.__struct_fields__}
        start = msgspec.structs.replace(self._starts[-1][1], **chosen)
        try:
            settings = session_settings(self._context.settings, self._context.model, start)
        except UsageError as error:
            self.runner.mark(command, (Error(code=error.code, message=one_line(error), fatal=False),))
            return
        self._starts.append((command, start))
        self.runner.change(settings, command)

    def _on_room(self) -> None:
        """Pass on what waits, as there is room in the buffer. Called by the engine's threads."""
        if self._waiting:
            self._call(self._go_on)

    def _on_event(self, event: Event) -> None:
        """Have an event published. Called by any thread."""
        self._unpublished.append(event)
        self._call(self._news.set)

    def _call(self, callback: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(callback)

    def _take_events(self) -> list[Event]:
        return [self._unpublished.popleft() for _ in range(len(self._unpublished))]

    async def _run(self) -> None:
        try:
            while not self.over:
                position, until_s = self._new_until
                is_new = self.checkpoint.state.received < position and self._loop.time() < until_s
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CATCH_UP_S if is_new else PROGRESS_S):
                        await self._news.wait()
                self._news.clear()
                if not self.over:
                    await self._publish()
        except FencedError as error:
            self.runner.logger.debug("%s", error)
            self.drop(WorkerState.FENCED)
        except Exception:
            self.runner.logger.exception("a session cannot be published: another worker is to take it over")
            self.drop(WorkerState.FENCED)
            await self.report(move="failing")

    async def _publish(self, *, keep: bool = False) -> None:
        """Store events that are not partials, then publish all new ones."""
        events, state = self.runner.snapshot(self._take_events)
        events = without_old_partials(events)
        while len(self._starts) > 1 and self._starts[1][0] <= state.mark:
            self._starts.popleft()
        checkpoint = SessionCheckpoint(
            version=VERSION,
            model=self._context.identity,
            start=self._starts[0][1],
            tenant=self.checkpoint.tenant,
            seq=events[-1].seq if events else self.checkpoint.seq,
            command=state.mark,
            state=state,
        )
        lasting = tuple(event.to_json() for event in events if not isinstance(event, Partial))
        stored = keep or bool(lasting) or self._must_renew()
        if stored:
            await self._store(lasting, checkpoint)
        self.checkpoint = checkpoint
        await self.report(tuple(event.to_json() for event in events), stored=stored)
        if events and isinstance(events[-1], End):
            self.drop()

    def _must_renew(self) -> bool:
        """Whether to store a record without events: the log would expire, or another machine may own the session."""
        now_s, within_s = self._loop.time(), self._context.settings.cluster.keep_s / 4
        return now_s - self._stored_s > within_s or now_s - max(self._stored_s, self._came_s) > RENEW_S

    async def _store(self, events: tuple[str, ...], checkpoint: SessionCheckpoint) -> None:
        record = Record(
            version=VERSION,
            epoch=self.epoch,
            worker=self._context.worker,
            gateway=self.gateway,
            number=self.number + 1,
            events=events,
            checkpoint=checkpoint,
        )
        sequence = await self._context.log.store(self.session, record, after=self._at.sequence)
        self._at = LogPosition(self.epoch, record.number, sequence)
        self._stored_s = self._loop.time()

    async def report(self, events: tuple[str, ...] = (), *, stored: bool = False, move: str = "") -> None:
        """Publish to its gateway how far it is, and with `move` that another worker is to take it."""
        update = SessionUpdate(
            session=self.session,
            worker=self._context.worker,
            epoch=self.epoch,
            number=self.number,
            stored=stored,
            events=events,
            checkpoint=self.checkpoint,
            head=self.head,
            command=self._command,
            missing=self._missing,
            move=move,
        )
        await self._context.bus.publish(f"{GATEWAYS}.{self.gateway}", update)


def without_old_partials(events: Sequence[Event]) -> list[Event]:
    """Return events without the partials that a later event replaces."""
    replaced, kept = False, list[Event]()
    for event in reversed(events):
        is_partial = isinstance(event, Partial)
        if not (is_partial and replaced):
            kept.append(event)
        replaced |= is_partial or isinstance(event, Final) or (isinstance(event, Gap) and event.reason == "cleared")
    return kept[::-1]


def newest(*candidates: tuple[int, SessionCheckpoint] | None) -> tuple[int, SessionCheckpoint]:
    """Return the newest of checkpoints, each with its epoch."""
    return max(
        filter(None, candidates), key=lambda each: (each[0], each[1].seq, each[1].state.received, each[1].state.mark)
    )


def _check_state(state: SessionState, settings: Settings, model: WhisperModel) -> None:
    """Raise SessionStateError if this model cannot continue from a state, or this buffer is too small for it."""
    state.check()
    text, n_vocab = state.transcript, model.dims.n_vocab
    words = (*text.stable.words, *text.tail.words, *text.trusted)
    if not all(0 <= token < n_vocab for word in words for token in word.tokens):
        raise SessionStateError(
            f"a session's state has tokens that {model.name} does not know: expected below {n_vocab}, from workers with"
            " the same model; the session goes on behind a gap"
        )
    n_samples, capacity_s = state.received - state.needed_from, settings.input.buffer_s
    if n_samples > capacity_s * SAMPLE_RATE:
        raise SessionStateError(
            f"a session needs {n_samples / SAMPLE_RATE:.0f} s of audio again: expected at most {capacity_s:g} s; let"
            " input.buffer_s be the same at all workers"
        )
