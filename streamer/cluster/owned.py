"""A session that this worker owns: audio and commands come in by position, events and checkpoints go out.

What settles is stored in the session's log before anybody is told of it. All of this runs on the event loop, but for
`_Journal.put` and `_on_room`, which the engine's threads call.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.cluster.bus import Bus
from streamer.cluster.log import SessionLog
from streamer.cluster.messages import (
    GATEWAYS,
    VERSION,
    Audio,
    Checkpoint,
    Do,
    Move,
    Open,
    Record,
    Released,
    Told,
    unpack_samples,
)
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.runner import AudioKind
from streamer.engine.state import SessionState
from streamer.errors import FencedError, SessionStateError, UsageError
from streamer.events import End, Error, Event, Final, Gap, Partial
from streamer.outside import one_line
from streamer.protocols.native import SessionOptions, StreamStart
from streamer.sessions.enrich import Enrichment
from streamer.sessions.sessions import SessionSource, open_session, ready_event, session_settings
from streamer.sessions.streams import MAX_WRITE_SAMPLES
from streamer.settings.table import Settings
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # a session that says nothing is told of so often
CATCH_UP_S = 0.1  # and at first, until it gets on: its client waits for that
NEW_S = 5.0  # for at most so long
LOOK_S = 30.0  # one for which nothing comes is stored again so often: another machine may own it by now


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What all sessions of a worker share."""

    worker: str
    bus: Bus
    log: SessionLog
    settings: Settings
    model: WhisperModel

    # What tells the model from others (see `WorkerAlive.model`).
    identity: str
    engine: Engine[EncodedWindow]
    enrichment: Enrichment | None = None


class Position(NamedTuple):
    """Where a session's log stands: epoch, number and sequence of its newest record."""

    epoch: int = 0
    number: int = 0
    sequence: int = 0


