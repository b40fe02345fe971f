"""Recordings that workers transcribe: the submitter keeps their audio and text, any worker with the model does them.

A worker with a free slot asks all submitters for a job (`FreeSlot`). A submitter answers as soon as it has one for the
model; the job belongs to the worker whose first report (`JobReport`) comes first. The worker asks for the audio, block
by block, reports segments, and stops if the submitter no longer wants the job. A run that is silent for too long counts
as lost, and the job goes to another worker. A recording at which MAX_TRIES workers failed or died is given up.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import numpy as np

from streamer.arrays import Float32Array
from streamer.daemon.backend import Transcription
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
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.messages import (
    MAX_BLOCK_SAMPLES,
    PREFIX,
    VERSION,
    Message,
    WorkerAlive,
    decoded,
    pack_samples,
)
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.registry import SETTINGS
from streamer.settings.table import Settings
from streamer.settings.values import NONE

logger = logging.getLogger(__name__)

JOBS = f"{PREFIX}.jobs.{VERSION}"
SUBMITTERS = f"{PREFIX}.submitter"

MAX_TRIES = 3  # workers that may fail at a recording, or die while they transcribe it

FREE_S = 5.0  # for which a worker waits for a job before it asks again
OFFER_S = 1.0  # in which a worker begins a job that it was given, before another gets it
RETRY_S = 1.0  # before a job at which a worker failed is given to one again
LOST_RUN_S = 10.0  # without a report, a run counts as lost
CHECK_S = 1.0  # between two checks of all jobs
ABSENT_S = 60.0  # without a worker that has the model, a job is given up


class FreeSlot(Message, frozen=True, kw_only=True):
    """Request: a worker with a model, as in WorkerAlive, has a free slot. Answer: RecordingJob."""

    worker: str
    model: str


class RecordingJob(Message, frozen=True, kw_only=True):
    """A recording that is to be transcribed."""

    submitter: str
    number: int  # the submitter's own
    words: bool  # whether segments have words with times

    # Settings of decoding and speech, by their dotted names, others at their defaults; None: the worker's.
    settings: dict[str, Any] | None
    options: RecordingOptions  # that replace the worker's settings


class JobEnd(Message, frozen=True, kw_only=True):
    """How a run has ended."""

    n_segments: int = 0  # in all
    ready: Ready | None = None  # with which the recording's session opens
    code: str = ""  # of the error; empty if there was none
    message: str = ""
    retry: bool = False  # whether another worker might succeed


class JobReport(Message, frozen=True, kw_only=True):
    """Request of a run, at least every few seconds. Answer: JobAnswer."""

    job: int
    worker: str
    run: str  # unique name of the worker's try
    begins: bool = False
    position: int | None = None  # of the first sample of the next audio; None: none is asked for

    n_before: int = 0  # segments reported before these
    segments: tuple[RecordedSegment, ...] = ()
    done: int = 0  # samples that are transcribed
    n_samples: int = 0  # that were read
    language: str = ""
    work_s: float = 0.0

    end: JobEnd | None = None


class JobAnswer(Message, frozen=True, kw_only=True):
    """Answer of a submitter."""

    wanted: bool  # else the worker stops
    data: bytes = b""  # samples as in AudioBlock; none at the end of the recording
    wide: bool = False


UNWANTED = JobAnswer(wanted=False)
NOTHING: Float32Array = np.empty(0, dtype=np.float32)


def shown(model: str) -> str:
    """Return a model's name, without the hash of WorkerAlive."""
    return one_line(model.rpartition(" ")[0] or model)


