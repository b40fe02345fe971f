"""Whatever finals say and whatever the options: a file that strict readers of its format take, with all the text."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.events import Final
from streamer.outputs.subtitles.cues import columns
from streamer.outputs.subtitles.layout import CHARS_PER_S, LINE_CHARS, MAX_CUE_MS, MIN_CUE_MS, MIN_GAP_MS
from tests.unit.outputs.finals import labelled, worded, written

pytestmark = pytest.mark.slow

VTT_TIME = r"(?:(\d{2,}):)?([0-5]\d):([0-5]\d)\.(\d{3})"


def milliseconds(groups: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, rest = (int(group or 0) for group in groups)
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + rest


def read_vtt(file: str) -> list[str]:
    """Return the text of each cue. Fails where a file is not as the standard has its authors write it."""
    assert file.startswith("WEBVTT\n\n")
    assert not re.search("[\x00-\x09\x0b-\x1f\ufeff\ud800-\udfff]", file)
    texts: list[str] = []
    last_start = 0
    for block in re.split(r"\n{2,}", file)[1:-1]:
        clock, text = block.split("\n", 1)
        found = re.fullmatch(f"{VTT_TIME} --> {VTT_TIME}", clock)
        assert found
        start, end = milliseconds(found.groups()[:4]), milliseconds(found.groups()[4:])
        assert last_start <= start < end
        assert "-->" not in text
        texts.append(cue_text(text))
        last_start = start
    return texts


def cue_text(text: str) -> str:
    assert all(line.strip() for line in text.split("\n"))
    said, opened = "", list[str]()
    for tag, plain in re.findall(r"<([^>]*)>|([^<]+)", text):
        assert ">" not in plain
        assert not re.search("&(?!(?:amp|lt|gt);)", plain)
        said += plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        if tag == "u" or tag.startswith("v "):
            opened.append(tag[0])
        elif not plain:
            assert tag in ("/u", "/v")
            assert opened.pop() == tag[1]
    assert not opened
    return said


Cues = list[tuple[int, int, list[str]]]


def read_cues(srt: str) -> Cues:
    """Return the cues of a file: start and end in milliseconds, and lines. Fails if it is not in order."""
    found: Cues = []
    for number, block in enumerate(srt.split("\n\n")[:-1], 1):
        index, clock, *lines = block.split("\n")
        assert index == str(number)
        times = re.fullmatch(f"{VTT_TIME} --> {VTT_TIME}".replace(r"\.", ","), clock)
        assert times
        start, end = milliseconds(times.groups()[:4]), milliseconds(times.groups()[4:])
        assert start < end
        assert not found or found[-1][1] <= start
        found.append((start, end, lines))
    return found


def read_srt(file: str) -> list[str]:
    """Return the text of each cue."""
    cues = read_cues(file)
    assert all(
        line.strip() and "-->" not in line and line.splitlines() == [line] for _, _, lines in cues for line in lines
    )
    return ["\n".join(lines) for _, _, lines in cues]


READERS = {"vtt": read_vtt, "srt": read_srt}

texts = st.one_of(
    st.text(" ab字-<>&[]:0129\n\r\x1b\x85\u2028\ufeff\u202e\u200b", max_size=50),
    st.sampled_from(
        [" -->", "-", "->", " &lt;", "<00:00:01.000>", " </c>", "\ufeffWEBVTT", "\n\n2\n", " \ud800", "x" * 300]
    ),
    st.text(max_size=20),
)
times = st.one_of(st.floats(0, 100), st.sampled_from([-1.0, 0.0, 1.0, 3600.0, 1e14]))
finals = st.lists(
    st.tuples(st.lists(st.tuples(texts, times, times), max_size=8), st.one_of(st.none(), texts)), max_size=4
)
speakers = st.lists(st.sampled_from([None, None, "S1", "S2", " <v>&\n-->\x1b"]), max_size=8)
options = st.fixed_dictionaries(
    {
        "max_line_width": st.sampled_from([None, 0, 1, 20]),
        "max_line_count": st.sampled_from([None, 0, 1, 3]),
        "max_words_per_line": st.sampled_from([None, 1, 4]),
        "max_len": st.sampled_from([0, 1, 30]),
        "split_on_word": st.booleans(),
    }
)


@pytest.mark.parametrize(
    ("format", "mark"),
    [(format, mark) for format in READERS for mark in ("", "highlight_words")],
)
@given(finals, speakers, options)
@settings(max_examples=100, deadline=None)
@example([([("<0", 0.0, 0.0), (":", 0.0, 0.0)], None)], [], {})
@example([([(" \ud800", 0.0, 0.0)], "0")], ["S1"], {})
@example([([("-", 0.0, 1.0), ("->", 1.0, 2.0), ("-->", 2.0, 2.0)], None)], [], {"max_line_width": 0})
def test_any_finals_become_a_valid_file(
    format: str,
    mark: str,
    drawn: list[tuple[list[tuple[str, float, float]], str | None]],
    speakers: list[str | None],
    options: dict[str, Any],
) -> None:
    events: list[Final] = [labelled(worded(*words, text=text), *speakers) for words, text in drawn]
    file = written(format, events, **options, **({mark: True} if mark else {}))
    said = READERS[format](file)
    if not mark and format == "vtt":
        assert "".join("".join(said).split()) == expected(events)


def expected(events: list[Final]) -> str:
    """Return the text that the cues of these finals hold, without white space."""
    text = ""
    for event in events:
        words = "".join(word.word for word in event.words)
        if bare(event.text):
            text += bare(words) or bare(event.text)
    return text


def bare(text: str) -> str:
    unsafe = "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]"
    return "".join(re.sub(unsafe, " ", text).split())


said_texts = st.one_of(
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
            words.append((draw(said_texts), start_s, now_s))
        finals.append(words)
    return finals


anything = st.lists(st.lists(st.tuples(said_texts, st.floats(0, 100), st.floats(0, 100)), max_size=30), max_size=4)


@given(st.one_of(spoken(), anything))
@settings(max_examples=50)
@example([[(" a", 1.0, 1.0)], [(" b", 1.0, 1.0)], [(" c", 1.0, 1.0)]])
def test_any_finals_become_cues_as_the_style_wants_them(finals: list[list[tuple[str, float, float]]]) -> None:
    found = read_cues(written("srt", [worded(*words, segment=i) for i, words in enumerate(finals)]))
    for start, end, lines in found:
        assert MIN_CUE_MS <= end - start <= MAX_CUE_MS
        assert 1 <= len(lines) <= 2
        assert all(0 < columns(line) <= LINE_CHARS and line == line.strip() for line in lines)
    for (start, end, lines), (following, *_) in pairwise(found):
        assert end <= following
        # Nothing keeps a cue from standing until it is read but the next one, and its greatest length.
        is_read = columns("".join(lines)) / (end - start) * 1000 <= CHARS_PER_S
        is_full = end in (following, start + MAX_CUE_MS)
        assert is_read or is_full
        assert following - end >= MIN_GAP_MS or is_full
    shown = "".join("".join(lines) for _, _, lines in found)
    said = "".join(word for words in finals for word, _, _ in words)
    assert re.sub(r"\s", "", shown).replace("→", "-->") == re.sub(r"[\s\x1b]", "", said)
