"""Several protocols on one daemon that asks for a token, with clients among them that talk nonsense."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import numpy as np
import pytest
from scipy.signal import resample_poly
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from streamer.arrays import Float32Array
from tests.daemon import Daemon, pause_after, pcm16, recording, running, sample_text
from tests.wer import wer

TOKEN = "a token of enough characters".replace(" ", "-")
FRAME_S = 0.1
MAX_WER = 0.4  # as tests/e2e/test_end_to_end.py says
NONSENSE = (
    *(
        "",
        "{",
        "[]",
        '"',
        '{"type":"nonsense"}',
        '{"type":7}',
        '{"uid":{}}',
        '{"config":[]}',
        '{"type":"session.update"}',
    ),
    *('{"type":"session.update"}', '{"type":"input_audio_buffer.append","audio":"?"}'),
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running("--input", "none", environ={"STREAMER_SERVER_TOKEN": TOKEN}) as daemon:
        yield daemon


def connected(daemon: Daemon, path: str) -> connect:
    return connect(daemon.address(path), proxy=None, additional_headers={"Authorization": f"Token {TOKEN}"})


async def frames(samples: Float32Array, sample_rate: int = 16_000) -> AsyncIterator[bytes]:
    """Yield audio as it is spoken."""
    loop = asyncio.get_running_loop()
    begin_s, size = loop.time(), round(FRAME_S * sample_rate)
    for i, first in enumerate(range(0, len(samples), size)):
        await asyncio.sleep(begin_s + (i + 1) * FRAME_S - loop.time())
        yield pcm16(samples[first : first + size])


async def received(client: ClientConnection) -> list[dict[str, object]]:
    """Read to the end of the connection."""
    messages = []
    try:
        while True:
            messages.append(json.loads(await client.recv()))
    except ConnectionClosed:
        return messages


async def nothing(client: ClientConnection) -> None:
    """Say nothing beside the audio."""


def nonsense(seed: int) -> Callable[[ClientConnection], Awaitable[None]]:
    """Return what says something wrong every tenth time."""
    chance = random.Random(seed)

    async def say(client: ClientConnection) -> None:
        if chance.random() < 0.1:
            await client.send(chance.choice(NONSENSE))

    return say


async def deepgram(daemon: Daemon, samples: Float32Array, also: Callable[[ClientConnection], Awaitable[None]]) -> str:
    async with connected(daemon, "/v1/listen?encoding=linear16&sample_rate=16000&punctuate=true") as client:
        reading = asyncio.create_task(received(client))
        async for frame in frames(samples):
            await client.send(frame)
            await also(client)
        await client.send('{"type":"CloseStream"}')
        results = [message for message in await reading if message["type"] == "Results" and message["is_final"]]
        return " ".join(result["channel"]["alternatives"][0]["transcript"] for result in results)  # type: ignore[index]


async def realtime(daemon: Daemon, samples: Float32Array, also: Callable[[ClientConnection], Awaitable[None]]) -> str:
    audio = resample_poly(samples, 3, 2).astype(np.float32)
    async with connected(daemon, "/v1/realtime?intent=transcription") as client:
        turns: dict[str, object] = {"audio": {"input": {"turn_detection": None}}, "type": "transcription"}
        await client.send(json.dumps({"type": "session.update", "session": turns}))
        async for frame in frames(audio, 24_000):
            data = base64.b64encode(frame).decode()
            await client.send(json.dumps({"type": "input_audio_buffer.append", "audio": data}))
            await also(client)
        await client.send('{"type":"input_audio_buffer.commit"}')
        deltas = ""
        while True:
            message = json.loads(await client.recv())
            if message["type"].endswith("transcription.delta"):
                deltas += message["delta"]
            if message["type"].endswith("transcription.completed"):
                assert deltas == message["transcript"]
                return deltas


async def vosk(daemon: Daemon, samples: Float32Array, also: Callable[[ClientConnection], Awaitable[None]]) -> str:
    texts = []
    async with connected(daemon, "/vosk") as client:
        await client.send('{"config":{"sample_rate":16000}}')
        async for frame in frames(samples):
            await client.send(frame)
            texts.append(json.loads(await client.recv()).get("text", ""))
        await client.send('{"eof":1}')
        texts.append(json.loads(await client.recv())["text"])
    return " ".join(texts)


async def native(daemon: Daemon, samples: Float32Array) -> str:
    async with connected(daemon, "/v1/stream") as client:
        reading = asyncio.create_task(received(client))
        async for frame in frames(samples):
            await client.send(frame)
        await client.send('{"type":"finish"}')
        return " ".join(str(event["text"]) for event in await reading if event["type"] == "final")


async def test_each_protocol_hears_the_same_words_whatever_the_others_say(daemon: Daemon) -> None:
    samples = recording(end_s=pause_after(1))
    said = sample_text(end_s=pause_after(1))
    texts = await asyncio.gather(
        native(daemon, samples),
        vosk(daemon, samples, nothing),
        deepgram(daemon, samples, nothing),
        deepgram(daemon, samples, nonsense(1)),
        realtime(daemon, samples, nonsense(2)),
    )
    for text in texts:
        assert wer(said, text) <= MAX_WER, text


@pytest.mark.parametrize("path", ["/v1/realtime?intent=transcription", "/v1/listen", "/vosk", "/"])
async def test_who_shows_no_token_is_turned_away(daemon: Daemon, path: str) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        await connect(daemon.address(path), proxy=None)
    assert refusal.value.response.status_code == 401
