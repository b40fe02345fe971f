"""OpenAI's Realtime transcription as lists of messages; each event is held against the types of the stock SDK."""

import base64
import itertools
import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from starlette.datastructures import Headers, QueryParams

from streamer.audio.encodings import ALAW, MULAW
from streamer.errors import BusyError, ConfigError, InferenceError, StoppingError, StreamerError, UsageError
from streamer.events import End, Error, Event, Final, Flushed, Gap, Partial, Speech, Word
from streamer.protocols.adapter import Action, Change, Do, Hangup, Open, Say, Write
from streamer.protocols.openai_messages import MAX_AUDIO_BYTES
from streamer.protocols.openai_realtime import make
from streamer.protocols.text import note_model
from tests import builders
from tests.builders import ready

EVENTS: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
LOGPROBS = "item.input_audio_transcription.logprobs"
ADDED, DONE, FAILED = "added", "done", "failed"
STARTED, STOPPED, COMMITTED = "speech_started", "speech_stopped", "committed"


class Talk:
    """An adapter, what it said, and what it wanted done."""

    def __init__(self, query: str = "intent=transcription") -> None:
        self.adapter = make(QueryParams(query), Headers({}))
        self.said: list[dict[str, Any]] = []
        self.done: list[Action] = []
        self._take(self.adapter.begin())

    def send(self, **message: object) -> list[dict[str, Any]]:
        """Receive a message of the client; return the answer."""
        return self.send_text(json.dumps(message))

    def send_text(self, text: str | bytes) -> list[dict[str, Any]]:
        return self._take(self.adapter.receive(text))

    def update(self, include: object = (), **inputs: object) -> list[dict[str, Any]]:
        return self.send(type="session.update", session={"audio": {"input": inputs}, "include": include})

    def append(self, audio_s: float, rate: int = 24_000) -> list[dict[str, Any]]:
        return self.send_audio(bytes(2 * round(audio_s * rate)))

    def send_audio(self, audio: bytes) -> list[dict[str, Any]]:
        return self.send(type="input_audio_buffer.append", audio=base64.b64encode(audio).decode("ascii"))

    def commit(self) -> list[dict[str, Any]]:
        return self.send(type="input_audio_buffer.commit")

    def clear(self) -> list[dict[str, Any]]:
        return self.send(type="input_audio_buffer.clear")

    def on(self, *events: Event) -> list[dict[str, Any]]:
        """Handle events of the session; return the messages that they cause."""
        return [said for event in events for said in self._take(self.adapter.on_event(event))]

    def unchanged(self, error: StreamerError) -> list[dict[str, Any]]:
        return self._take(self.adapter.unchanged(error))

    def refuse(self, error: StreamerError) -> list[dict[str, Any]]:
        return self._take(self.adapter.refused(error))

    def texts(self) -> dict[str, str]:
        """Return the deltas of each item, joined."""
        joined: dict[str, str] = {}
        for event in self.said:
            if event["type"].endswith(".delta"):
                joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
        return joined

    def _take(self, actions: Sequence[Action]) -> list[dict[str, Any]]:
        said = [json.loads(action.text) for action in actions if isinstance(action, Say)]
        for event in said:
            if not event["type"].startswith("transcription_session"):
                EVENTS.validate_python(event, strict=True)
        self.said += said
        self.done += [action for action in actions if not isinstance(action, Say)]
        ids = [event["event_id"] for event in self.said]
        assert len(set(ids)) == len(ids)
        return said


def manual(audio_s: float) -> Talk:
    """Return a client without turn detection that has sent some audio."""
    talk = Talk()
    talk.update(turn_detection=None)
    talk.append(audio_s)
    return talk


def names(said: Sequence[Mapping[str, Any]]) -> list[str]:
    return [event["type"].rpartition(".")[2] for event in said]


def start(time: float) -> Speech:
    return Speech(state="start", time=time)


def stop(time: float) -> Speech:
    return Speech(state="end", time=time)


def spread(text: str, begin: float, end: float, n_stable: int | None = None) -> tuple[Word, ...]:
    """Return the words of a text, evenly spread."""
    return builders.words(text, begin, step=(end - begin) / max(1, len(text.split())), n_stable=n_stable)


