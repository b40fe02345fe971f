import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from streamer.errors import BusyError, ConfigError, ProtocolError, StoppingError, StreamerError
from streamer.events import End, Error, Event, Gap
from streamer.protocols.adapter import Action, Finish, Hangup, Open, Say, Write
from streamer.protocols.root import Root
from streamer.protocols.vosk import Vosk
from streamer.protocols.whisperlive import WhisperLive
from tests.wire.support import final, partial, ready

# What the stock client says first, but for lists and options that are null.
STOCK = json.loads(
    """{"uid":"u1","language":"en","task":"transcribe","model":"small","use_vad":true,"send_last_n_segments":10,
    "no_speech_thresh":0.45,"clip_audio":false,"same_output_threshold":10,"enable_translation":false,
    "target_language":"fr","hotwords":null,"word_timestamps":false,"initial_prompt":null,"vad_parameters":null}"""
)


def configure(**config: object) -> tuple[WhisperLive, Any]:
    """Return an adapter after its first message, and what it opens."""
    adapter = WhisperLive()
    (opening,) = adapter.receive(json.dumps({**STOCK, **config}))
    assert isinstance(opening, Open)
    return adapter, opening.start


def said(actions: Sequence[Action]) -> list[Any]:
    messages = [json.loads(action.text) for action in actions if isinstance(action, Say)]
    assert all(message.pop("uid") == "u1" for message in messages), "a client drops what has another uid"
    return messages


def sent(adapter: WhisperLive, *events: Event) -> list[Any]:
    return [message for event in events for message in said(adapter.on_event(event))]


def texts(message: Any) -> list[tuple[str, bool]]:  # noqa: ANN401 - JSON
    return [(segment["text"], segment["completed"]) for segment in message["segments"]]


def test_a_client_is_ready_when_the_session_is() -> None:
    adapter, start = configure()
    assert (start.format, start.sample_rate, start.language, start.task) == ("f32le", 16_000, "en", "transcribe")
    assert sent(adapter, ready()) == [{"message": "SERVER_READY", "backend": "faster_whisper"}]


def test_a_client_without_a_language_gets_the_detected_one() -> None:
    adapter, start = configure(language=None)
    assert start.language is None
    assert sent(adapter, ready())[1:] == [{"language": "en"}]
    assert sent(adapter, final(1, "Hello."))[0].keys() == {"segments"}, "it is told once"


def test_a_final_is_shown_as_it_stays_and_only_then_completed() -> None:
    adapter, _ = configure()
    messages = sent(adapter, partial(1, "Good mor"), final(1, "Good morning."), partial(2, "How", start=2.0))
    assert [texts(message) for message in messages] == [
        [(" Good mor", False)],
        [(" Good morning.", False)],
        [(" Good morning.", True)],
        [(" Good morning.", True), (" How", False)],
    ]
    assert messages[2]["segments"][0] == {"start": "0.000", "end": "0.600", "text": " Good morning.", "completed": True}


def test_a_client_may_leave_its_options_out_or_say_null() -> None:
    for config in ({"uid": "u1"}, {"uid": "u1", **dict.fromkeys(set(STOCK) - {"uid"})}):
        assert [type(action) for action in WhisperLive().receive(json.dumps(config))] == [Open]


def test_as_many_completed_segments_are_sent_as_the_client_wants() -> None:
    adapter, _ = configure(send_last_n_segments=2)
    messages = sent(adapter, *(final(n, f"Number {n}.", start=float(n)) for n in (1, 2, 3)))
    assert texts(messages[-1]) == [(" Number 2.", True), (" Number 3.", True)]


def test_what_came_to_nothing_is_taken_back_and_no_list_is_empty() -> None:
    adapter, _ = configure()
    assert sent(adapter, final(1, "")) == []
    messages = sent(adapter, partial(2, "Um"), final(2, ""), Gap(start=1.0, end=2.0, reason="overload"))
    assert [texts(message) for message in messages] == [[(" Um", False)], [(" ", False)]]
    messages = sent(adapter, final(3, "Yes.", start=3.0), partial(4, "Hm", start=5.0), final(4, "", start=5.0))
    assert texts(messages[-2]) == [(" Yes.", True), (" Yes.", False)], "the client forgets what it saw last"
    assert texts(messages[-1]) == [(" Yes.", True)]


def test_words_have_their_times_as_segments_do() -> None:
    adapter, start = configure(word_timestamps=True)
    assert start.words
    segment = sent(adapter, final(1, "Good morning."))[-1]["segments"][0]
    assert segment["words"][1] == {"word": " morning.", "start": "0.300", "end": "0.600", "probability": 0.9}


