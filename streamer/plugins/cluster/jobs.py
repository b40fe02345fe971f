"""Recordings that workers transcribe: the submitter keeps their audio and text, any worker with the model does them.

A worker with a free slot asks all submitters for a job (`FreeSlot`), again and again. A submitter that has one for the
model answers; the job belongs to the worker whose first report (`JobReport`) comes first. The worker asks for the
audio, block by block, reports segments, and stops if the submitter no longer wants the job. A run that is silent for
too long counts as lost, and the job goes to another worker. A recording at which MAX_TRIES workers failed or died is
given up.

A work queue of JetStream would know less: who has a job, and how far it is, the submitter must know to give out audio
and to take text; and the jobs of a submitter that is gone would stay.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from streamer.arrays import Float32Array
from streamer.errors import ClusterError, ClusterMessageError, StreamerError, UnknownModelError
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.job import JOBS, SUBMITTERS, UNWANTED, FreeSlot, JobReport, RecordingJob, Submitted, shown
from streamer.plugins.cluster.messages import WorkerAlive, decoded

logger = logging.getLogger(__name__)

CHECK_S = 1.0  # between two checks of all jobs
ABSENT_S = 60.0  # without a worker that has the model, a job is given up


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
        # A reference keeps a task from being collected.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._bus.subscribe(f"{SUBMITTERS}.{self._name}", self._on_report)
        await self._bus.subscribe(JOBS, self._on_free_slot)
        self._begin(self._look_after())

    def find(self, model: str) -> str:
        """Return the model that a name means, as WorkerAlive has it; empty: that of most workers.

        Raises UnknownModelError if no living worker has it, ClusterError if no worker is alive that takes recordings.
        """
        models = Counter(alive.model for alive in self.living() if alive.max_recordings)
        if not models:
            raise ClusterError(
                "no worker that accepts recordings is running: start `streamer worker` on the same NATS with"
                " cluster.max_recordings above 0"
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
        job: RecordingJob,
        on_progress: Callable[[int, int], None] = lambda position, n_samples: None,
    ) -> Submitted:
        """Have a recording transcribed.

        name : what it is called in errors
        read : begins to read it: blocks of 16 kHz mono, shape (n,), the same each time; called in threads of its own
        identity : its model, as `find` returns it
        job : how; it gets its number here
        on_progress : called with the samples that are transcribed, and that were read
        """
        self._n_submitted += 1
        number = self._n_submitted
        job = msgspec.structs.replace(job, submitter=self._name, number=number)
        submitted = Submitted(name, identity, job, read, on_progress)
        submitted.on_closed = lambda: self._jobs.pop(number, None)
        self._jobs[number] = submitted
        self._alive_s[identity] = time.monotonic()
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

    async def _look_after(self) -> None:
        """Give up jobs without a worker, and expect nothing of runs while NATS is away."""
        while True:
            await asyncio.sleep(CHECK_S)
            now_s = time.monotonic()
            self._alive_s |= {alive.model: now_s for alive in self.living()}
            for submitted in list(self._jobs.values()):
                if now_s - self._alive_s[submitted.identity] > ABSENT_S:
                    why = f"no worker with the model {submitted.model} is running; start one"
                    submitted.fail(ClusterError(f"giving up on {submitted.name}: {why}, and transcribe it again"))
                if not self._bus.connected:
                    submitted.excuse()

    async def _on_free_slot(self, data: bytes, reply: Reply) -> None:
        model = decoded(data, FreeSlot).model
        for submitted in self._jobs.values():
            if submitted.identity == model and submitted.waits:
                submitted.offer()
                await reply(submitted.job)
                return

    async def _on_report(self, data: bytes, reply: Reply) -> None:
        self._begin(self._answer(data, reply))  # runs do not wait for each other

    async def _answer(self, data: bytes, reply: Reply) -> None:
        try:
            report = decoded(data, JobReport)
            submitted = self._jobs.get(report.job)
            await reply(await submitted.answer(report) if submitted is not None else UNWANTED)
        except ClusterMessageError as error:
            logger.warning("a worker is not answered: %s", error)