def partial(segment: int, text: str, begin: float, end: float, n_stable: int) -> Partial:
    words = spread(text, begin, end, n_stable)
    stable = len(builders.text_of(words[:n_stable]))
    return builders.partial(text, stable, segment=segment, start=begin, end=end, words=words)


def final(segment: int, text: str, begin: float, end: float) -> Final:
    return builders.final(text, segment=segment, start=begin, end=end, words=spread(text, begin, end))


def test_the_session_is_shown_at_once() -> None:
    (created,) = Talk().said
    silences = {"prefix_padding_ms": 300, "silence_duration_ms": 500}
    assert created["type"] == "session.created"
    session = created["session"]
    assert session.pop("id").startswith("sess_")
    assert session == {
        "object": "realtime.transcription_session",
        "expires_at": None,
        "type": "transcription",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "transcription": {},
                "noise_reduction": None,
                "turn_detection": {"type": "server_vad", "threshold": 0.5, **silences},
            }
        },
        "include": [],
    }


def test_an_update_changes_what_it_names_and_shows_all() -> None:
    talk = Talk()
    talk.update(transcription={"model": "whisper-1", "language": "en"}, noise_reduction={"type": "far_field"})
    (updated,) = talk.update([LOGPROBS], transcription={"prompt": "jazz"}, turn_detection={"threshold": 0.7})
    assert updated["type"] == "session.updated"
    assert updated["session"]["include"] == [LOGPROBS]
    shown = updated["session"]["audio"]["input"]
    assert shown["transcription"] == {"model": "whisper-1", "language": "en", "prompt": "jazz"}
    assert shown["noise_reduction"] == {"type": "far_field"}
    assert shown["turn_detection"]["threshold"] == 0.7
    assert shown["turn_detection"]["silence_duration_ms"] == 500
    (updated,) = talk.update(None, turn_detection=None, noise_reduction=None, transcription={"language": None})
    shown = updated["session"]["audio"]["input"]
    assert (shown["turn_detection"], shown["noise_reduction"]) == (None, None)
    assert shown["transcription"] == {"model": "whisper-1", "prompt": "jazz"}


def test_a_session_is_opened_with_the_first_audio_as_it_is_configured() -> None:
    talk, both = Talk(), ["de", "en"]
    talk.update(
        transcription={"language": "de", "prompt": "jazz\n,  piano ", "keywords": ["N\nPU", " "], "languages": both},
        turn_detection={"type": "server_vad", "threshold": 1, "silence_duration_ms": 20},
    )
    talk.send_audio(b"")
    assert talk.done == []
    assert talk.send_audio(b"\1\2\3") == talk.send_audio(b"\4") == []
    opening, first, second = talk.done
    assert isinstance(opening, Open)
    assert (opening.start.format, opening.start.sample_rate, opening.start.channels) == ("s16le", 24_000, 1)
    assert (opening.start.language, opening.start.languages) == ("de", ("de", "en"))
    assert (opening.start.initial_prompt, opening.start.hotwords) == ("jazz , piano", ("N PU",))
    assert (opening.start.vad_threshold, opening.start.min_silence_s, opening.start.words) == (0.99, 0.1, True)
    assert (first, second) == (Write(b"\1\2\3"), Write(b"\4"))


def test_a_change_in_mid_stream_goes_to_the_session_but_not_the_same_again() -> None:
    talk = Talk()
    talk.append(0.1)
    talk.done.clear()
    talk.update(turn_detection={"type": "semantic_vad", "eagerness": "low"})
    talk.update(turn_detection={"type": "semantic_vad", "eagerness": "low"}, noise_reduction={"type": "near_field"})
    talk.update(turn_detection=None)
    changes = [action.options for action in talk.done if isinstance(action, Change)]
    names = ("vad_threshold", "min_silence_s", "turns", "turn_silence_s")
    assert [tuple(options[name] for name in names) for options in changes] == [
        (None, 1.5, True, 8.0),
        (None, None, False, None),
    ]


