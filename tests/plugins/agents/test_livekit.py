"""The plugin for LiveKit Agents: its streams and an agent's session, with a daemon and nano.en."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.events import Event, Turn
from tests.builders import final, partial
from tests.cutting import cutting
from tests.daemon import (
    REPOSITORY,
    SAMPLE,
    WAIT_S,
    Daemon,
    free_port,
    pause_after,
    pcm16,
    recording,
    sample_text,
    serving_with,
)
from tests.waiting import until
from tests.wer import wer

pytest.importorskip("livekit.agents", reason="pip install 'streamer-captions[livekit]'")

from livekit import rtc
from livekit.agents import APIConnectionError, APIConnectOptions, stt
from livekit.agents.llm import ChatMessage
from livekit.agents.voice.events import ConversationItemAddedEvent

from streamer.plugins.agents.live import LiveStream
from streamer.plugins.agents.livekit import STT

# nano.en gets about one word in six wrong.
MAX_WER = 0.4
TOKEN = "a-token-of-the-tests"
SAID_S = pause_after(2)
Kind = stt.SpeechEventType


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with serving_with(TOKEN) as daemon:
        yield daemon


def audio(*, rate: int = SAMPLE_RATE, channels: int = 1) -> list[Any]:
    """Return the sample's first sentences and silence, in frames of 20 ms; the rate is a multiple of 16 kHz."""
    samples = np.append(recording(SAMPLE, 0.0, SAID_S), np.zeros(SAMPLE_RATE, np.float32))
    samples = np.repeat(samples, rate // SAMPLE_RATE * channels)
    size = rate // 50 * channels
    parts = [samples[first : first + size] for first in range(0, len(samples), size)]
    return [rtc.AudioFrame(pcm16(part), rate, channels, len(part) // channels) for part in parts]


def errors_of(plugin: STT) -> list[Any]:
    errors: list[Any] = []
    plugin.on("error", errors.append)
    return errors


async def begin(stream: Any, frames: list[Any]) -> None:  # noqa: ANN401 - SpeechStream
    """Push frames, and wait until speech has begun."""
    for frame in frames:
        stream.push_frame(frame)
    async with asyncio.timeout(WAIT_S):
        assert (await anext(stream)).type == Kind.START_OF_SPEECH


async def said(stream: Any, frames: list[Any]) -> list[Any]:  # noqa: ANN401 - SpeechStream
    """Push frames, and return the events until the stream has ended."""
    for frame in frames:
        stream.push_frame(frame)
    stream.end_input()
    async with asyncio.timeout(WAIT_S):
        return [event async for event in stream]


def text_of(events: list[Any]) -> str:
    return " ".join(event.alternatives[0].text for event in events if event.type == Kind.FINAL_TRANSCRIPT)


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (48_000, 2), (32_000, 1)])
async def test_a_stream_gives_text_turns_and_usage(daemon: Daemon, rate: int, channels: int) -> None:
    plugin = STT(daemon.url, token=TOKEN, language="en-US")
    errors = errors_of(plugin)
    frames = audio(rate=rate, channels=channels)
    async with plugin.stream() as stream:
        events = await said(stream, frames)
    assert wer(sample_text(end_s=SAID_S), text_of(events)) < MAX_WER
    kinds = [event.type for event in events]
    assert kinds[0] == Kind.START_OF_SPEECH
    assert kinds[-2:] == [Kind.FINAL_TRANSCRIPT, Kind.END_OF_SPEECH]
    assert Kind.INTERIM_TRANSCRIPT in kinds
    usage_s = sum(event.recognition_usage.audio_duration for event in events if event.type == Kind.RECOGNITION_USAGE)
    assert usage_s == pytest.approx(sum(frame.duration for frame in frames))
    final = events[-2].alternatives[0]
    assert (final.language, plugin.model, plugin.provider, errors) == ("en", "nano.en", "streamer", [])
    assert " ".join(final.words) == final.text
    assert 0 < final.confidence <= 1
    times = [final.start_time, *(word.start_time for word in final.words), final.end_time]
    assert times == sorted(times)
    assert times[-1] <= SAID_S + 1.0
    # Turns end by the clock, so that a session counts its delay from the end of speech.
    assert events[0].speech_start_time < events[-1].speech_end_time < stream.start_time + SAID_S + 1.0


async def test_a_flush_makes_text_final_before_the_audio_ends(daemon: Daemon) -> None:
    async with STT(daemon.url, token=TOKEN).stream() as stream:
        for frame in audio()[:150]:
            stream.push_frame(frame)
        stream.flush()
        async with asyncio.timeout(WAIT_S):
            async for event in stream:
                if event.type == Kind.FINAL_TRANSCRIPT:
                    break
        assert event.alternatives[0].end_time == pytest.approx(3.0, abs=0.5)


async def test_a_whole_buffer_is_recognized(daemon: Daemon) -> None:
    plugin = STT(daemon.url, token=TOKEN)
    event = await plugin.recognize(audio(rate=48_000, channels=2))
    assert event.type == Kind.FINAL_TRANSCRIPT
    assert wer(sample_text(end_s=SAID_S), event.alternatives[0].text) < MAX_WER
    silence = await plugin.recognize(rtc.AudioFrame(bytes(32_000), 16_000, 1, 16_000))
    assert silence.alternatives[0].text == ""
    with pytest.raises(APIConnectionError):
        await STT(daemon.url, token="wrong").recognize(audio())


async def test_audio_that_cannot_be_is_one_line(daemon: Daemon) -> None:
    plugin, frame = STT(daemon.url, token=TOKEN), rtc.AudioFrame(bytes(40), 2_000, 1, 20)
    with pytest.raises(APIConnectionError):
        await plugin.recognize(frame)
    async with plugin.stream() as stream:
        with pytest.raises(APIConnectionError):
            await said(stream, [frame])


async def test_a_connection_that_breaks_loses_nothing(daemon: Daemon) -> None:
    async with cutting(int(daemon.url.rstrip("/").rpartition(":")[2])) as proxy:
        plugin = STT(f"127.0.0.1:{proxy.port}", token=TOKEN)
        errors = errors_of(plugin)
        frames = audio()
        async with plugin.stream() as stream:
            await begin(stream, frames[:100])
            proxy.cut()
            events = await said(stream, frames[100:])
    assert wer(sample_text(end_s=SAID_S), text_of(events)) < MAX_WER
    assert [(error.recoverable, "went away" in str(error.error)) for error in errors] == [(True, True)]


@pytest.mark.parametrize("token", [TOKEN, "wrong"])
async def test_no_daemon_and_a_wrong_token_are_one_line(daemon: Daemon, token: str) -> None:
    address = daemon.url if token == "wrong" else f"127.0.0.1:{free_port()}"
    plugin = STT(address, token=token)
    errors = errors_of(plugin)
    async with plugin.stream(conn_options=APIConnectOptions(max_retry=0, timeout=0.1, retry_interval=0)) as stream:
        with pytest.raises(APIConnectionError) as caught:
            await said(stream, audio())
    assert "\n" not in str(caught.value)
    assert errors[-1].recoverable is False


async def test_options_change_in_open_streams_and_errors_are_reported(daemon: Daemon) -> None:
    plugin = STT(daemon.url, token=TOKEN)
    errors = errors_of(plugin)
    frames = audio()
    async with plugin.stream() as stream:
        await begin(stream, frames[:100])
        # nano.en knows English only: the daemon's answer shows what it was asked.
        plugin.update_options(language="de-AT")
        events = await said(stream, frames[100:])
    assert wer(sample_text(end_s=SAID_S), text_of(events)) < MAX_WER
    assert [(error.recoverable, "'de'" in str(error.error)) for error in errors] == [(True, True)]


INTERIM, PREFLIGHT, FINAL = Kind.INTERIM_TRANSCRIPT, Kind.PREFLIGHT_TRANSCRIPT, Kind.FINAL_TRANSCRIPT
SETTLED = partial("I see.", 6, end=1.0)
FINISHED = Turn(time=1.2, probability=0.9, finished=True)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        # Text that cannot change is no reason while the speaker goes on, nor is a pause within a sentence.
        ([SETTLED], [INTERIM]),
        ([SETTLED, Turn(time=1.2, probability=0.1, finished=False)], [INTERIM]),
        # Either may come first.
        ([SETTLED, FINISHED, final("I see.")], [INTERIM, PREFLIGHT, FINAL]),
        ([FINISHED, SETTLED, final("I see.")], [PREFLIGHT, FINAL]),
        # What may still change, and what does not reach the pause.
        ([FINISHED, partial("I see.", 1, end=1.0)], [INTERIM]),
        ([FINISHED, partial("I", 1, end=0.5), SETTLED], [INTERIM, PREFLIGHT]),
        # The same text again withdraws nothing; more of it does.
        ([FINISHED, SETTLED, partial("I see.", 6, end=1.1)], [PREFLIGHT]),
        ([FINISHED, SETTLED, partial("I see. You are right", 6, end=2.0)], [PREFLIGHT, INTERIM]),
        ([FINISHED, SETTLED, final("I see."), partial("Or", 2, start=2.0, end=2.4)], [PREFLIGHT, FINAL, INTERIM]),
    ],
)
async def test_an_answer_may_begin_when_the_speaker_has_finished_and_no_word_can_change(
    monkeypatch: pytest.MonkeyPatch, events: list[Event], expected: list[Any]
) -> None:
    async def said(_: LiveStream) -> AsyncIterator[list[Event]]:
        yield events

    monkeypatch.setattr(LiveStream, "events", said)
    async with STT().stream() as stream:
        stream.end_input()
        kinds = [event.type async for event in stream]
    assert [kind for kind in kinds if kind in (INTERIM, PREFLIGHT, FINAL)] == expected


