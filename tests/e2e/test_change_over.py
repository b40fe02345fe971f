"""A model that computes on the CPU until it is compiled for the NPU: nothing of what is said is lost or doubled."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.engine.engine import Engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.engine.yielding import watch_beside_live
from streamer.errors import ConfigError, InferenceError
from streamer.events import End, Event, Final, Gap
from streamer.session.task import Request
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings
from streamer.whisper import model as model_module
from streamer.whisper.device import stage as stage_module
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import HANGS_NOT_BEFORE_S, Stage
from streamer.whisper.device.verdicts import kept_verdicts
from streamer.whisper.device.windows import WindowBuffers
from streamer.whisper.model import LoadOptions, WhisperModel, load_model
from tests.daemon import CACHE_VARIABLE, environment
from tests.e2e.test_failures import daemon_at_work, healthz
from tests.fakes import Clock
from tests.promises import check_promises
from tests.unit.whisper import stand_in_npu
from tests.unit.whisper.support import NANO, SPEECH, read
from tests.waiting import WAIT_S, wait_until

CPU, NPU = (dict.fromkeys(("encoder", "cross_kv", "decoder"), device) for device in ("CPU", "NPU"))


class Compiler:
    """The compiler of the stand-in for an NPU."""

    def __init__(self) -> None:
        self.n_compiled = 0
        self.fails = False
        self._open = threading.Event()

    def __call__(self) -> None:
        assert self._open.wait(WAIT_S), "nobody lets the compiler go on"
        self.n_compiled += 1
        if self.fails:
            raise RuntimeError("Exception from x\nthe compiler gives up")

    def go_on(self) -> None:
        """Compile everything, from now on without delay."""
        self._open.set()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    found = Compiler()
    stand_in_npu.install(monkeypatch, found)
    yield found
    found.go_on()
    for thread in threading.enumerate():
        if thread.name == "compile":
            thread.join(WAIT_S)


@pytest.fixture
def known(tmp_path: Path, cache_dir: Path, compiler: Compiler) -> Path:
    """A cache of the test's own in which an NPU's graphs are, and were found right; they are made once a run."""
    compiler.go_on()
    shared = cache_dir / "of the stand-in"
    if not shared.exists():
        load_model(str(NANO), LoadOptions(cache_dir=str(tmp_path / "made"), windows_s=(5, 15)))
        with contextlib.suppress(OSError):  # another process was faster
            (tmp_path / "made").rename(shared)
    return Path(shutil.copytree(shared, tmp_path / "cache"))


def load(cache_dir: Path, device: str = "NPU", **options: object) -> WhisperModel:
    devices = DeviceSettings(device, properties=options.pop("properties", ()))  # type: ignore[arg-type]
    return load_model(str(NANO), LoadOptions(devices, cache_dir=str(cache_dir), at_once=True, **options))  # type: ignore[arg-type]


def wait_for_npu(model: WhisperModel) -> None:
    wait_until(lambda: model.runtime.devices == NPU)


@pytest.mark.parametrize("device", ["NPU", "AUTO"])
def test_a_model_starts_on_the_cpu_and_moves_to_the_npu_when_that_is_compiled(
    tmp_path: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    caplog.set_level(logging.INFO)
    model = load(tmp_path, device)
    assert model.runtime.devices == CPU
    fork = model.fork()
    first = [weakref.ref(model.runtime), weakref.ref(fork.runtime)]
    calls: list[int] = []
    fork.call_before(lambda: calls.append(1))
    compiler.go_on()
    wait_for_npu(model)
    fork.run(lambda runtime: runtime.decoder.feed([1]))
    assert (fork.runtime.devices, calls) == (NPU, [1])
    wait_until(lambda: "nano.en runs on NPU" in caplog.text)
    assert [runtime() for runtime in first] == [None, None], "the CPU's graphs are still in memory"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_is_in_the_cache_goes_to_the_npu_at_once(tmp_path: Path, compiler: Compiler) -> None:
    compiler.go_on()
    wait_for_npu(load(tmp_path))
    n_compiled = compiler.n_compiled
    assert n_compiled > 3
    assert load(tmp_path).runtime.devices == NPU
    # A graph that is missing is compiled beside, those that are there are not.
    next(tmp_path.glob("NPU-*/*.blob")).unlink()
    model = load(tmp_path)
    assert model.runtime.devices == CPU
    wait_for_npu(model)
    assert compiler.n_compiled == n_compiled + 1


def test_without_a_cache_it_is_compiled_beside_at_each_start(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.whisper.model.open_cache", lambda setting: None)
    compiler.go_on()
    wait_for_npu(load(tmp_path))
    model = load(tmp_path)
    assert model.runtime.devices == CPU
    wait_for_npu(model)


@pytest.mark.parametrize("device", ["NPU", "AUTO"])
def test_a_compiler_that_fails_leaves_the_model_on_the_cpu(
    tmp_path: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    caplog.set_level(logging.INFO)
    model = load(tmp_path, device)
    graphs = {*model.runtime.compilation.compiled.values()}
    compiler.fails = True
    compiler.go_on()
    wait_until(lambda: "from now on" in caplog.text)
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert model.run(lambda runtime: runtime.devices) == CPU
    assert {*model.runtime.compilation.compiled.values()} == graphs, "compiled twice"


def test_a_stage_that_the_npu_computes_wrongly_stays_on_the_cpu(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in_npu.npu_computes(monkeypatch, "decoder", stand_in_npu.add_noise)
    model = load(tmp_path)
    compiler.go_on()
    wait_until(lambda: model.runtime.devices == {**NPU, "decoder": "CPU"})
    mel = log_mel(read(SPEECH), 80).astype(np.float32)
    texts = [decoded(each, mel) for each in (model, load(tmp_path / "other", "CPU"))]
    assert len(texts[0]) > 50
    assert texts[0] == texts[1]
    # The next start knows, also of an NPU that was asked for.
    assert load(tmp_path).runtime.devices == {**NPU, "decoder": "CPU"}


@pytest.mark.parametrize("error", [InferenceError("it gives nonsense", "decoder"), RuntimeError("it gives nonsense")])
def test_a_model_that_works_nowhere_else_stays_as_it_is(
    tmp_path: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    model = load(tmp_path)
    before = model.runtime

    def fail(runtime: Runtime) -> None:
        raise error

    monkeypatch.setattr(Runtime, "warm_up", fail)
    compiler.go_on()
    wait_until(lambda: "it gives nonsense; nano.en stays on CPU" in caplog.text)
    assert model.runtime is before
    wait_until(model.unload)


def test_a_gpu_computes_until_the_npu_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    stand_in_npu.install(monkeypatch, compiler, ("CPU", "GPU", "NPU"))
    model = load(tmp_path)
    assert {*model.runtime.devices.values()} == {"GPU"}
    compiler.go_on()
    wait_for_npu(model)


def test_a_property_that_the_npu_does_not_take_still_ends_the_start(tmp_path: Path, compiler: Compiler) -> None:
    compiler.go_on()
    with pytest.raises(ConfigError):
        load(tmp_path, properties=("NPU_NO_SUCH=1",))


def test_who_can_wait_waits(tmp_path: Path, compiler: Compiler) -> None:
    compiler.go_on()
    model = load_model(str(NANO), LoadOptions(DeviceSettings("NPU"), cache_dir=str(tmp_path)))
    assert model.runtime.devices == NPU


async def test_the_daemon_says_in_healthz_on_which_device_it_is(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    watched: list[object] = []  # it would run graphs in the middle of other tests
    monkeypatch.setattr(WhisperModel, "watch", lambda model, before: watched.append(before))
    async with daemon_at_work("none") as (_, port):
        _, health = await asyncio.to_thread(healthz, port)
        assert health["device"] == CPU
        compiler.go_on()
        await asyncio.to_thread(wait_until, lambda: healthz(port)[1]["device"] == NPU)
        assert len(watched) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a process without a console cannot be interrupted there")
def test_the_daemon_ends_at_once_while_it_compiles(tmp_path: Path) -> None:
    program = f"""import sys, time
