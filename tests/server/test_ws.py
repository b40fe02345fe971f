import asyncio
import socket
import struct

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamer.errors import BusyError, InferenceError, UsageError
from streamer.events import Error, Final, Gap, Partial, Speech
from streamer.server.interfaces import StreamStart
from tests.server.support import (
    RecordingStream,
    events_until,
    final,
    next_event,
    opened_log,
    partial,
    serving,
    within,
)


async def closing(client: ClientConnection) -> tuple[int, str]:
    """Read to the end; return the close code and reason that the server gave."""
    while True:
        try:
            await within(client.recv())
        except ConnectionClosed:
            return client.close_code or 0, client.close_reason or ""


async def test_subscribers_get_every_event_and_close_1000_at_the_end() -> None:
    async with serving() as running, running.socket("/v1/captions") as one, running.socket("/v1/captions") as two:
        for client in (one, two):
            assert (await next_event(client)).type == "ready"
        for event in (
            Speech(state="start", time=0.1),
            partial(1, "hello wor", 5),
            final(1, "hello world"),
            Gap(start=1.0, end=2.0, reason="device"),
        ):
            sent = running.log.append(event)
            for client in (one, two):
                assert await next_event(client) == sent
        running.log.close()
        for client in (one, two):
            assert (await next_event(client)).type == "end"
            assert await closing(client) == (1000, "")


async def test_after_replays_what_was_missed_and_goes_on() -> None:
    async with serving() as running:
        for n in range(1, 6):
            running.log.append(final(n, f"number {n}"))
        async with running.socket("/v1/captions?after=4&session=s1") as client:
            assert [(await next_event(client)).seq for _ in range(2)] == [5, 6]
            running.log.append(final(6, "live"))
            assert (await next_event(client)).seq == 7
        async with running.socket("/v1/captions?after=4&session=of-another-run") as client:
            assert [(await next_event(client)).seq for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]
        async with running.socket("/v1/captions") as client:
            assert (await next_event(client)).type == "ready"
            running.log.append(final(7, "live"))
            assert (await next_event(client)).seq == 8


async def test_history_that_is_gone_is_told_to_the_client() -> None:
    async with serving(opened_log(limit=3)) as running:
        for n in range(1, 10):
            running.log.append(final(n, "x"))
        async with running.socket("/v1/captions?after=2") as client:
            event = await next_event(client)
            assert isinstance(event, Error)
            assert (event.code, event.fatal) == ("history_lost", False)
            assert [(await next_event(client)).seq for _ in range(3)] == [8, 9, 10]


