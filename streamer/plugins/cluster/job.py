"""A recording that workers transcribe: what is said about it, who does it, and what comes of it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import msgspec
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
    UsageError,
)
from streamer.events import Ready
from streamer.outside import one_line
from streamer.plugins.cluster.messages import MAX_BLOCK_SAMPLES, PREFIX, VERSION, Message, pack_samples
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import DecodingSettings, SpeechSettings

logger = logging.getLogger(__name__)

JOBS = f"{PREFIX}.jobs.{VERSION}"
SUBMITTERS = f"{PREFIX}.submitter"

MAX_TRIES = 3  # workers that may fail at a recording, or die while they transcribe it

OFFER_S = 1.0  # in which a worker begins a job that it was given, before another gets it
RETRY_S = 1.0  # before a job at which a worker failed is given to one again
LOST_RUN_S = 10.0  # without a report, a run counts as lost

NOTHING: Float32Array = np.empty(0, dtype=np.float32)


class FreeSlot(Message, frozen=True, kw_only=True):
    """Request: a worker with a model, as in WorkerAlive, has a free slot. Answer: RecordingJob, if there is one."""

    worker: str
    model: str


class JobSettings(msgspec.Struct, frozen=True):
    """How a recording is decoded."""

    decoding: DecodingSettings = DecodingSettings()
    speech: SpeechSettings = SpeechSettings()


class RecordingJob(Message, frozen=True, kw_only=True):
    """A recording that is to be transcribed."""

    submitter: str = ""
    number: int = 0  # the submitter's own
    words: bool = True  # whether segments have words with times

    # Settings for it; None: the worker's.
    settings: JobSettings | None = None
    options: RecordingOptions = RecordingOptions()  # that replace the worker's settings


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


class Submitted(Transcription):
    """A submitted recording, until it is closed."""

    def __init__(
        self,
        name: str,
        identity: str,
        job: RecordingJob,
        read: Callable[[], Iterator[Float32Array]],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """See `Jobs.submit`; `identity` is the model's, as WorkerAlive has it."""
        super().__init__(shown(identity))
        self.name = name
        self.identity = identity
        self.job = job
        self.work_s = 0.0  # as the worker reported last
        # Called when it is closed.
        self.on_closed: Callable[[], object] = lambda: None
        self._read = read
        self._on_progress = on_progress
        # The present run, and until when a worker has the job, as far as is known, by the monotonic clock.
        self._run: _Run | None = None
        self._busy_until_s = 0.0
        # Workers that have tried, each with the error that it reported.
        self._tries: list[tuple[str, str]] = []
        self._result: asyncio.Future[tuple[Ready, list[RecordedSegment]]] = asyncio.get_running_loop().create_future()
        # The run of the last segment that was passed on, and where it ends.
        self._passed: tuple[_Run | None, float] = None, 0.0

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
        self.on_closed()

    @property
    def waits(self) -> bool:
        """Whether a worker should begin it."""
        return time.monotonic() >= self._busy_until_s

    def offer(self) -> None:
        """Note that it is given to a worker; a run that has become silent is left."""
        self._run, self._busy_until_s = None, time.monotonic() + OFFER_S

    def excuse(self) -> None:
        """Expect no report of its run before now: NATS was away."""
        if self._run is not None:
            self._busy_until_s = time.monotonic() + LOST_RUN_S

    async def answer(self, report: JobReport) -> JobAnswer:
        """Process a report. Raises ClusterMessageError."""
        run = self._run
        if run is None or run.name != report.run:
            if not report.begins or (run is not None and not self.waits):
                return UNWANTED  # another worker was faster, or has taken over
            if len(self._tries) >= MAX_TRIES:
                return self._give_up()
            run = self._run = _Run(report.run, self._read)
            self._tries.append((report.worker, "the worker ended without a report"))
        self._busy_until_s = time.monotonic() + LOST_RUN_S
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
            self.fail(AudioFileError(f"cannot read {self.name}: {one_line(error)}; check the file"))
            return UNWANTED
        scaled = samples * np.float32(32768)
        wide = not np.array_equal(scaled, np.clip(np.rint(scaled), -32768, 32767))
        return JobAnswer(wanted=True, data=pack_samples(samples, wide=wide), wide=wide)

    def _add(self, run: "_Run", report: JobReport) -> None:
        n_known = len(run.segments)
        if not 0 <= report.n_before <= n_known:
            raise ClusterMessageError(
                f"malformed report: it continues after {report.n_before} segments, and {n_known} are known"
            )
        run.segments[report.n_before :] = report.segments  # the same again if the answer was lost
        self.n_samples, self.language, self.work_s = report.n_samples, report.language[:20], report.work_s
        for segment in run.segments[n_known:]:
            # Another run may find others: those before the end of the last are not passed on again.
            last, until_s = self._passed
            if run is last or segment.final.start >= until_s:
                self._passed = run, segment.final.end
                self.put(segment)
        self._on_progress(report.done, report.n_samples)

    def _finish(self, run: "_Run", end: JobEnd) -> JobAnswer:
        message = one_line(end.message)[:1000]
        if end.code == StoppingError.code:
            self._run, self._busy_until_s = None, 0.0
            self._tries.pop()  # that says nothing about the recording
        elif end.code and not end.retry:
            kind = {AudioFileError.code: AudioFileError, ConfigError.code: ConfigError}.get(end.code, UsageError)
            self.fail(kind(message.replace("the recording", self.name)))
            return UNWANTED
        elif end.code or end.ready is None or end.n_segments != len(run.segments):
            self._tries[-1] = self._tries[-1][0], message
            if len(self._tries) >= MAX_TRIES:
                return self._give_up()
            self._run, self._busy_until_s = None, time.monotonic() + RETRY_S
        else:
            self._result.set_result((end.ready, run.segments))
            self.put(None)
            self.close()
            return UNWANTED
        return JobAnswer(wanted=True)

    def _give_up(self) -> JobAnswer:
        workers = ", ".join(one_line(worker)[:64] for worker, _ in self._tries)
        self.fail(
            ClusterError(
                f"giving up on {self.name} after {MAX_TRIES} failed tries on {workers}: {self._tries[-1][1]}; see the"
                " workers' logs"
            )
        )
        return UNWANTED


class _Run:
    """A worker's try at a job, and the recording as it reads it, once."""

    def __init__(self, name: str, read: Callable[[], Iterator[Float32Array]]) -> None:
        self.name = name
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
            raise ClusterMessageError(
                f"malformed report: it asks for audio at sample {position}, expected to be read in order"
            )
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


def shown(model: str) -> str:
    """Return a model's name, without the hash of WorkerAlive."""
    return one_line(model.rpartition(" ")[0] or model)
