"""A worker's part in the queue of recordings (cluster/jobs.py): transcribes them beside its live sessions."""

import asyncio
import contextlib
import functools
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from nats import errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from streamer.arrays import Float32Array
from streamer.check import check_options
from streamer.cluster.jobs import (
    JOBS,
    KEEP_S,
    STREAM,
    SUBMITTERS,
    Answer,
    Ask,
    Heard,
    Job,
    Over,
    ToSubmitter,
    prepare,
    queue_of,
)
from streamer.cluster.messages import decoded, unpack_samples
from streamer.cluster.owned import Workplace
from streamer.errors import ClusterError, ClusterMessageError, ConfigError, StoppingError, StreamerError, UsageError
from streamer.outside import one_line
from streamer.protocols.recordings import RecordedSegment
from streamer.sessions.recordings import choose_decoding, recorded_segments
from streamer.sessions.sessions import ready_event
from streamer.sessions.yielding import YieldToLive
from streamer.settings.table import SETTINGS, DecodingSettings, Settings, SpeechSettings
from streamer.settings.values import checked
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import check_options_of_model, resolve_decoding

logger = logging.getLogger(__name__)

ACK_WAIT_S = 10.0  # a job that was not renewed for so long comes to another worker
RENEW_S = 3.0
RETRY_S = 1.0  # before a job at which a worker failed comes to one again
FETCH_S = 5.0  # for which a worker waits for a job before it asks again

ASK_S = 10.0  # for one answer of the submitter
GONE_S = 3.0  # after which a submitter is gone that nobody answers for
SILENT_S = 60.0  # the same of one that is there: it may have a hundred workers to answer


@dataclass
class JobCounts:
    """What a worker tells of its recordings: those at work, and those done since its start."""

    running: int = 0
    done: int = 0


async def serve_jobs(place: Workplace, counts: JobCounts) -> None:
    """Transcribe recordings of the queue beside the live sessions of a worker, which go first, until cancelled.

    What is at work when it is cancelled goes to another worker at once.
    """
    most = place.settings.cluster.max_recordings
    server = _Server(place, counts)
    executor = ThreadPoolExecutor(max(1, most), thread_name_prefix="recordings")
    try:
        await asyncio.gather(*(server.run(executor) for _ in range(most)))
    finally:
        executor.shutdown(wait=False)


@dataclass
class _Server:
    """A worker's part in the queue."""

    place: Workplace
    counts: JobCounts

    # Submitters that did not answer: their other jobs are dropped without patience.
    gone: set[str] = field(default_factory=set)

    async def run(self, executor: ThreadPoolExecutor) -> None:
        """Do one job after another."""
        queue: JetStreamContext.PullSubscription | None = None
        model = functools.cache(self.place.model.fork)  # which may take its time: in the thread of the first recording
        while True:
            try:
                queue = queue or await self._open()
                (message,) = await queue.fetch(1, timeout=FETCH_S)
            except TimeoutError:
                continue
            except (errors.Error, ClusterError, OSError) as error:
                logger.debug("the queue of recordings cannot be read: %s", one_line(error))
                if queue is not None:
                    with contextlib.suppress(errors.Error, OSError):
                        await queue.unsubscribe()
                queue = None
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._do(message, model, executor)
            except Exception:  # the job comes again
                logger.exception("a recording could not be begun")
                await asyncio.sleep(RETRY_S)

    async def _open(self) -> JetStreamContext.PullSubscription:
        """Make the consumer of the model, or take it as it is. Raises ClusterError, and what NATS says."""
        bus, identity = self.place.bus, self.place.identity
        await prepare(bus, self.place.settings.cluster)
        queue = queue_of(identity)
        consumer = ConsumerConfig(
            durable_name=f"workers-{queue}",
            description=one_line(identity)[:100],
            filter_subject=f"{JOBS}.{queue}.>",
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_deliver=-1,  # the submitter counts: who stops lets go of a job, too
            inactive_threshold=KEEP_S,
        )
        await bus.patiently(lambda: bus.jetstream.add_consumer(STREAM, consumer), f"the stream {STREAM}")
        return await bus.jetstream.pull_subscribe_bind(consumer.durable_name, STREAM)

    async def _do(self, message: Msg, model: Callable[[], WhisperModel], executor: ThreadPoolExecutor) -> None:
        try:
            work = _Work(self, decoded(message.data, Job), model)
        except ClusterMessageError as error:
            logger.warning("a recording is left out: %s", error)
            await message.ack()
            return
        renewing = asyncio.create_task(_renew(message))
        self.counts.running += 1
        try:
            over = await asyncio.get_running_loop().run_in_executor(executor, work.run)
        except asyncio.CancelledError:
            work.closed = True
            with contextlib.suppress(errors.Error, OSError):
                await self.place.bus.publish(work.submitter, work.failed(StoppingError("the worker stops")))
                await message.nak()
            raise
        finally:
            self.counts.running -= 1
            renewing.cancel()
        self.counts.done += work.complete
        with contextlib.suppress(errors.Error, OSError):  # it comes again, and the submitter does not want it
            await (message.ack() if over else message.nak(RETRY_S))


async def _renew(message: Msg) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        with contextlib.suppress(errors.Error, OSError):
            await message.in_progress()


