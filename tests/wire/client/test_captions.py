"""The client against a small real server: it comes back where it was, and is not fooled."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from ssl import SSLContext

import pytest
from websockets.asyncio.server import ServerConnection, serve, unix_serve

from streamer.client.captions import captions
from streamer.client.connection import DaemonAddress, Place, parse_address
from streamer.errors import PeerError, UsageError
from streamer.events import Edit, End, Error, Event, Revision, Speakers, Translation
from streamer.server.self_signed import renew_self_signed
from streamer.server.tls import Tls
from tests import builders
from tests.waiting import WAIT_S

Handler = Callable[[ServerConnection], Awaitable[None]]


def ready(session: str = "s") -> Event:
    return builders.ready().stamped(1, session)


def final(seq: int, session: str = "s") -> Event:
    return builders.final(f"text {seq}", start=float(seq), segment=seq).stamped(seq, session)


def end(seq: int, session: str = "s") -> Event:
    return End().stamped(seq, session)


@contextlib.asynccontextmanager
async def daemon(*handlers: Handler, ssl: SSLContext | None = None) -> AsyncIterator[tuple[str, list[str]]]:
    """A server whose nth connection is served by the nth handler; gives its HOST:PORT and the paths asked for."""
    paths: list[str] = []
    waiting = list(handlers)

    async def serve_next(connection: ServerConnection) -> None:
        assert connection.request is not None
        paths.append(connection.request.path)
        await waiting.pop(0)(connection)

    async with serve(serve_next, "127.0.0.1", 0, ssl=ssl) as server:
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
    async with asyncio.timeout(WAIT_S):
        events = [event async for event in captions(address, on_notice=notices.append)]
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
        ("https://h", "wss://h/v1/captions", ""),
    ],
)
def test_addresses(text: str, url: str, token: str) -> None:
    assert parse_address(text) == DaemonAddress(url, token)


@pytest.mark.parametrize(
    "text", ["", "::1", "ftp://h", "h:port", "h:99999", "a b", "ws://", "h\n:1", "://", "unix://x", "unix:///a\x1b"]
)
def test_invalid_addresses_are_refused(text: str) -> None:
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


async def test_a_program_ends_that_has_left_its_events_open() -> None:
    async def going_on(connection: ServerConnection) -> None:
        await connection.send(ready().to_json())
        await connection.wait_closed()

    code = "import sys, streamer; events = iter(streamer.listen(sys.argv[1])); print(next(events).type)"
    async with daemon(going_on) as (address, _):
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                [sys.executable, "-c", code, address], capture_output=True, encoding="utf-8", timeout=WAIT_S, check=True
            )
        )
    assert (done.stdout, done.stderr) == ("ready\n", "")


async def test_events_of_a_later_daemon_are_left_out_and_a_normal_close_ends_the_events() -> None:
    async def handler(connection: ServerConnection) -> None:
        for message in (ready().to_json(), '{"type":"applause","seq":2,"session":"s"}', final(3).to_json()):
            await connection.send(message)

    async with daemon(handler) as (address, _):
        assert await received(address) == ([ready(), final(3)], [])


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


async def test_a_daemon_that_is_away_for_long_is_reported_once() -> None:
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
    assert [(event.session, event.seq) for event in events] == [(name, seq) for name in "ab" for seq in (1, 2, 3)]


async def test_no_daemon_is_an_error_that_says_how_to_start_one() -> None:
    async with daemon() as (address, _):
        pass  # the port is free again
    with pytest.raises(PeerError, match=rf"no daemon at ws://{address}/v1/captions .*start one with `streamer run`"):
        await received(address)


@pytest.mark.parametrize(
    "message",
    [
        *("{", "[]", '{"type":7}', '{"type":"final","seq":2}', '{"type":"end","seq":"x"}', b"\x00", "[" * 100_000),
        f'{{"type":"speech","state":"start","time":{10**400}}}',
    ],
)
async def test_a_malformed_event_is_one_line(message: str | bytes) -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.send(ready().to_json())
        await connection.send(message)
        await connection.wait_closed()

    async with daemon(handler) as (address, _):
        with pytest.raises(PeerError, match="sent an invalid event") as caught:
            await received(address)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


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


@contextlib.asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A server that gives each request the same answer; gives its HOST:PORT."""

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve_one, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        *((b"401 X", r"no thanks.*--token"), (b"404 X", "404 .no thanks"), (b"503 X", "no thanks.*start one")),
        (b"200 X", "does not speak|HTTP status 200 .no thanks"),
        *(
            (b"302 Found\r\nLocation: " + to, "ws://127")
            for to in (b"ws://[", b"http://[::1", b"https://h", b"ws://h:99999")
        ),
    ],
)
async def test_a_refusal_is_one_line_with_the_servers_words(status: bytes, words: str) -> None:
    answer = b"HTTP/1.1 " + status + b"\r\nContent-Length: 9\r\nConnection: close\r\n\r\nno\nthanks"
    async with answering(answer) as address:
        with pytest.raises(PeerError, match=words) as caught:
            await received(address)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"220 mail.example ESMTP\r\n", "does not speak WebSocket|closed the connection"),
        (b"x" * (1 << 20), "ws://127"),
        (b"HTTP/1.1 101 x\r\n" + b"A: b\r\n" * 100_000, "ws://127"),
    ],
)
async def test_an_answer_in_another_protocol_or_without_end_is_an_error(answer: bytes, words: str) -> None:
    async with answering(answer) as address:
        with pytest.raises(PeerError, match=words):
            await received(address)


