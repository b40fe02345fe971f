"""Whole recordings as a work queue: who submits one keeps its audio and its text, any worker with the model does it.

A job is a message of the stream `JOBS`, a work queue: `streamer.jobs.MODEL.SUBMITTER.NUMBER`. All workers with a model
share a consumer (cluster/work.py). A worker asks the submitter for the audio, block by block, tells it what was found,
and removes the job when the submitter says so: it has all, or nobody wants it. A job that nobody renews comes
to another worker. The submitter counts: a recording at which MAX_TRIES workers failed or died is given up, so that it
does not end all the others, too.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Self

import numpy as np
from nats import errors
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.cluster.bus import Bus, Reply
from streamer.cluster.messages import (
    MAX_BLOCK_SAMPLES,
    PREFIX,
    VERSION,
    Message,
    WorkerAlive,
    decoded,
    encoded,
    pack_samples,
)
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
from streamer.outside import one_line
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import SETTINGS, ClusterSettings, Settings
from streamer.settings.values import NONE

logger = logging.getLogger(__name__)

STREAM = "JOBS"
JOBS = f"{PREFIX}.jobs"
SUBMITTERS = f"{PREFIX}.submitter"

# Workers that may fail at a recording, or die over it.
MAX_TRIES = 3

KEEP_S = 7 * 86_400.0  # after which a job is forgotten that nobody takes
CHECK_S = 5.0  # from one look at what became of all jobs to the next
NOBODY_S = 60.0  # without a worker that has the model, a job is given up


class Job(Message, frozen=True, kw_only=True):
    """A recording that is to be transcribed."""

    submitter: str

    # The submitter's own.
    number: int

    # Whether words are looked for in the texts, with their times.
    words: bool

    # Settings of decoding and speech, by their dotted names, all others at their defaults; None: as the worker is set.
    settings: dict[str, Any] | None

    # What is chosen otherwise than the worker is set.
    options: RecordingOptions


class FromWorker(Message, frozen=True, kw_only=True):
    """What a worker's requests share. They are answered with an Answer."""

    job: int
    worker: str

    # Name of the worker's one try at the job.
    run: str


class Ask(FromWorker, frozen=True, kw_only=True):
    """Request for the audio from a position on."""

    position: int  # of the first sample


class Heard(FromWorker, frozen=True, kw_only=True):
    """What was found, and how far the run is."""

    # Segments of the run before these.
    n_before: int
    segments: tuple[RecordedSegment, ...]

    # Samples that are done, and of how many.
    position: int
    n_samples: int
    language: str
    work_s: float


class Over(FromWorker, frozen=True, kw_only=True):
    """The run is over."""

    # Of all segments, and how the session of a recording opens.
    n_segments: int = 0
    ready: Ready | None = None

    # What went wrong, and whether another worker might do better; empty: nothing did.
    code: str = ""
    message: str = ""
    retry: bool = False


class Answer(Message, frozen=True, kw_only=True):
    """What the submitter answers."""

    # Else the worker removes the job from the queue.
    wanted: bool

    # To Ask: samples as in Audio, none at the end.
    data: bytes = b""
    wide: bool = False


ToSubmitter = Ask | Heard | Over
UNWANTED = Answer(wanted=False)
NOTHING: Float32Array = np.empty(0, dtype=np.float32)


