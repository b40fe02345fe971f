"""What a client does to a connection that no well-meaning one does, by hand and byte for byte."""

import asyncio
import contextlib
import gc
import socket
import struct
import weakref
from collections.abc import Iterator
from typing import Any, cast

import psutil
import pytest

from streamer.server import connection
from tests.builders import final
from tests.waiting import until
from tests.wire.harness import Running, deaf_socket, events_until, next_event, pass_time, serving, within

MASK = bytes(4)
PINGS = (b"\x89\xfd" + MASK + bytes(125)) * 400


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    return bytes([fin << 7 | opcode, 0x80 | len(payload)]) + MASK + payload


async def deaf(running: Running, path: str) -> socket.socket:
    return await asyncio.to_thread(deaf_socket, running.port, path)


async def rest_of(sock: socket.socket) -> bytes:
    """Read until the daemon closes."""
    received = b""
    while piece := await asyncio.to_thread(sock.recv, 65536):
        received += piece
    sock.close()
    return received


def flood(sock: socket.socket, frames: bytes, n_bytes: int) -> None:
    """Send frames over and over until that many bytes went out, or the daemon takes no more for a while."""
    sent = 0
    sock.settimeout(0.5)
    with contextlib.suppress(OSError):
        while sent < n_bytes:
            sent += sock.send(frames)


@pytest.fixture
def _no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    records = caplog.get_records("call")  # without a phase: those of this one
    assert [record.getMessage() for record in records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_client_that_says_no_more_gets_its_answer() -> None:
    async with serving() as running:
        reader, writer = await running.raw()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        writer.write_eof()
        assert (await within(reader.read())).startswith(b"HTTP/1.1 200 ")
        writer.close()


@pytest.mark.usefixtures("_no_errors")
async def test_a_client_that_resets_the_connection_once_it_has_its_answer_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, written = connection.Connection.write, asyncio.Event()
    async with serving() as running:
        with socket.create_connection(("127.0.0.1", running.port)) as client:

            def write_and_reset(self: connection.Connection, data: bytes) -> None:
                write(self, data)
                if data.endswith(b"}\n"):  # the body
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                    written.set()

            monkeypatch.setattr(connection.Connection, "write", write_and_reset)
            client.send(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            await within(written.wait())
            await until(lambda: not running.server.n_connections)


async def test_a_client_that_was_refused_and_leaves_gives_its_place_back_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 3600.0)
    async with serving() as running:
        assert (await running.answer(b"\x00\r\n\r\n")).startswith("HTTP/1.1 400 ")
        await until(lambda: not running.server.n_connections)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
async def test_a_request_that_takes_too_long_is_given_up(begun: bytes) -> None:
    async with serving() as running:
        reader, writer = await running.raw()
        writer.write(begun)
        await until(lambda: running.server.n_connections == 1)
        pass_time(10.1)
        assert (await within(reader.readline())).startswith(b"HTTP/1.1 408 ")
        await running.value("streamer_refusals_total", {"reason": "header_timeout"}, 1)
        # Bytes that drip in do not keep it open.
        writer.write(b"a")
        await within(reader.read())
        pass_time(5.1)
        await until(lambda: not running.server.n_connections)
        writer.close()


async def test_each_part_of_a_body_has_its_time() -> None:
    async with serving(recordings=cast("Any", object())) as running:
        reader, writer = await running.raw()
        part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.ljust(17_000, b"0")
        head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {3 * len(part)}\r\n"
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode())
        for n_parts in range(1, 4):
            writer.write(part)
            await running.value("streamer_received_bytes_total", {}, len(part) * n_parts)
            pass_time(6.0)
        assert (await within(reader.readline())).startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize("n_bytes", [0, 60_000])
async def test_a_client_between_two_requests_is_left_without_a_word(n_bytes: int) -> None:
    async with serving() as running:
        reader, writer = await running.raw()
        head = f"POST /v1/input/flush HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {n_bytes}\r\n\r\n"
        writer.write(head.encode() + b"x" * (n_bytes > 0))
        assert (await within(reader.readline())).startswith(b"HTTP/1.1 200 ")  # no more of a body is waited for
        pass_time(10.1)
        assert (await within(reader.read())).count(b"HTTP/1.1") == 0
        writer.close()


async def test_an_open_websocket_is_not_a_slow_request() -> None:
    async with serving() as running, running.captions() as client:
        pass_time(10.1)
        running.log.append(final("still here"))
        assert (await next_event(client)).type == "final"


