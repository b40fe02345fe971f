"""A session that this worker owns: audio and commands come in by position, events and checkpoints go out.

What settles is stored in the session's log before it is published. All of this runs on the event loop, except
`_on_event` and `_on_room`, which the engine's threads call.
"""

import asyncio
import contextlib
import dataclasses
import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
from streamer.sessions.sessions import open_session, ready_event, session_settings
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
    """Position of a session's log: epoch, number and sequence of its newest record."""

    epoch: int = 0
    number: int = 0
    sequence: int = 0


class State(enum.Enum):
    """Of a session at its worker."""

    RESTORING = "audio that another worker had processed is still to come again"
    AT_WORK = "the engine serves it"
    LEFT = "it has ended, or was given away"
    FENCED = "another machine owns it, or is to"


class Owned:
    """One session. `start` makes this worker its owner; it is over when it has ended, is released or fenced."""

    # Publishes what the session says, until it is over. Set by `start`.
    task: asyncio.Task[None]

    def __init__(self, place: Workplace, request: Open, checkpoint: Checkpoint, *, behind: Position) -> None:
        """Make a session that goes on from a checkpoint, and from where its log ends.

        Raises SessionStateError if no worker can go on from it, ConfigError if the model cannot do what it asks for.
        """
        state, settings, model = checkpoint.state, place.settings, place.model
        _check_state(state, settings, model)
        self.session, self.gateway = request.session, request.gateway
        self.state = State.RESTORING
        self._place = place
        self._loop = asyncio.get_running_loop()
        # Of its newest record, with our epoch; when that was stored; when something came last.
        self._at = behind._replace(epoch=behind.epoch + 1)
        self._stored_s = self._came_s = self._loop.time()
        # What was published last of all that is needed to go on elsewhere.
        self.checkpoint = checkpoint
        # What the client has chosen, by the number of the command that it came with; the first is in force.
        self._starts: deque[tuple[int, StreamStart]] = deque([(checkpoint.command, checkpoint.start)])
        # End of the audio and number of the newest command that have come; whether some is missing behind these.
        self.head, self._command = state.needed_from, checkpoint.command
        self._missing = False
        # What waits for room in the buffer: audio, shape (n,), and commands.
        self._waiting: deque[Float32Array | Do] = deque()
        # It is new until it has processed that much, or until then.
        self._new_until = max(request.head - SAMPLE_RATE // 10, state.heard + 1), self._loop.time() + NEW_S
        # Set when there may be something to publish; events that are to be, oldest first.
        self._news = asyncio.Event()
        self._unpublished: deque[Event] = deque()
        self._events = EventLog(self.session, 1, after=checkpoint.seq)
        self._events.subscribe(self._on_event)
        self.runner = open_session(
            settings,
            model,
            self._events,
            options=checkpoint.start,
            kind=AudioKind.EITHER,
            on_finished=self._events.close,
            enrichment=place.enrichment,
            state=state,
            live_from=request.head,
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
        """Whether nothing more is stored or published here."""
        return self.state in (State.LEFT, State.FENCED)

    @property
    def n_replayed(self) -> int:
        """Samples that would have to be sent to another worker: few while nobody speaks."""
        return self.head - self.checkpoint.state.needed_from

    @property
    def ended(self) -> bool:
        """Whether nothing more will be said in it, here or elsewhere."""
        return self._events.closed

    async def start(self) -> None:
        """Become the owner, and set to work. Raises FencedError if another machine was faster."""
        await self._store((), self.checkpoint)
        self._go_on()
        self.task = asyncio.create_task(self._run())

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
                await self.report()
            return
        self._missing, self._came_s = False, self._loop.time()
        if isinstance(item, Do):
            self._command = item.command
        else:
            self.head += len(item)
        self._waiting.append(item)
        self._go_on()

    def leave(self) -> None:
        """Transcribe no further, since no client wants it, and end its log."""
        if not self.over:
            self.runner.close()
            self._events.close()

    async def release(self, *, keep: bool = False) -> Released:
        """Let go of it, and return it as it is then; all that it has said is stored, and with `keep` the rest too.

        Raises FencedError if another machine owns it.
        """
        self.drop()
        await self.task
        if self.state is State.FENCED:
            raise FencedError("another worker owns the session by now")
        await self._publish(keep=keep)
        return Released(epoch=self.epoch, number=self.number, checkpoint=self.checkpoint)

    def drop(self, state: State = State.LEFT) -> None:
        """Publish and store nothing more of it, except what it has said."""
        if self.over:
            return
        self.state = state
        self.runner.close()
        self.runner.ring.on_room = None
        self._waiting.clear()
        self._news.set()

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
        if self.state is State.RESTORING and not runner.over and runner.restored:
            self.state = State.AT_WORK
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
        names = [field.name for field in dataclasses.fields(SessionOptions)]
        start = dataclasses.replace(self._starts[-1][1], **{name: getattr(options, name) for name in names})
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

    def _on_event(self, event: Event) -> None:
        """The session has said something: called by any thread."""
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
                heard, until_s = self._new_until
                is_new = self.checkpoint.state.heard < heard and self._loop.time() < until_s
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CATCH_UP_S if is_new else PROGRESS_S):
                        await self._news.wait()
                self._news.clear()
                if not self.over:
                    await self._publish()
        except FencedError as error:
            self.runner.logger.debug("%s", error)
            self.drop(State.FENCED)
        except Exception:
            self.runner.logger.exception("a session cannot be published: another worker is to go on with it")
            self.drop(State.FENCED)
            await self.report(move="failing")

    async def _publish(self, *, keep: bool = False) -> None:
        """Store what has settled, and publish what is new."""
        events, state = self.runner.snapshot(self._take_events)
        events = without_old_partials(events)
        while len(self._starts) > 1 and self._starts[1][0] <= state.mark:
            self._starts.popleft()
        checkpoint = Checkpoint(
            version=VERSION,
            model=self._place.identity,
            start=self._starts[0][1],
            tenant=self.checkpoint.tenant,
            seq=events[-1].seq if events else self.checkpoint.seq,
            command=state.mark,
            state=state,
        )
        settled = tuple(event.to_json() for event in events if not isinstance(event, Partial))
        stored = keep or bool(settled) or self._must_renew()
        if stored:
            await self._store(settled, checkpoint)
        self.checkpoint = checkpoint
        await self.report(tuple(event.to_json() for event in events), stored=stored)
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
        sequence = await self._place.log.store(self.session, record, after=self._at.sequence)
        self._at = Position(self.epoch, record.number, sequence)
        self._stored_s = self._loop.time()

    async def report(self, events: tuple[str, ...] = (), *, stored: bool = False, move: str = "") -> None:
        """Publish to its gateway how far it is, and with `move` that another worker is to take it."""
        told = Told(
            session=self.session,
            worker=self._place.worker,
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
        await self._place.bus.publish(f"{GATEWAYS}.{self.gateway}", told)


def without_old_partials(events: Sequence[Event]) -> list[Event]:
    """Return events without the partials that a later event replaces."""
    replaced, kept = False, list[Event]()
    for event in reversed(events):
        is_partial = isinstance(event, Partial)
        if not (is_partial and replaced):
            kept.append(event)
        replaced |= is_partial or isinstance(event, Final) or (isinstance(event, Gap) and event.reason == "cleared")
    return kept[::-1]


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
