"""A worker's part in recordings (plugins/cluster/jobs.py): it transcribes them beside its live sessions."""

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from streamer.arrays import Float32Array
from streamer.check import check_options
from streamer.daemon.recordings import choose_decoding, recorded_segments
from streamer.daemon.sessions import ready_event
from streamer.engine.yielding import YieldToLive
from streamer.errors import ClusterError, ClusterMessageError, ConfigError, StoppingError, StreamerError, UsageError
from streamer.plugins.cluster.job import JOBS, SUBMITTERS, FreeSlot, JobAnswer, JobEnd, JobReport, RecordingJob
from streamer.plugins.cluster.messages import unpack_samples
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.worker_session import WorkerContext
from streamer.protocols.recordings import RecordedSegment
from streamer.settings.table import DecodingSettings, Settings, SpeechSettings
from streamer.whisper.model import WhisperModel
from streamer.whisper.option_checks import check_options_of_model
from streamer.whisper.options import decode_options

logger = logging.getLogger(__name__)

FREE_S = 1.0  # for which a worker waits for a job before it asks again
RENEW_S = 3.0  # between two reports of a run, at most
RETRY_S = 0.5  # before a worker asks again for a job if no submitter is there, or the last one failed
ASK_S = 10.0  # for one answer of the submitter
GONE_S = 3.0  # without a subscriber, a submitter counts as gone
SILENT_S = 60.0  # the same without answers: it may have a hundred workers to answer


@dataclass
class JobCounts:
    """Recordings of a worker: those at work, and those done since its start."""

    running: int = 0
    done: int = 0


async def serve_jobs(place: WorkerContext, counts: JobCounts) -> None:
    """Transcribe recordings beside the live sessions of a worker, which go first, until cancelled.

    What is at work when it is cancelled goes to another worker at once.
    """
    most = place.settings.of(ClusterSettings).max_recordings
    executor = ThreadPoolExecutor(max(1, most), thread_name_prefix="recordings")
    try:
        await asyncio.gather(*(_serve(place, counts, executor) for _ in range(most)))
    finally:
        executor.shutdown(wait=False)


async def _serve(place: WorkerContext, counts: JobCounts, executor: ThreadPoolExecutor) -> None:
    """Do one job after another."""
    model = functools.cache(place.model.fork)  # which may take its time: in the thread of the first recording
    while True:
        try:
            free = FreeSlot(worker=place.worker, model=place.identity)
            job = await place.bus.request(JOBS, free, RecordingJob, timeout_s=FREE_S)
        except ClusterError as error:
            if isinstance(error, ClusterMessageError):
                logger.warning("a recording is left out: %s", error)
            await asyncio.sleep(RETRY_S)
            continue
        work = _JobRun(place, job, model)
        renewing = asyncio.create_task(work.renew())
        counts.running += 1
        try:
            await asyncio.get_running_loop().run_in_executor(executor, work.run)
        except asyncio.CancelledError:
            work.closed = True
            await place.bus.publish(work.submitter, work.report(end=failed(StoppingError("the worker stops"))))
            raise
        except Exception:  # another worker begins it anew
            logger.exception("a recording could not be begun")
            await asyncio.sleep(RETRY_S)
        finally:
            counts.running -= 1
            renewing.cancel()
        counts.done += work.complete


