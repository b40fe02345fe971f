"""What is learnt after a final, in files, in the terminal, and at webhooks."""

import io
import json
from pathlib import Path

import pytest

from streamer.events import Event, Final, Speakers
from streamer.outputs.files import GrowingFile
from streamer.outputs.subtitles import SubtitleOptions, open_writer
from streamer.outputs.subtitles.revised import SpeakerNames, speaker_of, turns
from streamer.plugins.web.sinks import Webhook
from tests.builders import ready
from tests.targets import target
from tests.unit.outputs.finals import final, labelled, revision, spaced, written
from tests.unit.outputs.test_terminal import show


def said(number: int, text: str, *speakers: str | None) -> Final:
    return labelled(final(*spaced(text, start=10.0 * number), segment=number), *speakers)


def same(label: str, other: str) -> Speakers:
    return Speakers(same=(label, other)).stamped(98, "s")


TALK = [said(0, "Hi there you too fine", "S1", "S1", "S2", None, "S1"), said(1, "Go on", "S1", "S1"), said(2, "Yes")]


def test_a_final_is_divided_where_another_speaks() -> None:
    def brief(*speakers: str | None) -> list[tuple[str, str]]:
        return [(speaker_of(turn), turn.text) for turn in turns(said(0, "one two three four", *speakers))]

    assert brief() == [("", " one two three four")]
    assert brief(None, "S1", None, "S2") == [("S1", "one two three"), ("S2", "four")]
    assert brief("S2", "S2", "S1", "S2") == [("S2", "one two"), ("S1", "three"), ("S2", "four")]
    spans = [(turn.start, turn.end) for turn in turns(said(0, "one two three", "S1", "S1", "S2"))]
    assert spans == [(0.0, 0.5), (0.5, 0.75)]


def test_labels_that_are_one_person_are_followed() -> None:
    names = SpeakerNames()
    for label, other in (("S3", "S2"), ("S2", "S1"), ("S1", "S3"), ("S4", "S3"), ("Ann", "Ann")):
        names.learn(same(label, other))
    labels = [word.speaker for word in names.named(said(0, "a b c d e f", "S1", "S2", "S3", "S4", "Ann", None)).words]
    assert labels == [labels[0]] * 4 + ["Ann", None]


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("text", "S1: Hi there\nS2: you too\nS1: fine\nGo on\n?: Yes\n"),
        ("tsv", "start\tend\ttext\n0\t500\tS1: Hi there\n500\t1000\tS2: you too\n1000\t1250\tS1: fine\n"
         "10000\t10500\tGo on\n20000\t20250\t?: Yes\n"),
    ],
)  # fmt: skip
def test_a_name_stands_where_another_begins_to_speak(format: str, expected: str) -> None:
    assert written(format, TALK) == expected


def test_subtitles_name_the_speaker() -> None:
    srt = [block.split("\n", 2)[2] for block in written("srt", TALK).strip().split("\n\n")]
    assert srt == ["S1: Hi there\nS2: you too", "S1: fine", "Go on", "?: Yes"]
    vtt = [block.split("\n", 1)[1] for block in written("vtt", TALK).strip().split("\n\n")[1:]]
    assert vtt == ["<v S1>Hi there</v>\n<v S2>you too</v>", "<v S1>fine</v>", "<v S1>Go on</v>", "Yes"]
    words = json.loads(written("json", TALK))["segments"][0]["words"]
    assert [word.get("speaker") for word in words] == ["S1", "S1", "S2", None, "S1"]


def test_a_revision_comes_in_time_while_few_finals_have_followed() -> None:
    first, second, third = said(0, "one"), said(1, "two"), said(2, "three")
    events: list[Event] = [first, second, revision(first, "One,"), third, revision(first, "Late"), same("S3", "S1")]
    assert written("text", events, n_waiting=2) == "One,\ntwo\nthree\n"
    assert json.loads(written("json", events, n_waiting=2))["text"] == "Late two three"
    assert len(written("jsonl", events, n_waiting=2).splitlines()) == len(events)
    stream = io.StringIO()
    writer = open_writer("text", stream, n_waiting=2)
    for event in events[:4]:
        writer.handle(event)
    assert stream.getvalue() == "One,\n"


def test_numbers_and_speakers_of_another_session_are_others() -> None:
    first = said(0, "one", "S2")
    events = [first, same("S2", "S1"), ready(), first, revision(first, "One", "S2")]
    assert written("text", events, n_waiting=2) == "S1: one\nS2: One\n"


@pytest.mark.parametrize(("ending", "expected"), [("txt", "S1: Siobhan here\n"), ("jsonl", None)])
def test_a_growing_file_has_the_newest_text(tmp_path: Path, ending: str, expected: str | None) -> None:
    path = tmp_path / f"talk.{ending}"
    output = GrowingFile(path, SubtitleOptions())
    first = said(0, "Shavon here", "S2")
    events = [first, revision(first, "Siobhan here", "S2", "S2"), same("S2", "S1")]
    for event in events:
        output.handle(event)
        output.handle(event)  # as it is tried again
    text = path.read_text(encoding="utf-8")
    assert text == (expected or "".join(f"{event.to_json()}\n" for event in events))


def test_the_terminal_shows_who_speaks_by_now() -> None:
    first = said(0, "Shavon and you", "S1", "S1", "S2")
    assert show(first, close=False).lines() == ["S1: Shavon and", "S2: you"]
    events = [said(0, "Shavon and you"), revision(first, "Siobhan and you", "S1", "S1", "S2"), same("S2", "S3")]
    assert show(*events, said(1, "Go on", "S3")).lines() == ["S1: Siobhan and", "S3: you", "S3: Go on"]
    assert show(*events, same("S3", "S1"), said(1, "Go", "S2")).lines() == ["S1: Siobhan and you", "S1: Go"]


def test_webhooks_get_revisions_and_speakers(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[str] = []
    webhook = Webhook(target("http://127.0.0.1:1/hook"))
    monkeypatch.setattr(webhook, "post", lambda body, headers: posted.append(headers["webhook-id"]))
    first = said(0, "one")
    for event in (first, revision(first, "One"), same("S2", "S1")):
        webhook.handle(event)
    assert posted == ["s-2", "s-99", "s-98"]
