import asyncio
import contextlib
import json
import logging
import struct

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from streamer.errors import BusyError, ConfigError, InferenceError, UsageError
from streamer.events import Error, Final, Resumed
from streamer.protocols.native import StreamStart
from streamer.protocols.stream import MAX_BAD_MESSAGES
from tests.wire.engine import ListeningSession, streams_to
from tests.wire.support import (
    SESSION,
    RecordingStream,
    closing,
    deaf_socket,
    events_until,
    final,
    next_event,
    serving,
    vanish,
    within,
)


async def test_a_stream_takes_start_audio_and_finish() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send('{"type":"start","format":"f32le","sample_rate":48000}')
        assert (await next_event(client)).type == "ready"
        for _ in range(10):
            await client.send(b"\x01\x02" * 160)
        await client.send('{"type":"finish"}')
        events = await events_until(client, "end")
        assert await closing(client) == (1000, "")
        assert isinstance(events[0], Final)
        assert events[0].text == "3200 bytes"
        stream = await running.streams.first()
        assert stream.start == StreamStart(format="f32le", sample_rate=48_000)
        assert stream.audio == b"\x01\x02" * 1600
        await running.value("streamer_streams", {}, 0)


@pytest.mark.parametrize("n_bytes", [0, 640])
async def test_start_may_be_left_out(n_bytes: int) -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        if n_bytes:
            await client.send(bytes(n_bytes))
        await client.send('{"type":"finish"}')
        assert [event.type for event in await events_until(client, "end")] == ["ready", "final", "end"]
        assert await closing(client) == (1000, "")
        stream = await running.streams.first()
        assert (stream.start, len(stream.audio)) == (StreamStart(), n_bytes)


@pytest.mark.parametrize(
    "bad",
    ["hello", '{"type":"start"}', "[]", '{"audio":1}', '{"type":"set","pace":1}', '{"type":"resume","session":"x"}'],
)
async def test_a_bad_message_is_told_and_the_stream_goes_on(bad: str) -> None:
    async with serving() as running, running.streaming() as (client, _):
        await client.send(bad)
        error = await next_event(client)
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == ("bad_message", False)
        assert "expected" in error.message
        await client.send(bytes(640))
        await client.send('{"type":"finish"}')
        text, end = await events_until(client, "end")
        assert isinstance(text, Final)
        assert (text.text, end.type) == ("1280 bytes", "end")
        assert await closing(client) == (1000, "")


async def test_a_flood_of_bad_messages_ends_the_stream_and_loses_nothing_said_before() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send(bytes(640))
        for _ in range(MAX_BAD_MESSAGES):
            await client.send("hello")
        await client.send(bytes(640))  # too late
        events = await events_until(client, "end")
        errors = [event for event in events if isinstance(event, Error)]
        assert [error.fatal for error in errors] == [False] * (MAX_BAD_MESSAGES - 1) + [True]
        text = events[-2]
        assert isinstance(text, Final)
        assert text.text == "640 bytes"
        assert await closing(client) == (1003, "bad_message")


async def test_commands_come_between_the_audio_where_they_were_sent() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        for i, kind in enumerate(("flush", "pause", "resume", "clear"), 1):
            await client.send(bytes(2 * i))
            await client.send(json.dumps({"type": kind}))
        await client.send('{"type":"set","pace_s":2,"hotwords":["NPU"]}')
        await client.send('{"type":"set","hotwords":null}')
        await client.send('{"type":"finish"}')
        await events_until(client, "end")
        stream = await running.streams.first()
        expected = [("flush", 2), ("pause", 6), ("resume", 12), ("clear", 20), ("set", 20), ("set", 20)]
        assert stream.commands == expected
        assert stream.options == StreamStart(pace_s=2)


async def test_a_command_may_be_the_first_message() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send('{"type":"resume"}')  # the command, not the message that comes back to a session
        stream = await running.streams.first()
        await within(stream.written.wait())
        assert (stream.start, stream.commands) == (StreamStart(), [("resume", 0)])


async def test_options_that_the_model_cannot_do_are_told_and_change_nothing() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send('{"type":"start","language":"en"}')
        stream = await running.streams.first()
        stream.refusal = ConfigError("the model does not know the language 'xx': expected en")
        await client.send('{"type":"set","language":"xx"}')
        assert (await next_event(client)).type == "ready"
        error = await next_event(client)
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == ("config", False)
        assert stream.options == StreamStart(language="en")


