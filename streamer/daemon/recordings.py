"""Transcribes whole recordings beside live sessions, one after another.

One thread takes them from a queue; `server.uploads` limits how many there are. Before each call of a graph it lets
windows of live sessions go first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

import msgspec

from streamer.after.correct.spelling import Glossary
from streamer.arrays import Float32Array
from streamer.audio.sources.file import read_upload
from streamer.daemon.backend import RecordingQueue, Transcription
from streamer.engine.yielding import WaitIdle, YieldToLive
from streamer.errors import BusyError, StoppingError, StreamerError
from streamer.offline import transcribe_segments, with_finals
from streamer.offline.recording import OnLanguage
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.settings.options import decoding_with
from streamer.settings.table import DecodingSettings, Settings
from streamer.setup.models import Known, Models
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.model import WhisperModel
from streamer.whisper.option_checks import check_decode_options
from streamer.whisper.options import decode_options
from streamer.worker import WorkQueue

logger = logging.getLogger(__name__)


def choose_decoding(decoding: DecodingSettings, options: RecordingOptions, model: WhisperModel) -> DecodingSettings:
    """Return the settings with the options of a request. Raises ConfigError if the model cannot do that."""
    chosen = decoding_with(decoding, options)
    task = "transcribe" if options.task is None and chosen.task == "both" else chosen.task
    temperature = chosen.temperature if options.temperature is None else options.temperature
    chosen = msgspec.structs.replace(chosen, task=task, temperature=temperature)
    check_decode_options(chosen, model)
    language = model.choose_language(chosen.language, chosen.task, options.languages or ())
    return msgspec.structs.replace(chosen, language=language)


def recorded_segments(
    model: WhisperModel,
    blocks: Iterable[Float32Array],
    options: DecodeOptions,
    glossary: Glossary | None,
    *,
    on_progress: Callable[[int], None],
    on_language: OnLanguage,
    languages: Sequence[str] = (),
) -> Iterator[RecordedSegment]:
    """Transcribe a recording (see `transcribe_segments`), with terms spelled as in a glossary."""
    segments = transcribe_segments(
        model, blocks, options, on_progress=on_progress, on_language=on_language, languages=languages
    )
    for segment, final in with_finals(segments, options.settings, model.tokenizer):
        yield RecordedSegment(
            final=glossary.spelled(final, options.settings.task) if glossary is not None else final,
            seek=segment.seek,
            tokens=segment.tokens,
            temperature=segment.temperature,
            compression_ratio=segment.compression_ratio,
        )


class Recordings(RecordingQueue):
    """Transcribes recordings in a thread of its own. Used on the server's loop."""

    def __init__(self, settings: Settings, models: Models, ready: asyncio.Event | None = None) -> None:
        """Accept recordings once `serve_with` has been called; `ready` is waited for before one is opened."""
        self._settings = settings
        self._models = models
        self._ready = ready
        self._glossary: Glossary | None = None
        # Waits for live sessions; None before there can be any.
        self._wait_idle: WaitIdle | None = None
        # Jobs that are not over, in order. One call that waits in the worker's queue is enough: it does them all.
        self._jobs: dict[Job, None] = {}
        self._worker = WorkQueue("recordings", limit=1)
        self._idle_since_s = time.monotonic()
        self._stopping = False

    def serve_with(self, model: WhisperModel, wait_idle: WaitIdle, glossary: Glossary | None = None) -> None:
        """Transcribe from now on, also with the daemon's own model, and spell terms as in a glossary."""
        self._glossary = glossary
        self._models.serve_with(model)
        self._wait_idle = wait_idle

    def stop(self) -> None:
        """End all jobs; the one that has begun stops before its next step."""
        self._stopping = True
        for job in tuple(self._jobs):
            job.put(_stopping())
        self._worker.close(0.0)

    def models(self) -> Sequence[ModelInfo]:
        return self._models.all()

    def find(self, model: str) -> ModelInfo:
        return self._models.describe(self._models.find(model))

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> "Job":
        if self._ready is not None:
            await self._ready.wait()
        if (wait_idle := self._wait_idle) is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        job = Job(path, options, await asyncio.to_thread(self._models.find, model), on_close=self._remove)
        if self._stopping:
            raise _stopping()
        self._jobs[job] = None
        self._worker.put(self, lambda: self._run(wait_idle))
        return job

    @property
    def idle_s(self) -> float:
        """Seconds since the last recording was over, or since the start; 0 while there is one."""
        return 0.0 if self._jobs else time.monotonic() - self._idle_since_s

    def unload(self) -> None:
        """Free the models of recordings, until they are asked for again."""
        self._models.unload()

    def _remove(self, job: "Job") -> None:
        self._idle_since_s = time.monotonic()
        self._jobs.pop(job, None)

    def _run(self, wait_idle: WaitIdle) -> None:
        # A tuple, since the loop changes the queue; of one, since a job that is closed meanwhile is to be freed.
        while first := tuple(self._jobs)[:1]:
            (job,) = first
            job.put(self._outcome(job, wait_idle))
            self._remove(job)

    def _outcome(self, job: "Job", wait_idle: WaitIdle) -> StreamerError | None:
        """Transcribe a recording; return the error that it ended with, None for none."""
        try:
            self._check(job)
            self._transcribe(job, wait_idle)
        except CancelledError:
            logger.debug("a recording was closed by its client")
        except StreamerError as error:
            return error
        except Exception:
            logger.exception("transcribing a recording failed")
            return StreamerError("the daemon failed: see its log, and report it as a bug")
        return None

    def _transcribe(self, job: "Job", wait_idle: WaitIdle) -> None:
        model = self._models.get(job.known)
        job.work = YieldToLive(wait_idle, lambda: self._check(job))
        model.call_before(job.work.wait)
        decoding = choose_decoding(self._settings.decoding, job.options, model)
        job.language = decoding.language if decoding.language != "auto" else ""
        segments = recorded_segments(
            model,
            job.audio(),
            decode_options(decoding, model, self._settings.speech),
            self._glossary,
            on_progress=job.note_progress,
            on_language=job.note_language,
            languages=job.options.languages or (),
        )
        for segment in segments:
            job.put(segment)
        logger.debug("a recording of %.1f s with %s took %.1f s", job.duration_s, model.name, job.work_s)

    def _check(self, job: "Job") -> None:
        """Raise CancelledError if the client has closed the job, StoppingError if the daemon stops."""
        if job.closed:
            raise CancelledError
        if self._stopping:
            raise _stopping()