@pytest.fixture
def certificate(tmp_path: Path) -> Tls:
    path = tmp_path / "self-signed.pem"
    renew_self_signed(path)
    return Tls(path, path)


async def test_a_daemon_is_known_by_the_fingerprint_of_its_certificate(certificate: Tls) -> None:
    sent = [ready(), end(2)]
    async with daemon(sending(*sent), sending(*sent), ssl=certificate.context) as (address, _):
        for fingerprint in (certificate.fingerprint, certificate.fingerprint.replace(":", "").lower()):
            found = parse_address(address, fingerprint=fingerprint)
            assert found.url == f"wss://{address}/v1/captions"
            assert await received(found) == (sent, [])


async def test_nothing_is_sent_to_a_server_with_another_certificate(certificate: Tls) -> None:
    async with daemon(ssl=certificate.context) as (address, paths):
        with pytest.raises(PeerError, match=f"another certificate, SHA-256 [0-9a-f]{{64}}: expected {'ab' * 32}"):
            await received(parse_address(address, "secret", "AB" * 32))
        assert paths == []


async def test_an_untrusted_certificate_is_refused_with_a_remedy(certificate: Tls) -> None:
    async with daemon(ssl=certificate.context) as (address, paths):
        with pytest.raises(PeerError, match=r"is not trusted \(.*\).*--fingerprint"):
            await received(f"wss://{address}")
        assert paths == []


async def test_tls_and_no_tls_do_not_understand_each_other_and_say_so(certificate: Tls) -> None:
    async with daemon() as (address, _):
        with pytest.raises(PeerError, match=r"does not speak TLS|it closed the connection"):
            await received(f"wss://{address}")
    async with daemon(ssl=certificate.context) as (address, _):
        with pytest.raises(PeerError, match="no daemon at ws://"):
            await received(address)


@pytest.mark.parametrize(
    ("text", "fingerprint", "said"),
    [
        ("h", "AB:CD", "64 hexadecimal digits"),
        ("h", "xy" * 32, "64 hexadecimal digits"),
        ("ws://h", "ab" * 32, "expected wss://"),
        ("unix:///h", "ab" * 32, "leave it out"),
    ],
)
def test_a_fingerprint_that_is_none_is_refused(text: str, fingerprint: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_address(text, fingerprint=fingerprint)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no Unix sockets for asyncio")
async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "a socket"
    headers: list[str | None] = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        headers.append(connection.request.headers.get("Authorization"))
        await sending(ready(), end(2))(connection)

    async with unix_serve(handler, str(path)):
        found = parse_address(f"unix://{path}", "secret")
        assert await received(found) == ([ready(), end(2)], [])
    assert headers == ["Bearer secret"]
    with pytest.raises(PeerError, match=f"no daemon at unix://{path}"):
        await received(found)


async def test_a_daemon_cannot_fill_the_memory() -> None:
    async def too_long(connection: ServerConnection) -> None:
        await connection.send("x" * (1 << 20) + "x")

    async def nothings() -> AsyncIterator[str]:
        while True:
            yield ""
            await asyncio.sleep(0)

    async def fragments(connection: ServerConnection) -> None:
        with contextlib.suppress(Exception):
            await connection.send(nothings())

    for handler in (too_long, fragments):
        async with daemon(handler) as (address, _):
            with pytest.raises(PeerError, match="closed the connection"):
                await received(address)


async def test_what_is_not_shown_yet_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.client.connection.CLOSE_TIMEOUT_S", 0.1)
    sent = 0

    async def flood(connection: ServerConnection) -> None:
        nonlocal sent
        text = final(2).to_json().ljust(200_000)
        with contextlib.suppress(Exception):
            while True:
                await connection.send(text)
                sent += 1

    async with (
        daemon(flood) as (address, _),
        contextlib.aclosing(captions(parse_address(address), on_notice=print)) as events,
    ):
        await anext(events)
        before = -1
        while sent > before:  # until nothing more is taken
            before = sent
            await asyncio.sleep(0.1)
        assert sent * 200_000 < 16e6


async def test_what_is_learnt_later_comes_as_events_of_its_own() -> None:
    words = builders.words("Text", 2.0)
    learnt: list[Event] = [
        Revision(of=2, by="glossary", text="Text", words=words, edits=(Edit(start=0, end=6, text="Text"),)),
        Speakers(same=("S3", "S1")),
        Translation(of=2, text="Text zwei", language="de"),
    ]
    events = [ready(), final(2), *(event.stamped(seq, "s") for seq, event in enumerate(learnt, 3)), end(6)]
    async with daemon(sending(*events)) as (address, _):
        assert (await received(address))[0] == events


def test_what_a_gateway_says_in_between_is_no_repetition() -> None:
    place = Place()
    waiting = Error(code="waiting", message="wait", fatal=False)
    moved = [
        place.moved(event.stamped(seq, "s1")) for event, seq in ((waiting, 1), (End(), 2), (End(), 2), (waiting, 2))
    ]
    assert moved == [True, True, False, True]
    assert not place.moved(waiting.stamped(1, "s1"))
    assert (place.session, place.seq) == ("s1", 2)