@pytest.mark.parametrize(
    ("first", "refused", "code", "close"),
    [
        ("hello", None, "bad_message", (1008, "bad_message")),
        ('{"type":"start","rate":1}', None, "bad_message", (1008, "bad_message")),
        (
            bytes(640),
            BusyError("4 streams are open: try again later"),
            "busy",
            (1013, "busy: 4 streams are open: try again later"),
        ),
        (bytes(640), BusyError("ü" * 100), "busy", (1013, "busy: " + "ü" * 58)),
        (bytes(640), UsageError("the model knows English only: leave language out"), "usage", (1008, "usage")),
    ],
    ids=["text", "key", "busy", "long reason", "usage"],
)
async def test_a_stream_that_cannot_be_opened_is_told_why(
    first: str | bytes, refused: Exception | None, code: str, close: tuple[int, str]
) -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        running.streams.refusal = refused
        await client.send(first)
        event = await next_event(client)
        assert isinstance(event, Error)
        assert (event.code, event.fatal, event.seq, event.session) == (code, True, 1, "")
        assert await closing(client) == close
        assert not running.streams.opened


@pytest.mark.parametrize(
    ("failure", "code"), [(InferenceError("the device is gone"), "device"), (RuntimeError("a bug"), "internal")]
)
async def test_a_failure_of_the_daemon_closes_1011(failure: Exception, code: str) -> None:
    def prepare(stream: RecordingStream) -> None:
        stream.failure = failure

    async with serving() as running, running.socket("/v1/stream") as client:
        running.streams.prepare = prepare
        await client.send(bytes(640))
        error = (await events_until(client, "error"))[-1]
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == (code, True)
        assert await closing(client) == (1011, code)


@pytest.mark.parametrize(("code", "close"), [("device", (1011, "device")), ("idle", (1008, "idle"))])
async def test_a_session_that_ends_by_itself_closes_the_connection(code: str, close: tuple[int, str]) -> None:
    async with serving() as running, running.streaming() as (client, stream):
        stream.session.report(Error(code=code, message="it ends", fatal=True))
        stream.log.close()
        assert [event.type for event in await events_until(client, "end")] == ["error", "end"]
        assert await closing(client) == close
        refusals = running.registry.get_sample_value("streamer_refusals_total", {"reason": "idle"})
        assert refusals == (1 if code == "idle" else None)


async def test_a_client_that_vanishes_mid_word_is_kept() -> None:
    async with serving() as running, running.streaming() as (client, stream):
        await vanish(client, stream)
        await running.value("streamer_streams", {}, 0)
        assert not stream.abandoned.is_set()


@pytest.mark.parametrize("code", [1000, None])
async def test_a_client_that_closes_without_finish_is_abandoned(code: int | None) -> None:
    async with serving() as running:
        async with running.streaming() as (client, stream):
            if code is None:  # as a browser's close() does
                client.transport.write(b"\x88\x80" + bytes(4))
                await closing(client)
        await within(stream.abandoned.wait())
        assert not stream.finished.is_set()
        assert not stream.kept.is_set()


async def test_a_client_that_goes_away_is_kept() -> None:
    async with serving() as running, running.streaming() as (client, stream):
        await client.close(1001)
        await within(stream.kept.wait())


async def test_a_client_that_has_everything_is_not_kept() -> None:
    async with serving() as running, running.streaming() as (client, stream):
        await client.send('{"type":"finish"}')
        await events_until(client, "end")
        assert await closing(client) == (1000, "")
        await within(stream.abandoned.wait())
        assert not stream.kept.is_set()


async def test_a_client_that_does_not_answer_the_close_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.CLOSE_TIMEOUT_S", 0.1)
    async with serving() as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        finish = b'{"type":"finish"}'
        sock.sendall(b"\x81" + bytes([0x80 | len(finish)]) + bytes(4) + finish)
        stream = await running.streams.first()
        await within(stream.kept.wait())
        assert stream.log.closed
        sock.close()