from streamer.__main__ import main
from streamer.whisper.device import devices
from tests.unit.whisper.stand_in_npu import StandInCore
devices._cores.append(StandInCore(lambda: time.sleep({10 * WAIT_S})))
sys.exit(main())"""
    command = [sys.executable, "-c", program, "run", "--port", "0", "--input", "none"]
    environ = environment({CACHE_VARIABLE: str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)})
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ) as daemon:
        assert daemon.stderr is not None
        assert any(b"listening on" in line for line in daemon.stderr)
        daemon.send_signal(signal.SIGINT)
        assert daemon.wait(WAIT_S) == 0
    assert not list(tmp_path.glob("NPU-*/*.blob"))
    assert list(tmp_path.glob("CPU-*/*.blob"))


def test_captions_move_in_mid_speech_without_losing_or_repeating_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = captions(load(tmp_path, "CPU", windows_s=(5, 15)))
    for n_encoded in (5, 30):
        assert captions_that_move(tmp_path / str(n_encoded), monkeypatch, n_encoded) == expected


def captions_that_move(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, n_encoded: int
) -> list[tuple[str, float, float]]:
    """Return captions for which the NPU is ready when a window is encoded by the CPU and not decoded yet."""
    compiler = Compiler()
    stand_in_npu.install(monkeypatch, compiler)
    model = load(cache_dir, windows_s=(5, 15))

    def move(n_windows: int) -> None:
        if n_windows == n_encoded:
            assert model.runtime.devices == CPU
            compiler.go_on()
            wait_for_npu(model)

    found = captions(model, move)
    assert model.runtime.devices == NPU
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "n_calls"), [("encoder", 12), ("decoder", 100)])
def test_a_device_that_hangs_in_mid_speech_leaves_no_gap(
    known: Path, monkeypatch: pytest.MonkeyPatch, stage: str, n_calls: int
) -> None:
    """The audio goes on meanwhile, and is given up where it has waited for long."""
    model = load_model(str(NANO), LoadOptions(cache_dir=str(known), windows_s=(5, 15)))
    assert model.runtime.devices == NPU
    clock = TickingClock()
    hung_s: list[float] = []

    def hang(seconds: float) -> None:
        hung_s.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(stage_module, "TIMES_LONGER", 0)  # however busy the machine was
    stand_in_npu.npu_hangs(monkeypatch, stage, n_calls, hang)
    assert captions(model, clock=clock, times=2)[-1][2] > 20
    assert model.runtime.devices == CPU
    assert hung_s == [HANGS_NOT_BEFORE_S]


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("encoder", stand_in_npu.add_noise),
        ("cross_kv", stand_in_npu.add_noise),
        ("decoder", stand_in_npu.add_noise),
        ("encoder", stand_in_npu.late()),
    ],
)
def test_a_device_that_begins_to_compute_nonsense_is_given_up(
    known: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stage: str,
    change: Callable[[Float32Array], None],
) -> None:
    model = load_model(str(NANO), LoadOptions(cache_dir=str(known), windows_s=(5,)))
    assert len(list(kept_verdicts(known))) == 3
    for _ in range(2):
        model.try_out()
        assert model.runtime.devices == NPU
    with monkeypatch.context() as patched:
        stand_in_npu.npu_computes(patched, stage, change)
        mel = log_mel(read(SPEECH), 80).astype(np.float32)
        WhisperEncoder(model).encode(mel, 0, 4 * SAMPLE_RATE)
        model.try_out()
    assert model.runtime.devices == CPU
    assert not list(kept_verdicts(known)), "it is not judged anew at the next start"


def test_captions_go_on_while_a_device_hangs_that_is_tried_out(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(NANO), LoadOptions(cache_dir=str(known), windows_s=(5,)))
    mel = log_mel(read(SPEECH), 80).astype(np.float32)
    hung: list[int] = []
    devices: list[dict[str, str]] = []

    def hang(seconds: float) -> None:
        hung.append(threading.get_ident())
        if len(hung) == 1:
            with ThreadPoolExecutor(1) as captions:
                captions.submit(WhisperEncoder(model).encode, mel, 0, 4 * SAMPLE_RATE).result(WAIT_S)
            devices.append(model.runtime.devices)

    stand_in_npu.npu_hangs(monkeypatch, "encoder", 0, hang)
    model.try_out()
    assert len(set(hung)) == 2, "captions do not need the device"
    assert devices == [CPU]
    assert model.runtime.devices == CPU


def test_a_device_is_tried_out_again_with_what_was_made_for_the_first_time(
    known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(NANO), LoadOptions(cache_dir=str(known), windows_s=(5, 15)))
    model.try_out()
    made: list[object] = []
    for kind in (Stage, WindowBuffers):
        monkeypatch.setattr(kind, "__init__", lambda new, *_: made.append(new))
    model.try_out()
    assert made == []
    # It is freed with the graphs.
    trial = weakref.ref(model.runtime.trial)
    assert model.unload()
    wait_until(lambda: trial() is None)


def test_what_a_daemon_uses_is_watched_when_captions_leave_time_for_it(
    known: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(stage: Stage, *arguments: object) -> None:
        raise RuntimeError("the driver is gone")

    waited: list[str] = []

    def wait_idle(timeout_s: float, duration_s: float) -> bool:
        assert timeout_s > duration_s > 0.0
        waited.append(threading.current_thread().name)
        return False

    others = {*threading.enumerate()}
    monkeypatch.setattr(model_module, "WATCH_EVERY_S", 0.01)
    models = [load_model(str(NANO), LoadOptions(cache_dir=str(known)))]
    with monkeypatch.context() as patched:
        patched.setattr(Stage, "__init__", fail)
        watch_beside_live(models[0], wait_idle)
        wait_until(lambda: "the devices of nano.en could not be tried out: the driver is gone" in caplog.text)
    wait_until(lambda: bool(models[0].runtime.tried))
    # The encoder, cross-KV, and four calls of the decoder.
    assert waited[:6] == ["watch"] * 6
    stand_in_npu.npu_computes(monkeypatch, "encoder", stand_in_npu.add_noise)
    wait_until(lambda: models[0].runtime.devices == CPU)
    models.clear()
    wait_until(lambda: "watch" not in {thread.name for thread in {*threading.enumerate()} - others})


def decoded(model: WhisperModel, mel: Float32Array) -> str:
    """Return the text of the first window."""
    request = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=160_000)
    encoded = WhisperEncoder(model).encode(mel, 0)
    return "".join(word.text for word in WhisperDecoder(model, DecodingSettings()).decode(encoded, request).words)


class TickingClock(Clock):
    """A clock that is a millisecond later each time."""

    def __call__(self) -> float:
        self.advance(0.001)
        return self.now_s


def captions(
    model: WhisperModel,
    encoded: Callable[[int], None] = lambda n_windows: None,
    clock: Clock | None = None,
    times: int = 1,
) -> list[tuple[str, float, float]]:
    """Return text and times of the finals of live speech, which must keep all promises; the clock is moved by hand.

    encoded : receives how many windows are encoded, before the last one is decoded
    clock : if others move it, too
    times : how often the speech is said
    """
    clock, log, events = clock or TickingClock(), EventLog("live", 10_000), list[Event]()
    engine = Engine(WhisperEncoder(model), WhisperDecoder(model, DecodingSettings(), clock), clock=clock)
    settings = load_settings(None, {}, {"stream.max_delay_s": 10})
    session = open_session(settings, model, log, SessionSource(kind=AudioKind.LIVE))
    events += log.subscribe(events.append, after=0).backlog
    engine.add(session)
    samples, n_windows, n_written = np.tile(read(SPEECH), times), 0, 0
    while not isinstance(events[-1], End):
        clock.advance(0.1)
        while n_written < min(len(samples), clock.now_s * SAMPLE_RATE):
            session.write(samples[n_written : n_written + SAMPLE_RATE // 10])
            n_written += SAMPLE_RATE // 10
        if n_written >= len(samples):
            session.end()
        assert clock.now_s < 200
        engine.listen()
        if engine.encode():
            n_windows += 1
            encoded(n_windows)
        engine.decode()
    check_promises(events)
    # nano.en, which knows whole sentences only, finds no words in some that begin in the middle.
    assert not [event for event in events if isinstance(event, Gap) and event.reason != "unclear"]
    return [(event.text, event.start, event.end) for event in events if isinstance(event, Final)]
