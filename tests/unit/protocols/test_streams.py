"""What holds of adapters for any input: files cut anywhere, and any order of what happens."""

import base64
import hashlib
import io
import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, ImmutableMultiDict

from streamer.errors import IdleError
from streamer.events import End, Flushed, Speech
from streamer.protocols import deepgram, openai_realtime
from streamer.protocols.adapter import Action, Do, Finish, Hangup, Open, Report, Say, Write
from streamer.protocols.stream import MAX_BAD_MESSAGES, Stream
from streamer.protocols.wyoming import EventReader, WyomingEvent
from tests.builders import final

SECOND = bytes(range(250)) * 128


def said(actions: Sequence[Action]) -> list[dict[str, Any]]:
    return [json.loads(action.text) for action in actions if isinstance(action, Say)]


def written(actions: Sequence[Action]) -> bytes:
    return b"".join(action.audio for action in actions if isinstance(action, Write))


def sent(live: deepgram.Live, *messages: str | bytes) -> list[Action]:
    return [action for message in messages for action in live.receive(message)]


def wav(pcm: bytes, n_bytes: int, channels: int = 1) -> bytes:
    """Return a WAV file whose header announces some bytes, with a chunk that is skipped."""
    form = struct.pack("<HHIIHH", 1, channels, 16_000, 32_000 * channels, 2 * channels, 16)
    skipped = b"LIST" + struct.pack("<I", 4) + b"INFO"
    header = b"RIFF" + bytes(4) + b"WAVE" + skipped + b"fmt " + struct.pack("<I", 16) + form
    return header + b"data" + struct.pack("<I", n_bytes) + pcm


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Cut data at some positions."""
    places = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    return [data[first:last] for first, last in pairwise(places) if first < last]


@given(cuts=st.lists(st.integers(0, 10**6), max_size=40))
def test_deepgram_reads_a_wav_stream_wherever_it_is_cut(cuts: list[int]) -> None:
    live = deepgram.make_live(ImmutableMultiDict(), {})
    file = wav(SECOND, 2**32 - 1, channels=2)
    actions = sent(live, *pieces(file, cuts), '{"type":"CloseStream"}')
    (start,) = [action.start for action in actions if isinstance(action, Open)]
    assert (start.format, start.channels, len(written(actions)), actions[-1]) == ("f32le", 1, 4 * 8_000, Finish())
    (metadata,) = said(live.on_event(End()))
    assert (metadata["sha256"], metadata["duration"]) == (hashlib.sha256(file).hexdigest(), 0.5)


def test_a_wav_in_each_message_continues_and_what_is_behind_it_is_reported_once() -> None:
    live = deepgram.make_live(ImmutableMultiDict(), {})
    samples = np.frombuffer(written(sent(live, wav(SECOND, len(SECOND)), wav(SECOND, len(SECOND)))), "<f4")
    assert (samples * 32_768).astype("<i2").tobytes() == SECOND * 2
    alive, error = sent(live, SECOND)
    assert alive == Do("resume"), "the session does not end for want of audio"
    assert said([error])[0].items() >= {"type": "Error", "variant": "DataError", "message": ""}.items()
    assert sent(live, SECOND) == [Do("resume")]


def test_what_came_before_audio_that_cannot_be_decoded_is_answered_first() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(16_000), 16_000, format="FLAC")
    live = deepgram.make_live(ImmutableMultiDict(), {})
    actions = sent(live, file.getvalue() * 2 + file.getvalue()[:42] + bytes(3_000), '{"type":"CloseStream"}')
    assert (len(written(actions)), actions[-1], live.timeout_s) == (2 * 64_000, Finish(), None)
    assert sent(live, SECOND) == []
    *results, hangup = [*live.on_event(final("Both.", start=0.1, end=1.9)), *live.on_event(End())]
    assert [message.get("is_final") for message in said(results)] == [True, None]
    assert isinstance(hangup, Hangup)
    assert (hangup.code, hangup.reason.partition(":")[0]) == (1008, "DATA-0000")


@pytest.mark.parametrize("data", [b"OggS", b"RIFF\0\0\0\0AVI " + bytes(70_000), b"RI"])
def test_audio_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    live = deepgram.make_live(ImmutableMultiDict(), {})
    (hangup,) = [found for found in sent(live, data, '{"type":"CloseStream"}') if isinstance(found, Hangup)]
    assert (hangup.code, hangup.reason.partition(":")[0]) == (1008, "DATA-0000")


def test_a_silent_client_of_deepgrams_is_disconnected_unless_it_has_said_all() -> None:
    live = deepgram.make_live(ImmutableMultiDict(), {})
    assert live.timeout_s == 10.0
    (hangup,) = live.refused(IdleError("nothing came"))
    assert isinstance(hangup, Hangup)
    assert (hangup.code, hangup.reason.partition(":")[0], len(hangup.reason) <= 123) == (1011, "NET-0001", True)
    live = deepgram.make_live(ImmutableMultiDict([("encoding", "linear16"), ("sample_rate", "16000")]), {})
    live.receive(b"")
    assert live.timeout_s is None


def test_the_hundredth_bad_message_ends_a_native_stream() -> None:
    stream = Stream()
    stream.receive(SECOND)
    actions = [stream.receive("hello") for _ in range(MAX_BAD_MESSAGES)]
    errors = [found[0].error for found in actions if isinstance(found[0], Report)]
    assert [error.fatal for error in errors] == [False] * 99 + [True]
    assert (actions[-1][-1], stream.receive(SECOND)) == (Finish(), [])
    stream.on_event(errors[-1])
    assert stream.on_event(End())[-1] == Hangup(1003, "bad_message")


@given(
    events=st.lists(
        st.tuples(
            st.text("abc-", min_size=1),
            st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3),
            st.binary(max_size=20),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    cuts=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_events_of_wyoming_are_read_wherever_they_are_cut(
    events: list[tuple[str, dict[str, Any], bytes, bool]], cuts: list[int]
) -> None:
    stream = b""
    for kind, data, payload, in_line in events:
        behind = b"" if in_line or not data else json.dumps(data).encode("utf-8")
        line = {"type": kind, "version": "1.10.2", "payload_length": len(payload), "data_length": len(behind)}
        # What is behind the line counts before what is in it.
        more = {"data": data if not behind else dict.fromkeys(data)}
        stream += json.dumps(line | more).encode("utf-8") + b"\n" + behind + payload
    reader, found = EventReader(), []
    for piece in pieces(stream, cuts):
        reader.feed(piece)
        while (event := reader.next()) is not None:
            found.append(event)
    assert found == [WyomingEvent(kind, data, payload) for kind, data, payload, _ in events]


STEPS = ("append", "commit", "clear", "vad", "manual", "speech", "flushed")


@given(steps=st.lists(st.sampled_from(STEPS), max_size=9))
def test_in_any_order_each_committed_item_of_realtime_completes_once_with_what_its_deltas_say(steps: list[str]) -> None:
    realtime = openai_realtime.make(ImmutableMultiDict(), Headers({}))
    messages = said(realtime.begin())
    position = 0.0

    def send(kind: str, **fields: object) -> None:
        nonlocal messages
        messages += said(realtime.receive(json.dumps({"type": kind, **fields})))

    for number, step in enumerate(("append", *steps, "flushed"), 1):
        match step:
            case "append":
                send("input_audio_buffer.append", audio=base64.b64encode(bytes(48_000)).decode("ascii"))
                position += 1
            case "commit" | "clear":
                send(f"input_audio_buffer.{step}")
            case "vad" | "manual":
                turns = {"type": "server_vad"} if step == "vad" else None
                send("session.update", session={"audio": {"input": {"turn_detection": turns}}})
            case "speech":
                text = final(f"w{number}", start=position - 0.9, end=position, segment=number)
                for event in (Speech(state="start", time=position - 0.9), text, Speech(state="end", time=position)):
                    messages += said(realtime.on_event(event))
            case "flushed":
                messages += said(realtime.on_event(Flushed(time=position)))
    messages += said(realtime.on_event(End()))
    committed = [message["item_id"] for message in messages if message["type"].endswith(".committed")]
    completed = {message["item_id"]: message["transcript"] for message in messages if "transcript" in message}
    assert sorted(committed) == sorted(completed)
    deltas = dict.fromkeys(completed, "")
    for message in messages:
        if "delta" in message and message["item_id"] in deltas:
            deltas[message["item_id"]] += message["delta"]
    assert deltas == completed
    ids = [message["event_id"] for message in messages]
    assert len(set(ids)) == len(ids)
