"""OpenAI's own client of its Realtime API, unchanged, with the daemon: the address is all that differs."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import soxr
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.exceptions import InvalidStatus

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from tests.daemon import WAIT_S, Daemon, pcm16, recording, running, sample_text
from tests.wer import wer

TOKEN = "sk-as-long-as-a-token-has-to-be"
LOGPROBS = "item.input_audio_transcription.logprobs"
CHUNK_S = 0.1

# Three words of the sample recording, and some silence before and behind.
BEGIN_S, END_S = 13.0, 15.15
MAX_WER = 0.4  # where passes come late, on a busy machine, nano.en may get one of the three wrong


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running("--input", "none", environ={"STREAMER_SERVER_TOKEN": TOKEN}) as daemon:
        yield daemon


@asynccontextmanager
async def connected(daemon: Daemon, key: str = TOKEN) -> AsyncIterator[AsyncRealtimeConnection]:
    async with (
        AsyncOpenAI(api_key=key, base_url=f"{daemon.url}v1", max_retries=0) as client,
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        yield connection


async def configure(connection: AsyncRealtimeConnection, **inputs: Any) -> None:  # noqa: ANN401 - of the SDK's many types
    model = {"model": "gpt-4o-transcribe", "language": "en"}
    audio = {"input": {"transcription": model, **inputs}}
    session: Any = {"type": "transcription", "audio": audio, "include": [LOGPROBS]}
    await connection.session.update(session=session)


async def say(connection: AsyncRealtimeConnection, audio: bytes, chunk_bytes: int, *, noise: bool = False) -> None:
    """Append audio as it is spoken; with `noise` say what nobody understands between."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    for i, first in enumerate(range(0, len(audio), chunk_bytes)):
        await asyncio.sleep(begin_s + i * CHUNK_S - loop.time())
        chunk = audio[first : first + chunk_bytes]
        await connection.input_audio_buffer.append(audio=base64.b64encode(chunk).decode("ascii"))
        if noise and i % 10 == 0:
            await connection.send_raw(("{", '{"type":"response.create","event_id":"mine"}', b"\0")[i // 10 % 3])


async def events_of(connection: AsyncRealtimeConnection, n_completed: int) -> list[Any]:
    """Read until so many items are complete."""
    events: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while sum(event.type == "conversation.item.done" for event in events) < n_completed:
            events.append(await connection.recv())
    return events


def of(events: Sequence[Any], name: str) -> list[Any]:
    return [event for event in events if event.type.rpartition(".")[2] == name]


def check_items(events: Sequence[Any]) -> list[str]:
    """Check that all that is said of items fits together; return their transcripts."""
    committed, completed = of(events, "committed"), of(events, "completed")
    ids = [event.item_id for event in committed]
    assert [event.previous_item_id for event in committed] == [None, *ids[:-1]]
    assert [event.item.id for event in of(events, "added")] == ids
    assert [event.item_id for event in completed] == ids
    for event in completed:
        deltas = [delta for delta in of(events, "delta") if delta.item_id == event.item_id]
        assert "".join(delta.delta for delta in deltas) == event.transcript
        assert [entry for delta in deltas for entry in delta.logprobs] == event.logprobs
        assert "".join(entry.token for entry in event.logprobs) == event.transcript
        assert event.usage.type == "duration"
    return [event.transcript for event in completed]


def check_words(transcript: str) -> None:
    assert wer(sample_text(BEGIN_S, END_S), transcript) <= MAX_WER, transcript


async def detect_turns(daemon: Daemon, clip: Float32Array) -> None:
    """Twice the same in one breath, then a commit too much."""
    pause = np.zeros(round(0.6 * SAMPLE_RATE), np.float32)
    audio = pcm16(soxr.resample(np.concatenate([clip, pause, clip, pause]), SAMPLE_RATE, 24_000))
    async with connected(daemon) as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        assert created.session.type == "transcription"
        await configure(connection, turn_detection={"type": "server_vad", "silence_duration_ms": 300})
        updated = await connection.recv()
        assert updated.type == "session.updated"
        shown: Any = updated.session.to_dict()
        assert shown["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 300
        reading = asyncio.create_task(events_of(connection, 2))
        await say(connection, audio, 4_800, noise=True)
        events = await reading
        for transcript in check_items(events):
            check_words(transcript)
        starts = [event.audio_start_ms for event in of(events, "speech_started")]
        stops = [event.audio_end_ms for event in of(events, "speech_stopped")]
        assert starts[0] < stops[0] <= starts[1] < stops[1] < 1000 * len(audio) / 48_000
        errors = [event.error for event in of(events, "error")]
        assert [error.code for error in errors[:3]] == ["invalid_json", "invalid_value", "invalid_json"]
        assert [error.event_id for error in errors[:3]] == [None, "mine", None]
        await connection.input_audio_buffer.commit()
        *_, completed, _ = await events_of(connection, 1)
        assert completed.transcript == ""


async def push_to_talk(daemon: Daemon, clip: Float32Array) -> None:
    """The client says where items end: one that it clears, then a commit of nothing, then one that counts."""
    audio = pcm16(soxr.resample(clip, SAMPLE_RATE, 24_000))
    async with connected(daemon) as connection:
        await configure(connection, turn_detection=None)
        await say(connection, audio[: len(audio) // 2], 4_800)
        await connection.input_audio_buffer.clear()
        await connection.input_audio_buffer.commit(event_id="too often")
        await say(connection, audio, 4_800)
        await connection.input_audio_buffer.commit()
        events = await events_of(connection, 1)
        assert not of(events, "speech_started")
        (error,) = of(events, "error")
        assert error.error.code == "input_audio_buffer_commit_empty"
        assert error.error.event_id == "too often"
        at = events.index(of(events, "cleared")[0])
        (transcript,) = check_items(events[at:])
        check_words(transcript)


async def test_the_stock_client_in_both_ways_at_once_at_the_pace_of_speech(daemon: Daemon) -> None:
    clip = recording(begin_s=BEGIN_S, end_s=END_S)
    await asyncio.gather(detect_turns(daemon, clip), push_to_talk(daemon, clip))


async def test_a_wrong_key_is_refused(daemon: Daemon) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        async with connected(daemon, "sk-wrong-but-as-long-as-a-token"):
            pass
    assert refusal.value.response.status_code == 401
    assert b'"code":"invalid_api_key"' in refusal.value.response.body
