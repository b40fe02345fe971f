"""Which texts people can say in a time."""

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.whisper.plausible import can_be_spoken, repeats


@pytest.mark.parametrize(
    ("text", "duration_s", "expected"),
    [
        # Eight words a second, marks that stand alone not counted.
        (" and so it went on for years -", 0.875, True),
        (" and so it went on for years -", 0.85, False),
        (" and so it went on for years" * 8, 0.1, False),
        # One word or two are said quickly, and timed badly.
        (" Thank you.", 0.0, True),
        (" Thank you all.", 0.1, False),
        ("", 0.0, True),
        # Two characters of Chinese or Japanese are as much as a word, four of Thai; marks are none.
        ("我们今天下午去公园散步。", 0.7, True),
        ("我们今天下午去公园散步。", 0.6, False),
        ("そうですね、", 0.3, False),
        ("วันนี้อากาศดีมาก", 0.5, True),
        ("วันนี้อากาศดีมาก", 0.4, False),
        # Words of two scripts add up.
        ("我们今天 go to the park", 0.75, True),
        ("我们今天 go to the park", 0.7, False),
    ],
)
def test_what_can_be_spoken(text: str, duration_s: float, expected: bool) -> None:
    assert can_be_spoken(text, round(duration_s * SAMPLE_RATE)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" and the river was sold.", True),
        (" And the - river, was sold", True),
        (" sold to the baker", True),
        # Part of a word, something new, or so little that people do say it again.
        (" the river was so", False),
        (" sold to the baker again", False),
        (" the baker", False),
        ("", False),
    ],
)
def test_what_repeats_the_text_before_it(text: str, expected: bool) -> None:
    assert repeats(text, "They said the mill and the river was sold to the baker.") == expected
