"""What stands around a worker in its tests: NATS in this process, a gateway, and an engine that knows what is said."""

import asyncio
import functools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace, UnionType
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.engine import Engine
from streamer.engine.live_session import LiveSession
from streamer.errors import ClusterError, FencedError
from streamer.events import Event, Final, Partial, from_json
from streamer.plugins.cluster.bus import Bus, Handler
from streamer.plugins.cluster.log import SessionLog, Stored
from streamer.plugins.cluster.messages import (
    GATEWAYS,
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
    decoded,
    encoded,
    pack_samples,
)
from streamer.plugins.cluster.worker import ClusterWorker, identity_of
from streamer.plugins.cluster.worker_session import WorkerContext
from streamer.protocols.native import SessionOptions, StreamStart
from streamer.session.state import SessionState
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from tests.fakes import (
    FakeDecoder,
    FakeDetector,
    FakeEncoded,
    FakeEncoder,
    FakeMel,
    Speaker,
    SpokenWord,
    audio_of,
    spoken,
)
from tests.waiting import WAIT_S, until

M = TypeVar("M", bound=Message)

# Of a block of audio: 0.1 s.
BLOCK_SAMPLES = SAMPLE_RATE // 10

# What a session asks of its model.
MODEL = cast(
    "WhisperModel",
    SimpleNamespace(
        name="model",
        recovering=False,
        n_beams=1,
        dims=SimpleNamespace(n_mels=80, n_text_ctx=448, n_vocab=1 << 40),
        runtime=SimpleNamespace(
            devices=dict.fromkeys(("encoder", "cross_kv", "decoder"), "CPU"),
            decoder=SimpleNamespace(beams=None),
            windows_s=(30,),
        ),
        generation=SimpleNamespace(prompted=False),
        knows_heads=True,
        fork=lambda: None,
        choose_language=lambda language, task, languages=(): language,
        tokenizer=SimpleNamespace(
            start_sequence=lambda language, task: [0, 1, 2],
            encode=lambda text: [0 for _ in text.split()],
            to_json=lambda: b"tokens",
        ),
    ),
)


