"""What the plugins for voice agents share, against a server on loopback."""

import asyncio
from typing import Any

import numpy as np
import pytest

from streamer.client.connection import STREAM_PATH, parse_address
from streamer.errors import PeerError, ProtocolError
from streamer.events import Error, Event, Final
from streamer.plugins.agents import live as module
from streamer.plugins.agents.live import LiveStream
from tests.daemon import free_port
from tests.waiting import until
from tests.wire.harness import heard, numbered_final, serving, within

TONE = (np.sin(np.arange(48_000) / 10) * 9000).astype("<i2")


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.client.machine.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("streamer.client.machine.MAX_DELAY_S", 0.05)


def opened(port: int, lost: list[str], token: str = "", wait_s: float = 60.0, **options: Any) -> LiveStream:  # noqa: ANN401
    address = parse_address(f"127.0.0.1:{port}", token, path=STREAM_PATH)
    return LiveStream(address, options, wait_s=wait_s, on_lost=lost.append)


async def collected(stream: LiveStream) -> list[Event]:
    return [event async for batch in stream.events() for event in batch]


@pytest.mark.parametrize(
    ("tag", "code"),
    [("en-US", "en"), ("nb", "no"), ("German", "de"), ("zh_Hant", "zh"), ("multi", "auto"), (None, None)],
)
async def test_languages_are_those_of_whisper(tag: str | None, code: str | None) -> None:
    async with serving() as running:
        stream = opened(running.port, [], language=tag)
        events = asyncio.create_task(collected(stream))
        first = await running.streams.first()
        assert (first.start.language, first.start.min_silence_s) == (code, module.SILENCE_S)
        stream.change({"language": tag, "min_silence_s": 1.0})
        stream.finish()
        await within(events)
        assert (first.options.language, first.options.min_silence_s) == (code, 1.0)


async def test_audio_of_any_format_becomes_16_khz_mono_and_may_change() -> None:
    async with serving() as running:
        stream = opened(running.port, [])
        stream.audio(TONE.tobytes(), 16_000, 1)
        stream.audio(np.repeat(TONE, 2).tobytes(), 16_000, 2)
        stream.flush()
        stream.audio(TONE.tobytes(), 48_000, 1)
        stream.audio(TONE.tobytes(), 16_000, 1)
        with pytest.raises(ProtocolError):
            stream.audio(b"", 16_000, 0)
        stream.finish()
        await within(collected(stream))
        audio = np.frombuffer(bytes(running.streams.opened[0].audio), "<i2")
        assert running.streams.opened[0].commands == [("flush", 4 * 48_000)]
    assert len(audio) == 3 * 48_000 + 16_000
    for first in (0, 48_000, 112_000):
        np.testing.assert_array_equal(audio[first : first + 48_000], TONE)


async def test_what_is_said_while_no_daemon_is_there_is_sent_later() -> None:
    lost: list[str] = []
    port = free_port()
    stream = opened(port, lost)
    events = asyncio.create_task(collected(stream))
    await until(lambda: len(lost) == 1)
    stream.audio(TONE.tobytes(), 16_000, 1)
    async with serving(port=port) as running:
        await heard(await running.streams.first(), len(TONE) * 2)
        stream.finish()
        assert [event.type for event in await within(events)] == ["ready", "final", "end"]
        assert running.streams.opened[0].audio == TONE.tobytes()
    assert len(lost) == 1
    assert "is not there" in lost[0]


async def test_what_waits_is_bounded_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    async with serving() as running:
        stream = opened(running.port, [])
        stream.change({"language": "de"})
        for number in range(30):
            stream.audio(np.full(160, number, "<i2").tobytes(), 16_000, 1)
        stream.finish()
        await within(collected(stream))
        audio = np.frombuffer(bytes(running.streams.opened[0].audio), "<i2")
        assert running.streams.opened[0].commands[0] == ("set", 0)  # a change is not dropped
    assert sorted(set(audio.tolist())) == list(range(21, 30))
    assert len([record for record in caplog.records if "are dropped" in record.message]) == 1


@pytest.mark.parametrize("n_before", [0, 48_000], ids=["before a session", "within a session"])
async def test_times_count_audio_that_was_dropped(monkeypatch: pytest.MonkeyPatch, n_before: int) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    async with serving() as running:
        stream = opened(running.port, [])
        events = asyncio.create_task(collected(stream))
        first = await running.streams.first()
        stream.audio(TONE[:n_before].tobytes(), 16_000, 1)
        await heard(first, 2 * n_before)
        for _ in range(30):
            stream.audio(TONE[:160].tobytes(), 16_000, 1)  # at once, so that 20 of them are dropped
        await heard(first, 2 * (n_before + 10 * 160))
        start_s = n_before / 16_000
        first.log.append(numbered_final(1, "One two.", start=start_s - 0.3 if n_before else 0.0))
        stream.finish()
        said = next(event for event in await within(events) if isinstance(event, Final))
    ends_s = [start_s, start_s + 0.3] if n_before else [0.3, 0.6]
    assert [word.end for word in said.words] == pytest.approx([end_s + 0.2 for end_s in ends_s])
    assert said.start == pytest.approx(start_s - 0.3 if n_before else 0.2)
    assert said.end == said.words[-1].end


async def test_a_session_in_which_nothing_is_said_is_replaced() -> None:
    async with serving() as running:
        stream = opened(running.port, [])
        events = asyncio.create_task(collected(stream))
        first = await running.streams.first()
        stream.audio(TONE.tobytes(), 16_000, 1)
        await heard(first, len(TONE) * 2)
        first.report(Error(code="idle", message="nothing was sent", fatal=True))
        first.log.close()
        await until(lambda: len(running.streams.opened) == 2)
        stream.audio(TONE.tobytes(), 16_000, 1)
        stream.finish()
        *_, said, _ = await within(events)
        assert running.streams.opened[1].audio == TONE.tobytes()
        assert isinstance(said, Final)
        assert said.start == 3.0, "in the times of all the audio"


async def test_a_wrong_token_and_an_absent_daemon_are_one_line() -> None:
    async with serving(token="right" * 4) as running:
        with pytest.raises(PeerError):
            await within(collected(opened(running.port, [], token="wrong" * 4)))
    with pytest.raises(PeerError):
        await within(collected(opened(free_port(), [], wait_s=0.0)))


async def test_a_caller_that_leaves_gives_up_its_session() -> None:
    async with serving() as running:
        stream = opened(running.port, [])
        events = stream.events()
        assert [event.type for event in await within(anext(events))] == ["ready"]
        await within(events.aclose())
        await within(running.streams.opened[0].abandoned.wait())
