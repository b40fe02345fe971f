"""Recordings that workers transcribe, with a real nats-server: whatever fails, each text comes once."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.errors import AudioFileError, ClusterError, ConfigError, InferenceError, UnknownModelError
from streamer.events import Final
from streamer.plugins.cluster import job as job_module
from streamer.plugins.cluster import jobs, work
from streamer.plugins.cluster.bus import Bus, Reply
from streamer.plugins.cluster.job import (
    JOBS,
    SUBMITTERS,
    FreeSlot,
    JobAnswer,
    JobReport,
    JobSettings,
    RecordingJob,
    Submitted,
)
from streamer.plugins.cluster.jobs import Jobs
from streamer.plugins.cluster.messages import VERSION, Message, Refused, WorkerAlive
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.work import JobCounts, serve_jobs
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.plugins.cluster.support import NatsServer, bus_on, settings_for, workplace
from tests.waiting import WAIT_S, until
from tests.wire.support import within

# How sure the model was.
SURE: dict[str, Any] = {"no_speech_prob": 0.0, "avg_logprob": 0.0}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less than on a real network."""
    for name, seconds in (("RENEW_S", 0.2), ("RETRY_S", 0.1), ("GONE_S", 0.5), ("ASK_S", 2.0)):
        monkeypatch.setattr(work, name, seconds)
    monkeypatch.setattr(work, "FREE_S", 0.2)
    monkeypatch.setattr(jobs, "CHECK_S", 0.2)
    for name, seconds in (("LOST_RUN_S", 30.0), ("RETRY_S", 0.1)):
        monkeypatch.setattr(job_module, name, seconds)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> str:
    """A model whose workers seem dead soon."""
    monkeypatch.setattr(job_module, "LOST_RUN_S", 1.0)
    return "mortal 1"


