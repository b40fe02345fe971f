"""Transcripts and subtitles: the exact text of each format, and what holds for any input."""

import io
import json
import re

import msgspec
import pytest

from streamer.errors import UsageError
from streamer.events import End, Error, Event, Gap, Token, from_json
from streamer.outputs.subtitles import FORMATS, open_writer
from tests.builders import partial, ready
from tests.unit.outputs.finals import final, spaced, written

READY = ready(seq=1, session="s")
EMPTY = final(text="", segment=1)
EVENTS: list[Event] = [
    READY,
    final((" Ask", 0.0, 0.3), (" not", 0.3, 0.52), (" what", 0.52, 0.9996)),
    partial(" ignored", seq=3, session="s"),
    EMPTY,
    Gap(seq=4, session="s", start=3.0, end=4.5, reason="overrun"),
    final((" a\tb", 3661.25, 3661.5), (" <c>", 3661.5, 3662.0), (" &", 3662.0, 3662.001), segment=2),
    End(seq=6, session="s"),
]


def test_text_is_one_final_a_line() -> None:
    assert written("text", EVENTS) == "Ask not what\na b <c> &\n"


def test_srt_is_exact() -> None:
    assert written("srt", EVENTS) == (
        "1\n00:00:00,000 --> 00:00:01,000\nAsk not what\n\n2\n01:01:01,250 --> 01:01:02,001\na b <c> &\n\n"
    )


def test_vtt_is_exact_and_escaped() -> None:
    assert written("vtt", EVENTS) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.000\nAsk not what\n\n"
        "01:01:01.250 --> 01:01:02.001\na b &lt;c&gt; &amp;\n\n"
    )


def test_tsv_is_openai_whispers() -> None:
    assert written("tsv", EVENTS) == "start\tend\ttext\n0\t1000\tAsk not what\n3661250\t3662001\ta b <c> &\n"


def test_jsonl_is_the_events_themselves() -> None:
    assert [from_json(line) for line in written("jsonl", EVENTS).splitlines()] == EVENTS


def test_jsonl_has_nothing_that_a_terminal_obeys() -> None:
    event = Error(code="x", message="\x1b[2J\x7f\x9b2J\u2028 ü", fatal=False)
    line = written("jsonl", [event]).removesuffix("\n")
    assert r"\u007f\u009b2J\u2028 ü" in line
    assert line.isprintable()
    assert from_json(line) == event


def test_json_holds_text_segments_and_gaps() -> None:
    transcript = json.loads(written("json", EVENTS))
    assert transcript["text"] == "Ask not what a b <c> &"
    assert transcript["language"] == "en"
    assert transcript["model"] == "nano.en"
    assert transcript["gaps"] == [{"start": 3.0, "end": 4.5, "reason": "overrun"}]
    assert [segment["text"] for segment in transcript["segments"]] == [" Ask not what", "", " a\tb <c> &"]
    times = {"start": 0.3, "end": 0.52}
    assert transcript["segments"][0]["words"][1] == {"word": " not", **times, "probability": 0.5, "stable": True}


@pytest.mark.parametrize(("format", "nothing"), [("srt", ""), ("vtt", "WEBVTT\n\n"), ("tsv", "start\tend\ttext\n")])
def test_silence_is_a_valid_file(format: str, nothing: str) -> None:
    assert written(format, [READY, EMPTY, End()]) == nothing


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "json"])
def test_a_final_is_written_as_it_comes_or_with_the_next(format: str) -> None:
    stream = io.StringIO()
    writer = open_writer(format, stream)
    writer.handle(EVENTS[1])
    assert ("what" in stream.getvalue()) == (format not in ("srt", "vtt"))
    writer.handle(EVENTS[5])
    assert "what" in stream.getvalue()


@pytest.mark.parametrize("format", ["docx", "lrc"])
def test_an_unknown_format_is_refused(format: str) -> None:
    with pytest.raises(UsageError, match=rf"'{format}'.*text, json, jsonl, srt, vtt, tsv$"):
        open_writer(format, io.StringIO())


def test_a_long_pause_begins_a_new_cue() -> None:
    events = [final((" one", 0.0, 0.5), (" two", 1.5, 2.0), (" three", 3.001, 3.5))]
    assert re.findall(r"(\S+) --> (\S+)\n(.*)", written("vtt", events)) == [
        ("00:00:00.000", "00:00:02.000", "one two"),
        ("00:00:03.001", "00:00:03.701", "three"),
    ]


def test_words_without_a_space_stay_on_one_line() -> None:
    words = [*spaced("x" * 36), (" well", 0.3, 0.4), ("-known", 0.4, 0.5)]
    assert written("srt", [final(*words)]).splitlines()[2:4] == ["x" * 36, "well-known"]
    assert written("srt", [final((" one ", 0.0, 0.4), ("two", 0.4, 0.8))]).splitlines()[2] == "one two"


