"""Whatever a client says: each adapter answers in its own way, ignores it, or raises a ProtocolError."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, QueryParams

from streamer.errors import BusyError, ConfigError, ProtocolError, StoppingError, StreamerError
from streamer.events import End, Error, Event, Flushed, Gap, Speech
from streamer.protocols.adapter import Action, Adapter, Hangup, Say
from streamer.protocols.wyoming import Wyoming
from streamer.server.routes import SOCKETS
from tests import builders

ADAPTERS: dict[str, Callable[[], Adapter]] = {
    **{path: partial(socket.make, QueryParams(""), Headers({})) for path, socket in SOCKETS.items()},
    "wyoming": lambda: Wyoming("{}"),
}

# Words that some protocol knows.
TYPES = st.sampled_from(
    """start set flush pause resume clear finish KeepAlive Finalize CloseStream session.update response.create describe
    input_audio_buffer.append input_audio_buffer.commit input_audio_buffer.clear ping transcribe audio-start audio-chunk
    audio-stop""".split()  # noqa: SIM905
)
KEYS = st.sampled_from(
    """session audio input format rate turn_detection transcription include event_id type uid language task hotwords
    after send_last_n_segments
    initial_prompt audio_format config eof reset sample_rate words phrase_list max_alternatives
    data channels width model prompt threshold name text transcript_names data_length payload_length""".split()  # noqa: SIM905
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([2**70, "", "\ud800", "\x00", "AAAA", "x" * 5_000, 16_000]),
    TYPES,
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4))
OBJECTS = st.tuples(st.dictionaries(KEYS, VALUES, max_size=5), st.one_of(TYPES, VALUES)).map(
    lambda found: json.dumps({"type": found[1], **found[0]})
)
TEXTS = OBJECTS | st.sampled_from(["", "{", "[]", "7", '"a"', "[" * 50_000, '{"a":' * 50_000, "NaN", '{"type":NaN}'])
# Bytes, in the middle of which something may stand: lines of Wyoming, a header of WAV.
BYTES = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([b"END_OF_AUDIO", b"RIFF" + b"\xff" * 40, bytes(999), b"OggS", b"fLaC"]),
    st.tuples(OBJECTS, st.binary(max_size=9)).map(lambda found: found[0].encode("ascii") + b"\n" + found[1]),
)
EVENTS: list[Event] = [
    builders.ready(),
    Speech(state="start", time=0.1),
    builders.partial("Good morning", 4, segment=1),
    Gap(start=0.5, end=0.8, reason="overload"),
    builders.final("Good morning.", segment=1),
    Speech(state="end", time=0.9),
    Flushed(time=1.0),
    builders.final("", segment=2),
    Error(code="device", message="no\nway", fatal=False),
    Error(code="device", message="no\nway", fatal=True),
]
ERRORS = [ConfigError("the model\ndoes not know it"), BusyError("no room"), StoppingError("later")]
STEPS = st.one_of(TEXTS, TEXTS, BYTES, st.sampled_from(EVENTS), st.sampled_from(ERRORS))


def answers(adapter: Adapter, step: Any) -> list[Action]:  # noqa: ANN401
    try:
        match step:
            case Event():
                return [*adapter.on_event(step)]
            case StreamerError():
                return [*adapter.refused(step), *adapter.unchanged(step)]
        return [*adapter.receive(step)]
    except ProtocolError as error:
        return [*adapter.refused(error)]


@pytest.mark.parametrize("name", ADAPTERS)
@given(steps=st.lists(STEPS, max_size=12))
def test_no_message_makes_an_adapter_fail_or_send_invalid_text(name: str, steps: list[Any]) -> None:
    adapter = ADAPTERS[name]()
    said = [*adapter.begin()]
    for step in (*steps, End()):
        said += answers(adapter, step)
    for action in said:
        if isinstance(action, Say):
            json.loads(action.text.encode("utf-8"))  # as the server does
        elif isinstance(action, Hangup):
            assert "\n" not in action.reason
            assert action.code in (1000, 1001, 1003, 1008, 1009, 1011, 1013)


@pytest.mark.parametrize("name", sorted(ADAPTERS.keys() - {"/v1/captions"}))
@pytest.mark.parametrize(("error", "code"), [(BusyError("full"), 1013), (StoppingError("later"), 1001)])
def test_a_refusal_is_the_close_code(name: str, error: StreamerError, code: int) -> None:
    last = ADAPTERS[name]().refused(error)[-1]
    assert isinstance(last, Hangup)
    assert last.code == (code if name != "wyoming" else 1008)
