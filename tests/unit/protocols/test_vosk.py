import json
from collections.abc import Sequence
from typing import Any

import pytest

from streamer.errors import ProtocolError
from streamer.events import End, Event, Flushed, Gap
from streamer.protocols.adapter import Action, Do, Finish, Hangup, Open, Say, Write
from streamer.protocols.vosk import MAX_HELD_MESSAGES, Vosk
from tests import builders
from tests.builders import timed_words
from tests.wire.support import final, partial

AUDIO = b"\0\0" * 3200
EOF = '{"eof" : 1}'
RESET = '{"reset" : 1}'


def replies(actions: Sequence[Action]) -> list[Any]:
    return [json.loads(action.text) for action in actions if isinstance(action, Say)]


def configured(**config: object) -> Vosk:
    adapter = Vosk()
    assert adapter.receive(json.dumps({"config": config})) == []
    return adapter


def reply(adapter: Vosk, *events: Event) -> Any:  # noqa: ANN401 - JSON
    """Return the reply to a chunk that comes behind some events."""
    for event in events:
        assert adapter.on_event(event) == [], "a result goes out as a reply only"
    (message,) = replies(adapter.receive(AUDIO))
    return message


def opened(adapter: Vosk) -> Any:  # noqa: ANN401 - a StreamStart
    opening, *_ = adapter.receive(AUDIO)
    assert isinstance(opening, Open)
    return opening.start


def test_each_chunk_is_written_and_answered_at_once() -> None:
    adapter = configured(sample_rate=16000.0)
    opening, hear, say = adapter.receive(AUDIO)
    assert isinstance(opening, Open)
    assert (opening.start.format, opening.start.sample_rate, opening.start.words) == ("s16le", 16_000, True)
    assert hear == Write(AUDIO)
    assert replies([say]) == [{"partial": ""}]
    assert reply(adapter, partial(1, "Good morning, every")) == {"partial": "good morning every"}
    assert reply(adapter, final(1, "Good morning, everybody.")) == {
        "result": [
            {"conf": 0.9, "start": 0.0, "end": 0.3, "word": "good"},
            {"conf": 0.9, "start": 0.3, "end": 0.6, "word": "morning"},
            {"conf": 0.9, "start": 0.6, "end": 0.9, "word": "everybody"},
        ],
        "text": "good morning everybody",
    }
    assert reply(adapter) == {"partial": ""}


@pytest.mark.parametrize("request_", [b'{"config":{"sample_rate":8000}}', b'{"eof" : 1}', b"{}"])
def test_a_request_in_a_binary_frame_is_ignored_and_answered(request_: bytes) -> None:
    adapter = configured(sample_rate=16000)
    assert replies(actions := adapter.receive(request_)) == [{"partial": ""}]
    assert len(actions) == 1
    audio = b"{" + bytes(31)
    assert Write(audio) in adapter.receive(audio)


def test_two_utterances_between_two_chunks_are_one_result() -> None:
    adapter = configured(words=0)
    assert reply(adapter, final(1, "One."), final(2, "Two."), partial(3, "Thr")) == {"text": "one two"}
    assert reply(adapter) == {"partial": "thr"}


def test_an_empty_utterance_is_no_result() -> None:
    for text in ("", "..."):
        assert reply(configured(), partial(1, "Um"), final(1, text)) == {"partial": ""}
    lost = Gap(start=0.0, end=1.0, reason="overload")
    assert reply(configured(), partial(1, "Um"), lost) == {"partial": ""}


def test_alternatives_where_they_are_asked_for() -> None:
    adapter = configured(max_alternatives=3, words=False)
    assert reply(adapter, final(1, "One.")) == {"alternatives": [{"confidence": 0.9, "text": "one"}]}
    adapter.receive('{"config":{"words":1}}')
    (alternative,) = reply(adapter, final(2, "Two."))["alternatives"]
    assert [word["word"] for word in alternative["result"]] == ["two"]


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        *((" “Don’t", "don’t"), (" twenty-one,", "twenty-one"), (" 3.5", "3.5"), (" …", "")),
        *((" नमस्ते।", "नमस्ते"), ("今日", "今日")),
    ],
)
def test_words_are_written_as_vosk_does(written: str, plain: str) -> None:
    spoken = timed_words((written, 1.0, 2.0), (" is", 2.0, 2.5))
    result = reply(configured(), builders.final(f"{written} is".strip(), words=spoken))
    assert result["text"] == " ".join(word["word"] for word in result["result"]) == f"{plain} is".strip()


def test_hints_are_taken_as_far_as_they_go_and_the_rate_may_be_the_original_one() -> None:
    assert opened(Vosk()).sample_rate == 8000
    adapter = configured(phrase_list=["yes no", "", "x" * 101, *(f"word {n}" for n in range(200))], sample_rate="44100")
    start = opened(adapter)
    assert start.sample_rate == 44_100
    assert start.hotwords[:2] == ("yes no", "word 0")
    assert len(start.hotwords) == 100


def test_eof_is_answered_when_all_is_final_and_then_it_closes() -> None:
    adapter = configured(words=False)
    opened(adapter)
    assert adapter.receive(EOF) == [Finish()]
    assert adapter.on_event(final(1, "The rest.")) == []
    for actions, text in ((adapter.on_event(End()), "the rest"), (configured().receive(EOF), "")):
        assert replies(actions) == [{"text": text}]
        assert actions[-1] == Hangup(1000)


def test_reset_is_answered_when_all_is_final_and_later_messages_after_it() -> None:
    adapter = configured(words=False)
    opened(adapter)
    assert adapter.receive(RESET) == [Do("flush")]
    for message in (AUDIO, RESET, AUDIO, EOF):
        assert adapter.receive(message) == []
    adapter.on_event(final(1, "One."))
    actions = adapter.on_event(Flushed(time=0.4))
    assert replies(actions) == [{"text": "one"}, {"partial": ""}]
    assert actions[-1] == Do("flush")
    actions = adapter.on_event(Flushed(time=0.8))
    assert replies(actions) == [{"text": ""}, {"partial": ""}]
    assert actions[-1] == Finish()


def test_no_more_than_a_bound_is_held_behind_reset() -> None:
    for message, n in ((AUDIO, MAX_HELD_MESSAGES), (b"\0" * 2**18, 4)):
        adapter = configured()
        adapter.receive(RESET)
        assert [adapter.receive(message) for _ in range(n)] == [[]] * n
        with pytest.raises(ProtocolError, match="too much"):
            adapter.receive(message)


def test_a_stop_of_the_daemon_answers_what_is_awaited() -> None:
    adapter = configured()
    adapter.receive(RESET)
    assert replies(adapter.on_event(End())) == [{"text": ""}]
    adapter = configured()
    opened(adapter)
    assert adapter.on_event(End()) == [Hangup(1000)]


@pytest.mark.parametrize(
    "message",
    [
        *("", "[]", "{}", "no JSON", "[" * 100_000, '{"eof":0}', '{"config":{"sample_rate":1e400}}'),
        *('{"config":{"sample_rate":"fast"}}', '{"config":{"phrase_list":[1]}}', '{"config":{"sample_rate":-1}}'),
    ],
)
def test_an_invalid_message_closes_since_a_reply_may_be_expected(message: str) -> None:
    with pytest.raises(ProtocolError, match="the message is not Vosk's"):
        Vosk().receive(message)
