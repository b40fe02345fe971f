import json
from typing import Any, get_args

import msgspec
import pytest

from streamer.errors import ProtocolError, UnknownEventError
from streamer.events import (
    EVENT_TYPES,
    Edit,
    End,
    Error,
    Event,
    Final,
    Flushed,
    Gap,
    GapReason,
    Partial,
    Ready,
    Resumed,
    Revision,
    Speakers,
    Speech,
    Translation,
    Turn,
    Word,
    from_json,
    seconds,
)

WORDS = (
    Word(word=" Grüße,", start=1.0, end=1.4, probability=0.91, stable=True),
    Word(word=" 世界", start=1.4, end=2.0, probability=0.5, stable=False),
)
TEXT: dict[str, Any] = {"segment": 3, "start": 1.0, "end": 2.0, "text": "Grüße, 世界", "words": WORDS}
SAMPLES: tuple[Event, ...] = (
    Ready(model="nano.en", device={"encoder": "NPU", "decoder": "CPU"}, sample_rate=16_000, language="en"),
    Resumed(heard_samples=48_000),
    Speech(state="start", time=0.5),
    Speech(state="end", time=2.5),
    Turn(time=2.5, probability=0.75, finished=True),
    Partial(**TEXT, stable=6),
    Final(**TEXT, language="en", no_speech_prob=0.02, avg_logprob=-0.25),
    Revision(of=6, by="glossary", text="Grüße, Welt", words=WORDS, edits=(Edit(start=7, end=9, text="Welt"),)),
    Speakers(same=("S3", "S1")),
    Translation(of=6, text="Greetings, world", language="en"),
    *(Gap(start=3.0, end=4.5, reason=reason) for reason in get_args(GapReason)),
    Flushed(time=4.5),
    Error(code="device", message='the device said "no"\nand left', fatal=True),
    Error(code="stopping", message="the daemon stops", fatal=False, heard_samples=48_000),
    End(),
)


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_every_event_type_has_a_sample_here(event_type: str) -> None:
    assert any(event.type == event_type for event in SAMPLES)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.type)
def test_an_event_comes_back_from_json_as_it_was(event: Event) -> None:
    stamped = event.stamped(7, "abc")
    text = stamped.to_json()
    assert "\n" not in text
    assert from_json(text) == stamped
    assert from_json(text.encode("utf-8")) == stamped
    assert json.loads(text)["seq"] == 7
    assert json.loads(text)["type"] == event.type


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.type)
def test_an_event_without_one_of_its_fields_is_refused_by_name(event: Event) -> None:
    for field in msgspec.structs.fields(event):
        if not field.required:
            continue
        data = json.loads(event.to_json())
        del data[field.name]
        with pytest.raises(ProtocolError, match=field.name):
            from_json(json.dumps(data))


def test_what_a_later_version_says_in_a_field_that_may_grow_is_taken() -> None:
    gap = Gap(start=1.0, end=2.0, reason="asleep")
    assert from_json(gap.to_json()) == gap
    error = Error(code="new", message="a fact: what was expected", fatal=False)
    assert from_json(error.to_json()) == error


def test_fields_of_a_later_version_are_ignored() -> None:
    data = {**json.loads(Speech(state="end", time=1.5).to_json()), "confidence": 0.5}
    assert from_json(json.dumps(data)) == Speech(state="end", time=1.5)


def test_events_of_a_later_version_are_told_apart_from_what_is_none() -> None:
    with pytest.raises(UnknownEventError, match="'shout'"):
        from_json('{"type":"shout","seq":3}')
    for text in ('{"type":7}', '{"seq":1}'):
        with pytest.raises(ProtocolError) as caught:
            from_json(text)
        assert not isinstance(caught.value, UnknownEventError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "speech",
        "[]",
        "null",
        '{"type":"shout"}',
        '{"seq":1}',
        '{"type":"speech","state":"maybe","time":1}',
        '{"type":"speech","state":"start","time":"1"}',
        '{"type":"speech","state":"start","time":NaN}',
        '{"type":"speech","state":"start","time":true}',
        '{"type":"gap","start":0,"end":1,"reason":["overrun"]}',
        '{"type":"end","seq":1.5}',
        '{"type":"error","code":"x","message":"y","fatal":1}',
        '{"type":"partial","segment":1,"start":0,"end":1,"text":"a","stable":0,"words":["a"]}',
        '{"type":"partial","segment":1,"start":0,"end":1,"text":"a","stable":0,"words":[{}]}',
        '{"type":"ready","model":"m","device":{"encoder":1},"sample_rate":16000,"language":"en"}',
    ],
)
def test_what_is_no_event_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        from_json(text)


def test_sample_positions_become_milliseconds() -> None:
    assert seconds(16_000) == 1.0
    assert seconds(1) == 0.0
    assert seconds(24_008) == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"type":"speech","state":"start","time":' + "9" * 400 + "}",
        '{"type":"speech","state":"start","time":NaN}',
        '{"type":"speech","state":"start","time":1e999}',
    ],
    ids=["nested", "huge integer", "NaN", "infinity"],
)
def test_json_that_python_chokes_on_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        from_json(text)
