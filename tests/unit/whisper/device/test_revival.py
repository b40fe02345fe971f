"""Devices that are lost while they compute: nothing of what was said is."""

import itertools
from pathlib import Path

import pytest

from streamer.errors import InferenceError
from streamer.offline import transcribe
from streamer.whisper import shared
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.device.captions import captions, decoded
from tests.unit.whisper.stand_in_npu import install
from tests.unit.whisper.support import NANO, SPEECH, Tensors, load_on_cpu, read, shallow, tamper

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def often_lost() -> WhisperModel:
    return load_on_cpu(shallow(), windows_s=(5, 15))


@pytest.fixture
def lost(often_lost: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> WhisperModel:
    """A model each loss of whose device is the first."""
    monkeypatch.setattr(shared, "FAILS_AGAIN_WITHIN_S", 0.0)
    return often_lost


@pytest.fixture(scope="module")
def expected(often_lost: WhisperModel) -> str:
    return decoded(often_lost)


def lose(model: WhisperModel, stage: str, after: int = 0) -> None:
    """Let a stage of the present runtime fail at its nth run from now, and at all that follow."""
    parts = [part for part in model.runtime.stages if part.sizes.stage == stage]
    runs = itertools.count()

    def fail(inputs: Tensors) -> None:
        if next(runs) >= after:
            raise parts[0].failure("ZE_RESULT_ERROR_DEVICE_LOST")

    tamper(model.runtime, stage, fail)


@pytest.mark.parametrize(("stage", "after"), [("encoder", 0), ("cross_kv", 0), ("decoder", 0), ("decoder", 7)])
def test_a_stage_that_fails_is_started_again_and_its_window_is_not_lost(
    lost: WhisperModel, expected: str, stage: str, after: int
) -> None:
    before = lost.runtime
    lose(lost, stage, after)
    assert decoded(lost) == expected
    assert lost.runtime is not before


def test_a_window_that_was_encoded_before_the_loss_is_decoded_after_it(lost: WhisperModel, expected: str) -> None:
    assert decoded(lost, lambda: lose(lost, "decoder", 3)) == expected


def test_a_device_that_fails_again_is_given_up_for_the_next(
    tmp_path: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    model = load_model(str(shallow()), LoadOptions(cache_dir=str(tmp_path), windows_s=(15,)))
    devices: list[str] = []
    # A loss long after the last is a first one. When no other device is left, the last one is started again.
    for within_s in (600.0, 0.0, 600.0, 600.0):
        monkeypatch.setattr(shared, "FAILS_AGAIN_WITHIN_S", within_s)
        devices.append(model.runtime.devices["encoder"])
        lose(model, "encoder")
        assert decoded(model) == expected
    assert devices == ["NPU", "NPU", "NPU", "CPU"]
    assert model.runtime.devices["encoder"] == "CPU"


def test_a_device_that_fails_again_at_once_is_an_error(lost: WhisperModel) -> None:
    def fail(runtime: Runtime) -> None:
        raise InferenceError("CPU failed")

    with pytest.raises(InferenceError):
        lost.run(fail)


def test_a_recording_is_transcribed_over_a_lost_device(lost: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    options = as_whisper(lost, language="en", temperature=(0.0,))
    infer, runs, lost_at = Stage.infer, itertools.count(), list[int]()

    def infer_or_fail(part: Stage, inputs: Tensors, outputs: Tensors | None = None) -> None:
        if next(runs) in lost_at:
            raise part.failure("ZE_RESULT_ERROR_DEVICE_LOST")
        infer(part, inputs, outputs)

    monkeypatch.setattr(Stage, "infer", infer_or_fail)
    expected = list(transcribe(lost, read(SPEECH), options))
    # The encoder, a later step, and the words' alignment, which comes last.
    for at in (0, 9, next(runs) - 1):
        lost_at[:], runs = [at], itertools.count()
        before = lost.runtime
        assert list(transcribe(lost, read(SPEECH), options)) == expected
        assert lost.runtime is not before


def test_the_language_of_a_recording_is_found_over_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_on_cpu(NANO)
    model.tokenizer.languages["de"] = model.tokenizer.languages["en"] - 1
    monkeypatch.setattr(model.tokenizer, "multilingual", True)
    found: list[str] = []
    lose(model, "decoder")
    options = as_whisper(model, sample_len=1, temperature=(0.0,))
    list(transcribe(model, read(SPEECH), options, on_language=lambda language, _: found.append(language)))
    assert len(found) == 1


def test_captions_go_on_over_a_lost_device_without_a_gap(lost: WhisperModel) -> None:
    expected = captions(lost)

    def at_the_fifth(n_windows: int) -> None:
        if n_windows == 5:
            lose(lost, "decoder", 3)

    before = lost.runtime
    assert captions(lost, at_the_fifth) == expected
    assert lost.runtime is not before
