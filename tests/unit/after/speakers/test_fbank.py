import numpy as np
import pytest
import soundfile
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from streamer.after.speakers.fbank import N_BANDS, N_FRAMES, WINDOW_SAMPLES, log_mel
from streamer.arrays import Float32Array
from tests.daemon import SAMPLE


def reference(samples: Float32Array) -> Float32Array:
    """The same by transformers, whose code follows Kaldi's independently; float64, and Kaldi's float32 is no nearer."""
    filters = mel_filter_bank(
        *(257, N_BANDS, 20.0, 8000.0, 16000), norm=None, mel_scale="kaldi", triangularize_in_mel_space=True
    )
    found: Float32Array = spectrogram(
        samples.astype(np.float64) * 32768.0,
        window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    ).T
    return found


@pytest.mark.parametrize("kind", ["speech", "noise", "silence", "loud"])
def test_bands_are_those_of_kaldi(kind: str) -> None:
    rng = np.random.default_rng(1)
    samples = {
        "speech": soundfile.read(SAMPLE, dtype="float32")[0][8000 : 8000 + WINDOW_SAMPLES],
        "noise": (rng.standard_normal(WINDOW_SAMPLES) / 100).astype(np.float32),
        "silence": np.zeros(WINDOW_SAMPLES, dtype=np.float32),
        "loud": np.sign(rng.standard_normal(WINDOW_SAMPLES)).astype(np.float32),
    }[kind]
    found = log_mel(samples)
    assert found.shape == (N_FRAMES, N_BANDS)
    # Logarithms of energies: 1e-4 is a hundredth of a percent.
    np.testing.assert_allclose(found, reference(samples), atol=1e-4)