@pytest.mark.parametrize(("name", "decode"), [("audio/pcmu", MULAW.decode), ("audio/pcma", ALAW.decode)])
def test_g711_is_decoded_at_8_khz(name: str, decode: Any) -> None:  # noqa: ANN401 - a function
    talk = Talk()
    talk.update(format={"type": name}, turn_detection=None)
    talk.send_audio(bytes(range(256)) * 4)  # 128 ms
    assert isinstance(talk.done[0], Open)
    assert talk.done[0].start.sample_rate == 8_000
    assert talk.done[1] == Write(decode(bytes(range(256)) * 4))
    assert names(talk.commit()) == [COMMITTED, ADDED]
    (error,) = talk.update(format={"type": "audio/pcm"})
    assert error["error"]["param"] == "session.audio.input.format"


def test_an_utterance_is_an_item() -> None:
    talk = Talk()
    talk.append(6)
    said = talk.on(
        ready(),
        start(0.5),
        partial(1, "good mor", 0.5, 1.2, 1),
        partial(1, "good morning every", 0.5, 1.8, 2),
        final(1, "good morning everybody.", 0.5, 2.5),  # long speech is cut
        partial(2, "and", 2.5, 3, 1),
        stop(3.5),
        final(2, "and welcome.", 2.5, 3.5),
    )
    assert names(said) == [STARTED, *["delta"] * 4, STOPPED, COMMITTED, ADDED, "delta", "completed", DONE]
    assert (said[0]["audio_start_ms"], said[5]["audio_end_ms"]) == (500, 3500)
    completed = said[-2]
    assert completed["transcript"] == "good morning everybody. and welcome."
    assert completed["usage"] == {"type": "duration", "seconds": 3.0}
    item_id = said[0]["item_id"]
    assert talk.texts() == {item_id: completed["transcript"]}
    assert {event["item_id"] for event in said if "item_id" in event} == {item_id}
    assert [event["item"]["id"] for event in said if "item" in event] == [item_id] * 2
    assert "logprobs" not in completed


def test_items_are_chained_and_complete_once_each() -> None:
    talk = Talk()
    talk.append(9)
    said = talk.on(start(1), stop(2), start(3), final(1, "one", 1, 2), final(2, "", 3, 4), stop(5))
    said += talk.on(final(3, "two", 4, 5), Flushed(time=8), End())
    ids = [event["item_id"] for event in said if event["type"].endswith(STARTED)]
    chains = [(event["item_id"], event["previous_item_id"]) for event in said if event["type"].endswith(COMMITTED)]
    assert chains == [(ids[0], None), (ids[1], ids[0])]
    assert [event["previous_item_id"] for event in said if "item" in event] == [None, None, ids[0], ids[0]]
    completed = [(event["item_id"], event["transcript"]) for event in said if event["type"].endswith("completed")]
    assert completed == [(ids[0], "one"), (ids[1], "two")]


def test_one_final_of_two_utterances_is_divided_at_its_words() -> None:
    talk = Talk()
    talk.append(9)
    said = talk.on(start(1), partial(1, "one", 1, 1.8, 1), stop(2), start(3), stop(4))
    said += talk.on(final(1, "one two three", 1, 4))
    completed = [event["transcript"] for event in said if event["type"].endswith("completed")]
    assert completed == ["one two", "three"]
    assert [*talk.texts().values()] == completed


def test_deltas_go_on_where_a_stable_word_grew() -> None:
    talk = Talk()
    talk.on(start(1), partial(1, "the President", 1, 2, 2), partial(1, "the President", 1, 2, 1))
    talk.on(stop(2), final(1, "the President's car", 1, 2))
    assert [event["delta"] for event in talk.said if "delta" in event] == ["the President", "'s car"]