class Owned:
    """One session. `start` makes this worker its owner; it is over when it has ended, is released or fenced."""

    def __init__(
        self,
        place: Workplace,
        request: Open,
        checkpoint: Checkpoint,
        *,
        behind: Position,
        on_over: Callable[["Owned"], object],
    ) -> None:
        """Make a session that goes on from a checkpoint, and from where its log stands.

        Raises SessionStateError where nobody can go on from it, ConfigError where the model cannot do what it asks for.
        """
        state, settings, model = checkpoint.state, place.settings, place.model
        _check_state(state, settings, model)
        self.session, self.gateway, self.epoch = request.session, request.gateway, behind.epoch + 1
        self._place = place
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        # Whether nothing more is stored or told; whether that is because another machine owns it.
        self.over = False
        self.fenced = False
        # Of its records: number and sequence of the newest, and when that was stored; when something came last.
        self.number, self._sequence = behind.number, behind.sequence
        self._stored_s = self._came_s = self._loop.time()
        # What was told last of all that is needed to go on elsewhere.
        self.told = checkpoint
        # What the client has chosen, by the number of the command that it came with; the first is in force.
        self._starts: deque[tuple[int, StreamStart]] = deque([(checkpoint.command, checkpoint.start)])
        # End of the audio and number of the newest command that have come; whether some is missing behind these.
        self.head, self._command = state.needed_from, checkpoint.command
        self._missing = False
        # What waits for room in the buffer: audio, shape (n,), and commands.
        self._waiting: deque[Float32Array | Do] = deque()
        # When it has heard so much, it gets on.
        self._gets_on_at = max(request.head - SAMPLE_RATE // 10, state.heard + 1)
        self._opened_s = self._loop.time()
        # Whether the engine serves it: not before all audio is there that it has heard before.
        self.at_work = False
        # Set where there is something to publish.
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._journal = _Journal(lambda: self._call(self._news.set))
        self._events = EventLog(self.session, 1, after=checkpoint.seq)
        self._subscription = self._events.subscribe(self._journal.put)
        self.runner = open_session(
            settings,
            model,
            self._events,
            SessionSource(kind=AudioKind.EITHER, options=checkpoint.start, state=state, live_from=request.head),
            enrichment=place.enrichment,
        )
        self.runner.ring.on_room = self._on_room
        if not checkpoint.seq:
            self._events.append(ready_event(model, self.runner.settings.language))

    @property
    def n_replayed(self) -> int:
        """Samples that would have to be sent to another worker: few while nobody speaks."""
        return self.head - self.told.state.needed_from

    @property
    def ended(self) -> bool:
        """Whether nothing more will be said in it, here or elsewhere."""
        return self._events.closed

    async def start(self) -> None:
        """Become the owner, and set to work. Raises FencedError where another machine was faster."""
        await self._store((), self.told)
        self._go_on()
        self._task = asyncio.create_task(self._run())

    async def take(self, message: Audio | Do) -> None:
        """Take what comes next; what is known is dropped, and what has a hole before it is asked for.

        Raises ClusterMessageError where audio is none.
        """
        if self.over or message.epoch != self.epoch:
            return
        item: Float32Array | Do
        if isinstance(message, Audio):
            samples = unpack_samples(message.data, wide=message.wide)
            is_next = message.position <= self.head and message.command <= self._command
            if is_next and message.position + len(samples) <= self.head:
                return
            item = samples[max(0, self.head - message.position) :]
            is_next &= (
                sum(len(each) for each in self._waiting if not isinstance(each, Do))
                <= self.runner.ring.capacity_samples
            )
        else:
            if message.command <= self._command:
                return
            is_next = message.position <= self.head and message.command == self._command + 1
            item = message
        if not is_next:
            if not self._missing:
                self._missing = True
                await self._tell((), stored=False)
            return
        self._missing, self._came_s = False, self._loop.time()
        if isinstance(item, Do):
            self._command = item.command
        else:
            self.head += len(item)
        self._waiting.append(item)
        self._go_on()

    def leave(self) -> None:
        """Nobody wants it any more: transcribe no further, and end its log."""
        if not self.over:
            self.runner.close()
            self._events.close()

    async def release(self, *, keep: bool = False) -> Released:
        """Let go of it, and return it as it is then; all that it has said is stored, and with `keep` the rest too.

        Raises FencedError where another machine owns it.
        """
        self.drop()
        if self._task is not None:
            await self._task
        if self.fenced:
            raise FencedError("another worker owns the session by now")
        await self._publish(keep=keep)
        return Released(epoch=self.epoch, number=self.number, checkpoint=self.told)

    def drop(self) -> None:
        """Say and store nothing more of it, but what it has said."""
        if self.over:
            return
        self.over = True
        # In this order: what it says until it is closed is part of its state.
        self.runner.close()
        self._subscription.cancel()
        self.runner.ring.on_room = None
        self._waiting.clear()
        self._news.set()
        self._on_over(self)

    def _go_on(self) -> None:
        """Hand what waits to the session, in order, as far as there is room for it."""
        runner = self.runner
        while self._waiting and not runner.over:
            item = self._waiting[0]
            if isinstance(item, Do):
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
        if not self.at_work and not runner.over and runner.restored:
            self.at_work = True
            self._place.engine.add(runner)

    def _do(self, do: Do) -> None:
        """Have a command take effect where the audio has got to."""
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
        """Go on with other options, or say why that cannot be."""
        chosen = {name: getattr(options, name) for name in SessionOptions.__struct_fields__}
        start = msgspec.structs.replace(self._starts[-1][1], **chosen)
        try:
            settings = session_settings(self._place.settings, self._place.model, start)
        except UsageError as error:
            self.runner.mark(command, (Error(code=error.code, message=one_line(error), fatal=False),))
            return
        self._starts.append((command, start))
        self.runner.change(settings, command)

    def _on_room(self) -> None:
        """There is room in the buffer again: called by the engine's threads."""
        if self._waiting:
            self._call(self._go_on)

    def _call(self, callback: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to tell
            self._loop.call_soon_threadsafe(callback)

    async def _run(self) -> None:
        """Publish what the session says, until it is over."""
        try:
            while not self.over:
                is_new = self.told.state.heard < self._gets_on_at and self._loop.time() < self._opened_s + NEW_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CATCH_UP_S if is_new else PROGRESS_S):
                        await self._news.wait()
                self._news.clear()
                if not self.over:
                    await self._publish()
        except FencedError as error:
            self.fenced = True
            self.runner.logger.debug("%s", error)
            self.drop()
        except Exception:
            self.fenced = True
            self.runner.logger.exception("a session cannot be published: another worker is to go on with it")
            self.drop()
            await self._place.bus.publish(
                f"{GATEWAYS}.{self.gateway}", Move(session=self.session, epoch=self.epoch, why="failing")
            )

    async def _publish(self, *, keep: bool = False) -> None:
        """Store what has settled, and tell what is new."""
        events, state = self.runner.snapshot(self._journal.take)
        while len(self._starts) > 1 and self._starts[1][0] <= state.mark:
            self._starts.popleft()
        checkpoint = Checkpoint(
            version=VERSION,
            model=self._place.identity,
            start=self._starts[0][1],
            tenant=self.told.tenant,
            seq=events[-1].seq if events else self.told.seq,
            command=state.mark,
            state=state,
        )
        settled = tuple(event.to_json() for event in events if not isinstance(event, Partial))
        stored = keep or bool(settled) or self._must_renew()
        if stored:
            await self._store(settled, checkpoint)
        self.told = checkpoint
        await self._tell(tuple(event.to_json() for event in events), stored=stored)
        if events and isinstance(events[-1], End):
            self.drop()

    def _must_renew(self) -> bool:
        """Whether the log has to be written before it expires, or since nothing comes and others may have written."""
        now_s, within_s = self._loop.time(), self._place.settings.cluster.keep_s / 4
        return now_s - self._stored_s > within_s or now_s - max(self._stored_s, self._came_s) > LOOK_S

    async def _store(self, events: tuple[str, ...], checkpoint: Checkpoint) -> None:
        record = Record(
            version=VERSION,
            epoch=self.epoch,
            worker=self._place.worker,
            gateway=self.gateway,
            number=self.number + 1,
            events=events,
            checkpoint=checkpoint,
        )
        self._sequence = await self._place.log.store(self.session, record, after=self._sequence)
        self.number += 1
        self._stored_s = self._loop.time()

    async def _tell(self, events: tuple[str, ...], *, stored: bool) -> None:
        told = Told(
            session=self.session,
            epoch=self.epoch,
            number=self.number,
            stored=stored,
            events=events,
            checkpoint=self.told,
            head=self.head,
            command=self._command,
            missing=self._missing,
        )
        await self._place.bus.publish(f"{GATEWAYS}.{self.gateway}", told)


class _Journal:
    """Events of a session that wait to be stored and told. Any thread may call any method."""

    def __init__(self, on_news: Callable[[], object]) -> None:
        self._on_news = on_news
        # Oldest first. Of partials there is one at most, the newest, and none that a final has settled.
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Partial | Final) or (isinstance(event, Gap) and event.reason == "cleared"):
                self._events = [waiting for waiting in self._events if not isinstance(waiting, Partial)]
            self._events.append(event)
        self._on_news()

    def take(self) -> list[Event]:
        with self._lock:
            events, self._events = self._events, []
            return events


def newest(*candidates: tuple[int, Checkpoint] | None) -> tuple[int, Checkpoint]:
    """Return the newest of checkpoints, each with the epoch that it is of."""
    return max(
        filter(None, candidates), key=lambda each: (each[0], each[1].seq, each[1].state.heard, each[1].state.mark)
    )


def _check_state(state: SessionState, settings: Settings, model: WhisperModel) -> None:
    """Raise SessionStateError where this model, with this buffer, cannot go on from a state."""
    state.check()
    text, n_vocab = state.transcript, model.dims.n_vocab
    words = (*text.stable.words, *text.tail.words, *text.trusted)
    if not all(0 <= token < n_vocab for word in words for token in word.tokens):
        raise SessionStateError(
            f"a session's state has tokens that {model.name} does not know: expected below {n_vocab}, from workers with"
            " the same model; the session goes on behind a gap"
        )
    n_samples, capacity_s = state.heard - state.needed_from, settings.input.buffer_s
    if n_samples > capacity_s * SAMPLE_RATE:
        raise SessionStateError(
            f"a session needs {n_samples / SAMPLE_RATE:.0f} s of audio again: expected at most {capacity_s:g} s; let"
            " input.buffer_s be the same at all workers"
        )
