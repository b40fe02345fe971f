"""Files to text on the workers of a cluster: `streamer transcribe --nats`."""

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from streamer.audio.sources.file import Recording
from streamer.commands.files import STANDARD_STREAM
from streamer.commands.transcribe import Files, print_error
from streamer.engine.eventlog import EventLog
from streamer.errors import ClusterError, ConfigError, StreamerError, UnknownModelError, UsageError
from streamer.events import End, Event, Ready, seconds
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.job import JobSettings, RecordingJob
from streamer.plugins.cluster.jobs import Jobs
from streamer.plugins.cluster.messages import ALIVE_WORKERS, WorkerAlive, decoded
from streamer.plugins.cluster.placement import Workers
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.protocols.recordings import RecordedSegment
from streamer.settings.table import Settings
from streamer.setup.progress import OnProgress

# For which a worker is waited for.
WAIT_S = 10.0

# Files in the queue at once: the submitter serves the audio of those at work, and keeps texts that wait for their turn.
MAX_WAITING = 1000


class OnWorkers:
    """Transcribes files on the workers of a cluster (see `commands.transcribe.Elsewhere`)."""

    def __init__(self, settings: Settings, model: str) -> None:
        """Prepare; `model` is what workers must have, empty: what most of them have."""
        self._settings = settings
        self._model = model

    def check(self, paths: Sequence[Path], *, streaming: bool) -> None:
        """Raise UsageError for what only this machine could do."""
        if streaming:
            raise UsageError(
                "--stream needs the engine of this machine and cannot be used with --nats: remove one of them"
            )
        if STANDARD_STREAM in paths:
            raise UsageError(
                "standard input cannot be used with --nats, because a worker may have to read it again: pass files"
            )
        for wanted, flag in (
            (self._settings.speakers.enabled, "--speakers"),
            (self._settings.correction.glossary, "--glossary"),
            (self._settings.decoding.grammar, "--grammar"),
            (self._settings.model.lora, "--lora"),
            (self._settings.model.tokenizer, "--tokenizer"),
        ):
            if wanted:
                raise UsageError(
                    f"{flag} is only available on this machine and cannot be used with --nats: remove one of them"
                )

    def transcribe(self, files: Files) -> list[int]:
        """Transcribe files; return the exit code of each.

        Raises ClusterError without NATS or a worker, and what else ends all of them.
        """
        return asyncio.run(self._transcribed(files))

    async def _transcribed(self, files: Files) -> list[int]:
        workers = Workers()

        async def note_worker(data: bytes, reply: Reply) -> None:
            workers.take(decoded(data, WorkerAlive), time.monotonic())

        async with contextlib.AsyncExitStack() as stack:
            bus = await Bus.connect(self._settings.of(ClusterSettings), f"transcribe-{os.urandom(6).hex()}")
            stack.push_async_callback(bus.close)
            await bus.subscribe(f"{ALIVE_WORKERS}.*", note_worker)
            jobs = Jobs(bus, lambda: workers.alive(time.monotonic()))
            stack.push_async_callback(jobs.close)
            await jobs.start()
            batch = _Batch(
                self._settings,
                files,
                jobs,
                await _wait_for_worker(jobs, self._model),
                stack.enter_context(files.shown()),
            )
            in_order = next(iter(files.plan.values()))[0].target is None
            tasks: list[asyncio.Task[int]] = []
            try:
                async with asyncio.TaskGroup() as group:
                    for path in files.lengths:
                        before = tasks[-1:] if in_order else []
                        tasks.append(group.create_task(batch.transcribe(path, before)))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the first: the others were cancelled
            return [task.result() for task in tasks]


async def _wait_for_worker(jobs: Jobs, model: str) -> str:
    """Return the model as workers name it. Raises as `Jobs.find` does."""
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return jobs.find(model)
        except (ClusterError, UnknownModelError):
            if time.monotonic() > until_s:
                raise
        await asyncio.sleep(0.1)


class _Batch:
    """Files that are transcribed by workers with one model."""

    def __init__(
        self, settings: Settings, files: Files, jobs: Jobs, model: str, begin: Callable[[Path], OnProgress]
    ) -> None:
        self._settings = settings
        self._files = files
        self._jobs = jobs
        self._model = model
        self._begin = functools.cache(begin)
        self._room = asyncio.Semaphore(MAX_WAITING)

    async def transcribe(self, path: Path, before: list[asyncio.Task[int]]) -> int:
        """Transcribe one file, write its texts behind those `before`, and return its exit code."""
        recording = Recording(path, self._files.track)
        async with self._room:
            submitted = self._jobs.submit(
                str(path),
                recording.read,
                self._model,
                RecordingJob(
                    words=self._files.needs_words(self._settings),
                    settings=JobSettings(self._settings.decoding, self._settings.speech),
                ),
                on_progress=lambda done, total: self._begin(path)(done, total),
            )
            try:
                try:
                    ready, segments = await submitted.result()
                finally:
                    if before:
                        await asyncio.wait(before)
            except ConfigError:
                raise  # it is the same with all files
            except StreamerError as error:
                return print_error(self._files.console, error)
            finally:
                self._begin(path)(1, 1)
            log = EventLog(path.name, self._settings.server.history_events)
            events = _events(log, ready, segments, recording)
            return await asyncio.to_thread(self._files.write, path, events)


def _events(log: EventLog, ready: Ready, segments: list[RecordedSegment], recording: Recording) -> Generator[Event]:
    """Yield the events of a file's session. Raises TruncatedAudioError after those of a truncated file."""
    yield log.append(ready)
    for segment in segments:
        yield log.append(segment.final)
    yield log.append(End(time=seconds(recording.n_samples)))
    if recording.truncated is not None:
        raise recording.truncated
