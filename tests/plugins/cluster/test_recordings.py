"""Uploads of a gateway and files of `transcribe --nats`, with a real model: the texts that one machine would write."""

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, ClusterError, ConfigError, StoppingError, UnknownModelError
from streamer.offline import transcribe
from streamer.plugins.cluster import batch
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.job import JOBS, FreeSlot, RecordingJob, Submitted
from streamer.plugins.cluster.jobs import Jobs
from streamer.plugins.cluster.messages import ALIVE_WORKERS, BEAT_S, VERSION, WorkerAlive
from streamer.plugins.cluster.recordings import ClusterRecordings
from streamer.plugins.cluster.work import JobCounts, serve_jobs
from streamer.protocols.recordings import RecordedSegment, RecordingOptions
from streamer.settings.table import DecodingSettings, Settings
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import LoadOptions, WhisperModel, load_model
from streamer.whisper.options import resolve_decoding
from tests.daemon import SAMPLE, WAIT_S, Outcome, pause_after, recording, started
from tests.plugins.cluster.support import bus_on, settings_for, workplace
from tests.wire.support import within

ALIVE = WorkerAlive(
    worker="w", version=VERSION, model="nano.en 1", load=0.0, capacity=1, sessions=0, room=True, max_recordings=1
)
ENGLISH = RecordingOptions(language="en")

Run = Callable[..., Outcome]


async def work(bus: Bus, url: str, model: WhisperModel) -> None:
    settings = Settings(plugins=(settings_for(url, max_recordings=2),))
    await serve_jobs(workplace(bus, settings, model, "w", "nano.en 1"), JobCounts())


