"""Audio through a daemon that goes away in the middle: nothing is lost, and nothing comes twice."""

import asyncio
import json
import queue
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile
from websockets.asyncio.server import ServerConnection

from streamer.client import stream as module
from streamer.client.stream import Item, Sent, stream
from streamer.errors import (
    BusyError,
    ConfigError,
    IdleError,
    PeerError,
    ProtocolError,
    StreamerError,
    UnknownSessionError,
    UsageError,
)
from streamer.events import End, Error, Event, Final, Ready, Resumed
from tests.cutting import cutting
from tests.daemon import free_port
from tests.waiting import WAIT_S, until
from tests.wire.client.test_captions import daemon, ready, sending
from tests.wire.client.test_captions import final as said
from tests.wire.support import RecordingStream, Running, final, heard, serving, within

NOISE = np.random.default_rng(0).integers(-3000, 3000, 48_000, dtype=np.int16)  # three seconds
BLOCKS = [NOISE[first : first + 1600] for first in range(0, len(NOISE), 1600)]


def host(running: Running) -> str:
    return f"127.0.0.1:{running.port}"


async def collected(events: AsyncIterator[Event] | Any) -> list[Event]:  # noqa: ANN401 - Events
    async with asyncio.timeout(WAIT_S):
        return [event async for event in events]


async def test_audio_goes_out_and_events_come_back() -> None:
    async with serving() as running:
        events = await collected(stream(NOISE, host(running), language="de", hotwords=["Ötzi"]))
        heard = running.streams.opened[0]
    assert heard.audio == NOISE.tobytes()
    assert (heard.start.language, heard.start.hotwords, heard.start.sample_rate) == ("de", ("Ötzi",), 16_000)
    assert [event.type for event in events] == ["ready", "final", "end"]
    assert isinstance(events[1], Final)
    assert events[1].text == "96000 bytes"


async def async_blocks() -> AsyncIterator[Item]:
    for block in BLOCKS:
        await asyncio.sleep(0)
        yield block


def stereo() -> Any:  # noqa: ANN401 - an array
    return np.stack([NOISE, NOISE], axis=1)


@pytest.mark.parametrize(
    ("audio", "arguments"),
    [
        *((BLOCKS, {}), (async_blocks(), {}), (iter(BLOCKS), {}), (NOISE.tobytes(), {}), (NOISE[:, None], {})),
        *((bytearray(NOISE.tobytes()), {}), (NOISE / np.float32(32768), {}), (NOISE, {"format": "f32le"})),
        ([NOISE.tobytes()[:1001], memoryview(NOISE.tobytes())[1001:]], {}),
        (NOISE.astype(np.float64) / 32768, {"format": "f32le"}),
    ],
)
async def test_what_audio_may_be(audio: Any, arguments: Any) -> None:  # noqa: ANN401
    async with serving() as running:
        await collected(stream(audio, host(running), **arguments))
        heard = running.streams.opened[0]
    samples = np.frombuffer(bytes(heard.audio), "<f4" if arguments else "<i2")
    np.testing.assert_array_equal(samples * (32768 if arguments else 1), NOISE)


async def test_channels_and_a_file(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", NOISE, 16_000)
    async with serving() as running:
        await collected(stream(stereo(), host(running), sample_rate=48_000))
        await collected(stream(tmp_path / "a.wav", host(running)))
        two, file = running.streams.opened
    assert (two.start.channels, two.start.sample_rate) == (2, 48_000)
    assert bytes(two.audio) == stereo().tobytes()
    assert (file.start.channels, file.start.sample_rate) == (1, 16_000)
    assert bytes(file.audio) == NOISE.tobytes()


@pytest.mark.parametrize("item", [3, NOISE.astype(np.int32), NOISE.reshape(2, 2, -1), NOISE.reshape(-1, 3), "stop"])
async def test_invalid_audio_is_refused(item: Any) -> None:  # noqa: ANN401
    async with serving() as running:
        with pytest.raises(UsageError, match="expected"):
            await collected(stream([NOISE, item], host(running)))
        await within(running.streams.opened[0].abandoned.wait())


async def test_what_the_audio_raises_is_raised() -> None:
    def broken() -> Iterator[Item]:
        yield NOISE
        raise ZeroDivisionError

    async with serving() as running:
        with pytest.raises(ZeroDivisionError):
            await collected(stream(broken(), host(running)))
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(list, stream(broken(), host(running)))


def test_wrong_formats_are_refused_at_once() -> None:
    with pytest.raises(ProtocolError, match="expected s16le or f32le"):
        stream(b"", format="mp3")  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="positive"):
        stream(b"", sample_rate=0)
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        stream(b"", "ftp://h")


