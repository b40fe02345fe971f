"""Accelerators that compute something else than the CPU: one line says so, and the CPU takes their place."""

import logging
from collections.abc import Callable
from pathlib import Path

import openvino as ov
import pytest

from streamer.errors import InferenceError
from streamer.whisper import model as model_module
from streamer.whisper.check import Check
from streamer.whisper.device import stage as stage_module
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.speech import exact_plans
from streamer.whisper.device.stage import Stage
from streamer.whisper.device.verdicts import kept_verdicts
from streamer.whisper.model import LoadOptions, WhisperModel, load_model, verify_model
from tests.unit.whisper.stand_in_npu import StandInCore, add_noise, install, late, npu_computes
from tests.unit.whisper.support import NANO

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def core(monkeypatch: pytest.MonkeyPatch) -> StandInCore:
    return install(monkeypatch)


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """A cache of this test's own: verdicts of others would hold here, too."""
    return tmp_path / "cache"


@pytest.fixture
def load(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> Callable[[], tuple[WhisperModel, list[str]]]:
    """Load nano.en for the best device there is; return it, and what was warned of."""

    def load() -> tuple[WhisperModel, list[str]]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            model = load_model(str(NANO), LoadOptions(cache_dir=str(cache_dir)))
        return model, [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    return load


ON_CPU = {"encoder": "CPU", "cross_kv": "CPU", "decoder": "CPU"}
ON_NPU = dict.fromkeys(ON_CPU, "NPU")


def test_a_right_device_is_compared_with_the_cpu_once(
    load: Callable[[], tuple[WhisperModel, list[str]]], core: StandInCore, cache_dir: Path
) -> None:
    model, warned = load()
    assert (model.runtime.devices, warned) == (ON_NPU, [])
    assert core.compiled_for.count("CPU") > 1
    assert [(verdict.problem, verdict.openvino) for verdict in kept_verdicts(cache_dir)] == [("", ov.get_version())] * 3
    core.compiled_for.clear()
    model, warned = load()
    assert (model.runtime.devices, warned) == (ON_NPU, [])
    # The CPU looks tokens up for an NPU.
    assert core.compiled_for.count("CPU") == 1
    # Another driver is tried anew.
    core.driver = "1.39"
    load()
    assert core.compiled_for.count("CPU") > 2


def test_a_device_that_adds_noise_is_refused_until_its_driver_changes(
    load: Callable[[], tuple[WhisperModel, list[str]]],
    core: StandInCore,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        npu_computes(patched, "encoder", add_noise)
        model, (warning,) = load()
    assert model.runtime.devices == {**ON_CPU, "decoder": "NPU"}
    assert warning.startswith("NPU computes the encoder wrongly: in speech it differs from the CPU by ")
    assert "; update the device's driver, or choose another device with --device CPU" in warning
    assert warning.endswith("; trying CPU for encoder, cross_kv")
    # It would compute rightly now, and is not tried.
    model, (warning,) = load()
    assert model.runtime.devices == {**ON_CPU, "decoder": "NPU"}
    assert "(found at an earlier load; `streamer models verify` tries it again); trying CPU" in warning
    # That command tries it, and keeps what it finds.
    options = LoadOptions(cache_dir=str(cache_dir))
    assert all(check.passed for check in verify_model(str(NANO), options))
    core.driver = "1.39"
    model, warned = load()
    assert (model.runtime.devices, warned) == (ON_NPU, [])


def test_a_device_that_returns_another_windows_result_is_refused(
    load: Callable[[], tuple[WhisperModel, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    npu_computes(monkeypatch, "encoder", late())
    model, (warning,) = load()
    assert model.runtime.devices["encoder"] == "CPU"
    assert "the compiled encoder gives results that depend on the window before" in warning


def test_a_model_that_is_started_again_is_not_compared_again(
    load: Callable[[], tuple[WhisperModel, list[str]]], core: StandInCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "open_cache", lambda setting: None)
    model, warned = load()
    assert (model.runtime.devices, warned) == (ON_NPU, [])
    core.compiled_for.clear()
    assert model._parts is not None
    model.start(model._parts)
    assert "CPU" not in core.compiled_for


def test_verify_keeps_what_fails_another_check_than_that_of_speech(
    load: Callable[[], tuple[WhisperModel, list[str]]], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Check("encoder: left of the window before", "0.5", "at most 0.02", False, "the encoder is stale", "encoder")
    with monkeypatch.context() as patched:
        patched.setattr(model_module, "_device_checks", lambda *_, **__: iter([stale]))
        assert stale in list(verify_model(str(NANO), LoadOptions(cache_dir=str(cache_dir))))
    model, (warning,) = load()
    assert model.runtime.devices == {**ON_NPU, "encoder": "CPU"}
    assert warning.startswith("the encoder is stale; ")
    assert "found at an earlier load" in warning


def test_a_device_that_hangs_is_refused_with_all_its_stages(
    load: Callable[[], tuple[WhisperModel, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        # Every call on an accelerator takes longer.
        patched.setattr(stage_module, "HANGS_AFTER_S", 0.0)
        patched.setattr(stage_module, "_hung", [])
        patched.setattr(Stage, "failure", failure_after(Stage.failure))
        model, (warning,) = load()
    assert model.runtime.devices == ON_CPU
    assert warning.startswith("NPU failed while it computed the ")
    assert "(no answer within 0 s)" in warning
    assert warning.endswith("; trying CPU for encoder, cross_kv, decoder")
    model, (warning,) = load()
    assert model.runtime.devices == ON_CPU
    assert "found at an earlier load" in warning


def failure_after(failure: Callable[[Stage, str], Exception]) -> Callable[[Stage, str], Exception]:
    """Return the same, once the request has ended: the test's own device would write to what is gone."""

    def wait(stage: Stage, reason: str) -> Exception:
        stage._request.wait()
        return failure(stage, reason)

    return wait


def test_a_device_that_was_asked_for_is_refused_with_a_line(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npu_computes(monkeypatch, "decoder", add_noise)
    with pytest.raises(InferenceError, match=r"NPU computes the decoder wrongly.*--device CPU"):
        load_model(str(NANO), LoadOptions(DeviceSettings("NPU"), cache_dir=str(cache_dir)))


def test_the_reference_is_the_cpu_in_full_precision() -> None:
    assert {plan.candidates for plan in exact_plans().values()} == {("CPU",)}