class Jobs:
    """The jobs of one submitter."""

    def __init__(self, bus: Bus, living: Callable[[], Sequence[WorkerAlive]]) -> None:
        """`living` returns the workers that are alive."""
        self.living = living
        self._bus = bus
        self._name = uuid.uuid4().hex
        self._n_submitted = 0
        # Unfinished jobs, by number.
        self._jobs: dict[int, Submitted] = {}
        # When a worker with a model was alive last, by the monotonic clock.
        self._alive_s: dict[str, float] = {}
        # Workers that wait for a job, the first longest: their models, until when, and how they are answered.
        self._free: list[tuple[str, float, Reply]] = []
        # A reference keeps a task from being collected.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._bus.subscribe(f"{SUBMITTERS}.{self._name}", self._handle)
        await self._bus.subscribe(JOBS, self._on_free_slot)
        self._begin(self._look_after())

    def find(self, model: str) -> str:
        """Return the model that a name means, as WorkerAlive has it; empty: that of most workers.

        Raises UnknownModelError if no living worker has it, ClusterError if no worker is alive that takes recordings.
        """
        models = Counter(alive.model for alive in self.living() if alive.max_recordings)
        if not models:
            raise ClusterError(
                "no worker that takes recordings is alive: expected `streamer worker` on the same NATS, with"
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
        settings : for decoding; None: the worker's, changed by the `options`
        on_progress : called with the samples that are transcribed, and that were read
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
        """Give up unfinished jobs."""
        for submitted in list(self._jobs.values()):
            submitted.fail(error)

    async def close(self) -> None:
        """Stop, and have workers drop unfinished jobs."""
        for submitted in list(self._jobs.values()):
            submitted.close()
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give(self) -> None:
        """Give waiting jobs to free workers."""
        now_s = time.monotonic()
        self._free = [each for each in self._free if each[1] > now_s]
        for submitted in list(self._jobs.values()):
            free = next((each for each in self._free if each[0] == submitted.identity), None)
            if free is not None and submitted.waits(now_s):
                self._free.remove(free)
                submitted.wait_until(now_s + OFFER_S)
                await free[2](submitted.job)

    async def _look_after(self) -> None:
        """Give jobs away again whose offer or run was lost, and give up those without a worker."""
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = time.monotonic()
            self._alive_s |= {alive.model: now_s for alive in self.living()}
            for submitted in list(self._jobs.values()):
                if now_s - self._alive_s[submitted.identity] > ABSENT_S:
                    why = f"no worker with the model {submitted.model} is alive any longer; start one"
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
            report = decoded(data, JobReport)
            submitted = self._jobs.get(report.job)
            await reply(await submitted.answer(report) if submitted is not None else UNWANTED)
        except ClusterMessageError as error:
            logger.warning("a worker is not answered: %s", error)
        else:
            if report.end is not None:
                await self._give()


def _given(settings: Settings) -> dict[str, Any]:
    """Return the settings of decoding and speech that are not the default."""
    default = Settings()
    names = [name for name in SETTINGS if name.startswith(("decoding.", "speech."))]
    return {
        name: NONE if settings[name] is None else settings[name] for name in names if settings[name] != default[name]
    }


class Submitted(Transcription):
    """A submitted recording, until it is closed."""

    def __init__(
        self,
        jobs: "dict[int, Submitted]",
        name: str,
        job: RecordingJob,
        identity: str,
        read: Callable[[], Iterator[Float32Array]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Join the unfinished `jobs`; `identity` is the model's, as WorkerAlive has it."""
        super().__init__(shown(identity))
        self.name = name
        self.identity = identity
        self.job = job
        self.work_s = 0.0  # as the worker reported last
        self._jobs = jobs
        self._read = read
        # When it may be given to a worker again, by the monotonic clock.
        self._until_s = 0.0
        self._on_progress = on_progress
        # The present run; the workers that have tried, and the last error.
        self._run: _Run | None = None
        self._tried: list[str] = []
        self._last_error = "they ended without a word"
        self._result: asyncio.Future[tuple[Ready, list[RecordedSegment]]] = asyncio.get_running_loop().create_future()
        # The run of the last segment that was passed on, and where it ends.
        self._found_by: _Run | None = None
        self._found_until_s = 0.0
        jobs[job.number] = self

    async def result(self) -> tuple[Ready, list[RecordedSegment]]:
        """Return how its session opens, and the segments of the run that was complete.

        Raises AudioFileError, ConfigError if the model cannot follow the options, ClusterError if it is given up, and
        what `read` raises.
        """
        return await asyncio.shield(self._result)

    def fail(self, error: StreamerError) -> None:
        """Give it up."""
        if not self._result.done():
            self._result.set_exception(error)
            self._result.exception()  # `result` may not have been awaited
            self.put(error)
        self.close()

    def close(self) -> None:
        """Drop it, unread and unfinished as it may be; harmless the second time."""
        self._run = None
        self._jobs.pop(self.job.number, None)

    def waits(self, now_s: float) -> bool:
        """Whether a worker should begin it."""
        return now_s >= self._until_s and (self._run is None or now_s >= self._run.until_s)

    def wait_until(self, until_s: float) -> None:
        """Give it to no worker until a time."""
        self._until_s = until_s

    def excuse(self, now_s: float) -> None:
        """Expect no report of its run before now: NATS was away."""
        if self._run is not None:
            self._run.until_s = now_s + LOST_RUN_S

    async def answer(self, report: JobReport) -> JobAnswer:
        """Process a report. Raises ClusterMessageError."""
        now_s, run = time.monotonic(), self._run
        if run is None or run.name != report.run:
            if not report.begins or (run is not None and now_s < run.until_s):
                return UNWANTED  # another worker was faster, or has taken over
            if len(self._tried) >= MAX_TRIES:
                return self._give_up()
            run = self._run = _Run(report.run, self._read)
            self._tried.append(report.worker)
        run.until_s = now_s + LOST_RUN_S
        if report.position is not None:
            return await self._audio(run, report.position)
        if report.end is not None:
            return self._finish(run, report.end)
        if report.n_samples:
            self._add(run, report)
        return JobAnswer(wanted=True)

    async def _audio(self, run: "_Run", position: int) -> JobAnswer:
        try:
            async with run.lock:
                samples = await asyncio.to_thread(run.block, position)
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

    def _add(self, run: "_Run", report: JobReport) -> None:
        n_known = len(run.segments)
        if not 0 <= report.n_before <= n_known:
            raise ClusterMessageError(f"segments behind {report.n_before} of {n_known} came: expected all of them")
        run.segments[report.n_before :] = report.segments  # the same again if the answer was lost
        self.n_samples, self.language, self.work_s = report.n_samples, report.language[:20], report.work_s
        for segment in run.segments[n_known:]:
            # Another run may find others: those before the end of the last are not passed on again.
            if run is self._found_by or segment.final.start >= self._found_until_s:
                self._found_by, self._found_until_s = run, segment.final.end
                self.put(segment)
        self._on_progress(report.done, report.n_samples)

    def _finish(self, run: "_Run", end: JobEnd) -> JobAnswer:
        message = one_line(end.message)[:1000]
        if end.code == StoppingError.code:
            self._run = None
            self._tried.pop()  # that says nothing about the recording
        elif end.code and not end.retry:
            kind = {AudioFileError.code: AudioFileError, ConfigError.code: ConfigError}.get(end.code, UsageError)
            self.fail(kind(message.replace("the recording", self.name)))
            return UNWANTED
        elif end.code or end.ready is None or end.n_segments != len(run.segments):
            self._last_error = message
            if len(self._tried) >= MAX_TRIES:
                return self._give_up()
            self._run, self._until_s = None, time.monotonic() + RETRY_S
        else:
            self._result.set_result((end.ready, run.segments))
            self.put(None)
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