COMMANDS: list[Any] = [
    *(*BLOCKS[:3], "flush", BLOCKS[3], "pause", BLOCKS[4], {"language": "de"}, "resume", *BLOCKS[5:], "clear"),
]
COMMANDS_AT = [("flush", 9600), ("pause", 12800), ("set", 16000), ("resume", 16000), ("clear", 96000)]


async def test_commands_stand_where_they_were_given() -> None:
    async with serving() as running:
        await collected(stream(COMMANDS, host(running)))
        heard = running.streams.opened[0]
    assert heard.commands == COMMANDS_AT
    assert heard.options.language == "de"


@pytest.mark.parametrize("seed", range(3))
async def test_cut_connections_lose_nothing_and_double_nothing(seed: int) -> None:
    chance = np.random.default_rng(seed)

    def prepare(opened: RecordingStream) -> None:
        for number in range(1, 4):
            opened.log.append(final(number, f"text {number}", start=float(number)))

    budgets = [int(n) for n in chance.integers(600, 40_000, 8)]
    notices: list[str] = []
    async with serving() as running:
        running.streams.prepare = prepare
        async with cutting(running.port, *budgets) as proxy:
            events = await collected(stream(COMMANDS, f"127.0.0.1:{proxy.port}", on_notice=notices.append))
        # One that breaks before its name was received cannot be resumed: it has not been heard of, either.
        heard = running.streams.opened[-1]
    assert heard.audio == NOISE.tobytes()
    assert list(dict.fromkeys(heard.commands)) == COMMANDS_AT
    assert [e.text for e in events if isinstance(e, Final)] == ["text 1", "text 2", "text 3", "96000 bytes"]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert any("is back" in notice for notice in notices)


async def test_a_daemon_that_forgot_the_session_begins_another_behind_the_last_final() -> None:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in ({"language": "de"}, NOISE[:32_000].tobytes(), "pause"):
        waiting.put(item)
    async with serving() as running:
        events = aiter(stream(iter(waiting.get, None), host(running), task="translate"))
        assert isinstance(await within(anext(events)), Ready)
        old = running.streams.opened[0]
        while not old.commands or old.commands[-1][0] != "pause":
            old.written.clear()
            await within(old.written.wait())
        old.log.append(msgspec.structs.replace(final(1, "heard"), end=1.0))
        assert isinstance(await within(anext(events)), Final)
        port = running.port
        old.room.clear()  # what was said behind that is never final
        await running.server.stop(timeout_s=0.1)
    waiting.put(NOISE[32_000:].tobytes())
    waiting.put(None)
    async with serving(port=port) as running:
        rest = [event async for event in events]
        new = running.streams.opened[0]
    assert (new.start.language, new.start.task) == ("de", "translate")
    assert new.audio == NOISE[16_000:].tobytes()
    assert new.commands == [("pause", 32_000)]
    assert [event.type for event in rest] == ["error", "ready", "final", "end"]
    assert isinstance(rest[2], Final)
    assert rest[2].start == 1.0  # of all the audio


