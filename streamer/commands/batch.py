"""Files to text on the workers of a cluster: `streamer transcribe --nats`."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from streamer.audio.sources.file import Recording
from streamer.cluster.bus import Bus, Reply
from streamer.cluster.jobs import Jobs
from streamer.cluster.messages import ALIVE_WORKERS, WorkerAlive, decoded
from streamer.cluster.placement import Workers
from streamer.commands.files import STANDARD_INPUT, Text
from streamer.commands.progress import OnProgress, estimated_lengths, show_files
from streamer.commands.transcribe import is_seen, needs_words, print_error, writing
from streamer.engine.eventlog import EventLog
from streamer.errors import (
    ClusterError,
    ConfigError,
    StreamerError,
    TruncatedAudioError,
    UnknownModelError,
    UsageError,
)
from streamer.events import End, Ready
from streamer.outputs.subtitles import SubtitleOptions
from streamer.protocols.recordings import RecordedSegment
from streamer.settings.table import Settings

logger = logging.getLogger(__name__)

# For which a worker is waited for.
WAIT_S = 10.0

# Files in the queue at once: the submitter serves the audio of those at work, and keeps texts that wait for their turn.
MAX_WAITING = 1000


def check_elsewhere(settings: Settings, paths: Sequence[Path], *, streaming: bool) -> None:
    """Raise UsageError for what only this machine could do."""
    if streaming:
        raise UsageError("--stream is for the engine of this machine: leave out --stream, or --nats")
    if STANDARD_INPUT in paths:
        raise UsageError(
            "standard input comes once, and workers may read a recording again: expected files with --nats"
        )
    for wanted, flag in (
        (settings.speakers.enabled, "--speakers"),
        (settings.correction.glossary, "--glossary"),
        (settings.decoding.grammar, "--grammar"),
        (settings.model.lora, "--lora"),
        (settings.model.tokenizer, "--tokenizer"),
    ):
        if wanted:
            raise UsageError(f"{flag} needs what is on this machine, and workers transcribe: leave it out, or --nats")


@dataclass
class Batch:
    """Files that the workers of a cluster transcribe."""

    settings: Settings
    plan: dict[Path, list[Text]]
    lines: SubtitleOptions
    lengths: dict[Path, float | None]
    track: int
    console: Console

    def __post_init__(self) -> None:
        self._words = needs_words(self.settings, next(iter(self.plan.values())), self.lines)
        self._workers = Workers()
        # Of each file its length, and how much of that is done.
        self._lengths_s = estimated_lengths(self.lengths)
        self._done_s = dict.fromkeys(self.lengths, 0.0)
        self._show: OnProgress = lambda done, total: None

    async def run(self, model: str) -> list[int]:
        """Return the exit code of each file.

        model : that workers must have; empty: what most of them have

        Raises ClusterError without NATS or a worker, and what else ends all of them.
        """
        cluster = self.settings.cluster
        async with contextlib.AsyncExitStack() as stack:
            bus = await Bus.connect(cluster, f"transcribe-{os.urandom(6).hex()}")
            stack.push_async_callback(bus.close)
            await bus.subscribe(f"{ALIVE_WORKERS}.*", self._on_worker_alive)
            jobs = Jobs(bus, lambda: self._workers.alive(time.monotonic()))
            stack.push_async_callback(jobs.close)
            await jobs.start()
            identity = await self._wait_for_worker(jobs, model)
            name = Path(f"{len(self.lengths)} files") if len(self.lengths) > 1 else next(iter(self.lengths))
            whole = {} if is_seen(self.lengths, self.plan) else {name: sum(self._lengths_s.values())}
            shown = stack.enter_context(show_files(self.console, whole))
            self._show = shown(name)
            room = asyncio.Semaphore(MAX_WAITING)
            in_order = next(iter(self.plan.values()))[0].target is None
            tasks: list[asyncio.Task[int]] = []
            try:
                async with asyncio.TaskGroup() as group:
                    for path in self.lengths:
                        before = tasks[-1:] if in_order else []
                        tasks.append(group.create_task(self._file(jobs, identity, path, room, before)))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the first: the others were cancelled
            return [task.result() for task in tasks]

    async def _on_worker_alive(self, data: bytes, reply: Reply) -> None:
        self._workers.take(decoded(data, WorkerAlive), time.monotonic())

    async def _wait_for_worker(self, jobs: Jobs, model: str) -> str:
        """Return the model as workers name it. Raises as `Jobs.find` does."""
        until_s = time.monotonic() + WAIT_S
        while True:
            try:
                return jobs.find(model)
            except (ClusterError, UnknownModelError):
                if time.monotonic() > until_s:
                    raise
            await asyncio.sleep(0.1)

    async def _file(
        self, jobs: Jobs, identity: str, path: Path, room: asyncio.Semaphore, before: list[asyncio.Task[int]]
    ) -> int:
        """Transcribe one file and return its exit code; what is wrong is told, behind those `before`."""
        recording = Recording(path, self.track)
        async with room:
            submitted = jobs.submit(
                str(path),
                recording.read,
                identity,
                settings=self.settings,
                words=self._words,
                on_progress=lambda done, total: self._progress(path, done / total if total else 0.0),
            )
            try:
                try:
                    ready, segments = await submitted.result()
                finally:
                    if before:
                        await asyncio.wait(before)
                await asyncio.to_thread(self._write, path, ready, segments, recording.truncated)
            except ConfigError:
                raise  # it is the same with all files
            except StreamerError as error:
                return print_error(self.console, error)
            finally:
                self._progress(path, 1.0)
        return 0

    def _write(
        self, path: Path, ready: Ready, segments: list[RecordedSegment], truncated: TruncatedAudioError | None
    ) -> None:
        """Write the texts of a file. Raises TruncatedAudioError when those of a truncated file are written."""
        log = EventLog(path.name, self.settings.server.history_events)
        with writing(self.plan[path], self.lines) as write:
            write(log.append(ready))
            for segment in segments:
                write(log.append(segment.final))
            write(log.append(End()))
            if truncated is not None:
                raise truncated

    def _progress(self, path: Path, share: float) -> None:
        self._done_s[path] = self._lengths_s[path] * min(1.0, max(0.0, share))
        self._show(round(1000 * sum(self._done_s.values())), round(1000 * sum(self._lengths_s.values())))
