"""Kaldi's filter banks, beside transformers' code, which follows Kaldi's independently."""

import numpy as np
import pytest
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from streamer.after.speakers.fbank import N_BANDS, N_FRAMES, WINDOW_SAMPLES, log_mel
from streamer.arrays import Float32Array
from tests.daemon import SAMPLE, recording


def reference(samples: Float32Array) -> Float32Array:
    """The same in float64; Kaldi's float32 is no nearer."""
    found: Float32Array = spectrogram(
        samples.astype(np.float64) * 32768.0,
        window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=mel_filter_bank(
            257, N_BANDS, 20.0, 8000.0, 16000, mel_scale="kaldi", triangularize_in_mel_space=True
        ),
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    ).T
    return found


NOISE = np.random.default_rng(1).standard_normal(WINDOW_SAMPLES).astype(np.float32)
SOUNDS: dict[str, Float32Array] = {
    "speech": recording(SAMPLE, 0.5),
    "noise": np.float32(0.01) * NOISE,
    "silence": 0 * NOISE,
    "loud": np.sign(NOISE),
}


@pytest.mark.parametrize("kind", SOUNDS)
def test_bands_are_those_of_kaldi(kind: str) -> None:
    samples = SOUNDS[kind][:WINDOW_SAMPLES]
    found = log_mel(samples)
    assert found.shape == (N_FRAMES, N_BANDS)
    # Logarithms of energies: 1e-4 is a hundredth of a percent.
    np.testing.assert_allclose(found, reference(samples), atol=1e-4)
