"""A cluster in this process: real gateways and workers, NATS as a list, engines that know what is said, and faults."""

import asyncio
import contextlib
import functools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from streamer.constants import SAMPLE_RATE
from streamer.daemon.clients import ClientStreams
from streamer.daemon.streams import ClientStream
from streamer.engine.engine import Engine
from streamer.engine.live_session import LiveSession
from streamer.engine.load import Load
from streamer.errors import ClusterError, FencedError
from streamer.events import Error, Event, Final, Partial, from_json
from streamer.plugins.cluster.bus import Bus, Handler
from streamer.plugins.cluster.gateway import ClusterBackend
from streamer.plugins.cluster.log import SessionLog, Stored, log_subject
from streamer.plugins.cluster.messages import (
    ALIVE_WORKERS,
    WORKERS,
    Message,
    Opened,
    OpenSession,
    Record,
    Refused,
    SessionCheckpoint,
    SessionUpdate,
    decoded,
    encoded,
)
from streamer.plugins.cluster.worker import ClusterWorker, identity_of
from streamer.plugins.cluster.worker_session import WorkerContext
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.daemon import pcm16
from tests.fakes import FakeDecoder, FakeDetector, FakeEncoded, FakeEncoder, FakeMel, Speaker, audio_of, spoken
from tests.plugins.cluster.support import checkpoint
from tests.promises import check_promises
from tests.waiting import WAIT_S, until
from tests.wire.harness import finished

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
            known_languages=["en"],
            start_sequence=lambda language, task: [0, 1, 2],
            encode=lambda text: [0 for _ in text.split()],
            to_json=lambda: b"tokens",
        ),
    ),
)
IDENTITY = identity_of(MODEL)


class Speech:
    """What is said in a session, word by word, and its audio."""

    def __init__(self, duration_s: float) -> None:
        self.words = spoken(random.Random(0), duration_s)
        self.audio = audio_of(self.words, round((duration_s + 2) * SAMPLE_RATE))
        self.texts = [word.text.strip() for word in self.words]


SPEECH = Speech(10.0)