def test_without_turn_detection_the_client_commits() -> None:
    talk = manual(2)
    said = talk.on(start(0.2), partial(1, "one two", 0.2, 1.0, 1))
    assert names(said) == ["delta"]
    committed = talk.commit()
    assert names(committed) == [COMMITTED, ADDED]
    assert committed[0]["item_id"] == said[0]["item_id"]
    assert talk.done[-1] == Do("flush")
    talk.append(1)
    said = talk.on(stop(1.9), final(1, "one two", 0.2, 1.9))
    assert names(said) == ["delta"]  # more of it might come
    said = talk.on(Flushed(time=1.95))
    assert names(said) == ["completed", DONE]
    assert (said[0]["transcript"], said[0]["usage"]["seconds"]) == ("one two", 2.0)
    silent = talk.commit()
    assert silent[0]["previous_item_id"] == committed[0]["item_id"]
    assert [event.get("transcript") for event in talk.on(Flushed(time=2.95))] == ["", None]


def test_a_flush_completes_the_commit_that_it_is_of() -> None:
    talk = Talk()
    talk.update(turn_detection=None)
    for _ in range(3):
        talk.append(0.1)
        talk.commit()
    assert [len(talk.on(Flushed(time=time))) for time in (0.06, 0.15, 0.3)] == [2, 2, 2]


@pytest.mark.parametrize("turn_detection", [None, {"type": "server_vad"}])
def test_a_commit_of_nothing_is_an_error_and_nothing_else(turn_detection: object) -> None:
    talk = Talk()
    talk.update(turn_detection=turn_detection)
    talk.append(0.0999)
    (error,) = talk.send(type="input_audio_buffer.commit", event_id="mine")
    assert error["error"]["code"] == "input_audio_buffer_commit_empty"
    assert (error["error"]["type"], error["error"]["event_id"]) == ("invalid_request_error", "mine")
    assert Do("flush") not in talk.done
    talk.append(0.001)
    talk.commit()
    assert talk.done[-1] == Do("flush")
    assert names(talk.commit()) == ["error"]


def test_with_turn_detection_a_commit_ends_what_is_being_said() -> None:
    talk = Talk()
    talk.append(3)
    talk.on(start(1))
    assert talk.commit() == []
    said = talk.on(stop(3), final(1, "one", 1, 3), Flushed(time=2.95))
    assert names(said) == [STOPPED, COMMITTED, ADDED, "delta", "completed", DONE]


def test_with_turn_detection_a_commit_of_silence_is_an_empty_item() -> None:
    talk = Talk()
    talk.append(3)
    talk.on(start(1), stop(2), final(1, "one", 1, 2))
    assert talk.commit() == []
    said = talk.on(Flushed(time=2.95))
    assert names(said) == [COMMITTED, ADDED, "completed", DONE]
    assert (said[2]["transcript"], said[2]["usage"]["seconds"]) == ("", 1.0)
    assert talk.on(Flushed(time=2.95)) == []


def test_cleared_audio_has_no_events() -> None:
    talk = manual(2)
    talk.on(start(0.5))
    assert names(talk.clear()) == ["cleared"]
    assert talk.done[-2:] == [Do("clear"), Do("flush")]
    assert talk.on(stop(1.9), Gap(start=0.5, end=1.95, reason="cleared"), Flushed(time=1.95)) == []
    assert names(talk.commit()) == ["error"]
    talk.append(1)
    talk.commit()
    said = talk.on(start(2.1), final(1, "two", 2.1, 2.9), Flushed(time=2.95))
    assert [event["transcript"] for event in said if event["type"].endswith("completed")] == ["two"]


def test_what_was_committed_before_is_not_cleared() -> None:
    talk = manual(2)
    talk.commit()
    talk.append(2)
    talk.clear()
    assert talk.done[-2:] == [Write(bytes(96_000)), Do("flush")]
    said = talk.on(final(1, "one", 0, 1.9), Flushed(time=1.95), final(2, "two", 2.1, 3.9), Flushed(time=3.95))
    assert names(said) == ["delta", "completed", DONE]
    assert said[0]["delta"] == "one"


def test_speech_that_was_cleared_before_it_was_detected_is_not_announced() -> None:
    talk = Talk()
    talk.append(10)
    talk.clear()
    assert talk.on(start(2), partial(1, "one", 2, 3, 1), stop(4), Flushed(time=9.95)) == []
    assert names(talk.on(start(9.8))) == [STARTED]  # it begins before it is heard