@dataclass
class Transcriber:
    """Stands in for the model's part: says one segment for each second of audio, and what happens in between."""

    # Called after the first segment of each run, with its number; may raise, or wait.
    between: Callable[[int], None] = lambda n: None
    # Samples of each run.
    received: list[Float32Array] = field(default_factory=list)
    n_runs: int = 0

    def __call__(
        self,
        model: WhisperModel,
        blocks: Iterable[Float32Array],
        *more: object,
        on_progress: Callable[[int], None],
        on_language: Callable[[str, Any], None],
        languages: Sequence[str],
    ) -> Iterator[RecordedSegment]:
        self.n_runs += 1
        run = self.n_runs
        self.received.append(np.concatenate([np.empty(0, np.float32), *blocks]))
        on_language("en", {})
        for i in range(len(self.received[-1]) // 16_000):
            final = Final(
                segment=i + 1, start=float(i), end=i + 1.0, text=f"second {i}", words=(), language="en", **SURE
            )
            yield RecordedSegment(final=final, seek=0, tokens=(i,), temperature=0.0, compression_ratio=1.0)
            on_progress((i + 1) * 16_000)
            if i == 0:
                self.between(run)


@pytest.fixture
def transcriber(monkeypatch: pytest.MonkeyPatch) -> Transcriber:
    transcriber = Transcriber()
    monkeypatch.setattr(work, "recorded_segments", transcriber)
    return transcriber


class Machine:
    """A worker, and how it ends."""

    def __init__(self, bus: Bus, model: WhisperModel, name: str, identity: str, settings: ClusterSettings) -> None:
        self.name = name
        self.counts = JobCounts()
        self._bus = bus
        self.task = asyncio.create_task(
            serve_jobs(workplace(bus, Settings(plugins=(settings,)), model, name, identity), self.counts)
        )
        self.alive = WorkerAlive(
            worker=name, version=VERSION, model=identity, load=0.0, capacity=1, sessions=0, room=True, max_recordings=1
        )

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def die(self) -> None:
        """End without a word: nothing of it reaches NATS any more."""
        await self._bus.close()
        await self.stop()


class Place:
    """A submitter, and workers."""

    def __init__(self, url: str, model: WhisperModel, stack: contextlib.AsyncExitStack) -> None:
        self.machines: list[Machine] = []
        self.jobs: Jobs
        self.bus: Bus
        self._url = url
        self._model = model
        self._stack = stack

    async def worker(self, name: str = "w1", identity: str = "nano.en 1", most: int = 1) -> Machine:
        bus = await self._stack.enter_async_context(bus_on(self._url, name=name))
        machine = Machine(bus, self._model, name, identity, settings_for(self._url, max_recordings=most))
        self.machines.append(machine)
        self._stack.push_async_callback(machine.stop)
        return machine

    async def submitter(self, name: str = "s1") -> tuple[Jobs, Bus]:
        bus = await self._stack.enter_async_context(bus_on(self._url, name=name))
        jobs = Jobs(bus, lambda: [machine.alive for machine in self.machines])
        await jobs.start()
        self._stack.push_async_callback(jobs.close)
        return jobs, bus

    def submit(
        self,
        name: str,
        read: Callable[[], Iterator[Float32Array]],
        model: str = "",
        jobs: Jobs | None = None,
        job: RecordingJob = RecordingJob(),  # noqa: B008 - frozen
        **more: Any,  # noqa: ANN401 - passed on
    ) -> Submitted:
        jobs = jobs or self.jobs
        return jobs.submit(name, read, jobs.find(model), job, **more)


@pytest.fixture
async def place(nats: str, model: WhisperModel) -> AsyncIterator[Place]:
    async with contextlib.AsyncExitStack() as stack:
        place = Place(nats, model, stack)
        place.jobs, place.bus = await place.submitter()
        yield place


def blocks(*samples: Float32Array) -> Callable[[], Iterator[Float32Array]]:
    return lambda: iter(samples)


def silence(seconds: int) -> Callable[[], Iterator[Float32Array]]:
    return blocks(*(np.zeros(1_600, np.float32) for _ in range(10 * seconds)))


async def texts(submitted: Submitted) -> list[str]:
    with submitted:
        _, segments = await within(submitted.result())
        return [segment.final.text for segment in segments]


async def test_audio_comes_exactly_as_it_is_and_as_often_as_it_is_read(place: Place, transcriber: Transcriber) -> None:
    worker = await place.worker()
    chance = np.random.default_rng(0)
    exact = (chance.integers(-32768, 32768, 200_000) / 32768).astype(np.float32)
    fine = chance.uniform(-1.5, 1.5, 100_001).astype(np.float32)
    progress: list[tuple[int, int]] = []
    for samples in (exact, fine, np.concatenate([exact, fine])):
        parts = np.array_split(samples, 77)
        with place.submit("a.wav", blocks(*parts), on_progress=lambda *done: progress.append(done)) as submitted:
            ready, segments = await within(submitted.result())
        assert [segment.final.text for segment in segments] == [f"second {i}" for i in range(len(samples) // 16_000)]
        assert (ready.model, submitted.language, submitted.n_samples) == ("nano.en", "en", len(samples))
        assert all(np.array_equal(received, samples) for received in transcriber.received)
        assert len(transcriber.received) == 1
        transcriber.received.clear()
    assert progress[0] == (16_000, 200_000)
    await until(lambda: (worker.counts.running, worker.counts.done) == (0, 3))


async def test_segments_are_passed_on_as_they_come(place: Place, transcriber: Transcriber) -> None:
    go = threading.Event()
    transcriber.between = lambda run: assert_(go.wait(WAIT_S))
    await place.worker()
    with place.submit("a.wav", silence(3)) as submitted:
        found = aiter(submitted)
        assert (await within(anext(found))).final.text == "second 0"
        go.set()
        assert [segment.final.text async for segment in found] == ["second 1", "second 2"]


async def test_a_worker_that_dies_leaves_the_recording_to_another_and_nothing_is_passed_on_twice(
    place: Place, transcriber: Transcriber, mortal: str
) -> None:
    go = threading.Event()
    transcriber.between = lambda run: assert_(run > 1 or go.wait(WAIT_S))
    first = await place.worker("w1", mortal)
    with place.submit("a.wav", silence(3)) as submitted:
        found = aiter(submitted)
        assert (await within(anext(found))).final.text == "second 0"
        await first.die()
        await place.worker("w2", mortal)
        assert [segment.final.text async for segment in found] == ["second 1", "second 2"]
        assert len((await submitted.result())[1]) == 3
    go.set()


async def test_the_second_of_two_results_is_confirmed_and_left_out(
    place: Place, transcriber: Transcriber, mortal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "RENEW_S", 60.0)  # the first seems dead, and is not
    go = threading.Event()
    transcriber.between = lambda run: assert_(run > 1 or go.wait(WAIT_S))
    first, second = await place.worker("w1", mortal), await place.worker("w2", mortal)
    assert await texts(place.submit("a.wav", silence(2))) == ["second 0", "second 1"]
    await until(lambda: first.counts.done + second.counts.done > 0)
    go.set()
    await until(lambda: first.counts.running + second.counts.running == 0)
    assert transcriber.n_runs >= 2


async def test_a_recording_that_ends_workers_is_given_up_and_the_others_are_not(
    place: Place, transcriber: Transcriber, mortal: str
) -> None:
    deaths: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    over = threading.Event()

    def die(run: int) -> None:
        if len(transcriber.received[-1]) == 16_000 * 7:
            loop.call_soon_threadsafe(deaths.put_nowait, None)
            over.wait(WAIT_S)

    transcriber.between = die
    machine = await place.worker("w0", mortal)
    poison = place.submit("poison.wav", silence(7))
    for i in range(1, 4):
        await within(deaths.get())
        await machine.die()
        machine = await place.worker(f"w{i}", mortal)
    with pytest.raises(ClusterError, match=r"^poison.wav is given up after 3 tries, of w0, w1, w2: they ended"):
        await texts(poison)
    assert await texts(place.submit("b.wav", silence(1))) == ["second 0"]
    over.set()


async def test_a_worker_that_cannot_is_no_reason_to_give_up_three_are(place: Place, transcriber: Transcriber) -> None:
    def fail(run: int) -> None:
        if run != 3:
            raise InferenceError("the device is gone")

    transcriber.between = fail
    await place.worker()
    assert await texts(place.submit("a.wav", silence(2))) == ["second 0", "second 1"]
    with pytest.raises(ClusterError, match=r"3 tries, of w1, w1, w1: the device is gone; expected"):
        await texts(place.submit("b.wav", silence(2)))
    assert transcriber.n_runs == 6


async def test_a_wrong_file_or_option_fails_at_once(place: Place, transcriber: Transcriber) -> None:
    await place.worker()

    def broken() -> Iterator[Float32Array]:
        yield np.zeros(16_000, np.float32)
        raise AudioFileError("a.wav is not audio")

    with pytest.raises(AudioFileError, match=r"^a.wav is not audio$"):
        await texts(place.submit("a.wav", broken))

    def torn() -> Iterator[Float32Array]:
        raise OSError("the disk is gone")
        yield

    with pytest.raises(AudioFileError, match=r"^a.wav cannot be read: the disk is gone"):
        await texts(place.submit("a.wav", torn))
    transcriber.n_runs = 0
    for decoding, message in (
        (DecodingSettings(language="de"), "language 'de'"),
        (DecodingSettings(beam_size=9, patience=1.0), "beam_size is 9"),
        (DecodingSettings(grammar="/etc/passwd"), "grammar names a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            await texts(place.submit("a.wav", silence(1), job=RecordingJob(settings=JobSettings(decoding))))
    with pytest.raises(ConfigError, match="beam_size"):
        await texts(place.submit("a.wav", silence(1), job=RecordingJob(options=RecordingOptions(beam_size=9))))
    assert transcriber.n_runs == 0


async def test_the_jobs_of_a_submitter_that_is_gone_are_dropped(place: Place, transcriber: Transcriber) -> None:
    go = threading.Event()
    transcriber.between = lambda run: assert_(go.wait(WAIT_S))
    worker = await place.worker()
    left = [place.submit(f"{i}.wav", silence(2)) for i in range(5)]
    await until(lambda: any(submitted.n_samples for submitted in left))
    await place.bus.close()
    go.set()
    await until(lambda: worker.counts.running == 0)
    assert (worker.counts.running, worker.counts.done, len(transcriber.received)) == (0, 0, 1)


async def test_what_is_closed_is_not_transcribed(place: Place, transcriber: Transcriber) -> None:
    await place.worker("w0", most=0)
    for _ in range(5):
        place.submit("a.wav", silence(1))
    place.submit("b.wav", silence(1)).close()
    await place.jobs.close()
    other, _ = await place.submitter("s2")
    await place.worker("w1")
    assert await texts(place.submit("c.wav", silence(1), jobs=other)) == ["second 0"]
    assert transcriber.n_runs == 1


async def test_a_job_goes_to_one_worker_of_many_that_are_free(place: Place, transcriber: Transcriber) -> None:
    workers = [await place.worker(f"w{i}") for i in range(3)]
    submitters = [(await place.submitter(f"s{i + 2}"))[0] for i in range(2)]
    all = [place.submit(f"{i}.wav", silence(1), jobs=submitter) for i in range(3) for submitter in submitters]
    for submitted in all:
        assert await texts(submitted) == ["second 0"]
    await until(lambda: sum(worker.counts.done for worker in workers) == 6)
    assert transcriber.n_runs == 6


async def test_a_job_belongs_to_the_run_that_begins_it_first(place: Place) -> None:
    await place.worker(most=0)
    job = place.submit("a.wav", silence(1)).job
    wanted = []
    for run, begins in (("one", False), ("one", True), ("two", True), ("one", False)):
        report = JobReport(job=job.number, worker=run, run=run, begins=begins)
        answer = await place.bus.request(f"{SUBMITTERS}.{job.submitter}", report, JobAnswer, timeout_s=WAIT_S)
        wanted.append(answer.wanted)
    assert wanted == [False, True, False, True]


async def test_a_file_is_left_alone_when_its_recording_is_closed(place: Place, transcriber: Transcriber) -> None:
    await place.worker()
    reading, left = threading.Event(), threading.Event()

    def read() -> Iterator[Float32Array]:
        try:
            while True:
                yield np.zeros(16_000, np.float32)
                reading.set()
        finally:
            left.set()

    submitted = place.submit("a.wav", read)
    await until(reading.is_set)
    submitted.close()
    await until(left.is_set)


async def test_a_device_that_is_started_again_keeps_a_recording_waiting_and_not_its_worker(
    place: Place, transcriber: Transcriber, model: WhisperModel
) -> None:
    worker = await place.worker()
    with model._lock:  # as `revive` holds it, for minutes
        submitted = place.submit("a.wav", silence(1))
        await until(lambda: worker.counts.running == 1)
        assert transcriber.n_runs == 0
    assert await texts(submitted) == ["second 0"]


async def test_a_job_that_gets_lost_on_its_way_goes_to_the_next(place: Place, transcriber: Transcriber) -> None:
    await place.worker(most=0)
    submitted = place.submit("a.wav", silence(1))
    free = FreeSlot(worker="w9", model="nano.en 1")
    assert isinstance(
        await place.bus.request(JOBS, free, RecordingJob, timeout_s=WAIT_S),
        RecordingJob,
    )
    await place.worker("w2")
    assert await texts(submitted) == ["second 0"]


async def test_nats_may_be_started_again(place: Place, transcriber: Transcriber, nats_server: NatsServer) -> None:
    go = threading.Event()
    transcriber.between = lambda run: assert_(go.wait(WAIT_S))
    worker = await place.worker()
    all = [place.submit(f"{i}.wav", silence(3)) for i in range(3)]
    await until(lambda: any(submitted.n_samples for submitted in all))
    nats_server.kill()
    await until(lambda: not place.bus.connected)
    all.append(place.submit("3.wav", silence(3)))
    go.set()
    nats_server.start()
    for submitted in all:
        assert await texts(submitted) == ["second 0", "second 1", "second 2"]
    await until(lambda: worker.counts.done == 4)


async def test_a_worker_that_stops_lets_go_of_its_recording_and_that_is_no_try(
    place: Place, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "LOST_RUN_S", 600.0)  # nothing waits until it seems dead
    go = threading.Event()
    transcriber.between = lambda run: assert_(run > 5 or go.wait(WAIT_S))
    machine = await place.worker("w0", identity="slow 1")
    submitted = place.submit("a.wav", silence(2))
    for i in range(1, 6):
        await until(lambda i=i: transcriber.n_runs == i and submitted.n_samples > 0)  # type: ignore[misc]
        await machine.stop()
        machine = await place.worker(f"w{i}", identity="slow 1")
    assert await texts(submitted) == ["second 0", "second 1"]
    go.set()


async def test_a_recording_goes_to_a_worker_with_its_model(
    place: Place, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="no worker that takes recordings is alive"):
        place.submit("a.wav", silence(1))
    workers = [await place.worker(f"w{i}", identity) for i, identity in enumerate(("a.en 1", "a.en 1", "b.en 2"))]
    with pytest.raises(UnknownModelError, match=r"'c.en': expected one of a.en, b.en;"):
        place.submit("a.wav", silence(1), model="c.en")
    for model in ("b.en", "b.en 2", "b.en"):
        await texts(place.submit("a.wav", silence(1), model=model))
    await until(lambda: workers[2].counts.done == 3)
    await texts(place.submit("a.wav", silence(1)))
    await until(lambda: workers[0].counts.done + workers[1].counts.done == 1)
    monkeypatch.setattr(jobs, "ABSENT_S", 0.5)
    await workers[2].stop()
    submitted = place.submit("a.wav", silence(1), model="b.en")
    place.machines.remove(workers[2])
    with pytest.raises(ClusterError, match=r"^a.wav is given up: no worker with the model b.en is alive any longer"):
        await texts(submitted)


async def test_a_malformed_job_is_left_out(
    place: Place, transcriber: Transcriber, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Message] = [Refused(code="busy", message="no job")]

    async def answer(data: bytes, reply: Reply) -> None:
        if answers:
            await reply(answers.pop())

    await place.bus.subscribe(JOBS, answer)
    await place.worker()
    await until(lambda: not answers)
    assert await texts(place.submit("a.wav", silence(1))) == ["second 0"]
    assert "a recording is left out" in caplog.text


def assert_(value: object) -> None:
    assert value
