"""Whole recordings to text beside the live sessions, one after another, as `server.interfaces.Recordings` wants it.

One thread works through a bounded queue. Before each call of a graph, which is tens of milliseconds at most but for the
encoder, it lets windows of live sessions go first.
"""

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.sources.file import read_audio
from streamer.correct.spelling import Glossary
from streamer.errors import AudioFileError, BusyError, StoppingError, StreamerError, TruncatedAudioError
from streamer.live.models import Known, Models
from streamer.protocols.recordings import ModelInfo, RecordedSegment, RecordingOptions
from streamer.settings.apply import ResolvedDecoding, decode_options, resolve_decoding
from streamer.settings.check import check_decode_options
from streamer.settings.table import DecodingSettings, Settings
from streamer.transcribe import transcribe_segments, with_finals
from streamer.transcribe.recording import OnLanguage
from streamer.whisper.model import WhisperModel

logger = logging.getLogger(__name__)

# A recording waits for live sessions no longer than this, and so many times the time that it has worked: at least a
# fifth of the time is its own, however busy they are.
PATIENCE_S = 2.0
PATIENCE = 4.0

LOOK_S = 0.005  # from one look at the live sessions to the next


def choose_decoding(decoding: DecodingSettings, options: RecordingOptions, model: WhisperModel) -> DecodingSettings:
    """Return the settings with what a request says otherwise. Raises ConfigError where the model cannot do that."""
    said: dict[str, Any] = {
        "language": options.language,
        "task": options.task or ("transcribe" if decoding.task == "both" else None),
        "initial_prompt": options.prompt,
        "hotwords": options.hotwords,
        "temperature": options.temperature,
        "beam_size": options.beam_size,
    }
    chosen = dataclasses.replace(decoding, **{name: value for name, value in said.items() if value is not None})
    # The model sees the end of a prompt that is too long.
    check_decode_options(dataclasses.replace(decode_options(chosen, model), initial_prompt=""), model)
    return chosen


def recorded_segments(
    model: WhisperModel,
    blocks: Iterable[Float32Array],
    decoding: ResolvedDecoding,
    glossary: Glossary | None,
    *,
    on_progress: Callable[[int], None],
    on_language: OnLanguage,
) -> Iterator[RecordedSegment]:
    """Transcribe a recording, see `transcribe_segments`; spell its terms as a glossary says."""
    segments = transcribe_segments(model, blocks, decoding, on_progress=on_progress, on_language=on_language)
    for segment, final in with_finals(segments, decoding.settings, model.tokenizer):
        yield RecordedSegment(
            final=glossary.spelled(final, decoding.settings.task) if glossary is not None else final,
            seek=segment.seek,
            tokens=segment.tokens,
            temperature=segment.temperature,
            compression_ratio=segment.compression_ratio,
        )


class Turn:
    """How one recording lets live sessions go first, and how long it works; of one thread, others look."""

    def __init__(self, is_live_busy: Callable[[], bool]) -> None:
        """`is_live_busy` says whether live sessions are at work. The model is there: the time counts from now on."""
        self._is_live_busy = is_live_busy
        # When computing began and ended, by the monotonic clock, and how much of that time was waited.
        self._begin_s = time.monotonic()
        self._end_s: float | None = None
        self._waited_s = 0.0

    @property
    def work_s(self) -> float:
        """Seconds that computing has taken."""
        return (self._end_s or time.monotonic()) - self._begin_s - self._waited_s

    def end(self) -> None:
        """The time counts no longer."""
        self._end_s = time.monotonic()

    def wait(self, check: Callable[[], None]) -> None:
        """Let live sessions go first; `check` raises what ends that."""
        while True:
            check()
            if self._waited_s >= PATIENCE_S + PATIENCE * self.work_s or not self._is_live_busy():
                return
            begin_s = time.monotonic()
            time.sleep(LOOK_S)
            self._waited_s += time.monotonic() - begin_s