async def test_a_message_that_is_too_long_closes_the_connection_and_the_stream_is_kept() -> None:
    async with serving() as running, running.streaming() as (client, stream):
        with contextlib.suppress(ConnectionClosed):
            await client.send(bytes(2**20 + 1))
        assert (await closing(client))[0] == 1009
        await within(stream.kept.wait())
        assert len(stream.audio) == 640


async def test_a_client_faster_than_the_daemon_is_held_back() -> None:
    def prepare(stream: RecordingStream) -> None:
        stream.room.clear()

    frame = bytes(2**20)
    n_frames = 64
    async with serving() as running, running.socket("/v1/stream") as client:
        running.streams.prepare = prepare
        n_sent = 0

        async def send_all() -> None:
            nonlocal n_sent
            for _ in range(n_frames):
                await client.send(frame)
                n_sent += 1
            await client.send('{"type":"finish"}')

        sending = asyncio.create_task(send_all())
        stream = await running.streams.first()
        steady = -1
        while n_sent != steady:  # until the client can send no more
            steady = n_sent
            await asyncio.sleep(0.5)
        assert n_sent < n_frames
        assert len(stream.audio) == 0
        stream.room.set()
        await within(sending)
        await events_until(client, "end")
        assert len(stream.audio) == n_frames * len(frame)


async def test_a_client_that_is_held_back_is_not_closed_for_its_late_pong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 2.0)
    async with serving() as running:
        running.streams.prepare = lambda stream: stream.room.clear()
        async with running.socket("/v1/stream") as client:
            for _ in range(20):
                await client.send(bytes(2**16))
            await client.send('{"type":"finish"}')
            stream = await running.streams.first()
            await asyncio.sleep(5.0)  # a ping, and more than the time for its answer
            stream.room.set()
            await events_until(client, "end")
            assert await closing(client) == (1000, "")
        assert len(stream.audio) == 20 * 2**16


async def test_a_stream_client_that_does_not_read_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.CLOSE_TIMEOUT_S", 0.1)
    async with serving(queue_events=10) as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        sock.sendall(b"\x82" + bytes([0x80 | 126]) + struct.pack("!H", 640) + bytes(4) + bytes(640))
        stream = await running.streams.first()
        for n in range(2000):
            stream.log.append(final(n, "word " * 500))
            await asyncio.sleep(0)
            if running.registry.get_sample_value("streamer_subscribers_too_slow_total") == 1:
                break
        await within(stream.kept.wait())
        sock.close()


async def test_a_silent_client_that_answers_pings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 1.0)
    async with serving() as running, running.streaming() as (client, _):
        await asyncio.sleep(4.0)  # a ping, and the time for its answer
        await client.send('{"type":"finish"}')
        await events_until(client, "end")
        assert await closing(client) == (1000, "")


async def test_a_silent_client_that_does_not_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 0.1)
    monkeypatch.setattr("streamer.server.connection.CLOSE_TIMEOUT_S", 0.1)
    async with serving() as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        sock.sendall(b"\x82" + bytes([0x80 | 126]) + struct.pack("!H", 640) + bytes(4) + bytes(640))
        stream = await running.streams.first()
        await within(stream.kept.wait())
        sock.close()


async def test_a_client_comes_back_to_what_it_missed_and_to_where_its_audio_stopped() -> None:
    async with serving() as running, running.streaming() as (first, stream):
        await vanish(first, stream)
        stream.log.append(final(1, "missed"))
        async with running.resuming(1) as client:
            assert await next_event(client) == Resumed(heard_samples=320, seq=1, session=SESSION)
            assert (await next_event(client)).seq == 2
            await client.send(bytes(320))
            await client.send('{"type":"finish"}')
            text, _ = await events_until(client, "end")
            assert isinstance(text, Final)
            assert (text.seq, text.text) == (3, "960 bytes")
            assert await closing(client) == (1000, "")
        await within(stream.abandoned.wait())
        assert len(running.streams.opened) == 1


async def test_the_last_words_can_be_fetched_after_finish() -> None:
    async with serving() as running, running.streaming() as (first, stream):
        stream.room.clear()
        await first.send('{"type":"finish"}')
        await vanish(first, stream)
        assert not stream.abandoned.is_set()
        stream.room.set()
        async with running.resuming(1) as client:
            await client.send('{"type":"finish"}')  # it cannot know that the first one arrived
            assert [event.type for event in await events_until(client, "end")] == ["resumed", "final", "end"]
            assert await closing(client) == (1000, "")


