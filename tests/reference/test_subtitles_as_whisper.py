"""With openai-whisper's options the files are byte for byte those of its own writers."""

import io
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whisper.utils import get_writer

from streamer.events import Final
from tests.unit.outputs.finals import spaced, worded, written

Words = list[tuple[str, float, float]]


def reference(format: str, finals: list[Final], *, timed: bool = True, **options: Any) -> str:  # noqa: ANN401
    """Write what openai-whisper's writer makes of the same segments."""
    segments: list[dict[str, Any]] = []
    for event in finals:
        segment: dict[str, Any] = {"start": event.start, "end": event.end, "text": event.text}
        if timed:
            segment["words"] = [{"word": word.word, "start": word.start, "end": word.end} for word in event.words]
        segments.append(segment)
    stream = io.StringIO()
    writer: Any = get_writer("txt" if format == "text" else format, "")
    writer.write_result({"segments": segments}, file=stream, options=options)
    return stream.getvalue()


@st.composite
def segments(draw: st.DrawFn) -> list[Final]:
    """Draw segments of words that are spoken one after another, each for a millisecond at least."""
    now_ms = draw(st.integers(0, 3_700_000))
    drawn: list[Final] = []
    for i in range(draw(st.integers(0, 4))):
        words: Words = []
        for _ in range(draw(st.integers(1, 12))):
            start_ms = now_ms + draw(st.sampled_from([0, 0, 0, 1, 200, 2999, 3000, 3001, 5000]))
            now_ms = start_ms + draw(st.sampled_from([1, 40, 500, 2999, 3001]))
            text = draw(st.sampled_from([" a", " Ask", " country,", ",", "字", "-known", " " + "x" * 30, "y" * 45]))
            words.append((text, start_ms / 1000, now_ms / 1000))
        drawn.append(worded(*words, segment=i + 1))
    return drawn


SPOKEN = [worded(*spaced("And so, my fellow Americans")), worded(*spaced("ask not", start=9), segment=1)]
limits = st.sampled_from([None, 0, 1, 2, 5, 12, 42, 84])


@pytest.mark.parametrize("format", ["srt", "vtt"])
@given(segments(), limits, limits, limits, st.booleans())
@settings(max_examples=75, deadline=None)
@example(SPOKEN, 20, 2, None, False)
def test_cues_are_the_references(
    format: str, finals: list[Final], width: int | None, count: int | None, n_words: int | None, highlight: bool
) -> None:
    options: dict[str, Any] = {"max_line_width": width, "max_line_count": count, "max_words_per_line": n_words}
    # Where we have 0 for no limit, the reference has nothing given.
    unlimited: dict[str, Any] = {name: value or None for name, value in options.items()}
    expected = reference(format, finals, **unlimited, highlight_words=highlight)
    if width is count is n_words is None:
        options["subtitle_style"] = "whisper"
    assert written(format, finals, **options, highlight_words=highlight) == expected


@pytest.mark.parametrize("format", ["srt", "vtt"])
@pytest.mark.parametrize("highlight", [False, True])
def test_segments_without_word_times_are_the_references(format: str, highlight: bool) -> None:
    finals = [
        worded(text=" And so, my fellow Americans: ask not what your country can do for you," * 3),
        msgspec.structs.replace(worded(text="b"), start=1.5, end=4000.0),
    ]
    options = {"max_line_width": 20, "highlight_words": highlight}
    assert written(format, finals, **options) == reference(format, finals, timed=False, **options)


@given(segments())
@settings(max_examples=75, deadline=None)
def test_text_and_tsv_are_the_references(finals: list[Final]) -> None:
    for format in ("text", "tsv"):
        assert written(format, finals) == reference(format, finals)


def test_what_goes_on_in_the_next_segment_waits_for_it() -> None:
    finals = [worded(*spaced("one two")), worded(*spaced("three", start=0.5))]
    options = {"max_line_width": 42, "max_line_count": 2}
    assert written("vtt", finals, **options) == "WEBVTT\n\n00:00.000 --> 00:00.750\none two three\n\n"


def test_cues_of_no_duration_are_there_for_a_moment() -> None:
    """The reference writes cues that end as they begin, which WebVTT forbids."""
    events = [worded((" a", 1.0, 1.0), (" b", 1.0, 2.0))]
    assert written("vtt", events, max_line_width=0, highlight_words=True) == (
        "WEBVTT\n\n00:01.000 --> 00:01.001\n<u>a</u> b\n\n00:01.001 --> 00:02.000\na <u>b</u>\n\n"
    )
