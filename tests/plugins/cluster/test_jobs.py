"""Recordings that workers transcribe: whatever fails, each text comes once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.errors import (
    AudioFileError,
    BusyError,
    ClusterError,
    ConfigError,
    InferenceError,
    StoppingError,
    UnknownModelError,
)
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
from streamer.plugins.cluster.messages import Message, Refused
from streamer.plugins.cluster.recordings import ClusterRecordings
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import DecodingSettings
from streamer.whisper.model import WhisperModel
from tests.builders import final
from tests.daemon import SAMPLE, recording
from tests.plugins.cluster.stage import Port, Stage, Worker
from tests.waiting import WAIT_S, until

Read = Callable[[], Iterator[Float32Array]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less than on a real network."""
    for module, pauses in (
        (work, {"RENEW_S": 0.2, "RETRY_S": 0.1, "GONE_S": 0.5, "ASK_S": 2.0, "FREE_S": 0.2}),
        (jobs, {"CHECK_S": 0.2}),
        (job_module, {"LOST_RUN_S": 30.0, "RETRY_S": 0.1}),
    ):
        for name, pause_s in pauses.items():
            monkeypatch.setattr(module, name, pause_s)


class Transcriber:
    """Stands in for the model's part: finds a segment in each second of audio."""

    def __init__(self) -> None:
        # Called after the first segment of each run, with its number; may raise, or wait.
        self.between: Callable[[int], object] = lambda run: None
        self.go = threading.Event()
        # Samples of each run.
        self.received: list[Float32Array] = []

    def hold(self, *runs: int) -> None:
        """Let these runs, by default all, wait until `go` is set."""
        self.between = lambda run: (runs and run not in runs) or self.go.wait(WAIT_S)

    def __call__(
        self,
        model: WhisperModel,
        blocks: Iterable[Float32Array],
        *more: object,
        on_progress: Callable[[int], None],
        on_language: Callable[[str, Any], None],
        languages: Sequence[str],
    ) -> Iterator[RecordedSegment]:
        samples = np.concatenate([np.empty(0, np.float32), *blocks])
        self.received.append(samples)
        run = len(self.received)
        on_language("en", {})
        for i in range(len(samples) // 16_000):
            found = final(f"second {i}", start=float(i), end=i + 1.0, segment=i + 1)
            yield RecordedSegment(final=found, seek=0, tokens=(i,), temperature=0.0, compression_ratio=1.0)
            on_progress((i + 1) * 16_000)
            if i == 0:
                self.between(run)


@pytest.fixture(autouse=True)
def transcriber(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transcriber]:
    transcriber = Transcriber()
    monkeypatch.setattr(work, "recorded_segments", transcriber)
    yield transcriber
    transcriber.go.set()


class Place:
    """A submitter and workers on a stage."""

    def __init__(self, stage: Stage, model: WhisperModel) -> None:
        self._stage, self._model = stage, model
        # Workers that are known to be lost.
        self.gone: list[Worker] = []
        self.port = stage.port("s1")
        self.jobs = self.submitter(self.port)

    def submitter(self, port: Port) -> Jobs:
        workers = self._stage.workers
        return Jobs(cast(Bus, port), lambda: [each.alive for each in workers.values() if each not in self.gone])

    def n_done(self) -> float:
        return sum(worker.alive.counters["recordings_done"] for worker in self._stage.workers.values())

    async def worker(self, model: str = "nano.en 1") -> Worker:
        name = f"w{len(self._stage.workers)}"
        return await self._stage.worker(name, identity=model, model=self._model)

    def submit(self, read: Read, model: str = "", job: RecordingJob = RecordingJob(), **more: Any) -> Submitted:  # noqa: ANN401, B008
        return self.jobs.submit("a.wav", read, self.jobs.find(model), job, **more)


async def stop(worker: Worker) -> None:
    worker.stopping.set()
    await worker.task


@pytest.fixture
async def place(stage: Stage, model: WhisperModel) -> AsyncIterator[Place]:
    place = Place(stage, model)
    await place.jobs.start()
    yield place
    await place.jobs.close()


def silence(seconds: int) -> Read:
    return lambda: iter([np.zeros(1_600, np.float32) for _ in range(10 * seconds)])


async def texts(submitted: Submitted) -> list[str]:
    with submitted:
        _, segments = await asyncio.wait_for(submitted.result(), WAIT_S)
        return [segment.final.text for segment in segments]


async def test_audio_comes_exactly_as_it_is_and_as_often_as_it_is_read(place: Place, transcriber: Transcriber) -> None:
    worker, chance = await place.worker(), np.random.default_rng(0)
    exact = (chance.integers(-32768, 32768, 200_000) / 32768).astype(np.float32)
    fine = chance.uniform(-1.5, 1.5, 100_001).astype(np.float32)
    progress: list[tuple[int, int]] = []
    for samples in (exact, fine, np.concatenate([exact, fine])):
        parts = np.array_split(samples, 77)

        def read(parts: Sequence[Float32Array] = parts) -> Iterator[Float32Array]:
            return iter(parts)

        with place.submit(read, on_progress=lambda *done: progress.append(done)) as job:
            ready, segments = await asyncio.wait_for(job.result(), WAIT_S)
        assert [segment.final.text for segment in segments] == [f"second {i}" for i in range(len(samples) // 16_000)]
        assert (ready.model, job.language, job.n_samples) == ("nano.en", "en", len(samples))
        assert np.array_equal(transcriber.received[-1], samples)
    assert len(transcriber.received) == 3
    assert progress[0] == (16_000, 200_000)
    await until(lambda: (worker.alive.recordings, place.n_done()) == (0, 3))


async def test_segments_are_passed_on_as_they_come_and_once_also_if_the_worker_dies(
    place: Place, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "LOST_RUN_S", 1.0)
    transcriber.hold(1)
    first = await place.worker()
    with place.submit(silence(3)) as submitted:
        found = aiter(submitted)
        assert (await asyncio.wait_for(anext(found), WAIT_S)).final.text == "second 0"
        first.port.end()
        await place.worker()
        assert [segment.final.text async for segment in found] == ["second 1", "second 2"]
        assert len((await submitted.result())[1]) == 3


@pytest.mark.parametrize(
    ("fates", "is_done"),
    [
        (["fail", "fail"], True),
        (["fail", "fail", "fail"], False),
        (["stop", "stop", "stop", "stop"], True),  # which is no try
        pytest.param(["die", "fail"], True, marks=pytest.mark.slow),
        pytest.param(["die", "die", "die"], False, marks=pytest.mark.slow),
    ],
)
async def test_a_recording_at_which_three_workers_fail_is_given_up_and_others_are_not(
    place: Place, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch, fates: list[str], is_done: bool
) -> None:
    monkeypatch.setattr(job_module, "LOST_RUN_S", 1.0 if "die" in fates else 600.0)
    begun: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def between(run: int) -> None:
        fate = fates[run - 1] if run <= len(fates) else ""
        loop.call_soon_threadsafe(begun.put_nowait, fate)
        if fate == "fail":
            raise InferenceError("the device is gone")
        if fate:
            transcriber.go.wait(WAIT_S)

    transcriber.between = between
    machine, submitted = await place.worker(), place.submit(silence(2))
    for fate in fates:
        assert await asyncio.wait_for(begun.get(), WAIT_S) == fate
        if fate != "fail":
            if fate == "stop":
                await stop(machine)
            machine.port.end()
            machine = await place.worker()
    if is_done:
        assert await texts(submitted) == ["second 0", "second 1"]
    else:
        with pytest.raises(ClusterError):
            await texts(submitted)
    assert await texts(place.submit(silence(1))) == ["second 0"]


def broken() -> Iterator[Float32Array]:
    yield np.zeros(16_000, np.float32)
    raise AudioFileError("a.wav is not audio")


def torn() -> Iterator[Float32Array]:
    raise OSError("the disk is gone")
    yield


async def test_a_wrong_file_or_option_fails_at_once(place: Place, transcriber: Transcriber) -> None:
    await place.worker()
    for read in (broken, torn):
        with pytest.raises(AudioFileError):
            await texts(place.submit(read))
    wrong: list[dict[str, Any]] = [{"language": "de"}, {"beam_size": 9, "patience": 1.0}, {"grammar": "/etc/passwd"}]
    jobs = [RecordingJob(settings=JobSettings(DecodingSettings(**decoding))) for decoding in wrong]
    for job in (*jobs, RecordingJob(options=RecordingOptions(beam_size=9))):
        with pytest.raises(ConfigError):
            await texts(place.submit(silence(1), job=job))
    assert transcriber.received == []


async def test_the_jobs_of_a_submitter_that_is_gone_are_dropped(place: Place, transcriber: Transcriber) -> None:
    transcriber.hold()
    worker = await place.worker()
    left = [place.submit(silence(2)) for _ in range(5)]
    await until(lambda: any(submitted.n_samples for submitted in left))
    place.port.end()
    transcriber.go.set()
    await until(lambda: worker.alive.recordings == 0)
    assert (place.n_done(), len(transcriber.received)) == (0, 1)


async def test_what_is_closed_is_not_transcribed_and_its_file_left_alone(
    place: Place, transcriber: Transcriber
) -> None:
    reading, left = threading.Event(), threading.Event()

    def read() -> Iterator[Float32Array]:
        try:
            while True:
                yield np.zeros(16_000, np.float32)
                reading.set()
        finally:
            left.set()

    await place.worker()
    open_one, waiting = place.submit(read), [place.submit(silence(1)) for _ in range(5)]
    await until(reading.is_set)
    for submitted in (open_one, *waiting[:2]):
        submitted.close()
    await until(left.is_set)
    await place.jobs.close()
    place.jobs = place.submitter(place.port)
    await place.jobs.start()
    assert await texts(place.submit(silence(1))) == ["second 0"]
    assert len(transcriber.received) <= 4


async def test_a_job_belongs_to_the_run_that_begins_it_first_and_one_that_gets_lost_goes_to_the_next(
    place: Place,
) -> None:
    await stop(await place.worker())
    submitted, lost = place.submit(silence(1)), place.submit(silence(1))
    free = FreeSlot(worker="w9", model="nano.en 1")
    given = [await place.port.request(JOBS, free, RecordingJob, timeout_s=WAIT_S) for _ in range(2)]
    assert [each.number for each in given] == [submitted.job.number, lost.job.number]
    subject, wanted = f"{SUBMITTERS}.{given[0].submitter}", []
    for run, begins in (("one", False), ("one", True), ("two", True), ("one", False)):
        report = JobReport(job=given[0].number, worker=run, run=run, begins=begins)
        wanted.append((await place.port.request(subject, report, JobAnswer, timeout_s=WAIT_S)).wanted)
    assert wanted == [False, True, False, True]
    await place.worker()
    assert await texts(lost) == ["second 0"]


@pytest.mark.parametrize("n_before", [-1, 1])
async def test_segments_out_of_order_and_audio_from_elsewhere_are_not_taken(place: Place, n_before: int) -> None:
    await stop(await place.worker())
    job = place.submit(silence(1)).job
    begins = JobReport(job=job.number, worker="w", run="one", begins=True)
    for changes in ({"n_before": n_before, "n_samples": 16_000}, {"position": 1600 * n_before}):
        report = msgspec.structs.replace(begins, **changes)
        with pytest.raises(ClusterError):  # it is not answered
            await place.port.request(f"{SUBMITTERS}.{job.submitter}", report, JobAnswer, timeout_s=0.3)


async def test_nats_may_be_away(place: Place, transcriber: Transcriber) -> None:
    transcriber.hold()
    worker = await place.worker()
    all = [place.submit(silence(3)) for _ in range(3)]
    await until(lambda: any(submitted.n_samples for submitted in all))
    place.port.connected = worker.port.connected = False
    all.append(place.submit(silence(3)))
    transcriber.go.set()
    await until(lambda: worker.port.n_unanswered > 3)
    place.port.connected = worker.port.connected = True
    for submitted in all:
        assert await texts(submitted) == ["second 0", "second 1", "second 2"]
    await until(lambda: place.n_done() == 4)


async def test_a_recording_goes_to_one_worker_with_its_model(
    place: Place, transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError):
        place.submit(silence(1))
    workers = [await place.worker(model) for model in ("a.en 1", "a.en 1", "b.en 2")]
    with pytest.raises(UnknownModelError):
        place.submit(silence(1), model="c.en")
    for model in ("b.en", "b.en 2", "b.en", ""):  # the model of most, in the end
        await texts(place.submit(silence(1), model=model))
    await until(lambda: (workers[2].alive.counters["recordings_done"], place.n_done()) == (3, 4))
    assert len(transcriber.received) == 4
    monkeypatch.setattr(jobs, "ABSENT_S", 0.5)
    submitted = place.submit(silence(1), model="b.en")
    workers[2].port.end()
    place.gone.append(workers[2])
    with pytest.raises(ClusterError):
        await texts(submitted)


async def test_uploads_are_of_a_model_that_there_is_and_end_when_the_gateway_stops(place: Place) -> None:
    uploads = ClusterRecordings(place.jobs)
    with pytest.raises(BusyError):
        await uploads.open(SAMPLE, RecordingOptions())
    worker = await place.worker()
    with await uploads.open(SAMPLE, RecordingOptions()) as job:
        assert [segment.final.text async for segment in job][:2] == ["second 0", "second 1"]
    assert (job.model, job.language, job.work_s >= 0) == ("nano.en", "en", True)
    assert job.duration_s == pytest.approx(len(recording(SAMPLE)) / 16_000, abs=0.01)
    await stop(worker)
    assert [info.name for info in uploads.models()] == [uploads.find("whisper-1").name] == ["nano.en"]
    with pytest.raises(UnknownModelError):
        await uploads.open(SAMPLE, RecordingOptions(), "base.en")
    waiting = await uploads.open(SAMPLE, RecordingOptions())
    uploads.stop()
    for refused in (texts(waiting), uploads.open(SAMPLE, RecordingOptions())):
        with pytest.raises(StoppingError):
            await refused


async def test_a_malformed_job_is_left_out(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Message] = [Refused(code="busy", message="no job")]

    async def answer(data: bytes, reply: Reply) -> None:
        if answers:
            await reply(answers.pop())

    await place.port.subscribe(JOBS, answer)
    await place.worker()
    await until(lambda: bool(caplog.records))
    assert await texts(place.submit(silence(1))) == ["second 0"]
