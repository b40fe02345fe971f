"""Recordings that workers transcribe: the submitter keeps their audio and text, any worker with the model does them.

A worker with a free slot asks all submitters for a job (`FreeSlot`). A submitter answers as soon as it has one for the
model; the job belongs to the worker whose first request (`JobAlive`) comes first. The worker asks for the audio, block
by block, reports segments, and stops if the submitter no longer wants the job. A run that is silent for too long counts
as lost, and the job goes to another worker. A recording at which MAX_TRIES workers failed or died is given up.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Self

import numpy as np

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
from streamer.settings.table import SETTINGS, Settings
from streamer.settings.values import NONE

logger = logging.getLogger(__name__)

JOBS = f"{PREFIX}.jobs.{VERSION}"
SUBMITTERS = f"{PREFIX}.submitter"

# Workers that may fail at a recording, or die over it.
MAX_TRIES = 3

FREE_S = 5.0  # that a worker waits for a job before it asks again
OFFER_S = 1.0  # that it has to take the one that it was given, before another gets it
RETRY_S = 1.0  # before a job at which a worker failed is given to one again
LOST_RUN_S = 10.0  # after which a run that reports nothing counts as lost
CHECK_S = 1.0  # from one look at all jobs to the next
NOBODY_S = 60.0  # without a worker that has the model, a job is given up


class FreeSlot(Message, frozen=True, kw_only=True):
    """Request: a worker with a model, as in WorkerAlive, has a free slot. Answer: a Job, from several submitters."""

    worker: str
    model: str


class RecordingJob(Message, frozen=True, kw_only=True):
    """A recording that is to be transcribed."""

    submitter: str
    number: int  # the submitter's own
    words: bool  # whether words are looked for in the texts, with their times

    # Settings of decoding and speech, by their dotted names, all others at their defaults; None: as the worker is set.
    settings: dict[str, Any] | None
    options: RecordingOptions  # what is chosen otherwise than the worker is set


class FromWorker(Message, frozen=True, kw_only=True):
    """What a worker's requests share. They are answered with an Answer."""

    job: int
    worker: str
    run: str  # name of the worker's one try at the job


class AudioRequest(FromWorker, frozen=True, kw_only=True):
    """Request for the audio from a position on."""

    position: int  # of the first sample


class JobAlive(FromWorker, frozen=True, kw_only=True):
    """The run begins, or goes on."""


class JobProgress(FromWorker, frozen=True, kw_only=True):
    """What was found, and how far the run is."""

    n_before: int  # segments of the run before these
    segments: tuple[RecordedSegment, ...]
    position: int  # samples that are done
    n_samples: int  # of how many
    language: str
    work_s: float


class JobEnd(FromWorker, frozen=True, kw_only=True):
    """The run is over."""

    n_segments: int = 0  # in all
    ready: Ready | None = None  # how the session of a recording opens
    code: str = ""  # what went wrong; empty: nothing did
    message: str = ""
    retry: bool = False  # whether another worker might do better


class JobAnswer(Message, frozen=True, kw_only=True):
    """What the submitter answers."""

    wanted: bool  # else the worker stops
    data: bytes = b""  # to Ask: samples as in Audio, none at the end
    wide: bool = False


ToSubmitter = AudioRequest | JobAlive | JobProgress | JobEnd
UNWANTED = JobAnswer(wanted=False)
NOTHING: Float32Array = np.empty(0, dtype=np.float32)


def shown(model: str) -> str:
    """Return the name of a model, of what WorkerAlive says, as people write it."""
    return one_line(model.rpartition(" ")[0] or model)


