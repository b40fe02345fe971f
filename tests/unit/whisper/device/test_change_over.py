"""A model that computes on the CPU until it is compiled for the NPU, and again if that is lost: no word is."""

import contextlib
import logging
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.decoder import WhisperEncoder
from streamer.engine.yielding import watch_beside_live
from streamer.errors import ConfigError, InferenceError
from streamer.whisper import model as model_module
from streamer.whisper.device import stage as stage_module
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import HANGS_NOT_BEFORE_S, Stage
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.trust import Trial, kept_verdicts
from tests.unit.whisper import stand_in_npu
from tests.unit.whisper.device.captions import TickingClock, captions, decoded, speech_mel
from tests.unit.whisper.stand_in_npu import Compiler
from tests.unit.whisper.support import shallow
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.slow

Change = Callable[[Float32Array], None]

# Short, so that captions take less time.
WINDOWS_S = (15,)

CPU, NPU = (dict.fromkeys(("encoder", "cross_kv", "decoder"), device) for device in ("CPU", "NPU"))


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
    """A cache of the test's own with graphs for CPU and NPU, which were found right; they are made once a run."""
    shared = cache_dir / "of the stand-in"
    if not shared.exists():
        compiler.go_on()
        for device in ("CPU", "NPU"):
            devices = DeviceSettings(device)
            load_model(str(shallow()), LoadOptions(devices, cache_dir=str(tmp_path / "made"), windows_s=WINDOWS_S))
        compiler.pause()
        with contextlib.suppress(OSError):  # another process was faster
            (tmp_path / "made").rename(shared)
    return Path(shutil.copytree(shared, tmp_path / "cache"))


@pytest.fixture
def nearly(known: Path) -> Path:
    """Such a cache that lacks one of the NPU's graphs, of the decoder, and what was said of it."""
    of_decoder = [path for path in known.glob("*/verdict.json") if '"decoder (' in path.read_text(encoding="utf-8")]
    shutil.rmtree(of_decoder[0].parent)
    return known


@pytest.fixture
def on_npu(known: Path) -> WhisperModel:
    model = load_model(str(shallow()), LoadOptions(cache_dir=str(known), windows_s=WINDOWS_S))
    assert model.runtime.devices == NPU
    return model


def load(cache_dir: Path, device: str = "NPU", **options: object) -> WhisperModel:
    devices = DeviceSettings(device, properties=options.pop("properties", ()))  # type: ignore[arg-type]
    found = LoadOptions(devices, cache_dir=str(cache_dir), at_once=True, windows_s=WINDOWS_S, **options)  # type: ignore[arg-type]
    return load_model(str(shallow()), found)