def deaf_socket(port: int, path: str) -> socket.socket:
    """Open a WebSocket by hand that reads its handshake and nothing more, with a small receive buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", port))
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode("ascii")
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return sock


async def test_a_subscriber_that_does_not_read_delays_nobody_and_is_closed() -> None:
    long = "word " * 2000
    async with serving(queue_events=20) as running, running.socket("/v1/captions") as reader:
        assert (await next_event(reader)).type == "ready"
        deaf = await asyncio.to_thread(deaf_socket, running.port, "/v1/captions")
        await running.value("streamer_subscribers", {}, 2)
        for n in range(1, 200):
            sent = running.log.append(final(n, long))
            assert await next_event(reader) == sent
            if running.registry.get_sample_value("streamer_subscribers_too_slow_total") == 1:
                break
        await running.value("streamer_subscribers_too_slow_total", {}, 1)
        running.log.append(final(1000, "still here"))
        event = await next_event(reader)
        assert isinstance(event, Final)
        assert event.text == "still here"
        deaf.close()
        await running.value("streamer_subscribers", {}, 1)


async def test_overflow_closes_1013_and_names_the_place_to_come_back_to() -> None:
    async with serving(queue_events=10) as running, running.socket("/v1/captions") as client:
        assert (await next_event(client)).type == "ready"
        for n in range(2, 100):  # all before the server can send one
            running.log.append(final(n, "x"))
        code, reason = await closing(client)
        assert code == 1013
        assert reason == "too slow: 11 events behind, reconnect with ?after=1"
        async with running.socket("/v1/captions?after=1&session=s1") as again:
            assert [(await next_event(again)).seq for _ in range(98)] == list(range(2, 100))


async def test_a_slow_subscriber_skips_partials_and_never_a_final() -> None:
    async with serving(queue_events=50) as running, running.socket("/v1/captions") as client:
        assert (await next_event(client)).type == "ready"
        for segment in range(1, 21):
            for _ in range(50):
                running.log.append(partial(segment, "so far"))
            running.log.append(final(segment, f"number {segment}"))
        running.log.close()
        events = await events_until(client, "end")
        assert [e.segment for e in events if isinstance(e, Final)] == list(range(1, 21))
        assert len([e for e in events if isinstance(e, Partial)]) < 20
        assert [e.seq for e in events] == sorted(e.seq for e in events)
        assert (running.registry.get_sample_value("streamer_partials_superseded_total") or 0) > 900


async def test_what_subscribers_say_is_ignored_within_bounds() -> None:
    async with serving() as running, running.socket("/v1/captions") as client:
        for _ in range(100):
            await client.send("hello")
        assert (await next_event(client)).type == "ready"
        running.log.append(final(1, "x"))
        assert (await next_event(client)).type == "final"
        await client.send(bytes(5000))
        assert (await closing(client))[0] == 1009


async def test_there_is_room_for_so_many_subscribers_only() -> None:
    async with serving(max_subscribers=2) as running:
        async with running.socket("/v1/captions") as one, running.socket("/v1/captions") as two:
            for client in (one, two):
                await next_event(client)
            async with running.socket("/v1/captions") as three:
                code, reason = await closing(three)
                assert code == 1013
                assert "no room" in reason
        await running.value("streamer_subscribers", {}, 0)
        async with running.socket("/v1/captions") as client:
            assert (await next_event(client)).type == "ready"


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
        assert not stream.abandoned.is_set()
        await running.value("streamer_streams", {}, 0)


async def test_start_may_be_left_out() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send(bytes(640))
        await client.send('{"type":"finish"}')
        assert [event.type for event in await events_until(client, "end")] == ["ready", "final", "end"]
        stream = await running.streams.first()
        assert stream.start == StreamStart()
        assert len(stream.audio) == 640


async def test_finish_alone_is_an_empty_session() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send('{"type":"finish"}')
        assert [event.type for event in await events_until(client, "end")] == ["ready", "final", "end"]
        assert await closing(client) == (1000, "")


@pytest.mark.parametrize(
    "bad", ["hello", '{"type":"start"}', "[]", '{"audio":1}', bytes(641)], ids=["text", "start", "list", "key", "odd"]
)
async def test_a_bad_message_ends_the_stream_and_loses_nothing_said_before(bad: str | bytes) -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send(bytes(640))
        await client.send(bad)
        events = await events_until(client, "end")
        assert [event.type for event in events] == ["ready", "error", "final", "end"]
        error, text = events[1], events[2]
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == ("bad_message", True)
        assert "expected" in error.message
        assert isinstance(text, Final)
        assert text.text == "640 bytes"
        assert await closing(client) == (1003, "bad_message")


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


async def test_a_session_that_ends_by_itself_closes_the_connection() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send(bytes(640))
        stream = await running.streams.first()
        stream.report("device", "the device is gone", fatal=True)
        stream.log.close()
        assert [event.type for event in await events_until(client, "end")] == ["ready", "error", "end"]
        assert (await closing(client))[0] == 1011


async def test_a_client_that_vanishes_mid_word_is_abandoned() -> None:
    async with serving() as running:
        client = await running.socket("/v1/stream")
        await client.send(bytes(640))
        stream = await running.streams.first()
        client.transport.abort()
        await within(stream.abandoned.wait())
        await running.value("streamer_streams", {}, 0)


async def test_a_client_that_vanishes_while_its_last_words_are_transcribed_is_abandoned() -> None:
    async with serving() as running:
        client = await running.socket("/v1/stream")
        await client.send(bytes(640))
        stream = await running.streams.first()
        await within(stream.written.wait())
        stream.room.clear()
        await client.send('{"type":"finish"}')
        client.transport.abort()
        await within(stream.abandoned.wait())


async def test_a_client_that_closes_without_finish_is_abandoned() -> None:
    async with serving() as running:
        async with running.socket("/v1/stream") as client:
            await client.send(bytes(640))
            stream = await running.streams.first()
        await within(stream.abandoned.wait())
        assert not stream.finished.is_set()


async def test_a_frame_that_announces_a_gigabyte_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.front.CLOSE_TIMEOUT_S", 0.3)  # the client does not hang up by itself
    async with serving() as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        mask = bytes(4)
        sock.sendall(b"\x82" + bytes([0x80 | 126]) + struct.pack("!H", 640) + mask + bytes(640))
        stream = await running.streams.first()
        await within(stream.written.wait())
        sock.sendall(b"\x82" + bytes([0x80 | 127]) + struct.pack("!Q", 1 << 30) + mask + bytes(1000))
        received = await asyncio.to_thread(_read_to_end, sock)
        assert b"\x88" in received
        assert struct.pack("!H", 1009) in received
        await within(stream.finished.wait())  # what was said before is not lost for the daemon
        assert len(stream.audio) == 640
        sock.close()


def _read_to_end(sock: socket.socket) -> bytes:
    received = b""
    try:
        while data := sock.recv(65_536):
            received += data
    except ConnectionResetError:
        pass
    return received


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


async def test_a_stream_client_that_does_not_read_is_closed_too() -> None:
    async with serving(queue_events=10) as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        sock.sendall(b"\x82" + bytes([0x80 | 126]) + struct.pack("!H", 640) + bytes(4) + bytes(640))
        stream = await running.streams.first()
        for n in range(2000):
            stream.log.append(final(n, "word " * 500))
            await asyncio.sleep(0)
            if running.registry.get_sample_value("streamer_subscribers_too_slow_total") == 1:
                break
        await within(stream.abandoned.wait())
        sock.close()


async def test_a_silent_client_that_answers_pings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.ws.KEEPALIVE_S", 0.1)
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send(bytes(640))
        stream = await running.streams.first()
        await asyncio.sleep(0.6)  # several pings
        await client.send('{"type":"finish"}')
        await events_until(client, "end")
        assert await closing(client) == (1000, "")
        assert len(stream.audio) == 640


async def test_a_silent_client_that_does_not_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.ws.KEEPALIVE_S", 0.1)
    monkeypatch.setattr("streamer.server.ws.CLOSE_TIMEOUT_S", 0.1)
    async with serving() as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        sock.sendall(b"\x82" + bytes([0x80 | 126]) + struct.pack("!H", 640) + bytes(4) + bytes(640))
        stream = await running.streams.first()
        await within(stream.abandoned.wait())
        sock.close()