def test_clearing_again_and_again_keeps_one_item() -> None:
    talk = Talk()
    for _ in range(50):
        talk.append(0.001)
        talk.clear()
    assert len(talk.adapter._waiting) == 1
    talk.on(Flushed(time=0.05))
    assert talk.adapter._waiting == []


def test_turn_detection_can_be_turned_off_and_on_in_mid_speech() -> None:
    talk = Talk()
    talk.append(2)
    (started,) = talk.on(start(1))
    talk.update(turn_detection=None)
    assert talk.on(stop(1.9)) == []
    talk.append(1)
    talk.update(turn_detection={"type": "server_vad"})
    said = talk.on(start(2.2), stop(2.9), final(1, "one two", 1, 2.9))
    assert names(said) == [STARTED, STOPPED, COMMITTED, ADDED, "delta", "completed", DONE]
    assert said[0]["item_id"] == started["item_id"]


def test_speech_that_began_before_turn_detection_is_committed_at_its_end() -> None:
    talk = manual(2)
    talk.on(start(1))
    talk.update(turn_detection={"type": "server_vad"})
    said = talk.on(stop(1.9), final(1, "one", 1, 1.9))
    assert names(said) == [COMMITTED, ADDED, "delta", "completed", DONE]


def test_what_was_said_before_turn_detection_goes_with_the_next_commit() -> None:
    talk = manual(2)
    (delta,) = talk.on(start(1), partial(1, "one two", 1, 1.8, 1), stop(1.9))
    talk.update(turn_detection={"type": "server_vad"})
    talk.commit()
    said = talk.on(final(1, "one two", 1, 1.9), Flushed(time=1.95))
    assert names(said) == ["delta", COMMITTED, ADDED, "completed", DONE]
    assert said[3]["transcript"] == "one two"
    assert {event["item_id"] for event in said if "item_id" in event} == {delta["item_id"]}


def test_committed_audio_is_no_second_item_for_turn_detection() -> None:
    talk = manual(10)
    talk.commit()
    talk.update(turn_detection={"type": "server_vad"})
    said = talk.on(start(1), stop(2), final(1, "one", 1, 2), Flushed(time=9.95))
    assert names(said) == ["delta", "completed", DONE]


def test_speech_that_was_lost_has_failed() -> None:
    talk = Talk()
    said = talk.on(start(1), stop(3), Gap(start=1, end=3, reason="overload"))
    assert names(said) == [STARTED, STOPPED, COMMITTED, ADDED, FAILED, DONE]
    assert said[4]["error"] == {
        "type": "server_error",
        "code": "audio_lost",
        "param": None,
        "event_id": None,
        "message": "audio from 1.00 to 3.00 s was not transcribed (overload)",
    }
    assert talk.on(Gap(start=3.5, end=4, reason="device")) == []  # nobody spoke


def test_speech_before_and_behind_what_was_lost_has_not_failed() -> None:
    talk = Talk()
    talk.on(start(1), stop(2), start(3), stop(4), start(5), stop(6))
    said = talk.on(Gap(start=3, end=4, reason="device"), final(1, "three", 5, 6))
    assert names(said) == ["completed", DONE, FAILED, DONE, "delta", "completed", DONE]


def test_speech_that_was_lost_in_part_has_its_rest_and_an_error() -> None:
    talk = Talk()
    said = talk.on(start(1), final(1, "one", 1, 2), Gap(start=2, end=3, reason="overload"), stop(4))
    assert names(said) == [STARTED, "delta", STOPPED, COMMITTED, ADDED]
    said = talk.on(final(2, "three", 3, 4))
    assert names(said) == ["delta", "error", "completed", DONE]
    assert said[2]["transcript"] == "one three"


def test_logprobs_are_given_word_by_word_where_they_are_asked_for() -> None:
    talk = Talk()
    talk.update([LOGPROBS])
    said = talk.on(start(1), partial(1, "grüß Gott", 1, 2, 1), stop(2), final(1, "grüß Gott", 1, 2))
    first, second, completed = (event["logprobs"] for event in said if "logprobs" in event)
    assert [*first, *second] == completed
    assert [entry["token"] for entry in completed] == ["grüß", " Gott"]
    assert bytes(first[0]["bytes"]).decode("utf-8") == "grüß"
    assert all(math.isclose(entry["logprob"], math.log(0.9), abs_tol=1e-4) for entry in completed)