@contextlib.asynccontextmanager
async def gateway(url: str, model: WhisperModel) -> AsyncIterator[ClusterRecordings]:
    async with bus_on(url, name="g") as bus, bus_on(url, name="w") as theirs:
        jobs = Jobs(bus, lambda: [ALIVE])
        await jobs.start()
        worker = asyncio.create_task(work(theirs, url, model))
        try:
            yield ClusterRecordings(jobs)
        finally:
            await jobs.close()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    """The embedded model, for as many beams as files are decoded along."""
    return load_model(str(SAMPLE.parent), LoadOptions(DeviceSettings("CPU"), n_beams=None, live=False))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The first two sentences of the sample, of which the second has samples beyond 16 bits."""
    folder = tmp_path_factory.mktemp("audio")
    paths = [folder / f"{i}.wav" for i in range(2)]
    for i, path in enumerate(paths):
        begin = pause_after(i) if i else 0
        samples = recording(SAMPLE, begin, pause_after(i + 1))
        soundfile.write(path, samples * (0.7 if i else 1.0), SAMPLE_RATE, subtype="FLOAT")
    return paths


async def test_an_upload_becomes_what_transcribe_makes_of_it(
    nats: str, model: WhisperModel, sentences: list[Path]
) -> None:
    async with gateway(nats, model) as recordings:
        assert [info.name for info in recordings.models()] == ["nano.en"]
        assert recordings.find("whisper-1").name == recordings.find("").name == "nano.en"
        with await recordings.open(sentences[0], ENGLISH) as job:
            segments = await within(collect(job))
            assert (job.model, job.language) == ("nano.en", "en")
            assert job.duration_s == pytest.approx(pause_after(1), abs=0.01)
            assert 0 < job.work_s < 60
    decoding = resolve_decoding(DecodingSettings(language="en"), model)
    expected = list(transcribe(model, recording(SAMPLE, 0, pause_after(1)), decoding))
    assert [segment.final for segment in segments] == expected
    assert expected
    assert segments[0].tokens
    assert segments[0].compression_ratio > 0


async def test_an_upload_that_cannot_be_transcribed_is_refused_in_the_daemons_words(
    nats: str, model: WhisperModel, sentences: list[Path], tmp_path: Path
) -> None:
    noise = tmp_path / "upload"
    noise.write_bytes(b"no audio")
    async with gateway(nats, model) as recordings:
        with (
            await recordings.open(noise, ENGLISH) as job,
            pytest.raises(AudioFileError, match=r"^the recording is not audio"),
        ):
            await within(collect(job))
        with (
            await recordings.open(sentences[0], RecordingOptions(language="de")) as job,
            pytest.raises(ConfigError, match="does not know the language 'de'"),
        ):
            await within(collect(job))
        with pytest.raises(UnknownModelError, match=r"expected one of nano\.en"):
            await recordings.open(noise, ENGLISH, "base.en")
        with await recordings.open(sentences[0], ENGLISH), await recordings.open(sentences[1], ENGLISH) as second:
            recordings.stop()
            with pytest.raises(StoppingError):
                await within(collect(second))
        with pytest.raises(StoppingError):
            await recordings.open(noise, ENGLISH)


async def collect(job: Submitted) -> list[RecordedSegment]:
    return [segment async for segment in job]


@pytest.fixture
def worker(nats: str, model: WhisperModel) -> Iterator[None]:
    """A worker in a thread of its own, as commands keep this one busy."""
    ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        async with bus_on(nats, name="w") as bus:
            working = asyncio.create_task(work(bus, nats, model))
            while not stop.is_set():
                await bus.publish(f"{ALIVE_WORKERS}.w", ALIVE)
                ready.set()
                await asyncio.sleep(BEAT_S / 2)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(WAIT_S)
    yield
    stop.set()
    thread.join(WAIT_S)


@pytest.mark.parametrize("flags", [(), ("--vad-filter", "--word-timestamps", "--beam-size", "1")])
def test_texts_are_those_of_one_machine_to_the_byte(
    nats: str, worker: None, run_here: Run, sentences: list[Path], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    cut = tmp_path / "cut.flac"
    soundfile.write(cut, recording(SAMPLE, 0, pause_after(1)), SAMPLE_RATE)
    cut.write_bytes(cut.read_bytes()[:-8000])
    files = [sentences[1], cut] if flags else [*sentences, cut]
    outcomes = []
    for there in ((), ("--nats", nats)):
        outcome = run_here("transcribe", *there, *files, "-f", "all", "-o", f"{tmp_path / str(len(there))}/", *flags)
        outcomes.append((outcome.exit_code, outcome.error()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 1  # the last is cut off
    written = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "02"]
    assert written[0] == written[1]
    assert len(written[0]) == 5 * len(files)


def test_standard_output_is_in_the_order_of_the_files(
    nats: str, worker: None, run_here: Run, sentences: list[Path], tmp_path: Path
) -> None:
    both = tmp_path / "a.wav"  # which takes longest
    soundfile.write(both, recording(SAMPLE, 0, pause_after(2)), SAMPLE_RATE)
    (tmp_path / "b.wav").write_bytes(sentences[0].read_bytes())
    here, there = run_here("transcribe", tmp_path), run_here("transcribe", "--nats", nats, tmp_path)
    assert (there.exit_code, there.stdout) == (0, here.stdout)
    assert here.stdout


def test_what_only_this_machine_could_do_is_refused(nats: str, run_here: Run, sentences: list[Path]) -> None:
    for flags, message in (
        (["--stream"], "--stream"),
        (["--speakers"], "--speakers"),
        (["--glossary", "terms.yaml"], "--glossary"),
        (["-"], "standard input"),
    ):
        outcome = run_here("transcribe", "--nats", nats, sentences[0], *flags)
        assert outcome.exit_code == 2
        assert message in outcome.error()


def test_without_nats_or_workers_the_command_ends_with_one_line(
    nats: str, run_here: Run, sentences: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "WAIT_S", 0.2)
    outcome = run_here("transcribe", "--nats", "nats://127.0.0.1:1", sentences[0])
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "NATS at 127.0.0.1:1 cannot be used" in outcome.error()
    outcome = run_here("transcribe", "--nats", nats, sentences[0])
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "no worker that takes recordings is alive" in outcome.error()


def test_a_model_that_no_worker_has_and_options_that_it_cannot_do_end_the_command(
    nats: str, worker: None, run_here: Run, sentences: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "WAIT_S", 3.0)  # in which the worker is alive
    outcome = run_here("transcribe", "--nats", nats, "--model", "base.en", sentences[0])
    assert outcome.exit_code == 2
    assert "no worker has the model 'base.en': expected one of nano.en" in outcome.error()
    monkeypatch.setattr(batch, "WAIT_S", WAIT_S)
    outcome = run_here("transcribe", "--nats", nats, "--beam-size", "9", *sentences)
    assert outcome.exit_code == 2
    assert "beam_size is 9" in outcome.error()


@pytest.mark.skipif(sys.platform == "win32", reason="its console has no such signal for one process")
def test_ctrl_c_leaves_nothing_behind(
    nats: str, worker: None, sentences: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, interrupted = threading.Event(), threading.Event()

    def wait(model: WhisperModel, blocks: Iterator[object], *more: object, **others: object) -> object:
        yield from ()
        assert next(blocks) is not None
        begun.set()
        assert interrupted.wait(WAIT_S)
        list(blocks)

    monkeypatch.setattr("streamer.plugins.cluster.work.recorded_segments", wait)
    with started("transcribe", "--nats", nats, *sentences, SAMPLE, "-o", f"{tmp_path / 'texts'}/") as command:
        assert begun.wait(WAIT_S)
        command.process.send_signal(signal.SIGINT)  # one: a second would end the command in the middle of its end
        interrupted.set()
        outcome = command.wait()
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert outcome.error() == "streamer: error: interrupted"
    assert list((tmp_path / "texts").iterdir()) == []

    async def is_alone() -> bool:
        async with bus_on(nats) as bus:
            try:
                await bus.request(JOBS, FreeSlot(worker="w", model="nano.en 1"), RecordingJob, timeout_s=WAIT_S)
            except ClusterError as error:
                return "it has no subscriber" in str(error)
        return False

    assert asyncio.run(is_alone())
