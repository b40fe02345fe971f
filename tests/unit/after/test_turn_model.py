"""The turn model: what it is given, and files that are not one."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest

from streamer.after.turn_model import N_MELS, WINDOW_SAMPLES, TurnModel
from streamer.audio.mel import log_mel, log_mel_alone
from streamer.constants import SAMPLE_RATE
from streamer.errors import ModelError
from streamer.whisper.device.devices import the_core
from tests.turn_model import write_turn_model

NOISE = np.random.default_rng(39).standard_normal(WINDOW_SAMPLES).astype(np.float32)


def test_it_judges_the_last_eight_seconds_whatever_their_level(tmp_path: Path) -> None:
    model = TurnModel(write_turn_model(tmp_path), the_core())
    expected = model.probability(NOISE)
    assert 0.0 < expected < 1.0
    assert model.probability(np.concatenate([100 * NOISE[:1000], NOISE])) == pytest.approx(expected, abs=1e-6)
    assert model.probability(0.01 * NOISE + np.float32(0.1)) == pytest.approx(expected, abs=1e-3)


def test_what_is_shorter_has_silence_before_it(tmp_path: Path) -> None:
    model = TurnModel(write_turn_model(tmp_path, newest=True), the_core())
    short = NOISE[: SAMPLE_RATE // 2]
    # The newest tenth of a second is as loud as the rest in the one, and silent in the other.
    assert model.probability(short) > model.probability(np.concatenate([short, np.zeros(SAMPLE_RATE, np.float32)]))
    assert 0.0 <= model.probability(np.zeros(0, np.float32)) <= 1.0


def test_the_spectrogram_of_samples_alone_is_that_of_a_window_in_which_they_are_reflected_at_their_end() -> None:
    reflected = np.concatenate([NOISE, NOISE[-2:-202:-1]])
    np.testing.assert_allclose(log_mel_alone(NOISE, N_MELS), log_mel(reflected, N_MELS)[:, :800], atol=1e-5)
    assert np.abs(log_mel_alone(NOISE, N_MELS) - log_mel(NOISE, N_MELS)[:, :800]).max() > 1e-4


@pytest.mark.parametrize("shape", [(1, 80, 3000), (1, 128, 800)])
def test_a_model_of_another_shape_is_one_line(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = write_turn_model(tmp_path, shape=shape)
    with pytest.raises(ModelError, match="is not a turn model") as caught:
        TurnModel(path, the_core())
    assert "\n" not in str(caught.value)


def test_other_outputs_and_no_model_at_all_are_one_line(tmp_path: Path) -> None:
    features = ops.parameter([1, N_MELS, 800], np.float32, "input_features")
    ov.save_model(ov.Model([ops.relu(features)], [features], "other"), tmp_path / "other.xml")
    (tmp_path / "damaged.onnx").write_bytes(b"\x08\x09\x12\x00" * 100)
    for name in ("other.xml", "damaged.onnx", "absent.onnx"):
        with pytest.raises(ModelError, match="models pull turns") as caught:
            TurnModel(tmp_path / name, the_core())
        assert "\n" not in str(caught.value)
