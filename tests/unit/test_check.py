"""Checks of settings of several rooms, before a model is loaded; those of decoding are in tests/unit/whisper."""

import pytest

from streamer.check import check_options
from streamer.errors import ConfigError, UsageError
from streamer.settings.load import load_settings


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stream.max_delay_s": 61.0}, ["max_delay_s is 61", "buffer_s 90", "at most 60"]),
        ({"stream.max_delay_s": 31.0, "input.buffer_s": 60.0}, ["at most 30", "raise input.buffer_s"]),
        ({"stream.max_pace_s": 0.2}, ["max_pace_s is 0.2", "pace_s, which is 0.25"]),
    ],
)
def test_live_audio_waits_in_the_buffer(given: dict[str, float], words: list[str]) -> None:
    contradictory = load_settings(None, {}, given)
    with pytest.raises(UsageError) as caught:
        check_options(contradictory, streaming=True)
    assert all(word in str(caught.value) for word in words)
    # Files are read as fast as they are transcribed.
    check_options(contradictory, streaming=False)


def test_an_address_that_is_none_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:PORT/v1"):
        check_options(load_settings(None, {}, {"correction.to": "localhost:11434"}), streaming=True)