async def prepare(bus: Bus, settings: ClusterSettings) -> None:
    """Make the stream, or take it as it is. Raises ClusterError."""
    wanted = StreamConfig(
        name=STREAM,
        description="recordings to be transcribed (docs/cluster.md)",
        subjects=[f"{JOBS}.*.*.*"],
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


def queue_of(model: str) -> str:
    """Return what stands in subjects for a model, as WorkerAlive names it; other versions have other queues."""
    return hashlib.sha256(f"{VERSION} {model}".encode()).hexdigest()[:16]


def shown(model: str) -> str:
    """Return the name of a model, of what WorkerAlive says, as people write it."""
    return one_line(model.rpartition(" ")[0] or model)


class Jobs:
    """All jobs of one submitter."""

    def __init__(self, bus: Bus, settings: ClusterSettings, living: Callable[[], Sequence[WorkerAlive]]) -> None:
        """`living` returns the workers that are alive."""
        self.living = living
        self._bus = bus
        self._settings = settings
        self._name = uuid.uuid4().hex
        self._n_submitted = 0
        # Whether NATS refuses jobs, as was said then.
        self._refused = False
        # Those that are not over, by their numbers, and when each model was heard of last, by the monotonic clock.
        self._jobs: dict[int, Submitted] = {}
        self._heard_s: dict[str, float] = {}
        # What goes on; a reference keeps it from being dropped.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Get ready. Raises ClusterError."""
        await prepare(self._bus, self._settings)
        await self._bus.subscribe(f"{SUBMITTERS}.{self._name}", self._handle)
        self._begin(self._look_after())

    def find(self, model: str) -> str:
        """Return the model that a name means, as WorkerAlive has it; empty: that of most workers.

        Raises UnknownModelError where no living worker has it, ClusterError where nobody lives or takes recordings.
        """
        models = Counter(alive.model for alive in self.living() if alive.max_recordings)
        if not models:
            raise ClusterError(
                "no worker that takes recordings is heard: expected `streamer worker` on the same NATS, with"
                " cluster.max_recordings above 0; start one, or wait"
            )
        for found, _ in models.most_common():
            if model in ("", found, shown(found)):
                return found
        names = ", ".join(sorted(map(shown, models)))
        raise UnknownModelError(f"no worker has the model {model!r:.100}: expected one of {names:.500}; or start one")

    def submit(
        self,
        name: str,
        read: Callable[[], Iterator[Float32Array]],
        identity: str,
        *,
        settings: Settings | None = None,
        words: bool = True,
        options: RecordingOptions | None = None,
        on_progress: Callable[[int, int], None] = lambda position, n_samples: None,
    ) -> "Submitted":
        """Put a recording into the queue.

        name : what it is called in errors
        read : begins to read it: blocks of 16 kHz mono, shape (n,), the same each time; called in threads of its own
        identity : its model, as `find` returns it
        settings : how to decode; None: as the worker is set, but for what the `options` say
        on_progress : told how many samples are done, and of how many
        """
        self._n_submitted += 1
        job = Job(
            submitter=self._name,
            number=self._n_submitted,
            words=words,
            settings=_given(settings) if settings is not None else None,
            options=options or RecordingOptions(),
        )
        submitted = Submitted(self._jobs, name, job, identity, read, on_progress)
        self._heard_s[identity] = time.monotonic()
        self._begin(self._post(submitted))
        return submitted

    def fail(self, error: StreamerError) -> None:
        """Give up what is not over."""
        for submitted in list(self._jobs.values()):
            submitted.fail(error)

    async def close(self) -> None:
        """End, and take out of the queue what is not over."""
        for submitted in list(self._jobs.values()):
            submitted.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(errors.Error, OSError, TimeoutError):  # workers drop what nobody wants
            await self._bus.jetstream.purge_stream(STREAM, subject=f"{JOBS}.*.{self._name}.*")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, submitted: "Submitted") -> None:
        """Put a job into the queue; where that fails, it is tried again when all are looked after."""
        submitted.posted_s = time.monotonic()
        with contextlib.suppress(errors.Error, OSError, TimeoutError):
            try:
                await self._bus.jetstream.publish(submitted.subject, submitted.data)
                self._refused = False
            except APIError as error:
                if not self._refused:
                    logger.warning("NATS takes no recordings: %s; expected room for them, trying on", one_line(error))
                self._refused = True

    async def _look_after(self) -> None:
        """Put into the queue what is no longer there, and give up what nobody can do."""
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = time.monotonic()
            self._heard_s |= {alive.model: now_s for alive in self.living()}
            for submitted in list(self._jobs.values()):
                if now_s - self._heard_s[submitted.identity] > NOBODY_S:
                    why = f"no worker with the model {submitted.model} is heard any more; start one"
                    submitted.fail(ClusterError(f"{submitted.name} is given up: {why}, and transcribe it again"))
            if not self._jobs or not self._bus.connected:
                continue
            try:
                info = await self._bus.jetstream.stream_info(STREAM, subjects_filter=f"{JOBS}.*.{self._name}.*")
                for submitted in list(self._jobs.values()):
                    if submitted.subject not in (info.state.subjects or {}) and submitted.posted_s < now_s - CHECK_S:
                        await self._post(submitted)
            except NotFoundError:  # NATS has lost all that it had
                with contextlib.suppress(ClusterError):
                    await prepare(self._bus, self._settings)
            except (errors.Error, OSError, TimeoutError) as error:
                logger.debug("the queue of recordings cannot be seen: %s", one_line(error))

    async def _handle(self, data: bytes, reply: Reply) -> None:
        self._begin(self._answer(data, reply))  # runs do not wait for each other

    async def _answer(self, data: bytes, reply: Reply) -> None:
        try:
            request: ToSubmitter = decoded(data, ToSubmitter)  # type: ignore[arg-type]
            submitted = self._jobs.get(request.job)
            answer = await submitted.answer(request) if submitted is not None else UNWANTED
        except ClusterMessageError as error:
            logger.warning("a worker is not answered: %s", error)
        else:
            await reply(answer)


