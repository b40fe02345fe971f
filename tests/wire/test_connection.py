"""What a client does to a connection that no well-meaning one does, by hand and byte for byte."""

import asyncio
import contextlib
import gc
import json
import os
import socket
import struct
import weakref
from collections.abc import Iterator

import psutil
import pytest

from streamer.server import connection
from tests.waiting import until
from tests.wire.support import (
    RecordingStream,
    Running,
    deaf_socket,
    events_until,
    final,
    next_event,
    serving,
    within,
)

MASK = bytes(4)


async def talk(running: Running, request: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes, and return all that comes until the daemon closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(request)
    if half_close:
        writer.write_eof()
    answer = await within(reader.read())
    writer.close()
    return answer


@contextlib.contextmanager
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_client_that_says_no_more_gets_its_answer() -> None:
    async with serving() as running:
        head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        assert (await talk(running, head, half_close=True)).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_was_refused_and_leaves_gives_its_place_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 600.0)
    async with serving() as running:
        await talk(running, b"\x00\r\n\r\n")  # it closes when it has read the answer
        await until(lambda: not running.server.n_connections)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
async def test_a_request_that_takes_too_long_is_given_up(begun: bytes) -> None:
    async with serving(header_timeout_s=0.1) as running:
        answer = await talk(running, begun)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert "server.header_timeout_s" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        await running.value("streamer_refusals_total", {"reason": "header_timeout"}, 1)
        # Dripping bytes do not keep it open.
        _, writer = await asyncio.open_connection("127.0.0.1", running.port)
        with contextlib.suppress(ConnectionError):
            while not writer.transport.is_closing():
                writer.write(b"a")
                await within(writer.drain())
                await asyncio.sleep(0.02)
        writer.close()


async def test_a_body_that_takes_too_long_is_given_up() -> None:
    async with serving(header_timeout_s=1.0) as running:
        head = b"POST /v1/input/flush HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\nx"
        assert (await talk(running, head)).startswith(b"HTTP/1.1 200 ")  # nobody waits for it, and it is cut off then


async def test_an_open_websocket_is_no_slow_request() -> None:
    async with serving(header_timeout_s=1.0) as running, running.socket("/v1/captions") as client:
        assert (await next_event(client)).type == "ready"
        await asyncio.sleep(1.1)
        running.log.append(final(1, "still here"))
        assert (await next_event(client)).type == "final"


async def test_there_are_so_many_connections_and_no_more() -> None:
    async with serving(max_connections=3, max_connections_per_address=2) as running:
        held = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(2)]
        answer = await talk(running, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"server.max_connections_per_address" in answer
        await running.value("streamer_refusals_total", {"reason": "connections_per_address"}, 1)
        for sock in held:
            sock.close()
        await until(lambda: not running.server.n_connections)
        async with running.socket("/v1/captions") as client:
            assert (await next_event(client)).type == "ready"


async def test_a_stream_that_says_nothing_gives_its_place_back() -> None:
    async with serving(first_message_s=0.1) as running, running.socket("/v1/stream") as client:
        error = await next_event(client)
        assert (error.type, getattr(error, "code", "")) == ("error", "idle")
        await within(client.wait_closed())
        assert (client.close_code, client.close_reason) == (1008, "idle")


def flood(sock: socket.socket, frames: bytes, n_bytes: int) -> int:
    """Send frames over and over until that many bytes went out, or the daemon takes no more for a while."""
    sent = 0
    sock.settimeout(0.5)
    with contextlib.suppress(OSError):
        while sent < n_bytes:
            sent += sock.send(frames)
    return sent


@pytest.mark.parametrize(
    ("path", "first", "frames"),
    [
        ("/v1/captions", b"", (b"\x89\xfd" + MASK + bytes(125)) * 400),
        ("/v1/stream", b"\x02\x80" + MASK, (b"\x00\x80" + MASK) * 5000),
    ],
    ids=["pongs that nobody reads", "empty fragments"],
)
async def test_what_a_client_sends_for_ever_does_not_pile_up(path: str, first: bytes, frames: bytes) -> None:
    async with serving() as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, path)
        sock.sendall(first)
        process = psutil.Process(os.getpid())
        before = process.memory_info().rss
        await asyncio.to_thread(flood, sock, frames, 40_000_000 if path == "/v1/captions" else 6_000_000)
        assert process.memory_info().rss - before < 10_000_000
        sock.close()


