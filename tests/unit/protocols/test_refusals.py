"""What no protocol accepts, and with which sentence; other tests hold what happens then."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

import pytest
from starlette.datastructures import Headers, ImmutableMultiDict

from streamer.errors import UsageError
from streamer.protocols import deepgram, openai_messages, openai_realtime
from streamer.protocols.adapter import Action, Say, read_query
from streamer.protocols.native import parse_message
from streamer.protocols.openai_rest import Asked, AskedOfModel
from streamer.protocols.stream import Captions, Stream
from streamer.protocols.vosk import MAX_HELD_MESSAGES, Vosk
from streamer.protocols.whisperlive import WhisperLive
from streamer.protocols.wyoming import MAX_LINE_BYTES, MAX_WAITING_BYTES, Wyoming
from tests.refusals import Refusal, refusals


def refuse(protocol: str, given: str) -> None:
    """Give a message, or the query of an address, to a protocol that raises what it refuses."""
    query = (
        ImmutableMultiDict(parse_qsl(given))
        if protocol in ("listen", "rest", "whisper", "captions", "intent")
        else None
    )
    match protocol, query:
        case "native", _:
            parse_message(given)
        case "vosk", _:
            Vosk().receive(given)
        case "whisperlive", _:
            WhisperLive().receive(given)
        case "listen", ImmutableMultiDict():
            deepgram.read_query(query)
        case "rest", ImmutableMultiDict():
            _ = read_query(query, Asked).options
        case "whisper", ImmutableMultiDict():
            read_query(query, AskedOfModel)
        case "captions", ImmutableMultiDict():
            Captions(query)
        case "intent", ImmutableMultiDict():
            openai_realtime.make(query, Headers({}))
        case "out of place", _:
            stream = Stream()
            stream.receive(b"")
            (reported,) = stream.receive(given)
            raise UsageError(reported.error.message)  # type: ignore[union-attr]


def said(actions: Sequence[Action]) -> Any:  # noqa: ANN401 - JSON
    """Return the error that an adapter sent."""
    first = actions[0]
    assert isinstance(first, Say)
    found = json.loads(first.text)
    return found.get("error") or found["data"]


@refusals("protocols")
def test_what_a_protocol_refuses(refusal: Refusal) -> None:
    ((protocol, given),) = refusal.given.items()
    if protocol == "realtime":
        error = said(openai_realtime.make(ImmutableMultiDict(), Headers({})).receive(given))
        refusal.check(error["type"], f"{error['code']} {error['param'] or ''}".strip(), error["message"])
    elif protocol == "wyoming":
        error = said(Wyoming("").receive(given.encode("utf-8")))
        refusal.check("error", error["code"], error["text"])
    else:
        with refusal.expected():
            refuse(protocol, given)


def test_only_audio_may_be_long() -> None:
    """Of OpenAI's messages: to decode millions of keys would delay all clients."""
    realtime = openai_realtime.make(ImmutableMultiDict(), Headers({}))
    update = {"type": "session.update", "event_id": "mine", "session": dict.fromkeys(map(str, range(20_000)))}
    error = said(realtime.receive(json.dumps(update)))
    assert (error["code"], error["event_id"]) == ("message_too_long", "mine")
    for n_bytes, n_errors in ((openai_messages.MAX_AUDIO_BYTES, 0), (openai_messages.MAX_AUDIO_BYTES + 1, 1)):
        audio = "A" * (n_bytes // 3 * 4) + ("AA==" if n_bytes % 3 else "")
        actions = realtime.receive(f'{{"type":"input_audio_buffer.append","audio":"{audio}"}}')
        assert sum(isinstance(action, Say) for action in actions) == n_errors


@pytest.mark.parametrize(("message", "n_held"), [(b"\0", MAX_HELD_MESSAGES), (b"\0" * 2**18, 4), ("x" * 2**18, 4)])
def test_vosk_holds_few_messages_behind_a_reset(message: str | bytes, n_held: int) -> None:
    vosk = Vosk()
    vosk.receive('{"reset":1}')
    assert [vosk.receive(message) for _ in range(n_held)] == [[]] * n_held
    with pytest.raises(UsageError):
        vosk.receive(message)


@pytest.mark.parametrize(
    ("waiting", "room"),
    [
        (b"", MAX_LINE_BYTES - 1),
        (
            b'{"type":"audio-chunk","data":{"rate":16000,"width":2,"channels":1}}\n{"type":"audio-stop"}\n',
            MAX_WAITING_BYTES,
        ),
    ],
)
def test_wyoming_keeps_no_line_and_no_waiting_request_without_end(waiting: bytes, room: int) -> None:
    adapter = Wyoming("")
    adapter.receive(waiting)
    assert adapter.receive(b"x" * room) == []
    assert said(adapter.receive(b"x"))["code"] == "bad_message"