class SimulatedSession(LiveSession):
    """A session whose detector takes what is not silent for speech, and whose windows say what they hold."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(*arguments, **{**options, "mel": FakeMel(), "new_detector": FakeDetector})


class SimulatedEngine(Engine[FakeEncoded]):
    """An engine that transcribes a speech; load and standstill may be set by hand."""

    hand_load: Load | None = None
    hand_stalled_s: float | None = None

    def __init__(self, speech: Speech) -> None:
        self.simulated = FakeEncoder()
        super().__init__(self.simulated, FakeDecoder(self.simulated, [Speaker(speech.words)]))

    @property
    def load(self) -> Load:
        return self.hand_load or super().load

    @property
    def stalled_s(self) -> float:
        return super().stalled_s if self.hand_stalled_s is None else self.hand_stalled_s


class Arrivals(asyncio.Queue[tuple[bytes, asyncio.Future[bytes] | None]]):
    """Messages that wait for a subscriber; with those that are requests, where its answer goes."""


class Wire:
    """NATS in this process: messages go through their bytes, in order for each subscriber."""

    def __init__(self) -> None:
        self.subscriptions: list[tuple[str, Port, Arrivals]] = []
        self.records: dict[str, list[Stored]] = defaultdict(list)
        self.n_stored = 0
        # Cleared to let machines wait that store, as NATS does without a leader.
        self.storing = asyncio.Event()
        self.storing.set()
        self.published: list[Message] = []
        # What handlers have raised.
        self.troubles: list[str] = []

    def deliver(self, subject: str, data: bytes, answer: asyncio.Future[bytes] | None = None) -> bool:
        """Deliver a message; return whether there is a subscriber."""
        patterns = (subject, subject.rpartition(".")[0] + ".*")
        queues = [queue for pattern, _, queue in self.subscriptions if pattern in patterns]
        for queue in queues:
            queue.put_nowait((data, answer))
        return bool(queues)

    def sent(self, kind: type[Message], session: str = "") -> list[Any]:
        """Return the messages of a type that were published, oldest first."""
        published = [each for each in self.published if isinstance(each, kind)]
        return [each for each in published if not session or getattr(each, "session", "") == session]

    def events(self, session: str) -> list[Event]:
        return [from_json(event) for stored in self.records[session] for event in stored.record.events]


class Port:
    """A machine's connection to the wire, as `Bus` and `SessionLog` are to NATS, which a test can disturb."""

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire, self.name = wire, name
        self.connected = True
        self.ended = False
        # Cleared while the machine is stopped: nothing goes in or out, and what has come waits.
        self.running = asyncio.Event()
        self.running.set()
        # Returns what arrives of a message that is published.
        self.becomes: Callable[[Message], Iterable[Message]] = lambda message: (message,)
        # Whether the answers to `store` are lost.
        self.loses_answers = False
        self.on_reconnected: Callable[[], None] = lambda: None
        self.on_trouble: Callable[[str], None] = lambda text: None
        # Requests that could not be sent; numbers of events behind which logs were read.
        self.n_unanswered = 0
        self.reads: list[int] = []
        self._on_absent: Callable[[str], None] = lambda subject: None
        self._tasks: list[asyncio.Task[None]] = []

    def end(self) -> None:
        """End as a process does: NATS knows at once."""
        self.ended = True
        self.running.clear()
        self.wire.subscriptions = [each for each in self.wire.subscriptions if each[1] is not self]

    def mend(self) -> None:
        self.connected = True
        self.on_reconnected()

    async def publish(self, subject: str, message: Message) -> None:
        if self.ended:
            return
        await self.running.wait()
        for each in self.becomes(message) if self.connected else ():
            self.wire.published.append(each)
            if not self.wire.deliver(subject, encoded(each)):
                self._on_absent(subject)

    async def request(self, subject: str, message: Message, kind: Any, *, timeout_s: float) -> Any:  # noqa: ANN401
        if not self.ended:
            await self.running.wait()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.ended or not self.connected or not self.wire.deliver(subject, encoded(message), answer):
            self.n_unanswered += 1
            raise ClusterError("it has no subscriber")
        try:
            async with asyncio.timeout(timeout_s):
                return decoded(await answer, kind)
        except TimeoutError:
            raise ClusterError("it did not answer") from None

    async def subscribe(self, subject: str, handle: Handler) -> None:
        queue = Arrivals()
        self.wire.subscriptions.append((subject, self, queue))
        self._tasks.append(asyncio.create_task(self._serve(queue, handle)))

    async def notice_absence(self, on_absent: Callable[[str], None]) -> None:
        self._on_absent = on_absent

    async def last(self, session: str) -> Stored | None:
        log_subject(session)
        if not self.connected:
            raise ClusterError("NATS is away")
        return (self.wire.records[session] or [None])[-1]  # type: ignore[list-item]

    async def read(self, session: str, *, seq: int = 0) -> list[Stored]:
        await self.last(session)
        self.reads.append(seq)
        return [stored for stored in self.wire.records[session] if stored.record.checkpoint.seq > seq or not seq]

    async def store(self, session: str, record: Record, *, after: int) -> int:
        await self.wire.storing.wait()
        await self.running.wait()
        await until(lambda: self.connected)
        records = self.wire.records[session]
        if after != (records[-1].sequence if records else 0):
            raise FencedError("another machine owns the session")
        self.wire.n_stored += 1
        record = msgspec.structs.replace(record, previous=after)
        records.append(Stored(decoded(encoded(record), Record), self.wire.n_stored))
        await until(lambda: not self.loses_answers)
        return self.wire.n_stored

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self, queue: Arrivals, handle: Handler) -> None:
        while True:
            data, answer = await queue.get()
            await self.running.wait()
            try:
                if self.connected:
                    await handle(data, functools.partial(self._reply, answer))
            except Exception as error:  # noqa: BLE001 - as the real one, which logs it
                self.wire.troubles.append(str(error) or repr(error))

    async def _reply(self, answer: asyncio.Future[bytes] | None, message: Message) -> None:
        await self.running.wait()
        if answer is not None and self.connected and not answer.done():
            answer.set_result(encoded(message))


class Worker(ClusterWorker):
    """A worker that runs; `stopping` is its SIGTERM."""

    def __init__(self, port: Port, engine: SimulatedEngine, **context: Any) -> None:  # noqa: ANN401 - `WorkerContext`
        self.port, self.engine, self.name = port, engine, port.name
        bus, log = cast(Bus, port), cast(SessionLog, port)
        super().__init__(WorkerContext(worker=port.name, bus=bus, log=log, **{"engine": engine, **context}))
        self.stopping = asyncio.Event()
        self.task = asyncio.create_task(self.run(self.stopping))


class Gateway(ClientStreams):
    """A gateway's streams, and what runs their sessions."""

    def __init__(self, port: Port, server: ServerSettings) -> None:
        self.port = port
        self.backend = ClusterBackend(Settings(server=server), cast(Bus, port), cast(SessionLog, port), port.name)
        super().__init__(server, self.backend)

    async def knows(self, *workers: str) -> None:
        """Wait until just these workers are alive for it."""
        await until(lambda: {each.worker for each in self.backend.neighbours.workers()} == set(workers))


