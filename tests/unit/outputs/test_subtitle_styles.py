"""What the readable style asks of subtitles: how long a cue stands, how fast it reads, where it is divided."""

import re
from itertools import pairwise
from unicodedata import east_asian_width

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.outputs.subtitles.layout import CHARS_PER_S, LINE_CHARS, MAX_CUE_MS, MIN_CUE_MS, MIN_GAP_MS
from tests.unit.outputs.finals import final, spaced, written

pytestmark = pytest.mark.slow

Cues = list[tuple[int, int, list[str]]]


def cues(*finals: list[tuple[str, float, float]]) -> Cues:
    """Return the cues of finals that tell these words: start and end in milliseconds, and lines."""
    return read(written("srt", [final(*words, segment=i) for i, words in enumerate(finals)]))


def read(srt: str) -> Cues:
    found: Cues = []
    for block in srt.split("\n\n")[:-1]:
        number, clock, *lines = block.split("\n")
        assert int(number) == len(found) + 1
        start, end = (
            ((int(h) * 60 + int(m)) * 60 + int(s)) * 1000 + int(ms)
            for h, m, s, ms in re.findall(r"(\d+):(\d\d):(\d\d),(\d{3})", clock)
        )
        found.append((start, end, lines))
    return found


def columns(lines: list[str]) -> int:
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in "".join(lines))


def test_cues_and_lines_end_where_clauses_do() -> None:
    text = (
        "And so, my fellow Americans: ask not what your country can do for you, ask what you can do for your country."
    )
    assert cues(spaced(text)) == [
        (0, 3500, ["And so, my fellow Americans:", "ask not what your country can do for you,"]),
        (3500, 5677, ["ask what you can do for your country."]),
    ]


def test_no_line_ends_with_a_word_that_belongs_to_the_next_one() -> None:
    [(_, _, lines)] = cues(spaced("Nobody in town had ever seen the inside of the old lighthouse"))
    assert lines == ["Nobody in town had ever seen", "the inside of the old lighthouse"]


def test_chinese_is_divided_at_its_punctuation_and_counts_double() -> None:
    text = "今天的天气非常好，我们一起去公园散步吧，那里的花都开了。"
    [(_, _, lines)] = cues([(char, i / 10, i / 10 + 0.1) for i, char in enumerate(text)])
    assert lines == ["今天的天气非常好，", "我们一起去公园散步吧，那里的花都开了。"]
    assert all(columns([line]) <= 42 for line in lines)


def test_a_short_cue_stands_for_its_least_time_and_until_it_is_read() -> None:
    assert cues([(" Yes.", 1.0, 1.06)]) == [(1000, 1700, ["Yes."])]
    assert cues([(" Incomprehensibilities.", 1.0, 1.4)]) == [(1000, 2295, ["Incomprehensibilities."])]


def test_a_cue_that_is_too_short_becomes_one_with_the_next() -> None:
    assert cues([(" Yes.", 1.0, 1.1)], [(" No.", 1.2, 1.4)], [(" Why?", 3.0, 3.5)]) == [
        (1000, 1700, ["Yes.", "No."]),
        (3000, 3700, ["Why?"]),
    ]


def test_where_two_cues_do_not_fit_on_the_screen_the_second_waits() -> None:
    first, second = spaced("a" * 40 + " " + "b" * 40, step=0.05), spaced("c" * 40 + " " + "d" * 40, start=0.1)
    assert [(start, end) for start, end, _ in cues(first, second)] == [(0, 700), (700, 5406)]


def test_no_cue_stands_for_longer_than_it_may() -> None:
    assert cues(spaced("It was the last one of them", step=3.0)) == [
        (0, 6000, ["It was"]),
        (6000, 12000, ["the last"]),
        (12000, 19000, ["one of them"]),
    ]


def test_a_last_word_that_lasts_into_silence_stays_with_the_others() -> None:
    assert cues([(" That", 0.0, 0.5), (" was", 0.5, 1.0), (" all.", 1.0, 9.0)]) == [(0, 7000, ["That was all."])]


def test_small_gaps_are_closed_and_others_are_not() -> None:
    words = [[(" One word", 0.0, 1.0)], [(" another one", 1.9, 3.0)], [(" and the last", 4.1, 5.0)]]
    assert [cue[:2] for cue in cues(*words)] == [(0, 1900), (1900, 3000), (4100, 5000)]