async def test_a_message_in_pieces_arrives_whole() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send([b"\x01\x02" * 5, b"", b"\x03\x04"])
        await client.send(['{"type":', '"finish"}'])
        await events_until(client, "end")
        stream = await running.streams.first()
        assert stream.audio == b"\x01\x02" * 5 + b"\x03\x04"


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    return bytes([fin << 7 | opcode, 0x80 | len(payload)]) + MASK + payload


BAD_TEXT = frame(1, b"\xff\xfe")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (BAD_TEXT + frame(8, b"\x03\xe8"), 1000),  # the client closes
        (BAD_TEXT + frame(3), 1002),  # no such opcode: the daemon closes
        (BAD_TEXT + frame(9), 1007),  # a ping is answered before
        (BAD_TEXT + BAD_TEXT, 1007),
        (frame(1, b"\xff", fin=False) + frame(0) + frame(8, b"\x03\xe8"), 1000),
    ],
    ids=["the client closes", "a bad frame", "a ping", "another", "in fragments"],
)
async def test_a_text_that_is_no_utf8_leaves_no_traceback_whatever_follows_it(
    sent: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    with no_errors(caplog):
        async with serving() as running:
            sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
            sock.sendall(sent)
            received = b""
            while piece := await asyncio.to_thread(sock.recv, 65536):
                received += piece
            sock.close()
            assert struct.pack("!H", code) in received


async def test_a_client_that_does_not_read_its_pongs_gets_its_close_frame(caplog: pytest.LogCaptureFixture) -> None:
    with no_errors(caplog):
        async with serving() as running:
            sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/captions")
            await asyncio.to_thread(flood, sock, (b"\x89\xfd" + MASK + bytes(125)) * 100, 3_000_000)
            sock.setblocking(True)
            sending = asyncio.create_task(asyncio.to_thread(sock.sendall, frame(9) + frame(3)))
            received = b""
            while piece := await asyncio.to_thread(sock.recv, 65536):
                received += piece
            await sending
            sock.close()
            assert struct.pack("!H", 1002) in received[-200:]


async def test_a_client_that_sent_many_small_frames_is_read_from_again() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send([b"\1\2"] * 5000)
        for _ in range(1000):
            await client.send(b"\3\4")
        await client.send('{"type":"finish"}')
        await events_until(client, "end")
        assert len((await running.streams.first()).audio) == 12_000


async def test_a_client_that_vanishes_while_it_is_held_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 0.05)

    def prepare(stream: RecordingStream) -> None:
        stream.room.clear()

    async with serving() as running:
        running.streams.prepare = prepare
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/stream")
        sock.sendall((b"\x82\xfe" + struct.pack("!H", 640) + MASK + bytes(640)) * 10)
        stream = await running.streams.first()
        await asyncio.sleep(0.1)
        sock.close()
        await within(stream.kept.wait())


async def test_a_client_that_vanished_leaves_nothing_behind() -> None:
    async with serving() as running:
        gc.collect()
        gc.disable()
        try:
            client = await running.socket("/v1/stream")
            await client.send(bytes(640))
            assert (await next_event(client)).type == "ready"
            stream = weakref.ref(await running.streams.first())
            client.transport.abort()
            alive = stream()
            assert alive is not None
            await within(alive.kept.wait())
            await running.value("streamer_streams", {}, 0)
            running.streams.opened.clear()
            del alive
            await until(lambda: stream() is None)
        finally:
            gc.enable()


async def test_an_answer_is_sent_however_slowly_it_is_read() -> None:
    """`send` waits for a client that reads slowly, and what waits meanwhile stays small."""
    async with serving(queue_events=100_000) as running:
        sock = await asyncio.to_thread(deaf_socket, running.port, "/v1/captions")
        await running.value("streamer_subscribers", {}, 1)
        for n in range(300):
            running.log.append(final(n, "word " * 300))
        before, sent = -1.0, 0.0
        while sent > before:  # until the client takes no more
            await asyncio.sleep(0.2)
            before, sent = (
                sent,
                running.registry.get_sample_value("streamer_events_sent_total", {"type": "final"}) or 0.0,
            )
        assert 0 < sent < 150
        sock.close()
