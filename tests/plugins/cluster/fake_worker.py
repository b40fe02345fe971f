"""A worker that transcribes nothing: of each tenth of a second it says a checksum. It keeps to the protocol in full."""

import asyncio
import dataclasses
import zlib

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.errors import BusyError, FencedError
from streamer.events import End, Error, Event, Final, Flushed, Partial, seconds
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    ALIVE_WORKERS,
    BEAT_S,
    GATEWAYS,
    VERSION,
    WORKERS,
    AudioBlock,
    Leave,
    Message,
    Opened,
    OpenSession,
    Record,
    Refused,
    SessionCheckpoint,
    SessionCommand,
    SessionUpdate,
    ToWorker,
    WorkerAlive,
    decoded,
    unpack_samples,
)
from streamer.session.state import SessionState
from streamer.session.windows import OpenSpeech
from tests.wire.support import final, partial, ready

SEGMENT_SAMPLES = 1600
MODEL = "nano.en 1"


def text_of(samples: Float32Array) -> str:
    return f"{zlib.crc32(np.rint(samples * 32768).astype('<i2').tobytes()):08x}"


def texts_of(samples: Float32Array) -> list[str]:
    """Return what finals say of a whole session's audio, shape (n,)."""
    return [text_of(samples[i : i + SEGMENT_SAMPLES]) for i in range(0, len(samples), SEGMENT_SAMPLES)]


@dataclasses.dataclass
class FakeSession:
    name: str
    gateway: str
    epoch: int
    sequence: int
    checkpoint: SessionCheckpoint
    head: int
    command: int
    segment: int

    # Audio from `first` on, which is where the next segment begins.
    first: int
    audio: Float32Array = dataclasses.field(default_factory=lambda: np.empty(0, np.float32))
    missing: bool = False


