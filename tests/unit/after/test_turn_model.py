"""The turn model: what it is given."""

from pathlib import Path

import numpy as np
import pytest

from streamer.after.turn_model import N_MELS, WINDOW_SAMPLES, TurnModel
from streamer.audio.mel import log_mel, log_mel_alone
from streamer.constants import SAMPLE_RATE
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
    padded = np.concatenate([np.zeros(WINDOW_SAMPLES - len(short), np.float32), short])
    assert model.probability(short) == model.probability(padded)
    # The newest tenth of a second is as loud as the rest in the one, and silent in the other.
    assert model.probability(short) > model.probability(np.concatenate([short, np.zeros(SAMPLE_RATE, np.float32)]))
    assert 0.0 <= model.probability(np.zeros(0, np.float32)) <= 1.0


def test_the_spectrogram_of_samples_alone_is_that_of_a_window_in_which_they_are_reflected_at_their_end() -> None:
    reflected = np.concatenate([NOISE, NOISE[-2:-202:-1]])
    np.testing.assert_allclose(log_mel_alone(NOISE, N_MELS), log_mel(reflected, N_MELS)[:, :800], atol=1e-5)
    assert np.abs(log_mel_alone(NOISE, N_MELS) - log_mel(NOISE, N_MELS)[:, :800]).max() > 1e-4
