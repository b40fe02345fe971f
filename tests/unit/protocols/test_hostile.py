"""Whatever a client says: every adapter answers it in its own way, ignores it, or raises a ProtocolError."""

import json
import random
from collections.abc import Iterator

import pytest
from starlette.datastructures import Headers, QueryParams

from streamer.errors import BusyError, ConfigError, ProtocolError
from streamer.events import End, Error, Event, Flushed, Gap, Speech
from streamer.protocols.adapter import Adapter, Say
from streamer.server.routes import SOCKETS
from tests.wire.support import final, partial, ready

VALUES: tuple[object, ...] = (
    *(None, True, -1, 2**70, 1e308, "", "a", "\ud800", "\x00", [], [[]], {}, {"a": None}, "x" * 5_000, "AAAA"),
)
TYPES = (
    *("session.update", "transcription_session.update", "input_audio_buffer.append", "input_audio_buffer.commit"),
    *("input_audio_buffer.clear", "KeepAlive", "Finalize", "CloseStream", "response.create", "\ud800", "", 7),
)
KEYS = (
    *("session", "audio", "input", "format", "rate", "turn_detection", "transcription", "include", "event_id", "type"),
    *("uid", "language", "task", "send_last_n_segments", "hotwords", "initial_prompt", "audio_format", "config", "eof"),
    *("reset", "sample_rate", "words", "phrase_list", "max_alternatives", "channel", "model", "prompt", "threshold"),
)


def messages(seed: int) -> Iterator[str | bytes]:
    """Yield what no client should say."""
    chance = random.Random(seed)

    def value(depth: int) -> object:
        if depth and chance.random() < 0.6:
            return {chance.choice(KEYS): value(depth - 1) for _ in range(chance.randrange(4))}
        return chance.choice(VALUES)

    yield from ("", "{", "null", "[]", "7", '"a"', "[" * 100_000, '{"a":' * 100_000, "NaN", '{"type":NaN}')
    yield from (b"", b"\x00", b"\xff\xfe\xfd", b"END_OF_AUDIO", b"RIFF" + b"\xff" * 40, bytes(999))
    for _ in range(60):
        message = {"type": chance.choice(TYPES), **{chance.choice(KEYS): value(3) for _ in range(3)}}
        if chance.random() < 0.3:
            del message["type"]
        yield json.dumps(message)
        yield chance.randbytes(chance.randrange(64))


def events() -> Iterator[Event]:
    yield ready()
    yield Speech(state="start", time=0.1)
    yield partial(1, "Good morning", stable=4)
    yield Gap(start=0.5, end=0.8, reason="overload")
    yield final(1, "Good morning.")
    yield Speech(state="end", time=0.9)
    yield Flushed(time=1.0)
    yield final(2, "")
    yield Error(code="device", message="no\nway", fatal=False)


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("seed", range(8))
def test_no_message_makes_an_adapter_fail_or_send_invalid_text(path: str, seed: int) -> None:
    adapter: Adapter = SOCKETS[path].make(QueryParams(""), Headers({}))
    told = events()
    said = [*adapter.begin()]
    for message in messages(seed):
        try:
            said += adapter.receive(message)
        except ProtocolError as error:
            said += adapter.refused(error)
        if seed % 2 and (event := next(told, None)) is not None:
            said += adapter.on_event(event)
        if seed % 3 == 0:
            said += adapter.refused(ConfigError("the model does not know it"))
    said += adapter.refused(BusyError("no room"))
    said += adapter.on_event(End())
    for action in said:
        if isinstance(action, Say):
            action.text.encode("utf-8")  # as the server does
            json.loads(action.text)