def _given(settings: Settings) -> dict[str, Any]:
    """Return what a worker has to know of settings: all of decoding and speech that is not the default."""
    default = Settings()
    names = [name for name in SETTINGS if name.startswith(("decoding.", "speech."))]
    return {
        name: NONE if settings[name] is None else settings[name] for name in names if settings[name] != default[name]
    }


class Submitted:
    """A recording that was submitted, until it is closed: a `server.interfaces.Transcription`."""

    def __init__(
        self,
        jobs: "dict[int, Submitted]",
        name: str,
        job: Job,
        identity: str,
        read: Callable[[], Iterator[Float32Array]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Stand among the `jobs` that are not over; `identity` is the model's, as WorkerAlive has it."""
        self.name = name
        self.model = shown(identity)
        self.identity = identity
        self.subject = f"{JOBS}.{queue_of(identity)}.{job.submitter}.{job.number}"
        self.data = encoded(job)
        # When it was put into the queue last, by the monotonic clock.
        self.posted_s = 0.0
        # As the worker said last.
        self.n_samples = 0
        self.language = ""
        self.work_s = 0.0
        self._jobs = jobs
        self._number = job.number
        self._read = read
        self._on_progress = on_progress
        # By the names of the runs; what the last said that failed.
        self._runs: dict[str, _Run] = {}
        self._last_error = "they ended without a word"
        self._result: asyncio.Future[tuple[Ready, list[RecordedSegment]]] = asyncio.get_running_loop().create_future()
        # Segments for who reads them as they come, None at the end; of which run the last was, and its end.
        self._found: asyncio.Queue[RecordedSegment | None] = asyncio.Queue()
        self._told_run = ""
        self._told_until_s = 0.0
        jobs[job.number] = self

    @property
    def duration_s(self) -> float:
        """Length of the audio, as far as it was read."""
        return self.n_samples / SAMPLE_RATE

    async def result(self) -> tuple[Ready, list[RecordedSegment]]:
        """Return how its session opens, and the segments of the first run that is complete.

        Raises AudioFileError, ConfigError where the model cannot do what the options say, ClusterError where it is
        given up, and what `read` raises.
        """
        return await asyncio.shield(self._result)

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final, whichever run finds them first. Raises as `result` does."""
        while (segment := await self._found.get()) is not None:
            yield segment
        await self.result()

    def fail(self, error: StreamerError) -> None:
        """Give it up."""
        if not self._result.done():
            self._result.set_exception(error)
            self._result.exception()  # nobody need have waited for it
            self._found.put_nowait(None)
        self.close()

    def close(self) -> None:
        """Nothing more is wanted of it, nor read; harmless the second time."""
        self._runs.clear()
        self._jobs.pop(self._number, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def answer(self, request: ToSubmitter) -> Answer:
        """Return what a worker is answered. Raises ClusterMessageError."""
        if request.run not in self._runs and len(self._runs) >= MAX_TRIES:
            return self._give_up()
        run = self._runs.setdefault(request.run, _Run(request.worker, self._read))
        if isinstance(request, Ask):
            return await self._audio(run, request)
        return self._heard(run, request) if isinstance(request, Heard) else self._over(run, request)

    async def _audio(self, run: "_Run", ask: Ask) -> Answer:
        try:
            async with run.lock:
                samples = await asyncio.to_thread(run.block, ask.position)
        except ClusterMessageError:
            raise
        except StreamerError as error:
            self.fail(error)
            return UNWANTED
        except Exception as error:
            logger.exception("reading a recording failed")
            self.fail(AudioFileError(f"{self.name} cannot be read: {one_line(error)}; check the file"))
            return UNWANTED
        scaled = samples * np.float32(32768)
        wide = not np.array_equal(scaled, np.clip(np.rint(scaled), -32768, 32767))
        return Answer(wanted=True, data=pack_samples(samples, wide=wide), wide=wide)

    def _heard(self, run: "_Run", heard: Heard) -> Answer:
        n_known = len(run.segments)
        if not 0 <= heard.n_before <= n_known:
            raise ClusterMessageError(f"segments behind {heard.n_before} of {n_known} are told: expected all of them")
        run.segments[heard.n_before :] = heard.segments  # the same again where the answer was lost
        self.n_samples, self.language, self.work_s = heard.n_samples, heard.language[:20], heard.work_s
        for segment in run.segments[n_known:]:
            # Another run may find others: what was told is not told again.
            if heard.run == self._told_run or segment.final.start >= self._told_until_s:
                self._told_run, self._told_until_s = heard.run, segment.final.end
                self._found.put_nowait(segment)
        self._on_progress(heard.position, heard.n_samples)
        return Answer(wanted=True)

    def _over(self, run: "_Run", over: Over) -> Answer:
        message = one_line(over.message)[:1000]
        if over.code == StoppingError.code:
            del self._runs[over.run]  # that says nothing about the recording
        elif over.code and not over.retry:
            kind = {AudioFileError.code: AudioFileError, ConfigError.code: ConfigError}.get(over.code, UsageError)
            self.fail(kind(message.replace("the recording", self.name)))
            return UNWANTED
        elif over.code or over.ready is None or over.n_segments != len(run.segments):
            self._last_error = message
            if len(self._runs) >= MAX_TRIES:
                return self._give_up()
        else:
            self._result.set_result((over.ready, run.segments))
            self._found.put_nowait(None)
            self.close()
            return UNWANTED
        return Answer(wanted=True)

    def _give_up(self) -> Answer:
        workers = ", ".join(one_line(run.worker)[:64] for run in self._runs.values())
        self.fail(
            ClusterError(
                f"{self.name} is given up after {MAX_TRIES} tries, of {workers}: {self._last_error}; expected a"
                " recording that a worker survives, see their logs"
            )
        )
        return UNWANTED


class _Run:
    """A worker's try at a job, and the recording as it reads it, once."""

    def __init__(self, worker: str, read: Callable[[], Iterator[Float32Array]]) -> None:
        self.worker = worker
        self.segments: list[RecordedSegment] = []
        # Held while it reads.
        self.lock = asyncio.Lock()
        # What is still to be read, and the block that was given last, with its position.
        self._blocks = _in_blocks(read)
        self._position, self._block = 0, NOTHING

    def block(self, position: int) -> Float32Array:
        """Return samples from a position on, shape (n,); none at the end. Raises what `read` raises."""
        if position == self._position + len(self._block):
            self._position, self._block = position, next(self._blocks, NOTHING)
        elif position != self._position:  # else the last answer was lost
            raise ClusterMessageError(f"audio from sample {position} on is asked for: expected it to be read in order")
        return self._block


def _in_blocks(read: Callable[[], Iterator[Float32Array]]) -> Iterator[Float32Array]:
    """Yield audio in blocks of MAX_BLOCK_SAMPLES, shape (n,), the last of which is shorter, and may be empty."""
    rest = NOTHING
    for part in read():
        rest = np.concatenate([rest, part])
        while len(rest) >= MAX_BLOCK_SAMPLES:
            yield rest[:MAX_BLOCK_SAMPLES]
            rest = rest[MAX_BLOCK_SAMPLES:]
    yield rest
