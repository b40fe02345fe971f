"""Accelerators that compute something else than the CPU: each is refused, and the CPU takes its place."""

import logging
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest

from streamer.errors import InferenceError
from streamer.whisper import loading
from streamer.whisper.check import Check
from streamer.whisper.device import drivers
from streamer.whisper.device import stage as stage_module
from streamer.whisper.device.stage import Stage
from streamer.whisper.loading import LoadOptions, verify_model
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.trust import kept_verdicts
from tests.unit.whisper.stand_in_npu import Compile, StandInCore, add_noise, at_once, install, late, npu_computes
from tests.unit.whisper.support import shallow

pytestmark = pytest.mark.slow

ON_CPU = {"encoder": "CPU", "cross_kv": "CPU", "decoder": "CPU"}
ON_NPU = dict.fromkeys(ON_CPU, "NPU")


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> StandInCore:
    return install(monkeypatch)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache of this test's own: verdicts of others would hold here, too."""
    return tmp_path / "cache"


@pytest.fixture
def check(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> Callable[..., WhisperModel]:
    """Load a model for the best device there is; check which it runs on, and how often that was warned of."""

    def check(n_warnings: int, **devices: str) -> WhisperModel:
        caplog.clear()
        model = load_model(str(shallow()), LoadOptions(cache_dir=str(cache_dir)))
        assert model.runtime.devices == {**ON_NPU, **devices}
        assert sum(record.levelno == logging.WARNING for record in caplog.records) == n_warnings
        return model

    return check


def test_a_device_that_computes_noise_is_refused_until_verify_or_another_driver(
    check: Callable[..., WhisperModel], core: StandInCore, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        npu_computes(patched, "encoder", add_noise)
        check(1, encoder="CPU", cross_kv="CPU")
    # It would compute rightly now, and is not tried: the first verdict is kept.
    check(1, encoder="CPU", cross_kv="CPU")
    assert all(item.passed for item in verify_model(str(shallow()), LoadOptions(cache_dir=str(cache_dir))))
    assert {(verdict.problem, verdict.openvino) for verdict in kept_verdicts(cache_dir)} == {("", ov.get_version())}
    core.compiled_for.clear()
    check(0)
    assert core.compiled_for.count("CPU") == 1  # it looks tokens up for an NPU, and computes nothing to compare with
    core.driver = "1.39"
    check(0)
    assert core.compiled_for.count("CPU") > 2


def test_a_device_that_returns_another_windows_result_is_refused(
    check: Callable[..., WhisperModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    npu_computes(monkeypatch, "encoder", late())
    check(1, encoder="CPU")


def test_a_model_that_is_started_again_is_not_compared_again(
    check: Callable[..., WhisperModel], core: StandInCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "open_cache", lambda setting: None)
    model = check(0)
    core.compiled_for.clear()
    model.recover(model.runtime, InferenceError("it fell off the bus"))
    assert core.compiled_for.count("CPU") == 1, "it looks tokens up"


def test_verify_keeps_what_fails_another_check_than_that_of_speech(
    check: Callable[..., WhisperModel], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Check("encoder: left of the window before", "0.5", "at most 0.02", False, "the encoder is stale", "encoder")
    with monkeypatch.context() as patched:
        patched.setattr(loading, "self_checks", lambda *_, **__: iter([stale]))
        assert stale in list(verify_model(str(shallow()), LoadOptions(cache_dir=str(cache_dir))))
    check(1, encoder="CPU")


def test_verify_says_whether_the_npu_was_busy(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = tmp_path / "sys/class/accel/accel0/device/npu_busy_time_us"
    counter.parent.mkdir(parents=True)
    counter.write_text("7", encoding="ascii")
    monkeypatch.setattr(drivers, "ROOT", tmp_path)
    options = LoadOptions(cache_dir=str(cache_dir))
    assert [check.name for check in verify_model(str(shallow()), options) if not check.passed] == ["NPU: busy time"]
    npu_computes(monkeypatch, "encoder", lambda values: counter.write_text("2007", encoding="ascii"))
    assert [check.found for check in verify_model(str(shallow()), options) if "busy" in check.name] == ["2.0 ms"]


def refuse_decoders(model: ov.Model) -> None:
    if "decoder" in model.get_friendly_name():
        raise RuntimeError("Exception from x\nno room for so many layers")


@pytest.mark.parametrize("compile", [at_once, refuse_decoders])
def test_a_decoder_that_an_npu_computes_wrongly_or_refuses_is_on_the_cpu_though_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, check: Callable[..., WhisperModel], compile: Compile
) -> None:
    install(monkeypatch, compile, ("CPU", "GPU", "NPU"))
    if compile is at_once:
        npu_computes(monkeypatch, "decoder", add_noise)
    check(1, decoder="CPU")


def test_a_device_that_hangs_is_refused_with_all_its_stages(
    check: Callable[..., WhisperModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stage: Stage, reason: str) -> Exception:
        stage._request.wait()  # else the test's own device would write to what is gone
        return failure(stage, reason)

    failure = Stage.failure
    with monkeypatch.context() as patched:
        # Every call on an accelerator takes longer.
        patched.setattr(stage_module, "HANGS_AFTER_S", 0.0)
        patched.setattr(stage_module, "_hung", [])
        patched.setattr(Stage, "failure", fail)
        check(1, **ON_CPU)
    check(1, **ON_CPU)  # it is not tried again
