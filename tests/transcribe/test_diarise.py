"""Which channel of a recording speaks."""

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.transcribe.diarise import ChannelLoudness
from tests.whisper.support import Samples, noise


def stereo(*loudness: tuple[float, float], sample_rate: int) -> Samples:
    """Return one second for each pair of loudnesses, shape (n, 2)."""
    return np.concatenate([np.stack([noise(sample_rate, 1), noise(sample_rate, 2)], 1) * pair for pair in loudness])


@pytest.mark.parametrize("sample_rate", [8000, 11_025, 16_000, 44_100])
@pytest.mark.parametrize("block", [37, 4410, 1_000_000])
def test_the_louder_channel_speaks_however_the_audio_comes(sample_rate: int, block: int) -> None:
    samples = stereo((1.0, 0.1), (0.1, 1.0), (0.5, 0.5), (0.0, 0.0), sample_rate=sample_rate).astype(np.float32)
    heard = ChannelLoudness()
    for first in range(0, len(samples), block):
        heard.add(samples[first : first + block], sample_rate)
    assert [heard.speaker(i, i + 1) for i in range(4)] == ["0", "1", "?", "?"]
    assert heard.speaker(0.2, 0.21) == "0"
    assert heard.speaker(1.5, 1.6) == "1"
    assert heard.speaker(0.0, 2.0) == "?"


def test_a_tenth_louder_is_not_loud_enough() -> None:
    for factor, expected in ((1.09, "?"), (1.11, "0")):
        heard = ChannelLoudness()
        heard.add(np.tile(np.array([0.1 * factor, -0.1], dtype=np.float32), (16_000, 1)), 16_000)
        assert heard.speaker(0.0, 1.0) == expected


def test_behind_the_end_and_in_no_time_nobody_speaks() -> None:
    heard = ChannelLoudness()
    heard.add(np.empty((0, 2), dtype=np.float32), 16_000)
    heard.add(np.tile(np.array([1, 0], dtype=np.float32), (16_000, 1)), 16_000)
    assert heard.speaker(0.5, 0.5) == heard.speaker(2.0, 3.0) == heard.speaker(1e9, 2e9) == "?"


@pytest.mark.parametrize("n_channels", [1, 3])
def test_other_than_two_channels_are_refused(n_channels: int) -> None:
    with pytest.raises(ConfigError, match=f"the recording has {n_channels}: expected a stereo recording"):
        ChannelLoudness().add(np.zeros((100, n_channels), dtype=np.float32), 16_000)