async def test_a_sessions_terms_and_what_the_agent_said_are_options_of_its_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: list[dict[str, Any]] = []
    monkeypatch.setattr(LiveStream, "change", lambda _, options: changes.append(options))
    monkeypatch.setattr(LiveStream, "events", lambda _: silent())
    plugin = STT(hotwords=["NPU"])
    assert plugin.capabilities.keyterms
    assert plugin.capabilities.chat_context
    async with plugin.stream():
        plugin._update_session_keyterms(["OpenVINO", "NPU"])
        plugin.update_options(hotwords=["Whisper"])
        plugin._update_session_keyterms([])
        for role in ("user", "assistant"):
            said = ChatMessage(role=role, content=[f"Do you mean {'x' * 300} OpenVINO?"])
            plugin._push_conversation_item(ConversationItemAddedEvent(item=said))
    *terms, prompt = changes
    assert [change["hotwords"] for change in terms] == [
        ["NPU", "OpenVINO"],
        ["Whisper", "OpenVINO", "NPU"],
        ["Whisper"],
    ]
    assert prompt["initial_prompt"].endswith("x OpenVINO?")
    assert len(prompt["initial_prompt"]) == 200


async def silent() -> AsyncIterator[list[Event]]:
    await asyncio.Event().wait()
    yield []


async def test_a_stream_that_is_closed_in_mid_turn_gives_its_session_up(daemon: Daemon) -> None:
    async with STT(daemon.url, token=TOKEN).stream() as stream:
        await begin(stream, audio()[:150])
        assert daemon.metric("streamer_sessions", TOKEN) == 1
    await until(lambda: daemon.metric("streamer_sessions", TOKEN) == 0)


async def test_an_agents_session_takes_its_turns(daemon: Daemon, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "said.wav", recording(SAMPLE, 0.0, SAID_S), SAMPLE_RATE)
    example = REPOSITORY / "examples" / "livekit_agent.py"
    agent = await asyncio.create_subprocess_exec(
        sys.executable, example, tmp_path / "said.wav", daemon.url, TOKEN, stdout=PIPE
    )
    out, _ = await asyncio.wait_for(agent.communicate(), WAIT_S)
    lines = [line.split(maxsplit=2) for line in out.decode().splitlines()]
    assert {kind for _, kind, _ in lines} == {"interim", "final", "turn"}
    assert wer(sample_text(end_s=SAID_S), " ".join(text for _, kind, text in lines if kind == "turn")) < MAX_WER