class LocalBus:
    """What `Bus` does, among those in this process. Messages go through their bytes, each subject's in order."""

    def __init__(self) -> None:
        self.connected = True
        # What handlers have raised.
        self.troubles: list[str] = []
        self._handlers: dict[str, list[Handler]] = defaultdict(list)
        self._queues: dict[str, asyncio.Queue[tuple[bytes, asyncio.Future[bytes] | None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # Says of what is published whether it gets lost.
        self.loses: Callable[[str, Message], bool] = lambda subject, message: False
        self.published: list[tuple[str, Message]] = []

    async def publish(self, subject: str, message: Message) -> None:
        self.published.append((subject, message))
        if not self.loses(subject, message):
            self._queue(subject).put_nowait((encoded(message), None))

    async def request(self, subject: str, message: Message, kind: type[M] | UnionType, *, timeout_s: float) -> Any:  # noqa: ANN401
        if subject not in self._handlers:
            raise ClusterError("it has no subscriber")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._queue(subject).put_nowait((encoded(message), answer))
        async with asyncio.timeout(timeout_s):
            return decoded(await answer, kind)  # type: ignore[arg-type]

    async def subscribe(self, subject: str, handle: Handler) -> None:
        self._handlers[subject].append(handle)

    async def send_raw(self, subject: str, data: bytes) -> None:
        self._queue(subject).put_nowait((data, None))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _queue(self, subject: str) -> "asyncio.Queue[tuple[bytes, asyncio.Future[bytes] | None]]":
        if subject not in self._queues:
            self._queues[subject] = asyncio.Queue()
            self._tasks.append(asyncio.create_task(self._deliver(subject)))
        return self._queues[subject]

    async def _deliver(self, subject: str) -> None:
        wild = subject.rpartition(".")[0] + ".*"
        while True:
            data, answer = await self._queues[subject].get()

            async def reply(message: Message, answer: asyncio.Future[bytes] | None = answer) -> None:
                if answer is not None and not answer.done():
                    answer.set_result(encoded(message))

            for handle in (*self._handlers.get(subject, ()), *self._handlers.get(wild, ())):
                try:
                    await handle(data, reply)
                except Exception as error:  # noqa: BLE001 - as the real one, which logs it
                    self.troubles.append(str(error) or repr(error))


class LocalLog:
    """What `SessionLog` does, in this process."""

    def __init__(self) -> None:
        self.records: dict[str, list[Stored]] = defaultdict(list)
        self._sequence = 0
        # Cleared to let `store` wait, as NATS does without a leader.
        self.answers = asyncio.Event()
        self.answers.set()

    async def last(self, session: str) -> Stored | None:
        records = self.records[session]
        return records[-1] if records else None

    async def read(self, session: str, *, after: int = 0) -> list[Stored]:
        return [stored for stored in self.records[session] if stored.sequence > after]

    async def store(self, session: str, record: Record, *, after: int) -> int:
        await self.answers.wait()
        records = self.records[session]
        if after != (records[-1].sequence if records else 0):
            raise FencedError("another machine owns the session")
        self._sequence += 1
        records.append(Stored(decoded(encoded(record), Record), self._sequence))
        return self._sequence

    def events(self, session: str) -> list[Event]:
        return [from_json(event) for stored in self.records[session] for event in stored.record.events]


class Gateway:
    """One session as a gateway sees it: all of its audio and commands, the updates it received, and its owner."""

    def __init__(
        self, bus: LocalBus | Bus, log: LocalLog | SessionLog, model: str, session: str = "s1", name: str = "g1"
    ) -> None:
        self.bus, self.log, self.session, self.name = bus, log, session, name
        self.events: list[Event] = []
        self.audio = np.zeros(0, dtype=np.float32)
        self.commands: list[SessionCommand] = []
        self.updates: list[SessionUpdate] = []
        self.moves: list[SessionUpdate] = []
        self.worker, self.epoch = "", 0
        # Whether a new owner is being asked: what the old one says now has numbers that the new one may use, too.
        self.opening = False
        self.checkpoint = SessionCheckpoint(model=model, start=StreamStart(), seq=0, command=0, state=SessionState())

    async def listen(self) -> None:
        await self.bus.subscribe(f"{GATEWAYS}.{self.name}", self._on_update)

    async def open(self, worker: str, *, must: bool = False) -> Opened | Refused:
        request = OpenSession(
            session=self.session,
            gateway=self.name,
            checkpoint=self.checkpoint,
            epoch=self.epoch,
            seen=self.events[-1].seq if self.events else 0,
            head=len(self.audio),
            must=must,
        )
        self.opening = True
        answer: Opened | Refused = await self.bus.request(
            f"{WORKERS}.{worker}", request, Opened | Refused, timeout_s=WAIT_S
        )
        self.opening = False
        if isinstance(answer, Opened):
            assert answer.checkpoint.seq >= self.checkpoint.seq
            self.worker, self.epoch, self.checkpoint = worker, answer.epoch, answer.checkpoint
            await self._fill_in()
            await self.send_from(answer.checkpoint.state.needed_from, answer.checkpoint.command)
        return answer

    async def opened(self, worker: str, *, must: bool = False) -> Opened:
        for _ in range(100):  # what its worker stores before it learns that it has lost the session comes first
            answer = await self.open(worker, must=must)
            if not (isinstance(answer, Refused) and answer.code == FencedError.code):
                break
        assert isinstance(answer, Opened), answer
        return answer

    async def refused(self, worker: str, *, must: bool = False) -> Refused:
        answer = await self.open(worker, must=must)
        assert isinstance(answer, Refused)
        return answer

    async def release(self) -> None:
        """Have its worker let go of it, for the one that is asked next."""
        leave = Leave(session=self.session, epoch=self.epoch, moves=True)
        await self.bus.publish(f"{WORKERS}.{self.worker}", leave)
        self.opening = True

    async def write(self, samples: Float32Array) -> None:
        position, command = len(self.audio), len(self.commands)
        self.audio = np.concatenate([self.audio, samples])
        await self._send(position, command)

    async def do(self, what: str, **options: Any) -> None:  # noqa: ANN401 - of a command
        number, options_of = len(self.commands) + 1, options.pop("options", None)
        do = SessionCommand(
            session=self.session,
            epoch=0,
            position=len(self.audio),
            command=number,
            what=what,
            options=options_of or (SessionOptions(**options.pop("choose")) if "choose" in options else None),
            **options,
        )
        self.commands.append(do)
        await self._send(len(self.audio), number - 1)

    async def send_from(self, position: int, command: int) -> None:
        """Send audio from a position on, and the commands behind one, again."""
        await self._send(position, command)

    async def processed(self, position: int) -> None:
        """Wait until audio up to a position is known to be processed."""
        await until(lambda: self.checkpoint.state.received >= position)

    async def asked_to_move(self) -> None:
        """Wait until its worker asks for it to be taken elsewhere."""
        await until(lambda: bool(self.moves))

    async def ended(self) -> None:
        """Wait until `end` was received."""
        await until(lambda: bool(self.events) and self.events[-1].type == "end")

    @property
    def finals(self) -> list[Final]:
        return [event for event in self.events if isinstance(event, Final)]

    @property
    def words(self) -> list[str]:
        return " ".join(final.text for final in self.finals).split()

    async def _send(self, position: int, command: int) -> None:
        for do in [*self.commands[command:], None]:
            end = len(self.audio) if do is None else do.position
            while position < end:
                piece = self.audio[position : min(end, position + BLOCK_SAMPLES)]
                await self.bus.publish(
                    f"{WORKERS}.{self.worker}",
                    AudioBlock(
                        session=self.session,
                        epoch=self.epoch,
                        position=position,
                        command=command,
                        data=pack_samples(piece, wide=True),
                        wide=True,
                    ),
                )
                position += len(piece)
            if do is not None:
                command = do.command
                await self.bus.publish(
                    f"{WORKERS}.{self.worker}", SessionCommand(**{**_fields(do), "epoch": self.epoch})
                )

    async def _fill_in(self) -> None:
        """Read from the log what was stored and not received."""
        for stored in await self.log.read(self.session):
            self._take(stored.record.events)

    def _take(self, lines: tuple[str, ...]) -> None:
        known = {event.seq: event for event in self.events}
        seen = max(known, default=0)
        for event in map(from_json, lines):
            if event.seq > seen:
                self.events.append(event)
            else:
                assert known.get(event.seq, event) == event, "two events have one number"

    async def _on_update(self, data: bytes, _reply: object) -> None:
        message = decoded(data, SessionUpdate)
        if message.session != self.session or message.epoch < self.epoch:
            return
        if message.move:
            self.moves.append(message)
        if self.opening:
            return
        self.updates.append(message)
        self.checkpoint = message.checkpoint
        self._take(message.events)
        if message.missing:
            await self._send(message.head, message.command)


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


class HearingSession(LiveSession):
    """A session whose detector takes what is not silent for speech, and whose windows say whose voice they hold."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(*arguments, **{**options, "mel": FakeMel(), "new_detector": FakeDetector})


class Speech:
    """What is said in a session, word by word, and its audio."""

    def __init__(self, duration_s: float, *, seed: int = 0) -> None:
        self.words: list[SpokenWord] = spoken(random.Random(seed), duration_s)
        self.audio = audio_of(self.words, round((duration_s + 2) * SAMPLE_RATE))

    @property
    def texts(self) -> list[str]:
        return [word.text.strip() for word in self.words]


@contextmanager
def engine_for(speech: Speech, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine[FakeEncoded]]:
    """Run an engine that transcribes a speech."""
    monkeypatch.setattr("streamer.daemon.sessions.LiveSession", HearingSession)
    encoder = FakeEncoder()
    engine: Engine[FakeEncoded] = Engine(encoder, FakeDecoder(encoder, [Speaker(speech.words)]))
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def workplace(
    bus: LocalBus,
    log: LocalLog,
    engine: Engine[Any],
    *,
    worker: str = "w1",
    settings: Settings = Settings(),  # noqa: B008
) -> WorkerContext:
    return WorkerContext(
        worker=worker,
        bus=cast(Bus, bus),
        log=cast(SessionLog, log),
        settings=settings,
        model=MODEL,
        identity=identity_of(MODEL),
        engine=engine,
    )


class Workers:
    """Workers that run until the block is left."""

    def __init__(self, *places: WorkerContext) -> None:
        self.workers = [ClusterWorker(place) for place in places]
        self._bus = places[0].bus
        self.stops = [asyncio.Event() for _ in places]
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Workers":
        self.tasks = [
            asyncio.create_task(worker.run(stop)) for worker, stop in zip(self.workers, self.stops, strict=True)
        ]
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for worker in self.workers:
            for owned in tuple(worker._owned.values()):
                owned.drop()
        assert getattr(self._bus, "troubles", []) == []


def is_partial(line: str) -> bool:
    return isinstance(from_json(line), Partial)


identity = functools.cache(lambda: identity_of(MODEL))
