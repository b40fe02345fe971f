"""Files of `transcribe --nats`, with a real worker: the texts that one machine would write."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.errors import ClusterError
from streamer.plugins.cluster import batch
from streamer.plugins.cluster.bus import Reply
from streamer.plugins.cluster.job import JOBS, SUBMITTERS, FreeSlot, RecordingJob
from tests.daemon import SAMPLE, Daemon, Outcome, pause_after, recording, started
from tests.plugins.cluster.support import NatsServer, bus_on, running
from tests.waiting import WAIT_S

Run = Callable[..., Outcome]


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


@contextlib.contextmanager
def working(nats: str) -> Iterator[Daemon]:
    """Run a worker that transcribes two recordings at a time."""
    with started("worker", "--nats", nats, environ={"STREAMER_CLUSTER_MAX_RECORDINGS": "2"}) as worker:
        worker.wait_said("transcribes with")
        yield worker


@pytest.fixture(scope="module")
def worker(nats: str) -> Iterator[Daemon]:
    with working(nats) as worker:
        yield worker


@pytest.mark.slow
def test_texts_are_those_of_one_machine_to_the_byte_and_in_the_order_of_the_files(
    nats: str, worker: Daemon, run_here: Run, sentences: list[Path], tmp_path: Path
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
    worker: Daemon,
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
async def test_ctrl_c_leaves_nothing_behind(sentences: list[Path], tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def note(data: bytes, reply: Reply) -> None:
        begun.set()

    # Servers of its own: a report of an earlier test's job would be taken for one of this command's.
    with running(NatsServer(tmp_path)) as server, working(server.url) as worker:
        async with bus_on(server.url) as bus:
            await bus.subscribe(f"{SUBMITTERS}.*", note)
            texts = f"{tmp_path / 'texts'}/"
            with started("transcribe", "--nats", server.url, SAMPLE, *sentences, "-o", texts) as command:
                await asyncio.wait_for(begun.wait(), WAIT_S)
                worker.process.send_signal(signal.SIGSTOP)
                # Once: a second signal would end the command in the middle of its end.
                command.process.send_signal(signal.SIGINT)
                outcome = await asyncio.to_thread(command.wait)
            worker.process.send_signal(signal.SIGCONT)
            assert (outcome.exit_code, outcome.stdout) == (1, "")
            assert outcome.error() == "streamer: error: interrupted"
            assert list((tmp_path / "texts").iterdir()) == []
            with pytest.raises(ClusterError):  # nobody submits any more
                await bus.request(JOBS, FreeSlot(worker="w", model="nano.en 1"), RecordingJob, timeout_s=1.0)
