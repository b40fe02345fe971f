"""The client against a small real server: it comes back where it was, and is not fooled."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from websockets.asyncio.server import ServerConnection, serve

from streamer.client.captions import DaemonAddress, captions, parse_address
from streamer.errors import PeerError, UsageError
from streamer.events import End, Event, Final, Ready

Handler = Callable[[ServerConnection], Awaitable[None]]


def ready(session: str = "s") -> Event:
    return Ready(model="m", device={}, sample_rate=16000, language="en").stamped(1, session)


def final(seq: int, session: str = "s") -> Event:
    return Final(
        segment=seq,
        start=float(seq),
        end=seq + 0.5,
        text=f" text {seq}",
        words=(),
        language="en",
        no_speech_prob=0.0,
        avg_logprob=0.0,
    ).stamped(seq, session)


def end(seq: int, session: str = "s") -> Event:
    return End().stamped(seq, session)


@contextlib.asynccontextmanager
async def daemon(*handlers: Handler) -> AsyncIterator[tuple[str, list[str]]]:
    """A server whose nth connection is served by the nth handler; gives its HOST:PORT and the paths asked for."""
    paths: list[str] = []
    waiting = list(handlers)

    async def serve_next(connection: ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        await waiting.pop(0)(connection)

    async with serve(serve_next, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"127.0.0.1:{port}", paths


def sending(*events: Event, close: int | None = 1000) -> Handler:
    async def handler(connection: ServerConnection) -> None:
        for event in events:
            await connection.send(event.to_json())
        if close is None:
            connection.transport.abort()
        else:
            await connection.close(close)

    return handler


async def received(address: str | DaemonAddress) -> tuple[list[Event], list[str]]:
    notices: list[str] = []
    if isinstance(address, str):
        address = parse_address(address)
    async with asyncio.timeout(20):
        events = [
            event async for event in captions(address, on_notice=notices.append, first_delay_s=0.01, max_delay_s=0.05)
        ]
    return events, notices


@pytest.mark.parametrize(
    ("text", "url", "token"),
    [
        ("localhost", "ws://localhost:8765/v1/captions", ""),
        ("h:99", "ws://h:99/v1/captions", ""),
        ("http://h/", "ws://h/v1/captions", ""),
        ("https://h:1/x/?token=abc&a=b", "wss://h:1/x/v1/captions?a=b", "abc"),
        ("ws://[::1]:8765/v1/captions", "ws://[::1]:8765/v1/captions", ""),
        ("[::1]", "ws://[::1]:8765/v1/captions", ""),
        ("wss://h?token=a%20b", "wss://h/v1/captions", "a b"),
    ],
)
def test_addresses(text: str, url: str, token: str) -> None:
    assert parse_address(text) == DaemonAddress(url, token)


@pytest.mark.parametrize("text", ["", "::1", "ftp://h", "h:port", "h:99999", "a b", "ws://", "h\n:1", "://"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        parse_address(text)


def test_a_given_token_wins_and_no_message_shows_it() -> None:
    address = parse_address("ws://h/?token=secret1", "secret2")
    assert address.token == "secret2"
    assert "secret" not in repr(address)
    with pytest.raises(UsageError) as caught:
        parse_address("h:port?token=secret1")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        parse_address("h", "secret\n")
    assert "secret" not in str(caught.value)


async def test_events_come_until_end() -> None:
    sent = [ready(), final(2), end(3)]

    async def stay_open(connection: ServerConnection) -> None:
        for event in sent:
            await connection.send(event.to_json())
        await connection.wait_closed()  # `end` suffices

    async with daemon(stay_open) as (address, paths):
        assert await received(address) == (sent, [])
        assert paths == ["/v1/captions"]


async def test_events_of_a_later_daemon_are_left_out() -> None:
    async def handler(connection: ServerConnection) -> None:
        for message in (ready().to_json(), '{"type":"applause","seq":2,"session":"s"}', end(3).to_json()):
            await connection.send(message)

    async with daemon(handler) as (address, _):
        assert await received(address) == ([ready(), end(3)], [])


async def test_a_normal_close_ends_too() -> None:
    async with daemon(sending(ready(), final(2))) as (address, _):
        assert await received(address) == ([ready(), final(2)], [])


@pytest.mark.parametrize("close", [None, 1001, 1011, 1013])
async def test_a_daemon_that_goes_away_is_asked_for_what_was_missed(close: int | None) -> None:
    first = sending(ready(), final(2), close=close)
    second = sending(final(2), final(3), end(4))  # one that was already received, as a careless server sends it
    async with daemon(first, second) as (address, paths):
        events, notices = await received(address)
    assert events == [ready(), final(2), final(3), end(4)]
    assert paths == ["/v1/captions", "/v1/captions?after=2&session=s"]
    assert len(notices) == 2
    assert "went away" in notices[0]
    assert "is back" in notices[1]


async def test_a_daemon_that_is_away_for_long_is_told_once() -> None:
    away = asyncio.Event()

    async def leave(connection: ServerConnection) -> None:
        await connection.send(ready().to_json())
        connection.transport.abort()
        away.set()

    async with daemon(leave) as (address, _):
        receiving = asyncio.create_task(received(address))
        await away.wait()
    await asyncio.sleep(0.2)  # several attempts fail
    port = int(address.rpartition(":")[2])

    async with serve(sending(final(2), end(3)), "127.0.0.1", port):
        events, notices = await receiving
    assert events == [ready(), final(2), end(3)]
    assert len(notices) == 2


async def test_a_daemon_that_was_restarted_is_followed_into_its_new_session() -> None:
    first = sending(ready("a"), final(2, "a"), final(3, "a"), close=None)
    second = sending(ready("b"), final(2, "b"), end(3, "b"))
    async with daemon(first, second) as (address, _):
        events, _ = await received(address)
    assert [(event.session, event.seq) for event in events] == [
        ("a", 1),
        ("a", 2),
        ("a", 3),
        ("b", 1),
        ("b", 2),
        ("b", 3),
    ]


async def test_no_daemon_is_an_error_that_says_how_to_start_one() -> None:
    async with daemon() as (address, _):
        pass  # the port is free again
    with pytest.raises(PeerError, match=rf"no daemon at ws://{address}/v1/captions .*start one with `streamer run`"):
        await received(address)


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[]",
        '{"type":7}',
        '{"type":"final","seq":2}',
        '{"type":"end","seq":"x"}',
        b"\x00",
        "[" * 100_000,
        f'{{"type":"speech","state":"start","time":{10**400}}}',
    ],
)
async def test_a_malformed_event_is_one_line(message: str | bytes) -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.send(ready().to_json())
        await connection.send(message)
        await connection.wait_closed()

    async with daemon(handler) as (address, _):
        with pytest.raises(PeerError, match="sent what is no event") as caught:
            await received(address)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


async def test_an_endless_message_is_refused_and_not_asked_for_again() -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.send("x" * (2 << 20))
        await connection.wait_closed()

    async with daemon(handler) as (address, _):
        with pytest.raises(PeerError, match="closed the connection"):
            await received(address)


async def test_the_token_goes_in_a_header() -> None:
    seen: list[str | None] = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization"))
        await connection.send(end(1).to_json())

    async with daemon(handler) as (address, paths):
        await received(parse_address(f"{address}?token=abc"))
        assert seen == ["Bearer abc"]
        assert paths == ["/v1/captions"]


@pytest.mark.parametrize(
    ("status", "words"), [(401, "--token"), (404, "404"), (503, "start one"), (200, "does not speak|HTTP status 200")]
)
async def test_a_refusal_is_told_in_the_servers_words(status: int, words: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 9\r\nConnection: close\r\n\r\nno\nthanks" % status)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PeerError, match=words) as caught:
            await received(f"127.0.0.1:{port}")
    assert "no thanks" in str(caught.value)


async def test_a_server_of_another_kind_is_told_apart() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PeerError, match=r"does not speak WebSocket|closed the connection"):
            await received(f"127.0.0.1:{port}")
