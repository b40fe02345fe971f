"""Where a client's audio comes again from; sessions that move are held in test_gateway.py."""

import numpy as np
import pytest

from streamer.audio.pcm import PcmDecoder
from streamer.plugins.cluster.replay import first_frame
from streamer.protocols.native import StreamStart


def test_at_16_khz_audio_comes_again_from_where_it_is_needed() -> None:
    assert first_frame(12_345, StreamStart(channels=2)) == (12_345, 12_345)


def test_at_its_beginning_audio_comes_again_from_there() -> None:
    assert first_frame(3000, StreamStart(sample_rate=48_000)) == (0, 0)


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000, 96_000, 44_101])
def test_a_resampler_that_begins_on_the_grid_yields_the_same(rate: int) -> None:
    noise = np.random.default_rng(2).normal(0, 0.2, 12 * rate).astype("<f4")
    whole = PcmDecoder("f32le", rate, 1)
    expected = np.concatenate([whole.decode(noise.tobytes()), whole.finish()])
    position = 150_001
    frame, begin = first_frame(position, StreamStart(format="f32le", sample_rate=rate))
    assert begin <= position - 4000 or begin == 0
    assert frame * 16_000 == begin * rate
    again = PcmDecoder("f32le", rate, 1)
    found = np.concatenate([again.decode(noise[frame:].tobytes()), again.finish()])[position - begin :]
    assert abs(len(found) - len(expected[position:])) <= 1
    n = min(len(found), len(expected) - position) - 400  # the very end is flushed
    assert np.allclose(found[:n], expected[position : position + n], atol=1e-5)