APPEND = '{"type":"input_audio_buffer.append","event_id":"mine","audio":'
UPDATE = '{"type":"session.update","event_id":"mine","session":'
INPUT = "session.audio.input"


def of_input(fields: str) -> str:
    return UPDATE + '{"audio":{"input":{' + fields + "}}}}"


@pytest.mark.parametrize(
    ("message", "code", "param", "event_id"),
    [
        ("{", "invalid_json", None, None),
        (b"\0\1\2\3", "invalid_json", None, None),
        ("[" * 100_000, "invalid_type", None, None),
        ('{"a":' * 100_000, "invalid_json", None, None),
        ("{}", "missing_required_parameter", "type", None),
        ('{"type":"response.create","event_id":"mine"}', "invalid_value", "type", "mine"),
        ('{"type":7,"event_id":"mine"}', "invalid_value", "type", None),
        ('{"type":"' + "x" * 90_000 + '"}', "invalid_value", "type", None),
        ('{"type":"input_audio_buffer.commit","event_id":7}', "invalid_type", "event_id", None),
        ('{"type":"input_audio_buffer.append","event_id":"mine"}', "missing_required_parameter", "audio", "mine"),
        (APPEND + '"AAA"}', "invalid_value", "audio", "mine"),
        (APPEND + '"\\ud800"}', "invalid_json", None, None),
        (APPEND + "null}", "invalid_type", "audio", "mine"),
        (UPDATE + "[]}", "invalid_type", "session", "mine"),
        (UPDATE + '{"type":"realtime"}}', "invalid_value", "session.type", "mine"),
        (UPDATE + '{"audio":7}}', "invalid_type", "session.audio", "mine"),
        (UPDATE + '{"include":["all"]}}', "invalid_value", "session.include[0]", "mine"),
        (of_input('"format":{"rate":1e400}'), "invalid_value", "session[...][...][...][...]", "mine"),
        (of_input('"format":{"type":"audio/pcm","rate":16000}'), "invalid_value", f"{INPUT}.format.rate", "mine"),
        (of_input('"turn_detection":{"threshold":2}'), "invalid_value", f"{INPUT}.turn_detection.threshold", "mine"),
        (
            of_input('"turn_detection":{"silence_duration_ms":1' + "0" * 400 + "}"),
            *("invalid_value", f"{INPUT}.turn_detection.silence_duration_ms", "mine"),
        ),
    ],
)
def test_a_wrong_message_is_answered_and_changes_nothing(
    message: str | bytes, code: str, param: str | None, event_id: str | None
) -> None:
    talk = Talk()
    (said,) = talk.send_text(message)
    error = said["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert (error["param"], error["event_id"]) == (param, event_id)
    assert error["message"].isprintable()
    assert len(error["message"]) < 500
    assert talk.done == []
    (updated,) = talk.update()
    assert updated["session"] == talk.said[0]["session"]


def test_too_much_audio_in_one_message_is_refused() -> None:
    talk = Talk()
    (said,) = talk.send_audio(bytes(MAX_AUDIO_BYTES + 1))
    assert said["error"]["param"] == "audio"
    assert talk.done == []
    assert talk.send_audio(bytes(MAX_AUDIO_BYTES)) == []


def test_only_audio_may_be_long() -> None:
    (said,) = Talk().send(type="session.update", session=dict.fromkeys(map(str, range(20_000))), event_id="mine")
    assert (said["error"]["code"], said["error"]["event_id"]) == ("message_too_long", "mine")


@pytest.mark.parametrize(
    ("error", "code"), [(BusyError("full"), 1013), (StoppingError("bye"), 1001), (InferenceError("broken"), 1011)]
)
def test_where_there_is_no_session_the_connection_is_closed(error: StreamerError, code: int) -> None:
    talk = Talk()
    talk.append(0.1)
    (said,) = talk.refuse(error)
    assert (said["error"]["type"], said["error"]["message"]) == ("server_error", str(error))
    assert talk.done[-1] == Hangup(code, error.code)


def test_a_configuration_that_cannot_be_can_be_mended() -> None:
    talk = Talk()
    talk.send(
        type="session.update", event_id="mine", session={"audio": {"input": {"transcription": {"language": "xx"}}}}
    )
    talk.append(1)
    (said,) = talk.refuse(ConfigError("the model speaks English: expected en"))
    assert (said["error"]["type"], said["error"]["event_id"]) == ("invalid_request_error", "mine")
    talk.done.clear()
    assert talk.append(1) == []  # one error is enough
    assert talk.done == []
    talk.update(transcription={"language": "en"})
    talk.append(0.05)
    assert isinstance(talk.done[0], Open)
    assert talk.done[0].start.language == "en"
    assert names(talk.commit()) == ["error"]  # what came before was not heard


def test_a_change_that_cannot_be_leaves_all_as_it_was() -> None:
    talk = Talk()
    talk.append(1)
    before = talk.update(transcription={"language": "en"})[0]["session"]
    talk.update(transcription={"language": "xx"})
    assert names(talk.unchanged(ConfigError("no"))) == ["error"]
    assert talk.update()[0]["session"] == before
    assert not any(isinstance(action, Hangup) for action in talk.done)


def test_the_end_completes_what_was_committed() -> None:
    talk = manual(1)
    talk.commit()
    talk.append(1)
    assert names(talk.on(Error(code="stopping", message="bye", fatal=False), End())) == ["completed", DONE]
    assert talk.done[-1] == Hangup()


@pytest.mark.parametrize(("code", "close"), [("internal", 1011), ("idle", 1008)])
def test_a_failure_is_reported_before_the_end(code: str, close: int) -> None:
    talk = Talk()
    said = talk.on(Error(code=code, message="why", fatal=True), End())
    assert [(event["error"]["type"], event["error"]["code"]) for event in said] == [("server_error", code)]
    assert talk.done == [Hangup(close, f"{code}: why")]


def test_names_of_openais_models_are_taken_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    note_model.cache_clear()  # another test of this process may have asked by the same name
    with caplog.at_level(logging.INFO):
        for name in ("gpt-4o-transcribe", "gpt-4o-transcribe", "nano.en"):
            talk = Talk()
            talk.update(transcription={"model": name})
            assert talk.on(ready()) == []
    assert len([record for record in caplog.records if "gpt-4o-transcribe" in record.getMessage()]) == 1


def test_a_model_that_is_not_here_is_not_found() -> None:
    talk = Talk()
    talk.update(transcription={"model": "large-v9"})
    (said,) = talk.on(ready())
    assert said["error"]["code"] == "model_not_found"
    assert names(talk.update()) == ["updated", "error"]
    assert names(talk.update(transcription={"model": "nano.en"})) == ["updated"]


def test_an_address_that_wants_a_conversation_is_refused() -> None:
    assert Talk("").said[0]["type"] == "session.created"
    with pytest.raises(UsageError, match="intent"):
        make(QueryParams("intent=conversation"), Headers({}))


def test_in_any_order_of_events_each_committed_item_completes_once() -> None:
    """All orders of a few things that happen, some of which no session would tell."""
    steps = ("append", "commit", "clear", "vad", "manual", "speech", "flushed")
    for chosen in itertools.product(steps, repeat=3):
        talk = Talk()
        position = 0.0
        for number, step in enumerate(("append", *chosen), 1):
            match step:
                case "append":
                    talk.append(1)
                    position += 1
                case "commit":
                    talk.commit()
                case "clear":
                    talk.clear()
                case "vad" | "manual":
                    talk.update(turn_detection={"type": "server_vad"} if step == "vad" else None)
                case "speech":
                    begin = position - 0.9
                    talk.on(start(begin), final(number, f"w{number}", begin, position), stop(position))
                case "flushed":
                    talk.on(Flushed(time=position))
        talk.on(Flushed(time=position), End())
        committed = [event["item_id"] for event in talk.said if event["type"].endswith(".committed")]
        completed = [event["item_id"] for event in talk.said if event["type"].endswith("completed")]
        assert sorted(committed) == sorted(completed), chosen