@pytest.mark.parametrize(
    ("name", "sent", "format", "heard"),
    [
        ("float32", np.array([0.5], "<f4").tobytes(), "f32le", np.array([0.5], "<f4").tobytes()),
        ("int16", np.array([1, -2], "<i2").tobytes(), "s16le", np.array([1, -2], "<i2").tobytes()),
        ("uint8", bytes([0, 128, 255]), "s16le", np.array([-32768, 0, 32512], "<i2").tobytes()),
    ],
)
def test_audio_of_each_format(name: str, sent: bytes, format: str, heard: bytes) -> None:
    adapter, start = configure(audio_format=name)
    assert start.format == format
    assert adapter.receive(sent) == [Write(heard)]


def test_what_a_client_hints_reaches_the_session_within_its_bounds() -> None:
    _, start = configure(hotwords="Ottokar, Zeppelin," + "x" * 101, initial_prompt="a\nb", task="translate")
    assert start.hotwords == ("Ottokar", "Zeppelin")
    assert start.initial_prompt == "a b"
    assert start.task == "translate"


def test_the_end_of_audio_ends_the_session_and_then_the_connection() -> None:
    adapter, _ = configure()
    assert adapter.receive(b"END_OF_AUDIO") == [Finish()]
    assert adapter.receive(b"\0\0\0\0") == []
    assert adapter.on_event(End()) == [Hangup(1000)]


def test_a_client_without_a_place_can_look_before_it_is_closed() -> None:
    adapter, _ = configure()
    *messages, hangup = adapter.refused(BusyError("full"))
    assert said(messages) == [{"status": "WAIT", "message": 1}]
    assert hangup == Hangup(1013, "no room: try again later", after_s=2.0)


@pytest.mark.parametrize(
    ("error", "messages", "code"),
    [
        (ConfigError("no such language"), [{"status": "ERROR", "message": "no such language"}], 1008),
        (StreamerError("it broke"), [{"status": "ERROR", "message": "it broke"}], 1011),
        (StoppingError("later"), [], 1001),
    ],
)
def test_a_refused_client_gets_the_reason(error: StreamerError, messages: list[Any], code: int) -> None:
    adapter, _ = configure()
    actions = adapter.refused(error)
    assert said(actions) == messages
    assert isinstance(actions[-1], Hangup)
    assert actions[-1].code == code


@pytest.mark.parametrize(
    ("code", "message", "closed"),
    [
        ("idle", {"message": "DISCONNECT"}, Hangup(1000)),
        ("internal", {"status": "ERROR", "message": "why"}, Hangup(1011, "internal: why")),
    ],
)
def test_a_session_that_fails(code: str, message: object, closed: Hangup) -> None:
    adapter, _ = configure()
    assert sent(adapter, Error(code=code, message="why", fatal=True)) == [message]
    assert adapter.on_event(End()) == [closed]


def test_text_out_of_place_is_a_warning_and_changes_nothing() -> None:
    adapter, _ = configure()
    assert [message["status"] for message in said(adapter.receive("{}"))] == ["WARNING"]
    assert adapter.receive(b"\0\0\0\0") == [Write(b"\0\0\0\0")]


@pytest.mark.parametrize("wrong", [{"task": "sing"}, {"audio_format": "mp3"}, {"language": 7}, {"hotwords": [[]]}])
def test_an_error_of_the_first_message_names_the_field(wrong: dict[str, object]) -> None:
    adapter = WhisperLive()
    with pytest.raises(ProtocolError) as error:
        adapter.receive(json.dumps({**STOCK, **wrong}))
    actions = adapter.refused(error.value)
    (message,) = said(actions)
    assert message["status"] == "ERROR"
    assert next(iter(wrong)) in message["message"]
    assert isinstance(actions[-1], Hangup)


@pytest.mark.parametrize("message", ["", "[" * 100_000, '{"uid": ""}', '{"uid": 7}', '{"uid":"\\ud800"}', "\0"])
def test_an_unreadable_first_message_closes(message: str) -> None:
    adapter = WhisperLive()
    with pytest.raises(ProtocolError) as error:
        adapter.receive(message)
    assert [type(action) for action in adapter.refused(error.value)] == [Hangup]


def test_at_the_root_the_first_message_says_whose_client_it_is() -> None:
    assert [type(action) for action in Root().receive(json.dumps(STOCK))] == [Open]
    for first in ('{"config":{"sample_rate":16000}}', b"\0\0"):
        assert Root().receive(first) == Vosk().receive(first)
    with pytest.raises(ProtocolError, match="Vosk"):
        Root().receive("no JSON")


def test_at_the_root_all_goes_to_the_one_that_was_chosen() -> None:
    adapter = Root()
    assert adapter.begin() == []
    adapter.receive(json.dumps(STOCK))
    assert said(adapter.on_event(ready()))
    assert said(adapter.refused(BusyError("full")))