class _Work:
    """One run of a job, in a thread."""

    def __init__(self, server: _Server, job: Job, model: Callable[[], WhisperModel]) -> None:
        # Set where the worker stops; whether all was transcribed.
        self.closed = False
        self.complete = False
        # The submitter's subject.
        self.submitter = f"{SUBMITTERS}.{job.submitter}"
        self._gone = server.gone
        self._job = job
        self._place = server.place
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._who: dict[str, Any] = {"job": job.number, "worker": server.place.worker, "run": uuid.uuid4().hex}
        # Samples that there are; segments that were told, and those that were not yet.
        self._n_samples = 0
        self._n_told = 0
        self._found: list[RecordedSegment] = []
        self._language = ""

    def run(self) -> bool:
        """Transcribe, and return whether the job is over; else another worker may do it."""
        try:
            self._ask(self._outcome())
        except _EndError as end:
            logger.debug("a recording is let go of: %s", end)
            return end.is_over
        return False

    def failed(self, error: StreamerError) -> Over:
        return Over(**self._who, code=error.code, message=str(error), retry=not isinstance(error, UsageError))

    def _outcome(self) -> Over:
        """Transcribe; return how it ended, unless _EndError ends it."""
        try:
            return self._transcribe()
        except StreamerError as error:
            return self.failed(error)
        except _EndError:
            raise
        except Exception:
            logger.exception("transcribing a recording failed")
            return self.failed(StreamerError("the worker failed: see its log"))

    def _transcribe(self) -> Over:
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
            resolve_decoding(decoding, model, speech, words=job.words),
            enrichment.glossary if enrichment is not None and job.settings is None else None,
            on_progress=self._tell,
            on_language=self._tell_language,
        ):
            self._found.append(segment)
        self.complete = True
        return Over(**self._who, n_segments=self._n_told, ready=ready_event(model, decoding.language))

    def _settings(self, model: WhisperModel) -> tuple[DecodingSettings, SpeechSettings]:
        """Return how the recording is decoded. Raises ConfigError."""
        given, own = self._job.settings, self._place.settings
        if given is None:
            return choose_decoding(own.decoding, self._job.options, model), own.speech
        if unknown := [name for name in given if name not in SETTINGS]:
            raise ConfigError(f"the worker has no setting {unknown[0]!r:.80}: expected one of the same version")
        if given.get("decoding.grammar"):
            raise ConfigError("grammar names a file, which the worker does not have: leave it out")
        values: dict[str, Any] = {name: checked(SETTINGS[name], value, name) for name, value in given.items()}
        decoding, speech = (
            {name.removeprefix(section): value for name, value in values.items() if name.startswith(section)}
            for section in ("decoding.", "speech.")
        )
        settings = Settings(decoding=DecodingSettings(**decoding), speech=SpeechSettings(**speech))
        check_options(settings, streaming=False)
        check_options_of_model(settings.decoding, model)
        return settings.decoding, settings.speech

    def _read(self) -> Iterator[Float32Array]:
        """Read the recording."""
        position = 0
        while True:
            self._yield.wait()
            answer = self._ask(Ask(**self._who, position=position))
            samples = unpack_samples(answer.data, wide=answer.wide)
            if not len(samples):
                return
            position += len(samples)
            self._n_samples = position
            yield samples

    def _tell_language(self, language: str, probabilities: object) -> None:
        self._language = language

    def _tell(self, position: int) -> None:
        """Tell what was found up to a position."""
        segments, self._found = tuple(self._found), []
        heard = Heard(
            **self._who,
            n_before=self._n_told,
            segments=segments,
            position=position,
            n_samples=self._n_samples,
            language=self._language,
            work_s=self._yield.work_s,
        )
        self._ask(heard)
        self._n_told += len(segments)

    def _check(self) -> None:
        if self.closed:
            raise _EndError("the worker stops", is_over=False)

    def _ask(self, request: ToSubmitter) -> Answer:
        """Ask the submitter. Raises _EndError."""
        self._check()  # the loop may have ended with the worker
        try:
            answer = asyncio.run_coroutine_threadsafe(self._request(request), self._loop).result()
        except (RuntimeError, CancelledError):
            raise _EndError("the worker has stopped", is_over=False) from None
        if not answer.wanted:
            raise _EndError("its submitter has all of it, or wants it no more", is_over=True)
        return answer

    async def _request(self, request: ToSubmitter) -> Answer:
        bus, gone = self._place.bus, self._gone
        since_s = time.monotonic()
        while True:
            self._check()
            asked_s = time.monotonic()
            try:
                answer = await bus.request(self.submitter, request, Answer, timeout_s=ASK_S)
            except ClusterError as error:
                logger.debug("a submitter does not answer: %s", error)
            else:
                gone.discard(self.submitter)
                return answer
            now_s = time.monotonic()
            if not bus.connected:
                since_s = now_s  # it is us
            elif self.submitter in gone or now_s - since_s > (GONE_S if now_s - asked_s < ASK_S else SILENT_S):
                gone.add(self.submitter)
                raise _EndError("its submitter is gone", is_over=True)
            await asyncio.sleep(0.2)


class _EndError(Exception):
    """Ends a run, and says whether the job is over, too; else another worker may do it."""

    def __init__(self, why: str, *, is_over: bool) -> None:
        super().__init__(why)
        self.is_over = is_over