@pytest.mark.parametrize("most", [{"max_connections": 2}, {"max_connections_per_address": 2}])
async def test_no_more_connections_than_may_be_are_served(most: dict[str, Any]) -> None:
    async with serving(**most) as running:
        held = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(2)]
        answer = await running.answer(b"")
        assert answer.startswith("HTTP/1.1 503 ")
        assert f"server.{next(iter(most))}" in answer
        await running.value("streamer_refusals_total", {"reason": next(iter(most)).removeprefix("max_")}, 1)
        for sock in held:
            sock.close()
        await until(lambda: not running.server.n_connections)
        assert await running.status("WS /v1/captions") == 101


@pytest.mark.parametrize("n_bytes", [16_000, 17_000])
async def test_a_head_has_16_kib_at_most(n_bytes: int) -> None:
    async with serving() as running:
        assert await running.status("GET /livez", X=n_bytes * "x") == (200 if n_bytes < 16_384 else 431)


async def test_pongs_that_a_client_does_not_read_do_not_pile_up() -> None:
    async with serving() as running:
        sock, process = await deaf(running, "/v1/captions"), psutil.Process()
        before = process.memory_info().rss
        await asyncio.to_thread(flood, sock, PINGS, 20_000_000)
        assert process.memory_info().rss - before < 10_000_000
        sock.close()


async def test_empty_parts_of_a_message_do_not_pile_up() -> None:
    async with serving() as running:
        sock = await deaf(running, "/v1/stream")
        sock.sendall(b"\x02\x80" + MASK)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            await asyncio.to_thread(sock.sendall, (b"\x00\x80" + MASK) * 2_000_000)
        sock.close()


async def test_messages_in_pieces_and_many_small_ones_arrive_whole() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send([b"\1\2"] * 5000)
        for _ in range(1000):
            await client.send([b"\3", b"", b"\4"])
        await client.send(['{"type":', '"finish"}'])
        await events_until(client, "end")
        assert (await running.streams.first()).audio == b"\1\2" * 5000 + b"\3\4" * 1000


BAD_TEXT = frame(1, b"\xff\xfe")


@pytest.mark.usefixtures("_no_errors")
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (BAD_TEXT + frame(8, b"\x03\xe8"), None),  # the client closes: it gets no frame
        (BAD_TEXT + frame(3), 1002),  # no such opcode: the daemon closes
        (BAD_TEXT + frame(9), 1007),  # a ping is answered before
        (BAD_TEXT + BAD_TEXT, 1007),
        (frame(1, b"\xff", fin=False) + frame(0) + frame(8, b"\x03\xe8"), None),
    ],
    ids=["the client closes", "a bad frame", "a ping", "another", "in fragments"],
)
async def test_a_text_that_is_not_utf8_leaves_no_traceback_whatever_follows_it(sent: bytes, code: int | None) -> None:
    async with serving() as running:
        sock = await deaf(running, "/v1/stream")
        sock.sendall(sent)
        assert code is None or struct.pack("!H", code) in await rest_of(sock)
        await asyncio.to_thread(sock.close)
        await until(lambda: not running.server.n_connections)


@pytest.mark.usefixtures("_no_errors")
async def test_a_client_that_does_not_read_its_pongs_gets_its_close_frame() -> None:
    async with serving() as running:
        sock = await deaf(running, "/v1/captions")
        await asyncio.to_thread(flood, sock, PINGS, 3_000_000)
        sock.setblocking(True)
        sending = asyncio.create_task(asyncio.to_thread(sock.sendall, frame(9) + frame(3)))
        received = await rest_of(sock)
        await sending
        assert struct.pack("!H", 1002) in received[-200:]


async def test_a_client_that_vanishes_while_it_is_held_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.server.connection.KEEPALIVE_S", 0.05)
    async with serving() as running:
        running.streams.prepare = lambda stream: stream.room.clear()
        sock = await deaf(running, "/v1/stream")
        sock.sendall((b"\x82\xfe" + struct.pack("!H", 640) + MASK + bytes(640)) * 10)
        stream = await running.streams.first()
        sock.close()
        await within(stream.kept.wait())


async def test_a_client_that_is_held_back_is_not_cut_off_for_its_pongs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as running, running.socket("/v1/stream", ping_interval=None) as client:
        running.streams.prepare = lambda stream: stream.room.clear()
        for _ in range(4):
            await client.send(bytes(640))
        stream = await running.streams.first()
        for _ in range(4):
            pass_time(20.1)
            await asyncio.sleep(0.01)
        stream.room.set()
        await client.send('{"type":"finish"}')
        await events_until(client, "end")


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
        sock = await deaf(running, "/v1/captions")
        await running.value("streamer_subscribers", {}, 1)
        for n in range(300):
            running.log.append(final("word " * 300, segment=n))
        before, sent = -1.0, 0.0
        while sent > before:  # until the client takes no more
            await asyncio.sleep(0.2)
            before, sent = sent, running.count("events_sent_total", type="final") or 0.0
        assert 0 < sent < 30  # the kernel keeps little, too
        sock.close()
