import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from wyoming.asr import Transcript
from wyoming.event import Event as Theirs
from wyoming.info import Info

from streamer.errors import BusyError
from streamer.events import End, Error, Event
from streamer.protocols.adapter import Action, Finish, Hangup, Open, Say, Write
from streamer.protocols.wyoming import MAX_LINE_BYTES, MAX_WAITING_BYTES, EventReader, Wyoming, describe
from tests.unit.protocols.test_hostile import VALUES
from tests.wire.support import final

INFO = describe("base", ["en", "de"])
FORMAT = {"rate": 16_000, "width": 2, "channels": 1}


def wire(kind: str, data: dict[str, Any] | None = None, payload: bytes = b"", *, inline: bool = False) -> bytes:
    """Return an event's bytes, its data in the line or behind it."""
    line: dict[str, Any] = {"type": kind, "version": "1.10.2", "payload_length": len(payload)}
    behind = b"" if data is None or inline else json.dumps(data).encode("utf-8")
    line |= {"data": data} if inline else {"data_length": len(behind)}
    return json.dumps(line).encode("utf-8") + b"\n" + behind + payload


def said(actions: Sequence[Action]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that are sent, as the package reads them."""
    lines = [action.text for action in actions if isinstance(action, Say)]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    return [(event.type, event.data) for event in (Theirs.from_dict(json.loads(line)) for line in lines)]


def chunk(samples: bytes = b"\1\0", **format: int) -> bytes:
    return wire("audio-chunk", {**FORMAT, **format, "timestamp": None}, samples)


def sent_for(adapter: Wyoming, *events: Event) -> list[tuple[str, dict[str, Any]]]:
    return [message for event in events for message in said(adapter.on_event(event))]


def test_events_are_read_however_they_are_cut() -> None:
    sent = wire("a", {"x": 1}, b"\n\n") + wire("b") + wire("c", {"y": "é"}, inline=True)
    for size in (1, 7, len(sent)):
        reader, read = EventReader(), []
        for first in range(0, len(sent), size):
            reader.feed(sent[first : first + size])
            while (event := reader.next()) is not None:
                read.append((event.type, event.data, event.payload))
        assert read == [("a", {"x": 1}, b"\n\n"), ("b", {}, b""), ("c", {"y": "é"}, b"")]


def test_data_behind_the_line_counts_before_that_in_it() -> None:
    reader = EventReader()
    reader.feed(b'{"type":"a","data":{"x":1,"y":1},"data_length":7}\n{"x":2}')
    event = reader.next()
    assert event is not None
    assert event.data == {"x": 2, "y": 1}


@pytest.mark.parametrize(
    "sent",
    [
        *(b"\n", b"no JSON\n", b'{"no":"type"}\n', b'{"type":"a","data_length":-1}\n', b"[" * 60_000 + b"\n"),
        *(b'{"type":"a","payload_length":1e9}\n', b'{"type":"a","payload_length":2000000}\n', b"\xff\n"),
        *(b'{"type":"a","data_length":2}\n[]', b'{"type":"a","data":[]}\n', b"x" * MAX_LINE_BYTES),
    ],
)
def test_an_invalid_event_is_an_error_and_ends_the_connection(sent: bytes) -> None:
    actions = Wyoming(INFO).receive(sent)
    ((kind, data),) = said(actions)
    assert (kind, data["code"]) == ("error", "bad_message")
    assert isinstance(actions[-1], Hangup)


def test_describe_says_what_the_package_asks_for() -> None:
    ((_, data),) = said(Wyoming(INFO).receive(wire("describe")))
    (program,) = Info.from_event(Theirs("info", data)).asr
    (model,) = program.models
    assert program.installed
    assert program.supports_transcript_streaming
    assert (model.name, model.installed, model.languages) == ("base", True, ["en", "de"])


def test_ping_and_events_that_are_not_known() -> None:
    adapter = Wyoming(INFO)
    assert adapter.receive(wire("run-pipeline", {"x": 1}, b"abc")) == []
    assert said(adapter.receive(wire("ping", {"text": "a"}))) == [("pong", {"text": "a"})]


def test_a_request_from_its_audio_to_its_transcript() -> None:
    adapter = Wyoming(INFO)
    request = {"name": "base", "language": "de", "transcript_names": ["Ottokar"], "transcript_terms": ["lamp"]}
    assert adapter.receive(wire("transcribe", request) + wire("audio-start", {**FORMAT, "timestamp": None})) == []
    opening, hear = adapter.receive(chunk(b"\1\0\2\0", rate=22_050, channels=2))
    assert isinstance(opening, Open)
    start = opening.start
    assert (start.format, start.sample_rate, start.channels, start.language) == ("s16le", 22_050, 2, "de")
    assert start.hotwords == ("Ottokar", "lamp")
    assert hear == Write(b"\1\0\2\0")
    assert sent_for(adapter, final(1, "Licht"), final(2, "")) == [
        ("transcript-start", {"language": "en"}),
        ("transcript-chunk", {"text": "Licht"}),
    ]
    assert adapter.receive(wire("audio-stop", {"timestamp": 0})) == [Finish()]
    assert sent_for(adapter, final(3, "an.")) == [("transcript-chunk", {"text": " an."})]
    ended = sent_for(adapter, End())
    assert ended == [("transcript", {"text": "Licht an.", "language": "en"}), ("transcript-stop", {})]
    assert Transcript.from_event(Theirs(*ended[0])).text == "Licht an."


def test_a_language_without_spaces_gets_none() -> None:
    adapter = Wyoming(INFO)
    adapter.receive(chunk())
    for number, text in ((1, "今日は"), (2, "晴れ")):
        spoken = final(number, text)
        words = tuple(replace(word, word=word.word.strip()) for word in spoken.words)
        adapter.on_event(replace(spoken, words=words))
    assert sent_for(adapter, End())[0][1]["text"] == "今日は晴れ"


def test_there_is_always_a_transcript_and_nothing_of_the_last_one_in_it() -> None:
    adapter = Wyoming(INFO)
    empty = [("transcript-start", {}), ("transcript", {"text": ""}), ("transcript-stop", {})]
    assert said(adapter.receive(wire("audio-stop"))) == empty
    adapter.receive(wire("transcribe", {"language": "de"}) + chunk(rate=8000) + wire("audio-stop"))
    sent_for(adapter, final(1, "One."), End())
    opening, *_ = adapter.receive(chunk())
    assert isinstance(opening, Open)
    assert (opening.start.sample_rate, opening.start.language) == (16_000, None)
    adapter.receive(wire("audio-stop"))
    assert sent_for(adapter, End()) == empty


def test_the_next_request_waits_for_the_transcript_of_the_last() -> None:
    adapter = Wyoming(INFO)
    assert adapter.receive(chunk() + wire("audio-stop") + chunk(rate=8000) + wire("ping"))[-1] == Finish()
    assert adapter.receive(wire("audio-stop")) == []
    actions = adapter.on_event(End())
    assert [kind for kind, _ in said(actions)] == ["transcript-start", "transcript", "transcript-stop", "pong"]
    assert actions[-1] == Finish()
    assert isinstance(adapter.receive(b"\0" * MAX_WAITING_BYTES + b"\0")[-1], Hangup)


@pytest.mark.parametrize(
    ("width", "sent", "heard"),
    [
        (1, bytes([0, 128]), [-32768, 0]),
        (3, bytes([9, 1, 2, 9, 3, 4]), [0x0201, 0x0403]),
        (4, bytes([9, 9, 1, 2, 9, 9, 3, 4]), [0x0201, 0x0403]),
    ],
)
def test_samples_of_each_width_cut_anywhere(width: int, sent: bytes, heard: list[int]) -> None:
    adapter = Wyoming(INFO)
    actions = [action for part in (sent[:2], sent[2:]) for action in adapter.receive(chunk(part, width=width))]
    audio = b"".join(action.audio for action in actions if isinstance(action, Write))
    assert np.frombuffer(audio, "<i2").tolist() == heard


@pytest.mark.parametrize("wrong", [{"rate": 1}, {"width": 8}, {"channels": 0}, {"rate": "fast"}])
def test_audio_of_an_invalid_or_another_format_is_an_error(wrong: dict[str, Any]) -> None:
    adapter = Wyoming(INFO)
    ((kind, data),) = said(adapter.receive(chunk(**wrong)))
    assert (kind, next(iter(wrong)) in data["text"]) == ("error", True)
    adapter = Wyoming(INFO)
    adapter.receive(chunk())
    assert said(adapter.receive(chunk(rate=8000)))[0][0] == "error"


@pytest.mark.parametrize("refused", [True, False])
def test_a_failure_is_an_error_and_ends_the_connection(*, refused: bool) -> None:
    adapter = Wyoming(INFO)
    adapter.receive(chunk())
    failure = Error(code="busy", message="full", fatal=True)
    actions = adapter.refused(BusyError("full")) if refused else adapter.on_event(failure)
    assert said(actions) == [("error", {"text": "full", "code": "busy"})]
    assert isinstance(actions[-1], Hangup)
    assert adapter.on_event(End()) == []


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_a_client_sends_makes_it_raise(seed: int) -> None:
    chance = random.Random(seed)
    kinds = ("describe", "ping", "transcribe", "audio-start", "audio-chunk", "audio-stop", "\ud800", "")
    keys = ("rate", "width", "channels", "text", "name", "language", "transcript_names", "transcript_terms")
    for _ in range(100):
        adapter, sent = Wyoming(INFO), b""
        for _ in range(3):
            data = {
                **(FORMAT if chance.random() < 0.5 else {}),
                chance.choice(keys): chance.choice((*VALUES, [None], 16_000)),
            }
            payload = chance.randbytes(chance.randrange(9))
            sent += wire(chance.choice(kinds), data, payload, inline=chance.random() < 0.5)
        if chance.random() < 0.3:
            place = chance.randrange(len(sent))
            sent = sent[:place] + chance.randbytes(3) + sent[place:]
        sent_for(adapter, final(1, "Good morning."))
        said([*adapter.receive(sent), *adapter.on_event(End())])