def test_a_word_longer_than_a_line_is_divided() -> None:
    lines = [line for line in written("srt", [final((" " + "a" * 100, 0.0, 3.0))]).splitlines() if "a" in line]
    assert sorted(len(line) for line in lines) == [16, 42, 42]


def test_a_final_without_word_times_is_spread_over_its_time() -> None:
    event = final(text="one two")
    assert written("srt", [event]) == "1\n00:00:00,000 --> 00:00:01,000\none two\n\n"


def test_no_cue_ends_behind_the_recording() -> None:
    short = final((" and so far away", 0.0, 0.3))
    assert "--> 00:00:00,883" in written("srt", [short]), "there is time to read it"
    assert "--> 00:00:00,400" in written("srt", [short, End(time=0.4)])


def test_an_endless_word_is_divided_in_no_time() -> None:
    assert written("srt", [final((" " + "a" * 500_000, 0.0, 3.0))]).count("a") == 500_000


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("می\u200cخواهم \N{MAN}\u200d\N{WOMAN} \u200fא", "می\u200cخواهم \N{MAN}\u200d\N{WOMAN} \u200fא"),
        ("\ufeffa\u2028b\u202ec\ud800d", "a b c d"),
    ],
)
def test_joiners_and_direction_marks_stay_but_nothing_that_breaks_or_reorders_lines(said: str, line: str) -> None:
    assert written("text", [final((f" {said}", 0.0, 1.0))]) == f"{line}\n"


def test_a_text_whose_words_are_empty_is_shown() -> None:
    assert "spoken" in written("vtt", [final((" ", 0.0, 0.5), ("\n", 0.5, 1.0), text="spoken")])


def test_each_word_is_underlined_while_it_is_spoken() -> None:
    events = [final((" Ask", 0.0, 0.3), (" <not", 0.5, 1.0))]
    assert re.findall(r"(\S+) --> (\S+)\n(.*)", written("vtt", events, highlight_words=True)) == [
        ("00:00:00.000", "00:00:00.300", "<u>Ask</u> &lt;not"),
        ("00:00:00.300", "00:00:00.500", "Ask &lt;not"),
        ("00:00:00.500", "00:00:01.000", "Ask <u>&lt;not</u>"),
    ]
    guessed = [final(text="one two")]
    assert written("vtt", guessed, highlight_words=True) == written("vtt", guessed)


def test_a_segment_is_divided_to_so_many_characters() -> None:
    events = [final((" Ask", 0.1, 0.3), (" not", 0.4, 0.5), (",", 0.5, 0.6), (" what", 0.7, 1.0), text="Ask not, what")]
    assert written("tsv", events, max_len=8) == "start\tend\ttext\n100\t500\tAsk not\n500\t1000\t, what\n"
    assert written("text", events, max_len=8, split_on_word=True) == "Ask not,\nwhat\n"
    assert written("text", events, max_len=1, split_on_word=True) == "Ask\nnot,\nwhat\n"
    assert re.findall(r"(\S+) --> (\S+)\n(.*)", written("srt", events, max_len=9)) == [
        ("00:00:00,100", "00:00:00,600", "Ask not,"),
        ("00:00:00,700", "00:00:01,000", "what"),
    ]
    without_times = written("tsv", [final(text="one two")], max_len=4)
    assert without_times == "start\tend\ttext\n0\t500\tone\n500\t1000\ttwo\n"


def test_divided_segments_are_numbered_and_the_text_is_whole() -> None:
    events = [final((" well", 0.0, 0.5), ("-known", 0.5, 1.0)), EMPTY, final((" a", 1.0, 2.0), segment=2)]
    transcript = json.loads(written("json", events, max_len=1))
    assert transcript["text"] == "well-known a"
    numbered = [(s["segment"], s["text"]) for s in transcript["segments"]]
    assert numbered == [(1, "well"), (2, "-known"), (3, ""), (4, " a")]
    assert [len(s["words"]) for s in transcript["segments"]] == [1, 1, 0, 1]


def test_tokens_of_words_are_in_json_where_there_are_any() -> None:
    event = final((" a", 0.0, 1.0), (" b", 1.0, 2.0))
    first, second = event.words
    first = msgspec.structs.replace(first, tokens=(Token(id=257, text=" a", probability=0.5),))
    transcript = json.loads(written("json", [msgspec.structs.replace(event, words=(first, second))]))
    words = transcript["segments"][0]["words"]
    assert words[0]["tokens"] == [{"id": 257, "text": " a", "probability": 0.5}]
    assert "tokens" not in words[1]
