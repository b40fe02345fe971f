"""Speech as Opus: what comes back is in its place, and what is damaged is one error."""

import numpy as np
import pytest

from streamer.arrays import Float32Array, Int16Array
from streamer.audio import opus
from streamer.audio.resample import Resampler
from streamer.constants import SAMPLE_RATE
from tests.daemon import SAMPLE


def speech(n_samples: int) -> Int16Array:
    import soundfile

    samples, _ = soundfile.read(SAMPLE, dtype="int16")
    return np.asarray(samples[:n_samples], dtype=np.int16)


@pytest.mark.parametrize("n_samples", [SAMPLE_RATE // 50, 12_345, 10 * SAMPLE_RATE])
def test_speech_comes_back_in_its_place(n_samples: int) -> None:
    samples = speech(n_samples).astype(np.float32) / 32768
    found = opus.decode(opus.encode(speech(n_samples)), n_samples)
    assert found.shape == (n_samples,)
    if n_samples > SAMPLE_RATE:
        shifts = range(-100, 101)
        likeness = [float(np.dot(samples, np.roll(found, shift))) for shift in shifts]
        shift = shifts[int(np.argmax(likeness))]
        assert abs(shift) <= SAMPLE_RATE // 1000
        assert np.corrcoef(samples, np.roll(found, shift))[0, 1] > 0.9


def test_an_hour_takes_no_more_than_the_documents_say() -> None:
    assert len(opus.encode(speech(10 * SAMPLE_RATE))) * 360 <= 11e6
    assert len(opus.encode(np.zeros(10 * SAMPLE_RATE, dtype=np.int16))) * 360 <= 3e6


def test_no_more_is_decoded_than_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = opus.encode(speech(10 * SAMPLE_RATE))
    n_blocks = 0

    class Counted(Resampler):
        def process(self, samples: Float32Array) -> Float32Array:
            nonlocal n_blocks
            n_blocks += 1
            return super().process(samples)

    monkeypatch.setattr(opus, "Resampler", Counted)
    assert opus.decode(data, SAMPLE_RATE // 10).any()
    assert n_blocks < 50  # of 20 ms; the file has 500


def test_what_is_cut_is_silent_to_its_end_and_what_is_no_audio_is_refused() -> None:
    data = opus.encode(speech(5 * SAMPLE_RATE))
    samples = opus.decode(data[: len(data) // 2], 5 * SAMPLE_RATE)
    assert len(samples) == 5 * SAMPLE_RATE
    assert not samples[-SAMPLE_RATE:].any()
    for damaged in (b"", b"OggS", b"#EXTM3U\nfile:///etc/passwd\n", bytes(1000)):
        with pytest.raises(ValueError):  # noqa: PT011 - FFmpeg's reasons
            opus.decode(damaged, SAMPLE_RATE)
