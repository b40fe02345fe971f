"""Whole recordings as a work queue: who submits one keeps its audio and serves it; any worker with the model does it.

A job is a message of the stream `JOBS` (a work queue, as JetStream has it): `streamer.jobs.MODEL.SUBMITTER.NUMBER`.
Each model has a consumer of its own, which all of its workers share. The worker asks the submitter for the audio, in
order and block by block, tells what it finds, and removes the job from the queue when the submitter says so: the text
is written, or nobody wants it. A job that nobody renews comes to another worker. The submitter counts: a recording at
which MAX_TRIES workers failed or died is given up, so that it does not end all the others too.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from nats import errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.cluster.bus import Bus
from streamer.cluster.messages import (
    MAX_BLOCK_SAMPLES,
    PREFIX,
    VERSION,
    Message,
    WorkerAlive,
    decoded,
    encoded,
    pack_samples,
    unpack_samples,
)
from streamer.correct.spelling import Glossary
from streamer.errors import (
    AudioFileError,
    ClusterError,
    ClusterMessageError,
    ConfigError,
    StoppingError,
    StreamerError,
    UnknownModelError,
    UsageError,
)
from streamer.events import Ready
from streamer.live.recordings import Turn, choose_decoding, recorded_segments
from streamer.live.sessions import ready_event
from streamer.outside import one_line
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.apply import resolve_decoding
from streamer.settings.check import check_options, check_options_of_model
from streamer.settings.table import SETTINGS, ClusterSettings, DecodingSettings, Settings, SpeechSettings
from streamer.settings.values import NONE, checked
from streamer.stream.engine import Engine
from streamer.whisper.device.runtime import EncodedWindow
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

STREAM = "JOBS"
SUBJECT = f"{PREFIX}.jobs"
SUBMITTERS = f"{PREFIX}.submitter"

# Workers that may fail at a recording, or die over it, until it is given up.
MAX_TRIES = 3

ACK_WAIT_S = 10.0  # a job that was not renewed for so long comes to another worker
RENEW_S = 3.0
RETRY_S = 1.0  # before a job at which a worker failed comes to one again
FETCH_S = 5.0  # for which a worker waits for a job before it asks again
KEEP_S = 7 * 86_400.0  # for which a job nobody takes is kept, and a model's consumer without workers

ASK_S = 10.0  # for one answer of the submitter
GONE_S = 3.0  # without an answer, the submitter counts as gone

CHECK_S = 5.0  # from one look at what became of all jobs to the next
NOBODY_S = 60.0  # without a worker that has the model, a job is given up


class Job(Message, frozen=True, kw_only=True):
    """A recording that is to be transcribed. Its audio and its text stay with the submitter."""

    submitter: str

    # The submitter's own.
    number: int

    # Its length, as far as that is known.
    duration_s: float | None

    # Whether words are looked for in the texts, with their times.
    words: bool

    # Values of the settings of both sections that are not the default; None: as the worker is set.
    decoding: dict[str, Any] | None
    speech: dict[str, Any]

    # What is chosen otherwise than the worker is set.
    options: RecordingOptions


class Ask(Message, frozen=True, kw_only=True):
    """Request: audio from a position on. Answer: Answer."""

    job: int

    # The worker, and its one try at the job.
    worker: str
    run: str

    # 1, 2, ...: how often it began to read; first sample.
    reading: int
    position: int


class Heard(Message, frozen=True, kw_only=True):
    """Request: further segments, and how far the run is. Answer: Answer."""

    job: int
    worker: str
    run: str

    # Segments of the run before these.
    n_before: int
    segments: tuple[RecordedSegment, ...]

    # Samples that are done, and of how many.
    position: int
    n_samples: int
    language: str
    work_s: float


class Over(Message, frozen=True, kw_only=True):
    """Request: the run is over. Answer: Answer, when the text is written."""

    job: int
    worker: str
    run: str

    # Of all segments; how the session of a recording opens.
    n_segments: int = 0
    ready: Ready | None = None

    # What went wrong, and whether another worker might do better; empty: nothing.
    code: str = ""
    message: str = ""
    retry: bool = False


class Answer(Message, frozen=True, kw_only=True):
    """What the submitter answers to everything."""

    # Whether the job is still wanted; else the worker removes it from the queue.
    wanted: bool

    # To Ask: samples as in Audio, at least one; whether there are none any more.
    data: bytes = b""
    wide: bool = False
    end: bool = False


_Request = Ask | Heard | Over
_UNWANTED = Answer(wanted=False)


def model_name(identity: str) -> str:
    """Return the name of a model as people write it, of what WorkerAlive says."""
    return identity.partition("@")[0]


async def prepare(bus: Bus, settings: ClusterSettings) -> None:
    """Make the stream, or take it as it is. Raises ClusterError."""
    wanted = StreamConfig(
        name=STREAM,
        description="recordings to be transcribed (docs/cluster.md)",
        subjects=[f"{SUBJECT}.>"],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        max_age=KEEP_S,
        num_replicas=settings.replicas or min(3, bus.n_servers),
    )
    what = f"the stream {STREAM}"
    try:
        await bus.patiently(lambda: bus.jetstream.stream_info(STREAM), what)
    except NotFoundError:
        await bus.patiently(lambda: bus.jetstream.add_stream(wanted), what)


def _queue(identity: str) -> str:
    """Return the part of subjects that stands for a model: machines of another version do not share it."""
    return hashlib.sha256(f"{VERSION} {identity}".encode()).hexdigest()[:16]


# --- who submits ------------------------------------------------------------------------------------------------------


@dataclass
class Transcript:
    """What came of a recording."""

    ready: Ready
    segments: list[RecordedSegment]


class Submitted:
    """A recording that was submitted, until it is closed. As a context it is closed at the end."""

    def __init__(
        self,
        jobs: "Jobs",
        job: Job,
        queue: str,
        identity: str,
        name: str,
        read: Callable[[], Iterator[Float32Array]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.number = job.number
        self.name = name
        self.identity = identity
        self.data = encoded(job)
        self.subject = f"{SUBJECT}.{queue}.{job.submitter}.{job.number}"
        self.read = read
        self.on_progress = on_progress
        # As the run that is furthest says.
        self.n_samples = 0
        self.language = ""
        self.work_s = 0.0
        # When it was put into the queue last, by the monotonic clock, and how often; None: it is not there.
        self.posted_s: float | None = None
        self.n_posted = 0
        # Since when nobody has its model, as far as that is so.
        self.nobody_since_s: float | None = None
        # Tries by their names, and what the last that failed said.
        self.runs: dict[str, _Run] = {}
        self.last_error = ""
        self.done: asyncio.Future[Transcript] = asyncio.get_running_loop().create_future()
        self._jobs = jobs
        self._confirmed = asyncio.Event()
        # Segments for who reads them as they come; None ends them. Whose were told last, and up to where.
        self._found: asyncio.Queue[RecordedSegment | None] = asyncio.Queue()
        self._told_run = ""
        self._told_until_s = 0.0

    async def result(self) -> Transcript:
        """Return the first complete result; `confirm` when it is written.

        Raises AudioFileError, ConfigError where the model cannot do what the options say, ClusterError where it is
        given up, and what `read` raises.
        """
        return await asyncio.shield(self.done)

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final, whichever run finds them first. Raises as `result` does."""
        while (segment := await self._found.get()) is not None:
            yield segment
        await self.result()

    def confirm(self) -> None:
        """Say that the text is written, or needs no writing: the worker may forget the job."""
        self._confirmed.set()

    async def confirmed(self) -> None:
        await self._confirmed.wait()

    def take(self, run: "_Run", heard: Heard) -> None:
        """Take what a run has found. The same once more is harmless."""
        if heard.n_before > len(run.segments):
            raise ClusterMessageError(f"a worker leaves out segments from {len(run.segments) + 1} on: expected all")
        new = heard.segments[len(run.segments) - heard.n_before :]
        run.segments += new
        self.n_samples, self.language, self.work_s = heard.n_samples, heard.language[:20], heard.work_s
        for segment in new:
            # Another run may have found other segments: what was told is not told again.
            if run.name == self._told_run or segment.final.start >= self._told_until_s:
                self._told_run, self._told_until_s = run.name, segment.final.end
                self._found.put_nowait(segment)
        self.on_progress(max(0, heard.position), max(0, heard.n_samples))

    def complete(self, transcript: Transcript) -> None:
        if not self.done.done():
            self.done.set_result(transcript)
            self._found.put_nowait(None)

    def fail(self, error: StreamerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # somebody may have closed it
            self._found.put_nowait(None)
        self.close()

    def close(self) -> None:
        """Take it out of the queue where it is not over; harmless the second time."""
        self.confirm()
        self._jobs.forget(self)

    def __enter__(self) -> "Submitted":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass
class _Run:
    """A worker's try at a job."""

    name: str
    worker: str
    audio: "_Audio"
    segments: list[RecordedSegment] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Audio:
    """A recording as one run reads it: from the beginning on, as often as it wants to. Of one thread at a time."""

    def __init__(self, read: Callable[[], Iterator[Float32Array]]) -> None:
        self._read = read
        self._reading = 0
        self._blocks: Iterator[Float32Array] = iter(())
        # The block that was given last, its position, and what was read behind it.
        self._position = 0
        self._block = self._rest = np.empty(0, dtype=np.float32)

    def block(self, reading: int, position: int) -> Float32Array:
        """Return samples from a position on, shape (n,); none at the end. Raises what `read` raises."""
        if reading != self._reading or position < self._position:
            self._reading, self._position, self._blocks = reading, 0, self._read()
            self._rest = self._rest[:0]
            self._block = self._next()
        while self._position < position and len(self._block):
            self._position += len(self._block)
            self._block = self._next()
        if position != self._position:
            raise ClusterMessageError(f"a worker asks for audio from {position} on: expected it to read in order")
        return self._block

    def _next(self) -> Float32Array:
        parts = [self._rest]
        n = len(self._rest)
        while n < MAX_BLOCK_SAMPLES and (part := next(self._blocks, None)) is not None:
            parts.append(part)
            n += len(part)
        samples = np.concatenate(parts)
        self._rest = samples[MAX_BLOCK_SAMPLES:]
        return samples[:MAX_BLOCK_SAMPLES]


def _block_answer(samples: Float32Array) -> Answer:
    """Return samples in 16 bits where that is exact, else as 32-bit floats."""
    scaled = samples * np.float32(32768)
    wide = not np.array_equal(np.clip(np.rint(scaled), -32768, 32767), scaled)
    return Answer(wanted=True, data=pack_samples(samples, wide=wide), wide=wide, end=not len(samples))


class Jobs:
    """The jobs of one submitter: asks for recordings to be transcribed, serves their audio, takes their texts."""

    def __init__(self, bus: Bus, settings: ClusterSettings, living: Callable[[], Sequence[WorkerAlive]]) -> None:
        """`living` returns the workers that are alive."""
        self.living = living
        self._bus = bus
        self._settings = settings
        self._name = uuid.uuid4().hex
        self._n_submitted = 0
        # Those that are not over, by their numbers.
        self._jobs: dict[int, Submitted] = {}
        # What is being answered, and done beside; a reference keeps it from going.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Get ready. Raises ClusterError."""
        await prepare(self._bus, self._settings)
        await self._bus.subscribe(f"{SUBMITTERS}.{self._name}", self._handle)
        self._begin(self._look_after())

    def find(self, model: str) -> str:
        """Return which model a name means, as WorkerAlive has it; empty: the one that most workers have.

        Raises UnknownModelError where no living worker has it, ClusterError where there is none.
        """
        living = self.living()
        found = Counter(alive.model for alive in living if model in ("", alive.model, model_name(alive.model)))
        if found:
            return found.most_common(1)[0][0]
        if not living:
            raise ClusterError("no worker is heard: expected `streamer worker` at the same NATS; start one")
        names = ", ".join(sorted({one_line(model_name(alive.model)) for alive in living}))
        raise UnknownModelError(f"no worker has the model {model!r:.100}: expected one of {names:.500}; or start one")

    def submit(
        self,
        name: str,
        read: Callable[[], Iterator[Float32Array]],
        *,
        model: str = "",
        duration_s: float | None = None,
        settings: Settings | None = None,
        words: bool = True,
        options: RecordingOptions | None = None,
        on_progress: Callable[[int, int], None] = lambda position, n_samples: None,
    ) -> Submitted:
        """Put a recording into the queue.

        name : what it is called in errors
        read : begins to read it: blocks of 16 kHz mono, shape (n,), the same each time; called in other threads
        settings : how to decode; None: as the worker is set, but for what the `options` say

        Raises as `find` does.
        """
        identity = self.find(model)
        self._n_submitted += 1
        job = Job(
            submitter=self._name,
            number=self._n_submitted,
            duration_s=duration_s,
            words=words,
            decoding=_given("decoding", settings.decoding) if settings is not None else None,
            speech=_given("speech", settings.speech) if settings is not None else {},
            options=options or RecordingOptions(),
        )
        submitted = Submitted(self, job, _queue(identity), identity, name, read, on_progress)
        self._jobs[job.number] = submitted
        self._begin(self._post(submitted))
        return submitted

    def forget(self, submitted: Submitted) -> None:
        """A job is over, or nobody wants it."""
        was_there = self._jobs.pop(submitted.number, None)
        if was_there is not None and not submitted.done.done():
            submitted.done.cancel()
            self._begin(self._purge(submitted.subject))

    async def close(self) -> None:
        """Take all that is not over out of the queue, and end."""
        with contextlib.suppress(TimeoutError):  # what was confirmed is told to its worker
            async with asyncio.timeout(1.0):
                while any(submitted.done.done() for submitted in self._jobs.values()):
                    await asyncio.sleep(0.01)
        left = bool(self._jobs)
        self._jobs.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if left:
            await self._purge(f"{SUBJECT}.*.{self._name}.*")

    def _begin(self, work: Any) -> None:  # noqa: ANN401 - a coroutine
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, submitted: Submitted) -> None:
        """Put a job into the queue; where that fails, it is tried again when all are looked after."""
        submitted.n_posted += 1
        headers = {"Nats-Msg-Id": f"{self._name}.{submitted.number}.{submitted.n_posted}"}
        try:
            await self._bus.jetstream.publish(submitted.subject, submitted.data, stream=STREAM, headers=headers)
        except (errors.Error, OSError, TimeoutError) as error:
            logger.debug("a job could not be put into the queue: %s", one_line(error))
        else:
            submitted.posted_s = time.monotonic()

    async def _purge(self, subject: str) -> None:
        with contextlib.suppress(errors.Error, OSError, TimeoutError):  # workers will drop what nobody wants
            await self._bus.jetstream.purge_stream(STREAM, subject=subject)

    async def _look_after(self) -> None:
        """Put into the queue what is no longer there, and give up what nobody can do."""
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = time.monotonic()
            waiting = [submitted for submitted in self._jobs.values() if not submitted.done.done()]
            models = {alive.model for alive in self.living()}
            for submitted in waiting:
                if submitted.identity in models:
                    submitted.nobody_since_s = None
                elif submitted.nobody_since_s is None:
                    submitted.nobody_since_s = now_s
                elif now_s - submitted.nobody_since_s > NOBODY_S:
                    submitted.fail(
                        ClusterError(
                            f"{submitted.name} was given up: no worker with the model {model_name(submitted.identity)}"
                            f" has been heard for {NOBODY_S:.0f} s; start one, and transcribe it again"
                        )
                    )
            if not waiting or not self._bus.connected:
                continue
            try:
                info = await self._bus.jetstream.stream_info(STREAM, subjects_filter=f"{SUBJECT}.*.{self._name}.*")
            except NotFoundError:
                with contextlib.suppress(ClusterError):
                    await prepare(self._bus, self._settings)
                continue
            except (errors.Error, OSError, TimeoutError):
                continue
            there = info.state.subjects or {}
            for submitted in waiting:
                gone = submitted.posted_s is None or submitted.posted_s < now_s - CHECK_S / 2
                if gone and submitted.subject not in there and not submitted.done.done():
                    await self._post(submitted)

    async def _handle(self, data: bytes, reply: Callable[[Message], Any]) -> None:
        request: _Request = decoded(data, _Request)  # type: ignore[type-var]
        self._begin(self._answer(request, reply))  # runs do not wait for each other

    async def _answer(self, request: _Request, reply: Callable[[Message], Any]) -> None:
        submitted = self._jobs.get(request.job)
        run = self._run(submitted, request) if submitted is not None else None
        if submitted is None or run is None:
            await reply(_UNWANTED)
            return
        try:
            async with run.lock:
                match request:
                    case Ask():
                        samples = await asyncio.to_thread(run.audio.block, request.reading, request.position)
                        answer = _block_answer(samples)
                    case Heard():
                        submitted.take(run, request)
                        answer = Answer(wanted=True)
                    case Over():
                        answer = await self._over(submitted, run, request)
        except ClusterMessageError as error:
            logger.warning("%s: %s", submitted.name, error)
            return
        except StreamerError as error:
            submitted.fail(error)
            answer = _UNWANTED
        except Exception as error:
            logger.exception("reading %s failed", submitted.name)
            submitted.fail(StreamerError(f"{submitted.name} cannot be read: {one_line(error)}"))
            answer = _UNWANTED
        await reply(answer)

    def _run(self, submitted: Submitted, request: _Request) -> _Run | None:
        """Return the run that a request is of; None where it is one too many."""
        run = submitted.runs.get(request.run)
        if run is None and len(submitted.runs) >= MAX_TRIES:
            self._give_up(submitted)
        elif run is None:
            run = submitted.runs[request.run] = _Run(request.run, request.worker, _Audio(submitted.read))
        return run

    def _give_up(self, submitted: Submitted) -> None:
        workers = ", ".join(one_line(run.worker)[:64] for run in submitted.runs.values())
        why = submitted.last_error or "they ended without a word"
        submitted.fail(
            ClusterError(
                f"{submitted.name} was given up after {MAX_TRIES} tries ({workers}): {why}; expected a recording that"
                " can be transcribed, look into the logs of these workers"
            )
        )

    async def _over(self, submitted: Submitted, run: _Run, over: Over) -> Answer:
        if over.code == StoppingError.code:
            del submitted.runs[run.name]  # it says nothing about the recording
            return Answer(wanted=True)
        message = one_line(over.message)[:1000]
        if over.code and not over.retry:
            kind = {AudioFileError.code: AudioFileError, ConfigError.code: ConfigError}.get(over.code, UsageError)
            submitted.fail(kind(message.replace("the recording", submitted.name)))
            return _UNWANTED
        if over.code or over.ready is None or over.n_segments != len(run.segments):
            submitted.last_error = message
            if len(submitted.runs) >= MAX_TRIES:
                self._give_up(submitted)
                return _UNWANTED
            return Answer(wanted=True)
        submitted.complete(Transcript(over.ready, run.segments))
        await submitted.confirmed()
        self.forget(submitted)
        return _UNWANTED


