"""The daemon and the commands while something fails that they need."""

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import soundfile

from streamer.app import Daemon
from streamer.arrays import Float32Array
from streamer.audio.vad import SpeechDetector
from streamer.constants import SAMPLE_RATE
from streamer.events import Error, Event, Final, Gap
from streamer.settings.table import InputSettings, ModelSettings, ServerSettings, Settings
from streamer.whisper.device.stage import Stage
from tests.daemon import SAMPLE, WAIT_S, Outcome, free_port, pause_after, recording
from tests.promises import check_promises
from tests.unit.whisper.support import Tensors
from tests.waiting import until


@pytest.fixture
def sentence(tmp_path: Path) -> Path:
    """The first sentence of the sample, as a file."""
    path = tmp_path / "sentence.wav"
    soundfile.write(path, recording(SAMPLE, 0.0, pause_after(1)), SAMPLE_RATE, subtype="PCM_16")
    return path


@dataclass
class Faulty:
    """Something that fails while it is `broken`, after a number of uses."""

    uses: int = 0
    broken: bool = False

    def use(self) -> bool:
        """Return whether it fails this time."""
        self.uses -= 1
        return self.broken and self.uses < 0


@pytest.fixture(params=["detector", "device"])
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """The speech detector, or the only device there is, to be broken."""
    fault = Faulty()
    process, infer = SpeechDetector.process, Stage.infer

    def fail_to_process(detector: SpeechDetector, samples: Float32Array) -> list[float]:
        if fault.use():
            raise RuntimeError("a detector that hears nothing")
        return process(detector, samples)

    def fail_to_infer(stage: Stage, inputs: Tensors, outputs: Tensors | None = None) -> None:
        if fault.use():
            raise stage.failure("ZE_RESULT_ERROR_DEVICE_LOST")
        infer(stage, inputs, outputs)

    if request.param == "detector":
        monkeypatch.setattr(SpeechDetector, "process", fail_to_process)
    else:
        monkeypatch.setattr(Stage, "infer", fail_to_infer)
    return fault


# --- the daemon -------------------------------------------------------------------------------------------------------


def healthz(port: int) -> tuple[int, dict[str, Any]]:
    """Return status and body of /healthz."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/healthz", timeout=WAIT_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


async def wait_healthz(port: int, status: str) -> tuple[int, dict[str, Any]]:
    """Wait until /healthz says that, and return it all."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(urllib.error.URLError):
                code, health = await asyncio.to_thread(healthz, port)
                if health["status"] == status:
                    return code, health
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def daemon_at_work(source: str = str(SAMPLE), model: str = "nano.en") -> AsyncIterator[tuple[Daemon, int]]:
    """Run the daemon on the sample, in this process, until the block is left; yield it and its port."""
    port = free_port()
    server = ServerSettings(port=port)
    settings = Settings(model=ModelSettings(name=model), server=server, input=InputSettings(source=source))
    daemon = Daemon(settings, captions=False, read_settings=lambda: settings)
    running = asyncio.create_task(daemon.run())
    try:
        async with asyncio.timeout(WAIT_S):
            await wait_healthz(port, "ok")
        yield daemon, port
    finally:
        daemon.stop.set()
        await running


async def test_health_says_what_fails_and_that_it_works_again(faulty: Faulty) -> None:
    async with daemon_at_work() as (daemon, port):
        faulty.broken = True
        code, health = await wait_healthz(port, "failing")
        assert code == 503
        assert health["failure"]
        faulty.broken = False
        code, health = await wait_healthz(port, "ok")
        assert code == 200
        assert "failure" not in health
        assert daemon.input is not None
        events: list[Event] = []
        events[:0] = daemon.input.log.subscribe(events.append, after=0).backlog
        await until(lambda: bool(text_behind_gaps(events)))
    check_promises(events)
    assert [error.fatal for error in of(events, Error)] == [False], "told once, while it is tried again"
    assert {gap.reason for gap in of(events, Gap)} == {"device"}


def text_behind_gaps(events: Sequence[Event]) -> bool:
    gaps = of(events, Gap)
    return bool(gaps) and any(final.text and final.end > gaps[-1].end for final in of(events, Final))


def of(events: Sequence[Event], type: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, type)]


# --- the commands -----------------------------------------------------------------------------------------------------


LIVE = ("run", "--port", "0", "--exit-at-end", "--speed", "4", "--input")
TRANSCRIBE = ("transcribe", "--stream")


@pytest.mark.parametrize(
    ("faulty", "arguments"),
    [("device", LIVE), ("detector", TRANSCRIBE)],
    indirect=["faulty"],
    ids=["live", "transcribe"],
)
def test_what_fails_for_good_is_in_the_exit_code_and_one_line(
    faulty: Faulty, arguments: tuple[str, ...], sentence: Path, run_here: Callable[..., Outcome]
) -> None:
    faulty.uses, faulty.broken = 60, True  # when something has been heard
    outcome = run_here(*arguments, sentence)
    assert outcome.exit_code == 1
    (line,) = [line for line in outcome.stderr.splitlines() if line.startswith("streamer: error: ")]
    assert len(line) > len("streamer: error: ")