async def test_a_daemon_that_stops_is_given_the_rest_when_it_is_back() -> None:
    def prepare(opened: RecordingStream) -> None:  # the number of samples is not parsed from the message
        opened.session.report = lambda error: opened.log.append(
            msgspec.structs.replace(error, message="stopping in 5 s")
        )

    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting.put(NOISE[:20_000].tobytes())
    async with serving() as running:
        running.streams.prepare = prepare
        events = aiter(stream(iter(waiting.get, None), host(running)))
        await within(anext(events))
        old = running.streams.opened[0]
        await heard(old, 40_000)
        port = running.port
        stopping = asyncio.create_task(running.server.stop(timeout_s=5.0))
        said = [await within(anext(events)) for _ in range(2)]
        assert [event.type for event in said] == ["error", "final"]
        going_on = asyncio.create_task(within(anext(events)))
        await stopping
    waiting.put(NOISE[20_000:].tobytes())
    waiting.put(None)
    async with serving(port=port) as running:
        rest = [await going_on, *[event async for event in events]]
        new = running.streams.opened[0]
    assert new.audio == NOISE[20_000:].tobytes()
    assert [event.type for event in rest] == ["ready", "final", "end"]
    assert isinstance(rest[1], Final)
    assert rest[1].start == 1.25


async def test_a_daemon_that_is_full_holds_the_audio_back() -> None:
    given = 0

    def endless() -> Iterator[Item]:
        nonlocal given
        while True:
            given += 1
            yield bytes(32_000)

    async with serving() as running:
        running.streams.prepare = lambda opened: opened.room.clear()
        events = aiter(stream(endless(), host(running)))
        await within(anext(events))
        before = -1
        while given > before:
            before = given
            await asyncio.sleep(0.1)
        # What may be under way: as much as the client allows, and some that are at hand.
        assert given <= module.PING_S * (module.MAX_PINGS + 1) + 10
        running.streams.opened[0].room.set()
        await within(events.aclose())
        await within(running.streams.opened[0].abandoned.wait())


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (BusyError("4 streams are open"), BusyError),
        (ConfigError("no such language\nat all"), ConfigError),
        (UnknownSessionError("what?"), UnknownSessionError),
        (PeerError("x"), PeerError),
    ],
)
async def test_a_refusal_is_raised_in_the_daemons_words(refusal: StreamerError, kind: type[Exception]) -> None:
    async with serving() as running:
        running.streams.refusal = refusal
        with pytest.raises(kind) as caught:
            await collected(stream(NOISE, host(running)))
        with pytest.raises(kind):
            await asyncio.to_thread(list, stream(NOISE, host(running)))
    assert str(caught.value) == " ".join(str(refusal).split())


async def test_no_daemon_is_one_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(PeerError, match=r"no daemon at .*start one"):
            await collected(stream(NOISE, f"127.0.0.1:{free.getsockname()[1]}"))


async def test_a_daemon_that_is_not_there_or_full_is_waited_for() -> None:
    notices: list[str] = []
    port = free_port()
    events = asyncio.create_task(collected(stream(NOISE, f"127.0.0.1:{port}", wait_s=60, on_notice=notices.append)))
    await until(lambda: len(notices) == 1)
    async with serving(port=port) as running:
        running.streams.refusal = BusyError("4 streams are open")
        await until(lambda: len(running.streams.tenants) > 2)
        running.streams.refusal = None
        assert [event.type for event in await events] == ["ready", "final", "end"]
        assert running.streams.opened[0].audio == NOISE.tobytes()
    assert [notice.partition(" (")[0] for notice in notices] == [
        f"ws://127.0.0.1:{port}/v1/stream is not there",
        f"ws://127.0.0.1:{port}/v1/stream is back",
    ]


async def test_the_wait_for_a_daemon_ends() -> None:
    notices: list[str] = []
    with pytest.raises(PeerError, match=r"no daemon at .*start one"):
        await collected(stream(NOISE, f"127.0.0.1:{free_port()}", wait_s=0.02, on_notice=notices.append))
    assert len(notices) == 1