class _JobRun:
    """One run of a job, in a thread."""

    def __init__(self, place: WorkerContext, job: RecordingJob, model: Callable[[], WhisperModel]) -> None:
        # Set when the worker stops; whether all was transcribed.
        self.closed = False
        self.complete = False
        # The submitter's subject.
        self.submitter = f"{SUBMITTERS}.{job.submitter}"
        self._job = job
        self._place = place
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._run: dict[str, Any] = {"job": job.number, "worker": place.worker, "run": uuid.uuid4().hex}
        # Samples that were read; number of segments that were reported, and those that were not yet.
        self._n_samples = 0
        self._n_reported = 0
        self._found: list[RecordedSegment] = []
        self._language = ""

    def run(self) -> None:
        """Transcribe, and report how it ended."""
        try:
            self._ask(begins=True)
            self._ask(end=self._outcome())
        except _EndError as end:
            logger.debug("a recording is let go of: %s", end)

    async def renew(self) -> None:
        """Report that the run goes on, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            await self._place.bus.publish(self.submitter, self.report())

    def report(self, **fields: Any) -> JobReport:  # noqa: ANN401 - the report's
        return JobReport(**self._run, **fields)

    def _outcome(self) -> JobEnd:
        """Transcribe; return how it ended, unless _EndError ends it."""
        try:
            return self._transcribe()
        except StreamerError as error:
            return failed(error)
        except _EndError:
            raise
        except Exception:
            logger.exception("transcribing a recording failed")
            return failed(StreamerError("the worker failed: see its log"))

    def _transcribe(self) -> JobEnd:
        model, job = self._model(), self._job
        self._yield = YieldToLive(self._place.engine.wait_idle, self._check)
        model.call_before(self._yield.wait)
        decoding, speech = self._settings(model)
        language = model.choose_language(decoding.language, decoding.task)
        self._language = language if language != "auto" else ""
        enrichment = self._place.enrichment
        for segment in recorded_segments(
            model,
            self._read(),
            decode_options(decoding, model, speech, words=job.words),
            enrichment.glossary if enrichment is not None and job.settings is None else None,
            on_progress=self._report_progress,
            on_language=self._set_language,
            languages=job.options.languages or (),
        ):
            self._found.append(segment)
        self.complete = True
        return JobEnd(n_segments=self._n_reported, ready=ready_event(model, decoding.language))

    def _settings(self, model: WhisperModel) -> tuple[DecodingSettings, SpeechSettings]:
        """Return how the recording is decoded. Raises ConfigError."""
        given, own = self._job.settings, self._place.settings
        if given is None:
            return choose_decoding(own.decoding, self._job.options, model), own.speech
        settings = Settings(decoding=given.decoding, speech=given.speech)
        if given.decoding.grammar:
            raise ConfigError("grammar names a file that the worker does not have: remove it")
        check_options(settings, streaming=False)
        check_options_of_model(settings.decoding, model)
        return settings.decoding, settings.speech

    def _read(self) -> Iterator[Float32Array]:
        """Read the recording."""
        position = 0
        while True:
            self._yield.wait()
            answer = self._ask(position=position)
            samples = unpack_samples(answer.data, wide=answer.wide)
            if not len(samples):
                return
            position += len(samples)
            self._n_samples = position
            yield samples

    def _set_language(self, language: str, probabilities: object) -> None:
        self._language = language

    def _report_progress(self, position: int) -> None:
        """Report the segments found up to a position."""
        segments, self._found = tuple(self._found), []
        self._ask(
            n_before=self._n_reported,
            segments=segments,
            done=position,
            n_samples=self._n_samples,
            language=self._language,
            work_s=self._yield.work_s,
        )
        self._n_reported += len(segments)

    def _check(self) -> None:
        if self.closed:
            raise _EndError("the worker stops")

    def _ask(self, **fields: Any) -> JobAnswer:  # noqa: ANN401 - the report's
        """Report to the submitter. Raises _EndError."""
        self._check()  # the loop may have ended with the worker
        try:
            answer = asyncio.run_coroutine_threadsafe(self._request(self.report(**fields)), self._loop).result()
        except (RuntimeError, CancelledError):
            raise _EndError("the worker has stopped") from None
        if not answer.wanted:
            raise _EndError("its submitter has all of it, or no longer wants it")
        return answer

    async def _request(self, report: JobReport) -> JobAnswer:
        bus, since_s = self._place.bus, time.monotonic()
        while True:
            self._check()
            asked_s = time.monotonic()
            try:
                answer: JobAnswer = await bus.request(self.submitter, report, JobAnswer, timeout_s=ASK_S)
                return answer
            except ClusterError as error:
                logger.debug("a submitter does not answer: %s", error)
            now_s = time.monotonic()
            if not bus.connected:
                since_s = now_s  # it is us
            elif now_s - since_s > (GONE_S if now_s - asked_s < ASK_S else SILENT_S):
                raise _EndError("its submitter is gone")
            await asyncio.sleep(0.2)


def failed(error: StreamerError) -> JobEnd:
    return JobEnd(code=error.code, message=str(error), retry=not isinstance(error, UsageError))


class _EndError(Exception):
    """Ends a run without a word."""
