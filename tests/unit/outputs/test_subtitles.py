"""Transcripts as they grow, those for programs, and refusals; `test_captions.py` has the text of each format."""

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamer.events import Error, Token, from_json
from streamer.outputs.files import GrowingFile
from streamer.outputs.outputs import Outputs, parse_target
from streamer.outputs.sink import read_secret
from streamer.outputs.subtitles import FORMATS, SubtitleOptions, open_writer
from streamer.settings.table import OutputsSettings, Settings
from tests.builders import partial, ready
from tests.refusals import Refusal, refusals
from tests.unit.outputs.finals import labelled, read_events, revised, worded, written

ASK = worded((" Ask", 0.0, 0.3), (" not", 0.3, 0.52), (" what", 0.52, 0.9996))
EMPTY = worded(text="", segment=1)


@refusals("outputs")
def test_refusals(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "directory.srt").mkdir()
    given = refusal.given.replace("DIR", str(tmp_path))
    with refusal.expected(tmp_path):
        match refusal.name.split()[0]:
            case "format":
                open_writer(given, io.StringIO())
            case "file":
                GrowingFile(Path(given), SubtitleOptions())
            case "secret":
                read_secret(given, "outputs.webhook_secret")
            case "target":
                parse_target(given)
            case _:
                Outputs(Settings(outputs=OutputsSettings(to=(given,))))


def test_jsonl_is_the_events_themselves() -> None:
    events = [ready(seq=1, session="s"), ASK, partial(" ignored", seq=3, session="s"), EMPTY]
    events.append(Error(code="x", message="\x1b[2J\x7f\x9b2J\u2028 ü", fatal=False))
    lines = written("jsonl", events).splitlines()
    assert [from_json(line) for line in lines] == events
    assert r"\u007f\u009b2J\u2028 ü" in lines[-1]
    assert lines[-1].isprintable(), "a terminal obeys nothing in it"


def test_json_holds_text_segments_and_gaps_to_the_last_revision() -> None:
    gap = read_events([{"gap": "overrun", "start": 3.0, "end": 4.5}])
    twice = worded((" a\tb", 4.5, 5.0), segment=2)
    events = [ready(), labelled(ASK, "S1"), EMPTY, *gap, twice, revised(twice, "ab")]
    transcript = json.loads(written("json", events, n_waiting=1))
    given = [transcript[name] for name in ("text", "language", "model", "gaps")]
    assert given == ["Ask not what ab", "en", "nano.en", [{"start": 3.0, "end": 4.5, "reason": "overrun"}]]
    assert [segment["text"] for segment in transcript["segments"]] == [" Ask not what", "", "ab"]
    first, second, _ = transcript["segments"][0]["words"]
    assert first["speaker"] == "S1"
    assert second == {"word": " not", "start": 0.3, "end": 0.52, "probability": 0.5, "stable": True}


def test_tokens_of_words_are_in_json_if_known() -> None:
    token: dict[str, Any] = {"id": 257, "text": " Ask", "probability": 0.5}
    first, *others = ASK.words
    first = msgspec.structs.replace(first, tokens=(Token(**token),))
    transcript = json.loads(written("json", [msgspec.structs.replace(ASK, words=(first, *others))]))
    assert [word.get("tokens") for word in transcript["segments"][0]["words"]] == [[token], None, None]


def test_divided_segments_are_numbered_and_the_text_is_whole() -> None:
    events = [worded((" well", 0.0, 0.5), ("-known", 0.5, 1.0)), EMPTY, worded((" a", 1.0, 2.0), segment=2)]
    transcript = json.loads(written("json", events, max_len=1))
    assert transcript["text"] == "well-known a"
    segments = [(each["segment"], each["text"], len(each["words"])) for each in transcript["segments"]]
    assert segments == [(1, "well", 1), (2, "-known", 1), (3, "", 0), (4, " a", 1)]


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "json"])
def test_a_final_is_written_as_it_comes_or_with_the_next(format: str) -> None:
    stream = io.StringIO()
    writer = open_writer(format, stream)
    writer.handle(ASK)
    assert ("what" in stream.getvalue()) == (format not in ("srt", "vtt"))
    writer.handle(worded((" a", 10.0, 11.0), segment=2))
    assert "what" in stream.getvalue()


def test_a_final_waits_for_its_revision_no_longer_than_it_may() -> None:
    stream = io.StringIO()
    writer = open_writer("text", stream, n_waiting=2)
    for event in (ASK, revised(ASK, "Ask,"), EMPTY, worded((" a", 10.0, 11.0), segment=2)):
        assert stream.getvalue() == ""
        writer.handle(event)
    assert stream.getvalue() == "Ask,\n"


def test_an_endless_word_is_divided_in_no_time() -> None:
    assert written("srt", [worded((" " + "a" * 50_000, 0.0, 3.0))]).count("a") == 50_000