async def test_options_that_no_daemon_knows_are_refused_in_its_words() -> None:
    async with serving() as running:
        with pytest.raises(ProtocolError, match="unknown key 'colour'"):
            await collected(stream(NOISE, host(running), colour="red"))  # type: ignore[call-arg]


async def test_a_stream_that_fails_yields_the_error_and_raises_it() -> None:
    async with serving() as running:
        events = aiter(stream(iter(queue.SimpleQueue[Any]().get, None), host(running)))
        assert isinstance(await within(anext(events)), Ready)
        opened = running.streams.opened[0]
        opened.log.append(final(1, "said"))
        opened.session.report(Error(code="idle", message="nothing was sent", fatal=True))
        opened.log.close()
        assert [(await within(anext(events))).type for _ in range(2)] == ["final", "error"]
        with pytest.raises(IdleError, match="nothing was sent"):
            await within(anext(events))


async def test_the_same_object_is_read_without_asyncio_and_left_early() -> None:
    async with serving() as running:
        events = stream(NOISE, host(running))

        def read() -> list[str]:
            return [event.type for event in events]

        assert await within(asyncio.to_thread(read)) == ["ready", "final", "end"]

        def leave() -> str:
            for event in stream(iter(queue.SimpleQueue[Any]().get, None), host(running)):
                return event.type
            return ""

        assert await within(asyncio.to_thread(leave)) == "ready"
        await within(running.streams.opened[-1].abandoned.wait())


def test_what_is_kept_is_bounded_and_said_where_it_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_ITEMS", 500)
    sent = Sent({"type": "start", "format": "s16le", "sample_rate": 16_000, "channels": 1}, 2)
    sent.add({"type": "set", "language": "de"})
    sent.add({"type": "pause"})
    for _ in range(2000):
        sent.add(bytes(32_000))
        while sent.take():
            pass
    assert sent.position - sent.first <= module.KEPT_S * 16_000
    sent.rewind(sent.first)
    assert sent.opening() == [
        {"type": "start", "format": "s16le", "sample_rate": 16_000, "channels": 1, "language": "de"},
        {"type": "pause"},
    ]
    for _ in range(2000):  # commands without audio
        sent.add({"type": "flush"})
        while sent.take():
            pass
    sent.rewind(0)
    assert len(list(iter(sent.take, None))) <= 500


def test_commands_are_sent_again_with_the_audio_behind_them() -> None:
    sent = Sent({"type": "start", "sample_rate": 16_000}, 2)
    given: list[Any] = [{"type": "flush"}, b"aabb", {"type": "pause"}, b"ccdd", {"type": "resume"}]
    for item in given:
        sent.add(item)

    def rest() -> list[object]:
        return list(iter(sent.take, None))

    assert rest() == given
    for position, first in ((0, 0), (1, 2), (2, 2), (3, 4), (4, 4), (9, 5)):
        sent.rewind(position)
        again = rest()
        assert b"".join(item for item in again if isinstance(item, bytes)) == b"aabbccdd"[2 * position :]
        assert [item for item in again if isinstance(item, dict)] == [x for x in given[first:] if isinstance(x, dict)]
    sent.rewind(3)
    assert sent.opening() == [{"type": "start", "sample_rate": 16_000}, {"type": "pause"}]


async def test_an_event_that_comes_twice_and_a_second_resumption_are_left_out() -> None:
    again = Resumed(heard_samples=0).stamped(2, "s")
    first = sending(ready(), said(2), close=None)
    messages: list[str | bytes] = []

    async def second(connection: ServerConnection) -> None:
        messages.append(await connection.recv())
        await sending(again, again, said(2), said(3), said(4), End().stamped(5, "s"))(connection)

    async with daemon(first, second) as (address, paths):
        events = await collected(stream(b"", address, on_notice=print))
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    # The name of the session is a secret, and addresses lie in the logs of proxies.
    assert paths == ["/v1/stream", "/v1/stream"]
    assert [json.loads(message) for message in messages] == [{"type": "resume", "session": "s", "after": 2}]