def _given(section: str, values: DecodingSettings | SpeechSettings) -> dict[str, Any]:
    """Return the values of a section that are not the default, by their names."""
    default = type(values)()
    named = {each.name: getattr(values, each.name) for each in dataclasses.fields(values)}
    return {name: NONE if value is None else value for name, value in named.items() if value != getattr(default, name)}


_Section = TypeVar("_Section", DecodingSettings, SpeechSettings)


def _section(section: type[_Section], prefix: str, given: dict[str, Any]) -> _Section:
    """Return a section of settings with the given values. Raises ConfigError where they cannot be."""
    for name in given:
        if f"{prefix}.{name}" not in SETTINGS:
            raise ConfigError(f"there is no setting {prefix}.{name!r:.80} at the worker: expected the same version")
    return section(
        **{name: checked(SETTINGS[f"{prefix}.{name}"], value, f"{prefix}.{name}") for name, value in given.items()}
    )


# --- who works --------------------------------------------------------------------------------------------------------


@dataclass
class JobCounts:
    """What a worker says of its recordings."""

    # At work now, and transcribed since its start.
    running: int = 0
    done: int = 0


async def serve_jobs(
    bus: Bus,
    settings: Settings,
    model: WhisperModel,
    engine: Engine[EncodedWindow],
    *,
    worker: str,
    identity: str,
    counts: JobCounts,
    glossary: Glossary | None = None,
) -> None:
    """Transcribe recordings of the queue beside the live sessions, which go first, until cancelled.

    worker, identity : its name, and its model as WorkerAlive has it
    glossary : for recordings that are decoded as this worker is set

    What is at work when it is cancelled goes to another worker at once.
    """
    most = settings.cluster.max_recordings
    if not most:
        return
    server = _Server(bus, settings, lambda: engine.busy, worker, identity, counts, glossary)
    with contextlib.ExitStack() as stack:
        executor = ThreadPoolExecutor(most, thread_name_prefix="recordings")
        stack.callback(executor.shutdown, wait=False)
        async with asyncio.TaskGroup() as group:
            for _ in range(most):
                group.create_task(server.run(model, executor))