class Recordings:
    """See `server.interfaces.Recordings`."""

    def __init__(self, settings: Settings, models: Models) -> None:
        """Transcribe as the settings say; nothing before `serve_with`."""
        self._settings = settings
        self._models = models
        # Whether live sessions are at work; None before there can be any.
        self._is_live_busy: Callable[[], bool] | None = None
        self._stopping = False
        self._glossary: Glossary | None = None
        # What waits, what is at work, and what tells of something new. Guarded by the condition.
        self._waiting: deque[Job] = deque()
        self._current: Job | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="recordings", daemon=True)

    def serve_with(
        self, model: WhisperModel, is_live_busy: Callable[[], bool], glossary: Glossary | None = None
    ) -> None:
        """Transcribe from now on, also with the daemon's own model, and spell terms as a glossary says."""
        self._glossary = glossary
        self._models.serve_with(model)
        self._is_live_busy = is_live_busy
        self._thread.start()

    def stop(self) -> None:
        """End all that waits, and what is at work before its next step, with StoppingError."""
        with self._changed:
            self._stopping = True
            for job in self._waiting:
                job.put(_stopping())
            self._waiting.clear()
            self._changed.notify()

    def models(self) -> Sequence[ModelInfo]:
        """Return the models that a request may name, the daemon's own first."""
        return self._models.all()

    def find(self, model: str) -> ModelInfo:
        """Return a model by a name that a request gives. Raises UnknownModelError."""
        return self._models.describe(self._models.find(model))

    async def open(self, path: Path, options: RecordingOptions, model: str = "") -> "Job":
        """Put a file of audio into the queue. Raises BusyError, StoppingError, UnknownModelError."""
        if self._is_live_busy is None:
            raise BusyError("the model is still being loaded: try again in a moment")
        job = Job(self, path, options, await asyncio.to_thread(self._models.find, model))
        most = self._settings.server.max_recordings
        with self._changed:
            if self._stopping:
                raise _stopping()
            if len(self._waiting) + (self._current is not None) >= most:
                raise BusyError(f"{most} recordings wait (server.max_recordings): try again later")
            self._waiting.append(job)
            self._changed.notify()
        return job

    def forget(self, job: "Job") -> None:
        """A job is closed: its place in the queue is free."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job.put(None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._current = None
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                job = self._current = self._waiting.popleft()
            job.put(self._outcome(job))

    def _outcome(self, job: "Job") -> StreamerError | None:
        """Transcribe a recording; return what it ended with."""
        try:
            self._transcribe(job)
        except _ClosedError:
            logger.debug("a recording was given up")
        except AudioFileError as error:
            return AudioFileError(str(error).replace(str(job.path), "the recording"))
        except StreamerError as error:
            return error
        except Exception:
            logger.exception("transcribing a recording failed")
            return StreamerError("the daemon failed: see its log, and report it as a bug")
        return None

    def _transcribe(self, job: "Job") -> None:
        assert self._is_live_busy is not None
        model = self._models.get(job.known)
        turn = job.turn = Turn(self._is_live_busy)
        model.call_before(lambda: turn.wait(lambda: self._check(job)))
        decoding = choose_decoding(self._settings.decoding, job.options, model)
        language = model.choose_language(decoding.language, decoding.task)
        job.language = language if language != "auto" else ""

        def found(language: str, probabilities: object) -> None:
            job.language = language

        def heard(position_samples: int) -> None:
            job.duration_s = position_samples / SAMPLE_RATE

        def read() -> Iterator[Float32Array]:
            # What a truncated file holds counts.
            with contextlib.suppress(TruncatedAudioError):
                for block in read_audio(job.path):
                    turn.wait(lambda: self._check(job))
                    yield block

        resolved = resolve_decoding(decoding, model, self._settings.speech)
        for segment in recorded_segments(model, read(), resolved, self._glossary, on_progress=heard, on_language=found):
            job.put(segment)
        logger.debug("a recording of %.1f s with %s took %.1f s", job.duration_s, model.name, job.work_s)

    def _check(self, job: "Job") -> None:
        """Raise what ends the job."""
        if job.closed:
            raise _ClosedError
        if self._stopping:
            raise _stopping()


class Job:
    """A recording on its way to text, made and iterated on the server's loop; see `server.interfaces.Transcription`."""

    def __init__(self, recordings: Recordings, path: Path, options: RecordingOptions, known: Known) -> None:
        self.path = path
        self.options = options
        self.known = known
        self.model = known.shown  # its name
        self.duration_s = 0.0
        self.language = ""
        self.closed = False
        self._recordings = recordings
        self._loop = asyncio.get_running_loop()
        # What comes, and at the end None or an error.
        self._items: asyncio.Queue[RecordedSegment | StreamerError | None] = asyncio.Queue()
        # None before it is its turn.
        self.turn: Turn | None = None

    @property
    def work_s(self) -> float:
        """Seconds that computing has taken."""
        return self.turn.work_s if self.turn is not None else 0.0

    def put(self, item: RecordedSegment | StreamerError | None) -> None:
        """Hand something over, from any thread; other things than segments are the last."""
        if not isinstance(item, RecordedSegment) and self.turn is not None:
            self.turn.end()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def __aiter__(self) -> AsyncIterator[RecordedSegment]:
        """Yield segments as they become final."""
        while (item := await self._items.get()) is not None:
            if isinstance(item, StreamerError):
                raise item
            yield item

    def close(self) -> None:
        """End it where it is not over."""
        self.closed = True
        self._recordings.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _ClosedError(Exception):
    """Nobody waits for the recording any more."""


def _stopping() -> StoppingError:
    return StoppingError("the daemon stops: try again in a moment")
