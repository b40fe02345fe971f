"""Speech as Opus: what comes back is in its place, and no more is decoded than is asked for."""

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio import opus
from streamer.audio.pcm import to_int16
from streamer.audio.resample import Resampler
from streamer.constants import SAMPLE_RATE
from tests.unit.audio.support import likeness, speech


@pytest.mark.parametrize("n_samples", [SAMPLE_RATE // 50, 12_345, 10 * SAMPLE_RATE])
def test_speech_comes_back_in_its_place(n_samples: int) -> None:
    samples = speech(10.0)[:n_samples]
    found = opus.decode(opus.encode(to_int16(samples)), n_samples)
    assert found.shape == (n_samples,)
    if n_samples > SAMPLE_RATE:
        # Within a millisecond.
        assert (
            likeness(found[2 * SAMPLE_RATE - 16 : 4 * SAMPLE_RATE + 16], samples[2 * SAMPLE_RATE : 4 * SAMPLE_RATE])
            > 0.9
        )


def test_an_hour_takes_no_more_than_the_documents_say() -> None:
    assert len(opus.encode(to_int16(speech(10.0)))) * 360 <= 11e6
    assert len(opus.encode(np.zeros(10 * SAMPLE_RATE, dtype=np.int16))) * 360 <= 3e6


def test_no_more_is_decoded_than_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = opus.encode(to_int16(speech(10.0)))
    n_frames, process = list[int](), Resampler.process

    def counted(resampler: Resampler, frames: Float32Array) -> Float32Array:
        n_frames.append(len(frames))
        return process(resampler, frames)

    monkeypatch.setattr(Resampler, "process", counted)
    assert opus.decode(data, SAMPLE_RATE // 10).any()
    assert sum(n_frames) < 48_000  # of ten seconds


def test_what_is_cut_is_silent_to_its_end_and_what_is_no_audio_is_refused() -> None:
    data = opus.encode(to_int16(speech(5.0)))
    samples = opus.decode(data[: len(data) // 2], 5 * SAMPLE_RATE)
    assert samples[:SAMPLE_RATE].any()
    assert not samples[-SAMPLE_RATE:].any()
    for damaged in (b"", b"OggS", b"#EXTM3U\nfile:///etc/passwd\n", bytes(1000)):
        with pytest.raises(ValueError):  # noqa: PT011 - FFmpeg's reasons
            opus.decode(damaged, SAMPLE_RATE)