def test_words_without_times_take_those_of_their_segment() -> None:
    """What nano.en tells of its sample: all words at one moment of a segment of seconds, or all but the last."""
    text = "The Secret Service agents did all that could have been done to take protective measures."
    words = [(f" {word}", 14.68, 14.68) for word in text.split()]
    expected = [
        (14680, 16490, ["The Secret Service", "agents did all that could"]),
        (16490, 18961, ["have been done to take", "protective measures."]),
    ]
    event = msgspec.structs.replace(final(*words), end=18.26)
    assert read(written("srt", [event])) == expected
    assert cues([*words[:-1], (words[-1][0], 14.68, 18.26)]) == expected
    assert cues([(" Ask", 1.0, 1.0), (" not", 1.0, 1.0)]) == [(1000, 1700, ["Ask not"])]


def test_a_word_without_a_duration_keeps_its_start() -> None:
    assert cues([(" Ten", 5.0, 5.0), (" seconds", 12.0, 12.5), (" later.", 12.5, 12.5)])[0][0] == 5000
    found = cues([(" Ten", 5.0, 5.4), (" sec", 12.0, 12.0), (" later.", 12.5, 12.9)])
    assert found[1] == (12000, 12900, ["sec later."])


def test_marks_end_with_their_cue() -> None:
    event = final((" Yes.", 1.0, 1.06))
    assert re.findall(r"(\S+) --> (\S+)\n(.*)", written("srt", [event], highlight_words=True)) == [
        ("00:00:01,000", "00:00:01,060", "<u>Yes.</u>"),
        ("00:00:01,060", "00:00:01,700", "Yes."),
    ]


texts = st.one_of(
    st.text("ab字。,. -<>&\n\x1b", max_size=60).map(lambda text: f" {text}"),
    st.sampled_from([" the", " country,", " done.", "字幕", "，", " -->"]),
)


@st.composite
def spoken(draw: st.DrawFn) -> list[list[tuple[str, float, float]]]:
    """Draw finals as models tell them: words one after another, some of which last no time."""
    now_s = float(draw(st.integers(0, 4000)))
    finals: list[list[tuple[str, float, float]]] = []
    for _ in range(draw(st.integers(0, 5))):
        words: list[tuple[str, float, float]] = []
        for _ in range(draw(st.integers(1, 25))):
            start_s = now_s + draw(st.sampled_from([0, 0, 0, 0, 0.02, 0.3, 1.2, 9]))
            now_s = start_s + draw(st.sampled_from([0, 0.02, 0.1, 0.3, 0.3, 0.5, 8]))
            words.append((draw(texts), start_s, now_s))
        finals.append(words)
    return finals


anything = st.lists(st.lists(st.tuples(texts, st.floats(0, 100), st.floats(0, 100)), max_size=30), max_size=4)


@given(st.one_of(spoken(), anything))
@settings(max_examples=50)
@example([[(" a", 1.0, 1.0)], [(" b", 1.0, 1.0)], [(" c", 1.0, 1.0)]])
def test_any_finals_become_cues_as_the_style_wants_them(finals: list[list[tuple[str, float, float]]]) -> None:
    found = cues(*finals)
    for start, end, lines in found:
        assert MIN_CUE_MS <= end - start <= MAX_CUE_MS
        assert 1 <= len(lines) <= 2
        assert all(0 < columns([line]) <= LINE_CHARS and line == line.strip() for line in lines)
    for (start, end, lines), (following, *_) in pairwise(found):
        assert end <= following
        # Nothing keeps a cue from standing until it is read but the next one, and its greatest length.
        is_read = columns(lines) / (end - start) * 1000 <= CHARS_PER_S
        is_full = end in (following, start + MAX_CUE_MS)
        assert is_read or is_full
        assert following - end >= MIN_GAP_MS or is_full
    shown = "".join("".join(lines) for _, _, lines in found)
    said = "".join(word for words in finals for word, _, _ in words)
    assert re.sub(r"\s", "", shown).replace("→", "-->") == re.sub(r"[\s\x1b]", "", said)