class _Server:
    """A worker's part in the queue."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        is_live_busy: Callable[[], bool],
        worker: str,
        identity: str,
        counts: JobCounts,
        glossary: Glossary | None,
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.is_live_busy = is_live_busy
        self.worker = worker
        self.glossary = glossary
        # Submitters that did not answer: their other jobs are dropped without patience.
        self.gone: set[str] = set()
        self._identity = identity
        self._counts = counts

    async def run(self, model: WhisperModel, executor: ThreadPoolExecutor) -> None:
        """Do one job after another."""
        twin: WhisperModel | None = None
        queue: JetStreamContext.PullSubscription | None = None
        while True:
            try:
                queue = queue or await self._open()
                (message,) = await queue.fetch(1, timeout=FETCH_S)
            except TimeoutError:
                continue
            except (errors.Error, ClusterError, OSError, NotFoundError) as error:
                logger.debug("the queue of recordings cannot be read: %s", one_line(error))
                queue = None
                await asyncio.sleep(RETRY_S)
                continue
            twin = twin or model.twin()
            await self._do(message, twin, executor)

    async def _open(self) -> JetStreamContext.PullSubscription:
        await prepare(self.bus, self.settings.cluster)
        queue = _queue(self._identity)
        consumer = ConsumerConfig(
            durable_name=f"workers-{queue}",
            description=one_line(self._identity)[:100],
            filter_subject=f"{SUBJECT}.{queue}.>",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_deliver=-1,  # the submitter counts: a worker that stops lets go of a job, too
            inactive_threshold=KEEP_S,
        )
        api = self.bus.jetstream
        await self.bus.patiently(lambda: api.add_consumer(STREAM, consumer), f"the stream {STREAM}")
        return await api.pull_subscribe_bind(consumer.durable_name, STREAM)

    async def _do(self, message: Msg, model: WhisperModel, executor: ThreadPoolExecutor) -> None:
        try:
            job = decoded(message.data, Job)
        except ClusterMessageError as error:
            logger.warning("a recording is left out: %s", error)
            await message.term()
            return
        loop = asyncio.get_running_loop()
        work = _Work(self, job, model, loop)
        renewing = asyncio.create_task(_renew(message))
        self._counts.running += 1
        try:
            verdict = await loop.run_in_executor(executor, work.run)
            self._counts.done += work.complete
        except asyncio.CancelledError:
            work.closed = True
            with contextlib.suppress(errors.Error, OSError):
                await self.bus.publish(work.subject, work.over(StoppingError("the worker stops"), retry=True))
                await message.nak()
            raise
        finally:
            self._counts.running -= 1
            renewing.cancel()
        with contextlib.suppress(errors.Error, OSError):  # it comes again then, and the submitter does not want it
            match verdict:
                case "done":
                    await message.ack()
                case "gone":
                    await message.term()
                case _:
                    await message.nak(RETRY_S)


async def _renew(message: Msg) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        with contextlib.suppress(errors.Error, OSError):
            await message.in_progress()


class _Work:
    """One run of a job, in a thread."""

    def __init__(self, server: _Server, job: Job, model: WhisperModel, loop: asyncio.AbstractEventLoop) -> None:
        # Set where the worker stops.
        self.closed = False
        # Whether all was transcribed.
        self.complete = False
        self.subject = f"{SUBMITTERS}.{job.submitter}"
        self._server = server
        self._job = job
        self._model = model
        self._loop = loop
        self._turn = Turn(server.is_live_busy)
        self._run = uuid.uuid4().hex
        self._n_readings = 0
        self._n_samples = 0
        self._n_told = 0
        # Segments that were not told yet, and the language.
        self._found: list[RecordedSegment] = []
        self._language = ""

    def run(self) -> str:
        """Transcribe, and return what becomes of the job: `done`, `gone` (with its submitter) or `again`."""
        try:
            try:
                over = self._transcribe()
            except StreamerError as error:
                over = self.over(error, retry=not isinstance(error, UsageError))
            except (_UnwantedError, _GoneError, _ClosedError):
                raise
            except Exception:
                logger.exception("transcribing a recording failed")
                over = self.over(StreamerError("the worker failed: its log says why"), retry=True)
            self._ask(over)
        except _UnwantedError:
            return "done"
        except _GoneError:
            logger.info("a recording is left out: its submitter is gone")
            return "gone"
        except (_ClosedError, RuntimeError):  # RuntimeError: the loop is closed
            pass
        return "again"

    def over(self, error: StreamerError, *, retry: bool) -> Over:
        code, message = error.code, str(error)
        return Over(
            job=self._job.number, worker=self._server.worker, run=self._run, code=code, message=message, retry=retry
        )

    def _transcribe(self) -> Over:
        model, job = self._model, self._job
        self._turn.begin()
        model.call_before(self._wait_turn)
        decoding, speech = self._chosen()
        language = model.choose_language(decoding.language, decoding.task)
        self._language = language if language != "auto" else ""
        for segment in recorded_segments(
            model,
            self._read,
            resolve_decoding(decoding, model, speech, words=job.words),
            self._server.glossary if job.decoding is None else None,
            on_progress=self._tell,
            on_language=self._tell_language,
        ):
            self._found.append(segment)
        self.complete = True
        return Over(
            job=job.number,
            worker=self._server.worker,
            run=self._run,
            n_segments=self._n_told,
            ready=ready_event(model, decoding.language),
        )

    def _chosen(self) -> tuple[DecodingSettings, SpeechSettings]:
        """Return how the recording is decoded. Raises ConfigError."""
        job, settings = self._job, self._server.settings
        if job.decoding is None:
            return choose_decoding(settings.decoding, job.options, self._model), settings.speech
        decoding = _section(DecodingSettings, "decoding", job.decoding)
        speech = _section(SpeechSettings, "speech", job.speech)
        if decoding.grammar:
            raise ConfigError("grammar is a file that the worker does not have: leave it out")
        check_options(Settings(decoding=decoding, speech=speech), streaming=False)
        check_options_of_model(decoding, self._model)
        return decoding, speech

    def _read(self) -> Iterator[Float32Array]:
        """Read the recording from its beginning, shape (n,)."""
        self._n_readings += 1
        reading, position = self._n_readings, 0
        while True:
            self._wait_turn()
            answer = self._ask(
                Ask(
                    job=self._job.number,
                    worker=self._server.worker,
                    run=self._run,
                    reading=reading,
                    position=position,
                )
            )
            if answer.end:
                return
            samples = unpack_samples(answer.data, wide=answer.wide)
            if not len(samples):
                raise ClusterMessageError("a submitter sends a piece of audio without samples: expected at least one")
            position += len(samples)
            self._n_samples = max(self._n_samples, position)
            yield samples

    def _tell_language(self, language: str, probabilities: object) -> None:
        self._language = language

    def _tell(self, position: int) -> None:
        """Tell what was found up to a position."""
        segments, self._found = tuple(self._found), []
        self._ask(
            Heard(
                job=self._job.number,
                worker=self._server.worker,
                run=self._run,
                n_before=self._n_told,
                segments=segments,
                position=position,
                n_samples=self._n_samples,
                language=self._language,
                work_s=self._turn.work_s,
            )
        )
        self._n_told += len(segments)

    def _wait_turn(self) -> None:
        self._turn.wait(self._check)

    def _check(self) -> None:
        if self.closed:
            raise _ClosedError

    def _ask(self, request: _Request) -> Answer:
        """Ask the submitter. Raises what ends the run."""
        answer = asyncio.run_coroutine_threadsafe(self._request(request), self._loop).result()
        if not answer.wanted:
            raise _UnwantedError
        return answer

    async def _request(self, request: _Request) -> Answer:
        bus, gone, submitter = self._server.bus, self._server.gone, self._job.submitter
        patience_s = 0.0 if submitter in gone else GONE_S
        silent_since_s: float | None = None
        while True:
            self._check()
            try:
                answer = await bus.request(self.subject, request, Answer, timeout_s=ASK_S)
            except ClusterError as error:
                logger.debug("a submitter does not answer: %s", error)
            else:
                gone.discard(submitter)
                return answer
            now_s = time.monotonic()
            if not bus.connected:
                silent_since_s = None  # it is us
            elif silent_since_s is None and patience_s:
                silent_since_s = now_s
            elif silent_since_s is None or now_s - silent_since_s > patience_s:
                gone.add(submitter)
                raise _GoneError
            await asyncio.sleep(0.2)


class _UnwantedError(Exception):
    """The submitter does not want the job any more, or has all of it."""


class _GoneError(Exception):
    """The submitter does not answer."""


class _ClosedError(Exception):
    """The worker stops."""
