"""Uploads of a gateway and files of `transcribe --nats`, with a real model: the texts that one machine would write."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.engine.engine import Engine
from streamer.errors import ClusterError
from streamer.plugins.cluster import batch
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.job import JOBS, FreeSlot, RecordingJob
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import ALIVE_WORKERS, BEAT_S
from streamer.plugins.cluster.work import JobCounts, serve_jobs
from streamer.plugins.cluster.worker_session import WorkerContext
from streamer.settings.table import Settings
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import LoadOptions, WhisperModel, load_model
from tests.daemon import SAMPLE, WAIT_S, Outcome, pause_after, recording, started
from tests.plugins.cluster.support import alive, bus_on, settings_for

ALIVE = alive("w", model="nano.en 1", max_recordings=1)

Run = Callable[..., Outcome]


async def work(bus: Bus, url: str, model: WhisperModel) -> None:
    section = settings_for(url, max_recordings=2)
    context = WorkerContext(
        worker="w",
        bus=bus,
        log=SessionLog(bus, section),
        settings=Settings(plugins=(section,)),
        model=model,
        identity="nano.en 1",
        engine=cast("Engine[Any]", SimpleNamespace(wait_idle=lambda timeout_s, quiet_s: True)),
    )
    await serve_jobs(context, JobCounts())


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


@pytest.mark.slow
def test_texts_are_those_of_one_machine_to_the_byte_and_in_the_order_of_the_files(
    nats: str, worker: None, run_here: Run, sentences: list[Path], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.flac"
    soundfile.write(cut, recording(SAMPLE, 0, pause_after(1)), SAMPLE_RATE)
    cut.write_bytes(cut.read_bytes()[:-8000])
    flags = ("--vad-filter", "--word-timestamps", "--beam-size", "1")
    outcomes = [run_here("transcribe", *there, sentences[1], cut, *flags) for there in ((), ("--nats", nats))]
    here, there = [(outcome.exit_code, outcome.stdout, outcome.error()) for outcome in outcomes]
    assert here == there
    assert (here[0], bool(here[1])) == (1, True)  # the last is cut off


@pytest.mark.parametrize(
    ("flags", "exit_code"),
    [(("--model", "base.en"), 2), (("--beam-size", "9"), 2), (("--nats", "nats://127.0.0.1:1"), 1)],
)
def test_what_no_worker_can_do_ends_the_command(
    nats: str,
    worker: None,
    run_here: Run,
    sentences: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    exit_code: int,
) -> None:
    monkeypatch.setattr(batch, "WAIT_S", 1.0)  # in which the worker is alive
    outcome = run_here("transcribe", "--nats", nats, *sentences, *flags)
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    assert outcome.error()


@pytest.mark.slow
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
                await bus.request(JOBS, FreeSlot(worker="w", model="nano.en 1"), RecordingJob, timeout_s=1.0)
            except ClusterError:
                return True
        return False

    assert asyncio.run(is_alone())