class Jobs:
    """All jobs of one submitter."""

    def __init__(self, bus: Bus, living: Callable[[], Sequence[WorkerAlive]]) -> None:
        """`living` returns the workers that are alive."""
        self.living = living
        self._bus = bus
        self._name = uuid.uuid4().hex
        self._n_submitted = 0
        # Those that are not over, by their numbers.
        self._jobs: dict[int, Submitted] = {}
        # When a worker with a model was alive last, by the monotonic clock.
        self._alive_s: dict[str, float] = {}
        # Workers that wait for a job, the first longest: their models, until when, and how they are answered.
        self._free: list[tuple[str, float, Reply]] = []
        # What goes on; a reference keeps it from being dropped.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Get ready. Raises ClusterError."""
        await self._bus.subscribe(f"{SUBMITTERS}.{self._name}", self._handle)
        await self._bus.subscribe(JOBS, self._on_free_slot)
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
        """Have a recording transcribed.

        name : what it is called in errors
        read : begins to read it: blocks of 16 kHz mono, shape (n,), the same each time; called in threads of its own
        identity : its model, as `find` returns it
        settings : how to decode; None: as the worker is set, but for what the `options` say
        on_progress : told how many samples are done, and of how many
        """
        self._n_submitted += 1
        job = RecordingJob(
            submitter=self._name,
            number=self._n_submitted,
            words=words,
            settings=_given(settings) if settings is not None else None,
            options=options or RecordingOptions(),
        )
        submitted = Submitted(self._jobs, name, job, identity, read, on_progress)
        self._alive_s[identity] = time.monotonic()
        self._begin(self._give())
        return submitted

    def fail(self, error: StreamerError) -> None:
        """Give up what is not over."""
        for submitted in list(self._jobs.values()):
            submitted.fail(error)

    async def close(self) -> None:
        """End, and want nothing more of what is not over."""
        for submitted in list(self._jobs.values()):
            submitted.close()
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give(self) -> None:
        """Give jobs that wait to workers that are free."""
        now_s = time.monotonic()
        self._free = [each for each in self._free if each[1] > now_s]
        for submitted in list(self._jobs.values()):
            free = next((each for each in self._free if each[0] == submitted.identity), None)
            if free is not None and submitted.waits(now_s):
                self._free.remove(free)
                submitted.wait_until(now_s + OFFER_S)
                await free[2](submitted.job)

    async def _look_after(self) -> None:
        """Give away what was lost on its way, and give up what no worker can do."""
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = time.monotonic()
            self._alive_s |= {alive.model: now_s for alive in self.living()}
            for submitted in list(self._jobs.values()):
                if now_s - self._alive_s[submitted.identity] > NOBODY_S:
                    why = f"no worker with the model {submitted.model} is heard any more; start one"
                    submitted.fail(ClusterError(f"{submitted.name} is given up: {why}, and transcribe it again"))
                if not self._bus.connected:
                    submitted.excuse(now_s)
            await self._give()

    async def _on_free_slot(self, data: bytes, reply: Reply) -> None:
        self._free.append((decoded(data, FreeSlot).model, time.monotonic() + FREE_S, reply))
        await self._give()

    async def _handle(self, data: bytes, reply: Reply) -> None:
        self._begin(self._answer(data, reply))  # runs do not wait for each other

    async def _answer(self, data: bytes, reply: Reply) -> None:
        try:
            request: ToSubmitter = decoded(data, ToSubmitter)  # type: ignore[arg-type]
            submitted = self._jobs.get(request.job)
            await reply(await submitted.answer(request) if submitted is not None else UNWANTED)
        except ClusterMessageError as error:
            logger.warning("a worker is not answered: %s", error)
        else:
            if isinstance(request, JobEnd):
                await self._give()


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
        job: RecordingJob,
        identity: str,
        read: Callable[[], Iterator[Float32Array]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Stand among the `jobs` that are not over; `identity` is the model's, as WorkerAlive has it."""
        self.name = name
        self.model = shown(identity)
        self.identity = identity
        self.job = job
        # As the worker said last.
        self.n_samples = 0
        self.language = ""
        self.work_s = 0.0
        self._jobs = jobs
        self._read = read
        # Until when it is given to no worker, by the monotonic clock.
        self._until_s = 0.0
        self._on_progress = on_progress
        # The run that counts; the workers that have tried, and what the last reported that failed.
        self._run: _Run | None = None
        self._tried: list[str] = []
        self._last_error = "they ended without a word"
        self._result: asyncio.Future[tuple[Ready, list[RecordedSegment]]] = asyncio.get_running_loop().create_future()
        # Segments for who reads them as they come, None at the end; of which run the last was, and its end.
        self._found: asyncio.Queue[RecordedSegment | None] = asyncio.Queue()
        self._found_by: _Run | None = None
        self._found_until_s = 0.0
        jobs[job.number] = self

    @property
    def duration_s(self) -> float:
        """Length of the audio, as far as it was read."""
        return self.n_samples / SAMPLE_RATE

    async def result(self) -> tuple[Ready, list[RecordedSegment]]:
        """Return how its session opens, and the segments of the run that was complete.

        Raises AudioFileError, ConfigError where the model cannot do what the options say, ClusterError where it is
        given up, and what `read` raises.
        """
        return await asyncio.shield(self._result)

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final. Raises as `result` does."""
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
        self._run = None
        self._jobs.pop(self.job.number, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def waits(self, now_s: float) -> bool:
        """Whether a worker is wanted that begins it."""
        return now_s >= self._until_s and (self._run is None or now_s >= self._run.until_s)

    def wait_until(self, until_s: float) -> None:
        """Give it to no worker until then."""
        self._until_s = until_s

    def excuse(self, now_s: float) -> None:
        """Do not count its run as lost since nothing came from it until now: nothing could."""
        if self._run is not None:
            self._run.until_s = now_s + LOST_RUN_S

    async def answer(self, request: ToSubmitter) -> JobAnswer:
        """Return what a worker is answered. Raises ClusterMessageError."""
        now_s, run = time.monotonic(), self._run
        if run is None or run.name != request.run:
            if not isinstance(request, JobAlive) or (run is not None and now_s < run.until_s):
                return UNWANTED  # another worker was faster
            if len(self._tried) >= MAX_TRIES:
                return self._give_up()
            run = self._run = _Run(request.run, self._read)
            self._tried.append(request.worker)
        run.until_s = now_s + LOST_RUN_S
        match request:
            case AudioRequest():
                return await self._audio(run, request)
            case JobProgress():
                return self._found_more(run, request)
            case JobEnd():
                return self._over(run, request)
        return JobAnswer(wanted=True)

    async def _audio(self, run: "_Run", ask: AudioRequest) -> JobAnswer:
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
        return JobAnswer(wanted=True, data=pack_samples(samples, wide=wide), wide=wide)

    def _found_more(self, run: "_Run", found: JobProgress) -> JobAnswer:
        n_known = len(run.segments)
        if not 0 <= found.n_before <= n_known:
            raise ClusterMessageError(f"segments behind {found.n_before} of {n_known} came: expected all of them")
        run.segments[found.n_before :] = found.segments  # the same again if the answer was lost
        self.n_samples, self.language, self.work_s = found.n_samples, found.language[:20], found.work_s
        for segment in run.segments[n_known:]:
            # Another run may find others: those before the end of the last are not passed on again.
            if run is self._found_by or segment.final.start >= self._found_until_s:
                self._found_by, self._found_until_s = run, segment.final.end
                self._found.put_nowait(segment)
        self._on_progress(found.position, found.n_samples)
        return JobAnswer(wanted=True)

    def _over(self, run: "_Run", over: JobEnd) -> JobAnswer:
        message = one_line(over.message)[:1000]
        if over.code == StoppingError.code:
            self._run = None
            self._tried.pop()  # that says nothing about the recording
        elif over.code and not over.retry:
            kind = {AudioFileError.code: AudioFileError, ConfigError.code: ConfigError}.get(over.code, UsageError)
            self.fail(kind(message.replace("the recording", self.name)))
            return UNWANTED
        elif over.code or over.ready is None or over.n_segments != len(run.segments):
            self._last_error = message
            if len(self._tried) >= MAX_TRIES:
                return self._give_up()
            self._run, self._until_s = None, time.monotonic() + RETRY_S
        else:
            self._result.set_result((over.ready, run.segments))
            self._found.put_nowait(None)
            self.close()
            return UNWANTED
        return JobAnswer(wanted=True)

    def _give_up(self) -> JobAnswer:
        workers = ", ".join(one_line(worker)[:64] for worker in self._tried)
        self.fail(
            ClusterError(
                f"{self.name} is given up after {MAX_TRIES} tries, of {workers}: {self._last_error}; expected a"
                " recording that a worker survives, see their logs"
            )
        )
        return UNWANTED


class _Run:
    """A worker's try at a job, and the recording as it reads it, once."""

    def __init__(self, name: str, read: Callable[[], Iterator[Float32Array]]) -> None:
        self.name = name
        self.segments: list[RecordedSegment] = []
        # When it counts as lost unless it reports something, by the monotonic clock.
        self.until_s = 0.0
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