class Client:
    """A client that says the stage's speech: its stream, and the events that it has received."""

    def __init__(self, stage: "Stage", stream: ClientStream, before: "Client | None" = None) -> None:
        self._stage, self.stream, self.name = stage, stream, stream.log.session
        self.events: list[Event] = [*before.events] if before is not None else []
        seen = max((event.seq for event in self.events), default=0)
        self.events.extend(stream.log.subscribe(self.events.append, after=seen).backlog)
        # Position up to which it has spoken.
        self.said = stream.go_on() if before is not None else 0

    async def speak(self, until_s: float | None = None, *, wait: bool = False) -> None:
        """Send audio up to a moment, by default all of it; with `wait`, until it is known to be processed."""
        audio = self._stage.speech.audio
        end = len(audio) if until_s is None else round(until_s * SAMPLE_RATE)
        for first in range(self.said, end, SAMPLE_RATE // 10):
            await self.stream.write(pcm16(audio[first : min(end, first + SAMPLE_RATE // 10)]))
            await asyncio.sleep(0)
        self.said = end
        if wait:
            await self.processed()

    async def processed(self, up_to_s: float | None = None) -> None:
        """Wait until audio up to a moment, by default all that was sent, is known to be processed."""
        position = self.said - SAMPLE_RATE // 10 if up_to_s is None else up_to_s * SAMPLE_RATE
        await until(lambda: self.checkpoint.state.received >= position)

    @property
    def checkpoint(self) -> SessionCheckpoint:
        """The newest that a worker has published."""
        updates = self._stage.wire.sent(SessionUpdate, self.name)
        return updates[-1].checkpoint if updates else checkpoint()

    def of_type(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    async def finish(self, *, wordless: bool = False, partials: bool = True) -> None:
        """End; hold that all was said, once, with every promise kept, and that all but partials is in the log."""
        await self.speak()
        await finished(self.stream)
        texts = " ".join(event.text for event in self.events if isinstance(event, Final)).split()
        assert texts == self._stage.speech.texts
        numbered = [event for event in self.events if not (isinstance(event, Error) and event.code == "waiting")]
        lasting = [event for event in numbered if not isinstance(event, Partial)]
        check_promises(numbered if partials else lasting, wordless=wordless)
        assert self._stage.wire.events(self.name) == lasting


class Stage:
    """Gateways and workers on one wire."""

    def __init__(self, stack: contextlib.AsyncExitStack, speech: Speech) -> None:
        self.wire, self.speech = Wire(), speech
        self.workers: dict[str, Worker] = {}
        # Reasons of the stalls that gateways have measured.
        self.stalls: Counter[str] = Counter()
        self._stack = stack

    def port(self, name: str) -> Port:
        port = Port(self.wire, name)
        self._stack.callback(port.close)
        return port

    async def worker(self, name: str = "w1", *, runs: bool = True, **context: Any) -> Worker:  # noqa: ANN401
        """Start a worker; one whose engine does not run takes audio, and processes none."""
        engine = SimulatedEngine(self.speech)
        context = {"identity": IDENTITY, "settings": Settings(), "model": MODEL, **context}
        self.workers[name] = worker = Worker(self.port(name), engine, **context)
        self._stack.callback(worker.task.cancel)
        await asyncio.sleep(0)  # it subscribes
        if runs:
            engine.start()
            self._stack.callback(engine.stop)
        return worker

    async def gateway(self, name: str = "g1", *workers: str, **server: Any) -> Gateway:  # noqa: ANN401 - settings
        """Start a gateway, and wait until it knows these workers, by default all."""
        gateway = Gateway(self.port(name), ServerSettings(**server))
        gateway.backend.on_stall = lambda why, stall_s: self.stalls.update([why])
        await gateway.backend.start()
        self._stack.push_async_callback(gateway.backend.close)
        for worker in self.workers.values():  # sooner than each does by itself
            if worker.port.running.is_set():
                await worker.port.publish(f"{ALIVE_WORKERS}.{worker.name}", worker.alive)
        await gateway.knows(*(workers or self.workers))
        return gateway

    async def client(self, gateway: Gateway, *, tenant: str = "", **start: Any) -> Client:  # noqa: ANN401
        return Client(self, await gateway.open(StreamStart(**start), tenant=tenant))

    async def session(self, *workers: str) -> tuple[Gateway, Client]:
        """Start workers and a gateway, and open a stream."""
        for name in workers or ("w1",):
            await self.worker(name)
        gateway = await self.gateway()
        return gateway, await self.client(gateway)

    async def back(self, client: Client, gateway: Gateway, *, tenant: str = "") -> Client:
        """Let a client come back, at another gateway."""
        seen = max(event.seq for event in client.events)
        return Client(self, await gateway.resume(client.name, after=seen, tenant=tenant), client)

    def owner(self, client: Client) -> Worker:
        return self.workers[self.wire.records[client.name][-1].record.worker]

    async def moved(self, client: Client, *, off: Worker) -> Worker:
        """Wait until another worker owns a session; return that."""
        await until(lambda: self.owner(client) is not off)
        return self.owner(client)

    async def ask(self, worker: str, session: str = "s1", **fields: Any) -> Opened | Refused:  # noqa: ANN401
        """Ask a worker for a session, as a gateway does that sends nothing."""
        request = {"gateway": "g9", "checkpoint": checkpoint(model=IDENTITY), "seen": 0, "head": 0, **fields}
        opening, port = OpenSession(session=session, **request), self.port("g9")
        return await port.request(f"{WORKERS}.{worker}", opening, Opened | Refused, timeout_s=WAIT_S)  # type: ignore[no-any-return]

    async def refused(self, worker: str, session: str = "s1", **fields: Any) -> str:  # noqa: ANN401 - passed on
        """Return the code with which a worker refuses a session."""
        answer = await self.ask(worker, session, **fields)
        assert isinstance(answer, Refused)
        assert answer.message.isprintable()
        return answer.code
