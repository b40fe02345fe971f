"""Timelines are written and read."""

import pytest

from streamer.errors import UsageError
from tools.benchmarks.timeline import Revision, Timeline


def a_timeline() -> Timeline:
    return Timeline(
        system="a system",
        recording="slt",
        audio_s=2.5,
        revisions=[Revision(0.5, (), 0), Revision(1.0, ("Grüße,", "you"), 1)],
        cpu_s=0.25,
        peak_rss_mb=100.0,
        encoder_calls=3,
        gaps=[(1.0, 1.5)],
    )


def test_a_timeline_is_read_as_it_was_written() -> None:
    assert Timeline.from_json(a_timeline().to_json()) == a_timeline()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"revisions": []}'),
        a_timeline().to_json()[:-1],
        a_timeline().to_json().replace("cpu_s", "cost"),
        a_timeline().to_json().replace("100.0", '"soon"'),
        a_timeline().to_json().replace('"cpu_s"', '"\\ud800\\u001b"'),
        a_timeline().to_json().replace("cpu_s", "\x1b"),
        "[" * 20_000,
    ],
)
def test_what_is_no_timeline_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="not a timeline") as caught:
        Timeline.from_json(text)
    assert str(caught.value).isprintable()