class Job(Transcription):
    """A recording in the queue."""

    def __init__(
        self, path: Path, options: RecordingOptions, known: Known, on_close: Callable[["Job"], object]
    ) -> None:
        super().__init__(known.shown)
        self.path = path
        self.options = options
        self.known = known
        self.closed = False
        self._on_close = on_close
        # Lets live sessions go first; None before the job has begun.
        self.work: YieldToLive | None = None

    @property
    def work_s(self) -> float:
        """Seconds that computing has taken."""
        return self.work.work_s if self.work is not None else 0.0

    def audio(self) -> Iterator[Float32Array]:
        """Yield its audio, 16 kHz mono, shape (n,); of a truncated file, what there is.

        Raises AudioFileError behind the last block if it cannot be read up to its end.
        """
        assert self.work is not None
        for block in read_upload(self.path, lambda error: logger.warning("%s", error)):
            self.work.wait()
            yield block

    def note_progress(self, position_samples: int) -> None:
        self.n_samples = position_samples

    def note_language(self, language: str, probabilities: object) -> None:
        self.language = language

    def put(self, item: RecordedSegment | StreamerError | None) -> None:
        if not isinstance(item, RecordedSegment) and self.work is not None:
            self.work.end()
        super().put(item)

    def close(self) -> None:
        self.closed = True
        self._on_close(self)
        super().put(None)  # it may not have begun


def _stopping() -> StoppingError:
    return StoppingError("the daemon stops: try again in a moment")
