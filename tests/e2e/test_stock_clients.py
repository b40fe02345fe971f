"""Other programs' clients as they are, against a real daemon: WhisperLive's, Vosk's way to talk, Wyoming's."""

import asyncio
import contextlib
import functools
import importlib
import json
import sys
import time
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedOK
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from tests.daemon import SAMPLE, WAIT_S, Daemon, free_port, pause_after, pcm16, recording, running, sample_text
from tests.wer import wer, words_of

# Where `make test` puts WhisperLive: without what it depends on, and without its `tests` before ours.
WHISPER_LIVE = Path(sys.prefix) / "apart"

# The third sentence of the sample, which is short, and the first.
THIRD_S, FIRST_S = (13.0, 15.1), (0.0, pause_after(1))
SAID = f"{sample_text(*THIRD_S)} {sample_text(*FIRST_S)}"
MAX_WER = 0.7  # nano.en finds four of the eleven words of the first sentence hard, and of three a single one may be two
TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def wyoming_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(wyoming_port: int) -> Iterator[Daemon]:
    environ = {
        "STREAMER_SERVER_WYOMING_PORT": str(wyoming_port),
        "STREAMER_SERVER_TOKEN": TOKEN,
    }
    with running("--input", "none", environ=environ) as daemon:
        yield daemon
        outcome = daemon.stop()
        assert outcome.exit_code == 0, outcome.stderr
        assert "Traceback" not in outcome.stderr, outcome.stderr


@pytest.fixture(scope="module")
def samples() -> Float32Array:
    return np.concatenate([recording(SAMPLE, *THIRD_S), recording(SAMPLE, *FIRST_S)])


def check(text: str) -> None:
    words = words_of(text)
    assert (words[0], words[-1]) == ("the", "danger"), text
    assert wer(SAID, text) <= MAX_WER, text


# --- WhisperLive and Vosk ---------------------------------------------------------------------------------------------


