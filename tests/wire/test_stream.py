"""Connections of /v1/stream: what becomes of a stream if its client vanishes, is slow, or comes back."""

import asyncio
import contextlib
import json
import logging
import struct

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from streamer.errors import BusyError, InferenceError
from streamer.events import Error, Resumed
from tests.builders import final
from tests.wire.harness import (
    SESSION,
    ListeningStream,
    RecordingStream,
    Running,
    closing,
    deaf_socket,
    events_until,
    next_event,
    serving,
    streams_to,
    vanish,
    within,
)

FINISH = '{"type":"finish"}'


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 0.1 s for answers to closes."""
    monkeypatch.setattr("streamer.server.connection.CLOSE_TIMEOUT_S", 0.1)


def without_room(stream: RecordingStream) -> None:
    stream.room.clear()


async def deaf(running: Running, message: bytes | str) -> tuple[contextlib.closing, RecordingStream]:  # type: ignore[type-arg]
    """Open a stream by hand, whose client sends a message and reads nothing."""
    sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
    data = message.encode("utf-8") if isinstance(message, str) else message
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack("!H", len(data))
    sock.sendall((b"\x81" if isinstance(message, str) else b"\x82") + length + bytes(4) + data)
    return contextlib.closing(sock), await running.streams.first()


async def test_the_reason_of_a_close_is_cut_to_what_a_frame_holds() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        running.streams.refusal = BusyError("ü" * 100)
        await client.send(bytes(640))
        assert await closing(client) == (1013, "busy: " + "ü" * 58)


@pytest.mark.parametrize(
    ("failure", "code"), [(InferenceError("the device is gone"), "device"), (RuntimeError("a bug"), "internal")]
)
async def test_a_failure_of_the_daemon_closes_1011(failure: Exception, code: str) -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        running.streams.prepare = lambda stream: setattr(stream, "failure", failure)
        await client.send(bytes(640))
        error = (await events_until(client, "error"))[-1]
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == (code, True)
        assert await closing(client) == (1011, code)


@pytest.mark.parametrize(("code", "n_idle"), [("device", None), ("idle", 1)])
async def test_sessions_that_end_for_want_of_audio_are_counted(code: str, n_idle: int | None) -> None:
    async with serving() as running, running.streaming() as (client, stream):
        stream.report(Error(code=code, message="it ends", fatal=True))
        stream.log.close()
        await closing(client)
        assert running.registry.get_sample_value("streamer_refusals_total", {"reason": "idle"}) == n_idle


# --- Whether a stream is kept for its client --------------------------------------------------------------------------


async def test_a_client_that_closes_without_a_code_as_a_browser_does_is_abandoned() -> None:
    async with serving() as running, running.streaming() as (client, stream):
        client.transport.write(b"\x88\x80" + bytes(4))
        await closing(client)
        await within(stream.abandoned.wait())
        assert not stream.finished.is_set()
        assert not stream.kept.is_set()


async def test_a_client_that_has_everything_is_not_kept() -> None:
    async with serving() as running, running.streaming() as (client, stream):
        await client.send(FINISH)
        assert await closing(client) == (1000, "")
        await within(stream.abandoned.wait())
        assert not stream.kept.is_set()
        await running.value("streamer_streams", {}, 0)


@pytest.mark.parametrize("leaves", ["vanishes", "sends too much"])
async def test_a_client_that_did_not_mean_to_leave_is_kept(leaves: str) -> None:
    async with serving() as running, running.streaming() as (client, stream):
        if leaves == "vanishes":
            await vanish(client, stream)
        else:
            with contextlib.suppress(ConnectionClosed):
                await client.send(bytes(2**20 + 1))
            assert (await closing(client))[0] == 1009
        await within(stream.kept.wait())
        await running.value("streamer_streams", {}, 0)
        assert (len(stream.audio), stream.abandoned.is_set()) == (640, False)


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_does_not_answer_the_close_is_kept() -> None:
    async with serving() as running:
        sock, stream = await deaf(running, FINISH)
        with sock:
            await within(stream.kept.wait())
            assert stream.log.closed


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_does_not_read_is_closed_and_kept() -> None:
    async with serving(queue_events=10) as running:
        sock, stream = await deaf(running, bytes(640))
        with sock:
            for n in range(2000):
                stream.log.append(final("word " * 500, segment=n, words=()))
                await asyncio.sleep(0)
                if running.registry.get_sample_value("streamer_subscribers_too_slow_total") == 1:
                    break
            await within(stream.kept.wait())


@pytest.mark.usefixtures("impatient")
async def test_a_silent_client_that_answers_no_ping_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 0.1)
    async with serving() as running:
        sock, stream = await deaf(running, bytes(640))
        with sock:
            await within(stream.kept.wait())


@pytest.mark.slow
async def test_a_silent_client_that_answers_pings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 1.0)
    async with serving() as running, running.streaming() as (client, _):
        await asyncio.sleep(4.0)  # a ping, and the time for its answer
        await client.send(FINISH)
        assert await closing(client) == (1000, "")


def outliving(stream: RecordingStream) -> None:
    stream.outlives = True
    stream.room.clear()


@pytest.mark.parametrize("message", [bytes(640), FINISH], ids=["speaking", "finishing"])
async def test_a_stream_that_outlives_the_daemon_is_left_for_another(message: bytes | str) -> None:
    async with serving() as running:
        running.streams.prepare = outliving
        client = await running.socket("/v1/stream")
        await client.send(message)
        stream = await running.streams.first()
        await next_event(client)
        stopping = asyncio.create_task(running.server.stop())
        code, reason = await closing(client)
        assert (code, f"session={stream.log.session}, after=1" in reason) == (1001, True)
        await within(stream.kept.wait())
        assert not stream.finished.is_set()
        assert not stream.log.closed
        await within(stopping)


# --- Audio faster than the daemon -------------------------------------------------------------------------------------


async def test_a_client_faster_than_the_daemon_is_held_back() -> None:
    frame, n_frames, n_sent = bytes(2**20), 64, 0
    async with serving() as running, running.socket("/v1/stream") as client:
        running.streams.prepare = without_room

        async def send_all() -> None:
            nonlocal n_sent
            for _ in range(n_frames):
                await client.send(frame)
                n_sent += 1
            await client.send(FINISH)

        sending = asyncio.create_task(send_all())
        stream = await running.streams.first()
        steady = -1
        while n_sent != steady:  # until the client can send no more
            steady = n_sent
            await asyncio.sleep(0.3)
        assert n_sent < n_frames
        assert len(stream.audio) == 0
        stream.room.set()
        await within(sending)
        await events_until(client, "end")
        assert len(stream.audio) == n_frames * len(frame)


@pytest.mark.slow
async def test_a_client_that_is_held_back_is_not_closed_for_its_late_pong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 2.0)
    async with serving() as running:
        running.streams.prepare = without_room
        async with running.socket("/v1/stream") as client:
            for _ in range(20):
                await client.send(bytes(2**16))
            await client.send(FINISH)
            stream = await running.streams.first()
            await asyncio.sleep(5.0)  # a ping, and more than the time for its answer
            stream.room.set()
            assert await closing(client) == (1000, "")
        assert len(stream.audio) == 20 * 2**16


# --- Another connection to the same stream ----------------------------------------------------------------------------


async def test_a_new_connection_takes_the_stream_from_one_that_hangs() -> None:
    async with serving() as running, running.streaming() as (old, stream):
        async with running.resuming(1) as new:
            assert (await next_event(new)).type == "resumed"
            assert await closing(old) == (4000, "resumed elsewhere")
            await new.send(FINISH)
            await events_until(new, "end")
        assert not stream.kept.is_set()


async def test_what_was_not_taken_in_before_a_cut_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon still waits for room when the connection is replaced."""
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    listening = ListeningStream(capacity_samples=1000)
    async with serving(streams=streams_to(listening)) as running, running.socket("/v1/stream") as old:
        await old.send(np.arange(3000, dtype="<i2").tobytes()[:-1])
        await within(listening.first_write.wait())
        async with running.resuming(None, listening.log.session) as new:
            resumed = await next_event(new)
            assert isinstance(resumed, Resumed)
            # What there was room for: otherwise a client that is cut again and again would fill the memory.
            assert 400 <= resumed.heard_samples <= 1000
            await new.send(np.arange(resumed.heard_samples, 3100, dtype="<i2").tobytes())
            await new.send(FINISH)
            listening.start()
            await events_until(new, "end")
    assert np.array_equal(listening.received(), np.arange(3100))


async def test_an_old_connection_may_close_after_the_new_one(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running, running.streaming() as (old, _):
        old.transport.pause_reading()  # it does not answer that it is closed
        async with running.resuming(0) as new:
            await new.send(FINISH)
            assert (await closing(new))[0] == 1000
        old.transport.abort()
        await running.value("streamer_streams", {}, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


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
        with contextlib.suppress(ConnectionClosed):  # if there is no such session
            await client.send(first)
        await within(running.streams.called.wait())
        assert running.streams.tenants == ["default"]
        await client.close()
