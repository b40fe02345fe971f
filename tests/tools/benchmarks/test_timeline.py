"""Timelines are written and read."""

import pytest

from streamer.errors import UsageError
from tools.benchmarks.timeline import Revision, Timeline


def a_timeline() -> Timeline:
    return Timeline(
        system="a system",
        recording="slt",
        audio_s=2.5,
        revisions=[Revision(0.5, None, (), 0), Revision(1.0, 0.9, ("Grüße,", "you"), 1)],
        speech=[(0.4, "start", 0.1)],
        gaps=[(1.0, 1.5)],
        cpu_s=0.25,
        peak_rss_mb=100.0,
        encoder_calls=3,
        decoder_calls=None,
        decoder_tokens=7,
        finals=[(0.0, 1.0), (1.5, 2.5)],
        settled_tokens=4,
    )


def test_a_timeline_is_read_as_it_was_written() -> None:
    assert Timeline.from_json(a_timeline().to_json()) == a_timeline()


def test_a_timeline_of_a_system_that_tells_no_finals_can_be_read() -> None:
    text = a_timeline().to_json().replace(',"finals":[[0.0,1.0],[1.5,2.5]]', "")
    assert "finals" not in text
    assert Timeline.from_json(text).finals == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"revisions": []}'),
        a_timeline().to_json()[:-1],
        a_timeline().to_json().replace("gaps", "holes"),
        a_timeline().to_json().replace("0.9", '"soon"'),
        a_timeline().to_json().replace('"gaps"', '"\\ud800\\u001b"'),
        a_timeline().to_json().replace("gaps", "\x1b"),
        "[" * 20_000,
    ],
)
def test_what_is_no_timeline_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="not a timeline") as caught:
        Timeline.from_json(text)
    assert str(caught.value).isprintable()