class FakeWorker:
    """Takes sessions of gateways until it is killed, or asks for them to move."""

    def __init__(self, bus: Bus, log: SessionLog, name: str, *, model: str = MODEL, room: bool = True) -> None:
        self.bus, self.log, self.name, self.model, self.room = bus, log, name, model, room
        self.draining = False
        # Code with which it refuses, empty: it does not.
        self.refusal = ""
        # Whether it has stopped as a process does with SIGSTOP; whether it takes audio in, and does nothing with it.
        self.stopped = self.idle = False
        self.sessions: dict[str, FakeSession] = {}
        # All audio that was received of each session, by position; all commands that took effect.
        self.received: dict[str, dict[int, Float32Array]] = {}
        self.done: list[SessionCommand] = []
        self.left: list[str] = []
        self.moved: list[str] = []
        self.n_fenced = 0
        self._waiting: list[tuple[bytes, Reply]] = []

    async def start(self) -> "FakeWorker":
        await self.bus.subscribe(f"{WORKERS}.{self.name}", self._receive)
        self._beating = asyncio.create_task(self._beat())
        return self

    def kill(self) -> None:
        """Do nothing any more, for ever."""
        self.stopped = True

    async def go_on(self) -> None:
        """Do what has come while it was stopped."""
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for data, reply in waiting:
            await self._receive(data, reply)

    async def close(self) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)

    async def ask_to_move(self, session: str, why: str) -> None:
        await self._report(self.sessions[session], move=why)

    @property
    def alive(self) -> WorkerAlive:
        return WorkerAlive(
            worker=self.name,
            version=VERSION,
            model=self.model,
            load=len(self.sessions) / 10,
            capacity=9,
            sessions=len(self.sessions),
            room=self.room,
            draining=self.draining,
        )

    async def _beat(self) -> None:
        while True:
            if not self.stopped:
                await self.bus.publish(f"{ALIVE_WORKERS}.{self.name}", self.alive)
                for own in tuple(self.sessions.values()):
                    await self._report(own)
            await asyncio.sleep(BEAT_S)

    async def _receive(self, data: bytes, reply: Reply) -> None:
        if self.stopped:
            self._waiting.append((data, reply))
            return
        message: ToWorker = decoded(data, ToWorker)  # type: ignore[arg-type]
        own = self.sessions.get(message.session)
        try:
            match message:
                case OpenSession():
                    await reply(await self._open(message))
                case Leave() if own is not None and own.epoch == message.epoch:
                    (self.moved if message.moves else self.left).append(message.session)
                    del self.sessions[message.session]
                case AudioBlock() | SessionCommand() if own is not None and own.epoch == message.epoch:
                    await self._take(own, message)
        except FencedError:
            self.n_fenced += 1
            self.sessions.pop(message.session, None)

    async def _open(self, request: OpenSession) -> Message:
        if self.refusal:
            return Refused(code=self.refusal, message="the worker does not want to")
        if not self.room and not request.must:
            return Refused(code=BusyError.code, message="the worker is full")
        if request.checkpoint.model != self.model:
            return Refused(code="session_state", message="another model")
        last = await self.log.last(request.session)
        checkpoint, epoch, previous = request.checkpoint, 1, 0
        if last is not None:
            known = last.record
            epoch, previous = known.epoch + 1, last.sequence
            if request.epoch < known.epoch:
                return Refused(code=FencedError.code, message="opened elsewhere since")
            newer = (known.epoch, known.checkpoint.seq) > (request.epoch, checkpoint.seq)
            if newer and known.checkpoint.model == self.model:
                checkpoint = known.checkpoint
            if (here := self.sessions.pop(request.session, None)) is not None:
                checkpoint = here.checkpoint
        needed_from = checkpoint.state.needed_from
        own = FakeSession(
            name=request.session,
            gateway=request.gateway,
            epoch=epoch,
            sequence=previous,
            checkpoint=msgspec.structs.replace(checkpoint, seq=max(checkpoint.seq, request.seen)),
            head=needed_from,
            command=checkpoint.command,
            segment=checkpoint.state.text.segment,
            first=needed_from,
        )
        await self._store(own, ())
        self.sessions[request.session] = own
        answer = Opened(epoch=own.epoch, checkpoint=own.checkpoint, previous=previous, sequence=own.sequence)
        if last is None:
            await self._say(own, [ready()])
        return answer

    async def _take(self, own: FakeSession, message: AudioBlock | SessionCommand) -> None:
        if message.position > own.head or message.command > own.command + isinstance(message, SessionCommand):
            if not own.missing:
                own.missing = True
                await self._report(own)
            return
        own.missing = False
        if isinstance(message, SessionCommand):
            if message.command == own.command + 1:
                own.command = message.command
                await self._do(own, message)
            return
        samples = unpack_samples(message.data, wide=message.wide)[own.head - message.position :]
        if not len(samples) or self.idle:
            return
        self.received.setdefault(own.name, {})[own.head] = samples
        own.head += len(samples)
        own.audio = np.concatenate([own.audio, samples])
        while len(own.audio) >= SEGMENT_SAMPLES:
            await self._say(own, [self._final(own, SEGMENT_SAMPLES)])
        if len(own.audio):
            await self._say(own, [partial(own.segment, "so far", start=own.first / 16_000)])

    def _final(self, own: FakeSession, n_samples: int) -> Final:
        event = final(own.segment, text_of(own.audio[:n_samples]), start=seconds(own.first))
        own.audio, own.first, own.segment = own.audio[n_samples:], own.first + n_samples, own.segment + 1
        return event

    async def _do(self, own: FakeSession, do: SessionCommand) -> None:
        self.done.append(do)
        events: list[Event] = []
        match do.what:
            case "report":
                events = [Error(code=do.code, message=do.message, fatal=do.fatal)]
            case "flush":
                events = [Flushed(time=seconds(own.head))]
            case "end":
                events = [self._final(own, len(own.audio))] if len(own.audio) else []
                events.append(End())
            case "set":
                language = do.options.language if do.options else None
                start = msgspec.structs.replace(own.checkpoint.start, language=language)
                own.checkpoint = msgspec.structs.replace(own.checkpoint, start=start)
        await self._say(own, events)

    async def _say(self, own: FakeSession, events: list[Event]) -> None:
        seq = own.checkpoint.seq
        stamped = [event.stamped(seq + i, own.name) for i, event in enumerate(events, 1)]
        published_until = min(own.first, own.head)
        state = SessionState.behind_loss(published_until, published_until, own.segment, mark=own.command)
        losses, heard = msgspec.structs.replace(state.losses, waiting=()), OpenSpeech(own.head)
        state = msgspec.structs.replace(state, needed_from=own.first, losses=losses, speech=heard)
        own.checkpoint = msgspec.structs.replace(
            own.checkpoint, seq=seq + len(events), command=own.command, state=state
        )
        texts = tuple(event.to_json() for event in stamped)
        stored = bool(stamped) and not all(isinstance(event, Partial) for event in stamped)
        previous = own.sequence
        if stored:
            await self._store(own, texts)
        await self._report(own, texts, previous=previous)
        if stamped and isinstance(stamped[-1], End):
            self.sessions.pop(own.name, None)

    async def _store(self, own: FakeSession, events: tuple[str, ...]) -> None:
        record = Record(
            epoch=own.epoch,
            worker=self.name,
            gateway=own.gateway,
            events=events,
            checkpoint=own.checkpoint,
        )
        own.sequence = await self.log.store(own.name, record, after=own.sequence)

    async def _report(
        self, own: FakeSession, events: tuple[str, ...] = (), *, previous: int | None = None, move: str = ""
    ) -> None:
        update = SessionUpdate(
            session=own.name,
            worker=self.name,
            epoch=own.epoch,
            previous=own.sequence if previous is None else previous,
            sequence=own.sequence,
            events=events,
            checkpoint=own.checkpoint,
            head=own.head,
            command=own.command,
            missing=own.missing,
            move=move,
        )
        await self.bus.publish(f"{GATEWAYS}.{own.gateway}", update)