@pytest.fixture
def whisper_live(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 - a module
    """WhisperLive's client: its own code, without a sound card."""
    if not WHISPER_LIVE.exists():
        pytest.skip(f"needs whisper-live in {WHISPER_LIVE}: see the Makefile")
    pyaudio: Any = types.ModuleType("pyaudio")

    class PyAudio:
        def open(self, **_: object) -> None:
            raise OSError("there is no sound card")

    pyaudio.paInt16, pyaudio.PyAudio = 8, PyAudio
    monkeypatch.setitem(sys.modules, "pyaudio", pyaudio)
    monkeypatch.setattr(sys, "path", [*sys.path, str(WHISPER_LIVE)])
    client = importlib.import_module("whisper_live.client")

    def wait_before_disconnect(self: Any) -> None:  # noqa: ANN401 - its class is known at run time only
        """Wait for the last word to be completed; the original waits 15 s for more, and turns a core meanwhile."""
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s and (
            not self.transcript
            or self.transcript[-1] != {**self.last_segment, "completed": True}
            or words_of(self.transcript[-1]["text"])[-1:] != ["danger"]
        ):
            time.sleep(0.05)

    monkeypatch.setattr(client.Client, "wait_before_disconnect", wait_before_disconnect)
    # Its thread looks so often whether it was closed by another one: each 10 s.
    run_forever = functools.partialmethod(client.websocket.WebSocketApp.run_forever, ping_timeout=0.1)
    monkeypatch.setattr(client.websocket.WebSocketApp, "run_forever", run_forever)
    return client


def port_of(daemon: Daemon) -> str:
    """Return the port for clients that have no place for a token, with one behind it."""
    return f"{urlsplit(daemon.url).port}/?token={TOKEN}"


@contextlib.asynccontextmanager
async def vosk_at(address: str) -> AsyncIterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with asyncio.timeout(WAIT_S), connect(address, additional_headers=headers, proxy=None) as client:
        yield client


async def ask(client: ClientConnection, message: str | bytes) -> dict[str, Any]:
    """Send what is answered, as a lockstep client does."""
    await client.send(message)
    reply: dict[str, Any] = json.loads(await client.recv())
    return reply


async def test_clients_of_two_protocols_at_once_at_the_pace_of_speech(
    daemon: Daemon,
    whisper_live: Any,  # noqa: ANN401 - a module
    samples: Float32Array,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("said.wav", samples, SAMPLE_RATE, subtype="PCM_16")
    await asyncio.gather(asyncio.to_thread(use_whisper_live, daemon, whisper_live), use_vosk(daemon, samples))


def use_whisper_live(daemon: Daemon, whisper_live: Any) -> None:  # noqa: ANN401 - a module
    """Its subtitles have each line once."""
    seen: list[str] = []
    client = whisper_live.TranscriptionClient(
        "127.0.0.1",
        port_of(daemon),
        mute_audio_playback=True,
        output_transcription_path="said.srt",
        transcription_callback=lambda text, segments: seen.append(text),
    )
    text = client("said.wav")
    check(text)
    assert len(set(seen)) > 2, "text came while it was said"
    assert client.client.language == "en", "it was told the language"
    cues = Path("said.srt").read_text(encoding="utf-8").strip().split("\n\n")
    lines = [cue.split("\n")[2].strip() for cue in cues]
    assert " ".join(lines) == text
    assert len(lines) == len(set(lines)) >= 2


async def use_vosk(daemon: Daemon, samples: Float32Array) -> None:
    """Each message has one reply, with what is known by then."""
    loop, size = asyncio.get_running_loop(), SAMPLE_RATE // 5
    replies = []
    async with vosk_at(daemon.address("/")) as client:
        await client.send(json.dumps({"config": {"sample_rate": SAMPLE_RATE}}))
        begin_s = loop.time()
        for first in range(0, len(samples), size):
            await asyncio.sleep(begin_s + first / SAMPLE_RATE - loop.time())
            replies.append(await ask(client, pcm16(samples[first : first + size])))
        replies.append(await ask(client, '{"eof" : 1}'))
        with pytest.raises(ConnectionClosedOK):
            await client.recv()
    text = " ".join(reply["text"] for reply in replies if "text" in reply)
    check(text)
    assert text == text.lower()
    assert replies[0] == {"partial": ""}, "no reply waits for the recogniser"
    assert any(reply.get("partial") for reply in replies), "text came while it was said"
    starts = [word["start"] for reply in replies for word in reply.get("result", [])]
    assert starts == sorted(starts)
    assert len(starts) == len(text.split())


def test_whisperlive_waits_for_the_server_to_say_all(
    daemon: Daemon,
    whisper_live: Any,  # noqa: ANN401 - a module
) -> None:
    committed: list[str] = []
    client = whisper_live.StreamingTranscriptionClient(
        "127.0.0.1", port_of(daemon), lang="en", on_committed_transcript=lambda text, segments: committed.append(text)
    )
    with client:
        for part in np.split(recording(SAMPLE, 13.0, 15.0), 10):
            client.send_array(part)
    assert wer(sample_text(*THIRD_S), " ".join(committed)) <= MAX_WER


async def test_vosk_is_told_what_was_heard_at_a_reset(daemon: Daemon) -> None:
    async with vosk_at(daemon.address("/vosk")) as client:
        await client.send(json.dumps({"config": {"sample_rate": SAMPLE_RATE, "words": 0}}))
        assert "partial" in await ask(client, pcm16(recording(SAMPLE, *THIRD_S)))
        assert wer(sample_text(*THIRD_S), (await ask(client, '{"reset" : 1}'))["text"]) <= MAX_WER
        assert await ask(client, bytes(6400)) == {"partial": ""}
        assert await ask(client, '{"eof" : 1}') == {"text": ""}


# --- Wyoming ----------------------------------------------------------------------------------------------------------


async def read_transcript(client: AsyncTcpClient) -> tuple[str, str]:
    """Return the transcript, and what its chunks join to."""
    chunks, transcript = [], None
    while True:
        event = await client.read_event()
        assert event is not None, "the connection was closed"
        if TranscriptChunk.is_type(event.type):
            chunks.append(TranscriptChunk.from_event(event).text)
        elif Transcript.is_type(event.type):
            transcript = Transcript.from_event(event).text
        elif TranscriptStop.is_type(event.type):
            assert transcript is not None
            return transcript, "".join(chunks)


async def say(client: AsyncTcpClient, samples: Float32Array, *, rate: int = SAMPLE_RATE) -> None:
    """Send a request as Home Assistant does: everything at once."""
    await client.write_event(Transcribe(language="en").event())
    await client.write_event(AudioStart(rate, 2, 1).event())
    audio = pcm16(samples)
    for first in range(0, len(audio), 2048):
        await client.write_event(AudioChunk(rate, 2, 1, audio[first : first + 2048]).event())
    await client.write_event(AudioStop().event())


async def test_home_assistant_sends_two_minutes_and_only_then_reads(
    daemon: Daemon, wyoming_port: int, samples: Float32Array
) -> None:
    silence = np.zeros(105 * SAMPLE_RATE, np.float32)
    async with asyncio.timeout(WAIT_S), AsyncTcpClient("127.0.0.1", wyoming_port) as client:
        await client.write_event(Describe().event())
        event = await client.read_event()
        assert event is not None
        (program,) = Info.from_event(event).asr
        assert [(model.name, model.languages) for model in program.models] == [("nano.en", ["en"])]
        await say(client, np.concatenate([samples, silence, samples]))
        text, joined = await read_transcript(client)
        assert joined == text
        assert wer(f"{SAID} {SAID}", text) <= MAX_WER
        # The connection is kept, and nothing of the last request shows.
        await say(client, recording(SAMPLE, *THIRD_S)[::2], rate=SAMPLE_RATE // 2)
        text, joined = await read_transcript(client)
        assert joined == text
        assert wer(sample_text(*THIRD_S), text) <= MAX_WER
        await say(client, silence[:SAMPLE_RATE])
        assert await read_transcript(client) == ("", "")
