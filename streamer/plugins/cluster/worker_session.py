"""A session that this worker owns: audio and commands come in by position, events and checkpoints go out.

All events but partials are stored in the session's log before they are published. All of this runs on the event loop,
except `_on_event` and `_on_room`, which the engine's threads call.
"""

import asyncio
import contextlib
import enum
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from streamer.after.postprocessing import PostProcessing
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session, ready_event
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.errors import FencedError, SessionStateError
from streamer.events import End, Event, Final, Gap, Partial
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.intake import Intake
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    GATEWAYS,
    AudioBlock,
    OpenSession,
    Record,
    SessionCheckpoint,
    SessionCommand,
    SessionUpdate,
)
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.session.state import SessionState
from streamer.settings.table import Settings
from streamer.setup.session import session_settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # between two updates of a session without events
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


class WorkerState(enum.Enum):
    """State of a session at its worker."""

    OWNED = "this worker transcribes it"
    LEFT = "it has ended, or was given away"
    FENCED = "another machine owns it, or is to"


class WorkerSession:
    """One session. `start` makes this worker its owner; it is over when it has ended, is released or fenced."""

    # Publishes what the session says, until it is over. Set by `start`.
    task: asyncio.Task[None]

    def __init__(
        self,
        context: WorkerContext,
        request: OpenSession,
        checkpoint: SessionCheckpoint,
        *,
        epoch: int,
        sequence: int,
    ) -> None:
        """Make a session that continues from a checkpoint, with an epoch; `sequence` is that of its newest record.

        Raises SessionStateError if no worker can go on from it, ConfigError if the model cannot do what it asks for.
        """
        state, settings, model = checkpoint.state, context.settings, context.model
        _check_state(state, settings, model)
        self.session, self.gateway = request.session, request.gateway
        self.state = WorkerState.OWNED
        self._context = context
        self._loop = asyncio.get_running_loop()
        # Sequence of its newest record, and when that was stored.
        self.epoch, self.sequence = epoch, sequence
        self._stored_s = self._loop.time()
        # The one that was published last.
        self.checkpoint = checkpoint
        # Set when there may be something to publish; events to be published, oldest first.
        self._news = asyncio.Event()
        self._unpublished: deque[Event] = deque()
        self._events = EventLog(self.session, 1, after=checkpoint.seq)
        self._events.subscribe(self._on_event)
        self.live = open_session(
            settings,
            model,
            self._events,
            SessionSource(kind=AudioKind.EITHER, options=checkpoint.start, state=state, live_from=request.head),
            enrichment=context.enrichment,
        )
        self.intake = Intake(self.live, checkpoint, partial(session_settings, settings, model), context.engine.add)
        if not checkpoint.seq:
            self._events.append(ready_event(model, self.live.settings.language, context.enrichment))

    @property
    def over(self) -> bool:
        """Whether this worker no longer stores or publishes anything."""
        return self.state is not WorkerState.OWNED

    @property
    def n_replayed(self) -> int:
        """Samples that would have to be sent to another worker: few during silence."""
        return self.intake.head - self.checkpoint.state.needed_from

    @property
    def ended(self) -> bool:
        """Whether its `end` has been published."""
        return self._events.closed

    async def start(self) -> None:
        """Become the owner, and set to work. Raises FencedError if another machine was faster."""
        await self._store((), self.checkpoint)
        self.intake.pass_on()
        self.task = asyncio.create_task(self._run())

    async def take(self, message: AudioBlock | SessionCommand) -> None:
        """Take the next audio or command. Raises ClusterMessageError if audio is malformed."""
        if not self.over and message.epoch == self.epoch and self.intake.take(message):
            await self.report()

    def leave(self, *, moves: bool = False) -> None:
        """Let go of it, for another worker (`moves`); else end it and its log: its client has left."""
        if moves:
            self.drop()
        elif not self.over:
            self.live.close()
            self._events.close()

    async def stop(self, *, keep: bool = False) -> None:
        """Let go of it. Its events are stored; with `keep` its checkpoint as well.

        Raises FencedError if another machine owns it.
        """
        self.drop()
        await self.task
        if self.state is WorkerState.FENCED:
            raise FencedError("another worker owns the session now")
        await self._publish(keep=keep)

    def drop(self, state: WorkerState = WorkerState.LEFT) -> None:
        """Stop transcribing it. Events that wait may still be published."""
        if self.over:
            return
        self.state = state
        self.intake.close()
        self._news.set()

    def _on_event(self, event: Event) -> None:
        """Have an event published. Called by any thread."""
        self._unpublished.append(event)
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._news.set)

    def _take_events(self) -> list[Event]:
        return [self._unpublished.popleft() for _ in range(len(self._unpublished))]

    async def _run(self) -> None:
        try:
            while not self.over:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PROGRESS_S):
                        await self._news.wait()
                self._news.clear()
                if not self.over:
                    await self._publish()
        except FencedError as error:
            self.live.logger.debug("%s", error)
            self.drop(WorkerState.FENCED)
        except Exception:
            self.live.logger.exception("a session cannot be published: another worker is to take it over")
            self.drop(WorkerState.FENCED)
            await self.report(move="failing")

    async def _publish(self, *, keep: bool = False) -> None:
        """Store events that are not partials, then publish all new ones."""
        events, state = self.live.snapshot(self._take_events)
        events = without_old_partials(events)
        checkpoint = SessionCheckpoint(
            model=self._context.identity,
            start=self.intake.start_at(state.mark),
            tenant=self.checkpoint.tenant,
            seq=events[-1].seq if events else self.checkpoint.seq,
            command=state.mark,
            state=state,
        )
        lasting = tuple(event.to_json() for event in events if not isinstance(event, Partial))
        previous = self.sequence
        if keep or lasting or self._must_renew():
            await self._store(lasting, checkpoint)
        self.checkpoint = checkpoint
        await self.report(tuple(event.to_json() for event in events), previous=previous)
        if events and isinstance(events[-1], End):
            self.drop()

    def _must_renew(self) -> bool:
        """Whether to store a record without events: the log would expire, or another machine may own the session."""
        now_s, within_s = self._loop.time(), self._context.settings.of(ClusterSettings).keep_s / 4
        return now_s - self._stored_s > within_s or now_s - max(self._stored_s, self.intake.came_s) > RENEW_S

    async def _store(self, events: tuple[str, ...], checkpoint: SessionCheckpoint) -> None:
        record = Record(
            epoch=self.epoch,
            worker=self._context.worker,
            gateway=self.gateway,
            events=events,
            checkpoint=checkpoint,
        )
        self.sequence = await self._context.log.store(self.session, record, after=self.sequence)
        self._stored_s = self._loop.time()

    async def report(self, events: tuple[str, ...] = (), *, previous: int | None = None, move: str = "") -> None:
        """Publish to its gateway how far it is, and with `move` that another worker is to take it.

        previous : sequence of the newest record before these events; None: no record holds them
        """
        update = SessionUpdate(
            session=self.session,
            worker=self._context.worker,
            epoch=self.epoch,
            previous=self.sequence if previous is None else previous,
            sequence=self.sequence,
            events=events,
            checkpoint=self.checkpoint,
            head=self.intake.head,
            command=self.intake.command,
            missing=self.intake.missing,
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
    text, n_vocab = state.text, model.dims.n_vocab
    before = text.search.before.words if text.search.before is not None else ()
    words = (*text.stable.words, *text.tail.words, *text.trusted, *before)
    if not all(0 <= token < n_vocab for word in words for token in word.tokens):
        raise SessionStateError(
            f"the session's state has tokens that {model.name} does not know: expected numbers below {n_vocab}, from a"
            " worker with the same model; the session continues behind a gap"
        )
    n_samples, capacity_s = state.received - state.needed_from, settings.input.buffer_s
    if n_samples > capacity_s * SAMPLE_RATE:
        raise SessionStateError(
            f"the session needs {n_samples / SAMPLE_RATE:.0f} s of audio again, the buffer holds {capacity_s:g} s: set"
            " input.buffer_s to the same value on all workers"
        )