def wait_for_npu(model: WhisperModel) -> None:
    wait_until(lambda: model.runtime.devices == NPU)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_model_starts_on_the_cpu_and_moves_to_the_npu_when_that_is_compiled(
    nearly: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(nearly)
    assert model.runtime.devices == CPU
    fork = model.fork()
    first = [weakref.ref(model.runtime), weakref.ref(fork.runtime)]
    calls: list[int] = []
    fork.call_before(lambda: calls.append(1))
    compiler.go_on()
    wait_for_npu(model)
    fork.run(lambda runtime: runtime.decoder.feed([1]))
    assert (fork.runtime.devices, calls) == (NPU, [1])
    wait_until(lambda: [runtime() for runtime in first] == [None, None])  # the CPU's graphs are freed
    assert not warnings_of(caplog)
    # What is in the cache is not compiled, and all of it goes to the NPU at once.
    assert compiler.n_compiled == 1
    assert load(nearly).runtime.devices == NPU


def test_a_compiler_that_fails_leaves_the_model_on_the_cpu(
    tmp_path: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(tmp_path)
    graphs = {*model.runtime.compiled.graphs.values()}
    before = model.runtime
    compiler.fails = True
    compiler.go_on()
    wait_until(lambda: model.runtime is not before)
    assert len(warnings_of(caplog)) == 1
    assert model.run(lambda runtime: runtime.devices) == CPU
    assert {*model.runtime.compiled.graphs.values()} == graphs, "compiled twice"


def test_a_stage_that_the_npu_computes_wrongly_stays_on_the_cpu(
    nearly: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_npu.npu_computes(monkeypatch, "decoder", stand_in_npu.add_noise)
    model = load(nearly)
    compiler.go_on()
    wait_until(lambda: model.runtime.devices == {**NPU, "decoder": "CPU"})
    text = decoded(model)
    assert len(text) > 50
    assert text == decoded(load(nearly, "CPU"))
    # The next start knows, also of an NPU that was asked for.
    assert load(nearly).runtime.devices == {**NPU, "decoder": "CPU"}


def test_a_model_that_works_nowhere_else_stays_as_it_is(
    nearly: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = load(nearly)
    before = model.runtime

    def fail(runtime: Runtime) -> None:
        raise InferenceError("it gives nonsense", "decoder")

    monkeypatch.setattr(Runtime, "warm_up", fail)
    compiler.go_on()
    wait_until(model.unload)  # not while it moves
    assert len(warnings_of(caplog)) > 0
    assert model.runtime.devices == before.devices == CPU


def test_a_gpu_computes_until_the_npu_can(nearly: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler()
    stand_in_npu.install(monkeypatch, compiler, ("CPU", "GPU", "NPU"))
    model = load(nearly, "AUTO")
    assert {*model.runtime.devices.values()} == {"GPU"}
    compiler.go_on()
    wait_for_npu(model)


def test_a_property_that_the_npu_does_not_take_still_ends_the_start(tmp_path: Path, compiler: Compiler) -> None:
    compiler.go_on()
    with pytest.raises(ConfigError):
        load(tmp_path, properties=("NPU_NO_SUCH=1",))


def test_captions_move_in_mid_speech_without_losing_or_repeating_a_word(nearly: Path, compiler: Compiler) -> None:
    expected = captions(load(nearly, "CPU"))
    model = load(nearly)

    def move(n_windows: int) -> None:
        """Have the NPU ready when a window is encoded by the CPU and not decoded yet."""
        if n_windows == 12:
            assert model.runtime.devices == CPU
            compiler.go_on()
            wait_for_npu(model)

    assert captions(model, move) == expected
    assert model.runtime.devices == NPU


def test_a_device_that_hangs_in_mid_speech_leaves_no_gap(on_npu: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audio goes on meanwhile, and is given up where it has waited for long."""
    clock = TickingClock()
    hung_s: list[float] = []

    def hang(seconds: float) -> None:
        hung_s.append(seconds)
        clock.advance(seconds)

    monkeypatch.setattr(stage_module, "TIMES_LONGER", 0)  # however busy the machine was
    stand_in_npu.npu_hangs(monkeypatch, "decoder", 100, hang)
    assert captions(on_npu, clock=clock, times=2)[-1][2] > 20
    assert on_npu.runtime.devices == CPU
    assert hung_s == [HANGS_NOT_BEFORE_S]
    assert len(stage_module._hung) == 1, "to destroy a request would wait for it"


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("encoder", stand_in_npu.late()),
        ("cross_kv", stand_in_npu.add_noise),
        ("decoder", stand_in_npu.add_noise),
    ],
)
def test_a_device_that_begins_to_compute_nonsense_is_given_up(
    on_npu: WhisperModel, known: Path, monkeypatch: pytest.MonkeyPatch, stage: str, change: Change
) -> None:
    assert {verdict.problem for verdict in kept_verdicts(known)} == {""}
    for _ in range(2):
        on_npu.try_out()
        assert on_npu.runtime.devices == NPU
    stand_in_npu.npu_computes(monkeypatch, stage, change)
    WhisperEncoder(on_npu).encode(speech_mel(), 0, 4 * SAMPLE_RATE)
    on_npu.try_out()
    assert on_npu.runtime.devices == CPU
    assert not list(kept_verdicts(known)), "it is not judged anew at the next start"


def test_captions_go_on_while_a_device_hangs_that_is_tried_out(
    on_npu: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung: list[int] = []
    devices: list[dict[str, str]] = []

    def hang(seconds: float) -> None:
        hung.append(threading.get_ident())
        if len(hung) == 1:
            with ThreadPoolExecutor(1) as beside:
                beside.submit(WhisperEncoder(on_npu).encode, speech_mel(), 0, 4 * SAMPLE_RATE).result(WAIT_S)
            devices.append(on_npu.runtime.devices)

    stand_in_npu.npu_hangs(monkeypatch, "encoder", 0, hang)
    on_npu.try_out()
    assert len(set(hung)) == 2, "captions do not need the device"
    assert devices == [CPU]
    assert on_npu.runtime.devices == CPU


def test_a_device_is_tried_out_again_with_what_was_made_for_the_first_time(
    on_npu: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[weakref.ref[Trial]] = []
    make = Trial.__init__

    def note(trial: Trial, *given: Any) -> None:  # noqa: ANN401
        make(trial, *given)
        trials.append(weakref.ref(trial))

    monkeypatch.setattr(Trial, "__init__", note)
    for _ in range(2):
        on_npu.try_out()
    assert len(trials) == 1
    # It is freed with the graphs.
    assert on_npu.unload()
    wait_until(lambda: trials[0]() is None)


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
    models = [load_model(str(shallow()), LoadOptions(cache_dir=str(known)))]
    with monkeypatch.context() as patched:
        patched.setattr(Stage, "__init__", fail)
        watch_beside_live(models[0], wait_idle)
        wait_until(lambda: bool(warnings_of(caplog)))
    wait_until(lambda: bool(waited))
    # The encoder, cross-KV, and four calls of the decoder, the first time.
    wait_until(lambda: len(waited) >= 6)
    assert {*waited} == {"watch"}
    stand_in_npu.npu_computes(monkeypatch, "encoder", stand_in_npu.add_noise)
    wait_until(lambda: models[0].runtime.devices == CPU)
    models.clear()
    wait_until(lambda: "watch" not in {thread.name for thread in {*threading.enumerate()} - others})
