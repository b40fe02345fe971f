"""Log-mel spectrograms beside transformers' filter bank and Fourier transform; more: tests/reference/test_mel.py."""

import numpy as np
import pytest
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from streamer.arrays import Float32Array
from streamer.audio.mel import LogMelRecording, LogMelStream, log_mel
from streamer.constants import HOP_LENGTH, N_SAMPLES
from tests.unit.audio.support import speech


def reference(samples: Float32Array) -> Float32Array:
    filters = mel_filter_bank(201, 80, 0.0, 8_000.0, 16_000, norm="slaney", mel_scale="slaney")
    powers = spectrogram(
        samples.astype(np.float64),
        window_function(400, "hann"),
        frame_length=400,
        hop_length=160,
        power=2.0,
        mel_filters=filters,
        log_mel="log10",
    )[:, :-1]
    found: Float32Array = (np.maximum(powers, powers.max() - 8.0) + 4.0) / 4.0
    return found


def test_a_window_is_that_of_transformers_and_of_those_that_overlap_few_frames_are_computed_again() -> None:
    samples, stream = speech(10.0), LogMelStream(80)
    windows = [(0, 40_000), (0, 56_000), (16_000, 80_000), (16_160, 16_160 + 100), (96_000, 160_000)]
    for start, end in windows:
        alone = log_mel(samples[start:end], 80)
        np.testing.assert_allclose(
            alone, reference(np.pad(samples[start:end], (0, N_SAMPLES - end + start))), atol=1e-4
        )
        np.testing.assert_allclose(stream.window(samples[start:end], start), alone, atol=1e-5)
    assert stream.frames_computed < 80_000 // HOP_LENGTH + 400 + 8 * len(windows)


@pytest.mark.parametrize("block_samples", [1_600, 100_000, N_SAMPLES + 401])
def test_a_recording_of_any_length_is_read_block_by_block(block_samples: int) -> None:
    samples = np.tile(speech(9.0), 8)[: 2 * N_SAMPLES + 5_000]
    blocks = [samples[i : i + block_samples] for i in range(0, len(samples), block_samples)]
    recording = LogMelRecording(blocks, 80)
    expected = reference(samples)
    assert (recording.n_samples, recording.n_frames) == (len(samples), expected.shape[1])
    np.testing.assert_allclose(recording.frames(0, recording.n_frames), expected, atol=1e-4)
    assert recording.silence == pytest.approx(expected.min(), abs=1e-4)  # the loudest bin is far above it
    np.testing.assert_array_equal(recording.frames(2_990, 3_010), recording.frames(0, 4_000)[:, 2_990:3_010])
    recording.close()
