"""Events: what is written is read again, and what later versions add is let through."""

import json
from typing import Any, get_args

import msgspec
import pytest

from streamer.errors import ProtocolError
from streamer.events import (
    EVENT_TYPES,
    Edit,
    End,
    Error,
    Event,
    Flushed,
    Gap,
    GapReason,
    Resumed,
    Revision,
    Speakers,
    Speech,
    Translation,
    Turn,
    from_json,
    seconds,
)
from tests.builders import final, partial, ready, words

SAMPLES: tuple[Event, ...] = (
    ready(device={"encoder": "NPU", "decoder": "CPU"}),
    Resumed(heard_samples=48_000),
    Speech(state="start", time=0.5),
    Speech(state="end", time=2.5),
    Turn(time=2.5, probability=0.75, finished=True),
    partial("Grüße, 世界", stable=6, start=1.0, segment=3),
    final("Grüße, 世界", start=1.0, segment=3),
    Revision(of=6, by="glossary", text="Grüße, Welt", words=words("Welt"), edits=(Edit(start=7, end=9, text="Welt"),)),
    Speakers(same=("S3", "S1")),
    Translation(of=6, text="Greetings, world", language="en"),
    *(Gap(start=3.0, end=4.5, reason=reason) for reason in (*get_args(GapReason), "of a later version")),
    Flushed(time=4.5),
    Error(code="device", message='the device said "no"\nand left', fatal=True),
    Error(code="stopping", message="the daemon stops", fatal=False, heard_samples=48_000),
    End(),
    End(time=4.5),
)


def test_every_event_type_has_a_sample_here() -> None:
    assert {event.type for event in SAMPLES} == set(EVENT_TYPES)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.type)
def test_an_event_comes_back_from_json_as_it_was(event: Event) -> None:
    stamped = event.stamped(7, "abc")
    text = stamped.to_json()
    data: dict[str, Any] = json.loads(text)
    assert (data["type"], data["seq"], data["session"], "\n" in text) == (event.type, 7, "abc", False)
    assert from_json(text) == from_json(text.encode("utf-8")) == stamped
    assert from_json(json.dumps({**data, "of_a_later_version": 0.5})) == stamped


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.type)
def test_an_event_without_one_of_its_fields_is_refused(event: Event) -> None:
    data = json.loads(event.to_json())
    for field in msgspec.structs.fields(event):
        if field.required:
            with pytest.raises(ProtocolError) as caught:
                from_json(json.dumps({name: value for name, value in data.items() if name != field.name}))
            assert field.name in str(caught.value)


def test_sample_positions_become_milliseconds() -> None:
    assert [seconds(position) for position in (16_000, 1, 24_008)] == [1.0, 0.0, 1.5]