async def test_numbers_that_never_were_bring_everything() -> None:
    async with serving() as running, running.streaming() as (first, stream):
        await vanish(first, stream)
        for after in (99, 0, None):
            async with running.resuming(after) as client:
                found = [(event.type, event.seq) for event in await events_until(client, "ready")]
                assert found == [("resumed", 0), ("ready", 1)]
                client.transport.abort()


async def test_a_session_that_is_not_known_is_refused() -> None:
    async with serving() as running, running.resuming(7, "gone") as client:
        error = await next_event(client)
        assert isinstance(error, Error)
        assert (error.code, error.fatal, error.seq, error.session) == ("unknown_session", True, 1, "")
        assert await closing(client) == (1008, "unknown_session")


async def test_a_new_connection_takes_the_stream_from_one_that_hangs() -> None:
    async with serving() as running, running.streaming() as (old, stream):
        async with running.resuming(1) as new:
            assert (await next_event(new)).type == "resumed"
            assert await closing(old) == (4000, "resumed elsewhere")
            await new.send(bytes(640))
            await new.send('{"type":"finish"}')
            await events_until(new, "end")
        assert len(stream.audio) == 1280
        assert not stream.kept.is_set()


async def test_what_was_not_taken_in_before_a_cut_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon still waits for room when the connection is replaced."""
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    session = ListeningSession(capacity_samples=1000)
    async with serving(streams=streams_to(session)) as running:
        async with running.socket("/v1/stream") as old:
            await old.send(np.arange(3000, dtype="<i2").tobytes()[:-1])
            await within(session.first_write.wait())
            async with running.resuming(None, session.feed.session) as new:
                resumed = await next_event(new)
                assert isinstance(resumed, Resumed)
                # What there was room for; else whoever is cut again and again would fill the memory.
                heard = resumed.heard_samples
                assert 400 <= heard <= 1000
                await new.send(np.arange(heard, 3100, dtype="<i2").tobytes())
                await new.send('{"type":"finish"}')
                session.start()
                await events_until(new, "end")
        assert np.array_equal(session.received(), np.arange(3100))


async def test_an_old_connection_may_close_after_the_new_one(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running, running.streaming() as (old, _):
        old.transport.pause_reading()  # it does not answer that it is closed
        async with running.resuming(0) as new:
            await new.send('{"type":"finish"}')
            await events_until(new, "end")
            assert (await closing(new))[0] == 1000
            await running.value("streamer_streams", {}, 1)
        old.transport.abort()
        await running.value("streamer_streams", {}, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def outliving(stream: RecordingStream) -> None:
    stream.session.outlives = True
    stream.room.clear()


@pytest.mark.parametrize("finishing", [False, True], ids=["speaking", "finishing"])
async def test_a_stream_that_outlives_the_daemon_is_left_for_another(finishing: bool) -> None:
    async with serving() as running:
        running.streams.prepare = outliving
        client = await running.socket("/v1/stream")
        await client.send(json.dumps({"type": "finish"}) if finishing else bytes(640))
        stream = await running.streams.first()
        await next_event(client)
        stopping = asyncio.create_task(running.server.stop())
        code, reason = await closing(client)
        assert (code, f"session={stream.log.session}, after=1" in reason) == (1001, True)
        await within(stream.kept.wait())
        assert not stream.finished.is_set()
        assert not stream.log.closed
        await within(stopping)


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("/v1/stream", bytes(640)),
        ("/v1/stream", json.dumps({"type": "resume", "session": SESSION, "after": 0})),
        ("/v1/listen?encoding=linear16&sample_rate=16000", bytes(640)),
    ],
)
async def test_a_stream_is_for_who_showed_a_token(path: str, first: str | bytes) -> None:
    token = "x" * 16
    async with serving(token=token) as running:
        client = await running.socket(path, additional_headers={"Authorization": f"Bearer {token}"})
        with contextlib.suppress(ConnectionClosed):  # where there is no such session
            await client.send(first)
        await within(running.streams.called.wait())
        assert running.streams.tenants == ["default"]
        await client.close()
