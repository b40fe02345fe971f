"""Whatever finals say and whatever the options: a file that strict readers of its format take, with all the text."""

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamer.events import Final
from tests.unit.outputs.finals import final, labelled, written

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


def read_srt(file: str) -> list[str]:
    """Return the text of each cue. Fails where numbers, times or blank lines are not in order."""
    texts: list[str] = []
    last_end = 0
    for number, block in enumerate(file.split("\n\n")[:-1], 1):
        index, clock, text = block.split("\n", 2)
        assert index == str(number)
        found = re.fullmatch(f"{VTT_TIME} --> {VTT_TIME}".replace(r"\.", ","), clock)
        assert found
        start, end = milliseconds(found.groups()[:4]), milliseconds(found.groups()[4:])
        assert last_end <= start < end
        assert "-->" not in text
        assert all(line.strip() for line in text.splitlines())
        assert text.splitlines() == text.split("\n")
        texts.append(text)
        last_end = end
    return texts


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
    events: list[Final] = [labelled(final(*words, text=text), *speakers) for words, text in drawn]
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
