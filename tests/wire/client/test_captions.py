"""The client of captions: how it finds its server, and is not fooled by another."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, unix_serve

from streamer.client import connection
from streamer.client.captions import listen
from streamer.client.connection import DaemonAddress, parse_address
from streamer.errors import PeerError
from streamer.events import Event
from streamer.server.self_signed import renew_self_signed
from streamer.server.tls import Tls
from tests.builders import final
from tests.refusals import Refusal, refusals
from tests.waiting import WAIT_S
from tests.wire.client.peers import answering, daemon, sending, session


async def received(address: str | DaemonAddress) -> tuple[list[Event], list[str]]:
    """Return the events, and what the client's user is told."""
    notices: list[str] = []
    async with asyncio.timeout(WAIT_S):
        events = [event async for event in listen(address, on_notice=notices.append)]
    return events, notices


async def refused(address: str | DaemonAddress) -> str:
    """Return the one line with which the client fails."""
    with pytest.raises(PeerError) as caught:
        await received(address)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "url", "token"),
    [
        ("localhost", "ws://localhost:8765/v1/captions", ""),
        ("h:99", "ws://h:99/v1/captions", ""),
        ("http://h/", "ws://h/v1/captions", ""),
        ("https://h:1/x/?token=abc&a=b", "wss://h:1/x/v1/captions?a=b", "abc"),
        ("ws://[::1]:8765/v1/captions", "ws://[::1]:8765/v1/captions", ""),
        ("ws://h/v1/stream", "ws://h/v1/captions", ""),
        ("[::1]", "ws://[::1]:8765/v1/captions", ""),
        ("wss://h?token=a%20b", "wss://h/v1/captions", "a b"),
        ("https://h", "wss://h/v1/captions", ""),
    ],
)
def test_an_address_may_be_short_and_its_token_is_kept_apart(text: str, url: str, token: str) -> None:
    assert parse_address(text) == DaemonAddress(url, token)
    assert parse_address(text, "other").token == "other"
    assert not token or token not in repr(parse_address(text))


@refusals("client")
def test_what_is_no_address(refusal: Refusal) -> None:
    with refusal.expected():
        parse_address(**refusal.given)
    assert "secret" not in refusal.says


async def test_a_program_ends_that_has_left_its_events_open() -> None:
    code = "import sys, streamer; events = iter(streamer.listen(sys.argv[1])); print(next(events).type)"
    async with daemon(sending(session()[0], close=0)) as (address, _):
        done = await asyncio.to_thread(
            lambda: subprocess.run(
                [sys.executable, "-c", code, address], capture_output=True, encoding="utf-8", timeout=WAIT_S, check=True
            )
        )
    assert (done.stdout, done.stderr) == ("ready\n", "")


async def test_events_of_a_later_daemon_are_left_out_and_only_end_ends_the_events() -> None:
    first, second, end = session()
    unknown = '{"type":"applause","seq":2,"session":"s"}'
    async with daemon(sending(first, unknown, second), sending(end, close=0)) as (address, paths):
        events, notices = await received(address)
    assert (events, len(notices), paths[1:]) == ([first, second, end], 2, ["/v1/captions?after=2&session=s"])


async def test_a_daemon_that_is_away_for_long_is_reported_once() -> None:
    first, *rest = session()
    async with daemon(sending(first, close=None), sending(*rest), n_refused=4) as (address, paths):
        events, notices = await received(address)
    assert (events, len(notices), len(paths)) == (session(), 2, 2)


async def test_no_daemon_is_an_error_that_says_how_to_start_one() -> None:
    async with daemon() as (address, _):
        pass  # the port is free again
    assert "streamer run" in await refused(address)


@pytest.mark.parametrize(
    "message",
    [
        *("{", "[]", '{"type":7}', '{"type":"final","seq":2}', '{"type":"end","seq":"x"}', b"\x00", "[" * 100_000),
        f'{{"type":"speech","state":"start","time":{10**400}}}',
    ],
)
async def test_a_malformed_event_ends_the_events(message: str | bytes) -> None:
    async with daemon(sending(session()[0], message, close=0)) as (address, _):
        assert "event" in await refused(address)


async def test_the_token_goes_in_a_header() -> None:
    seen: list[str | None] = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization"))
        await sending(session()[-1])(connection)

    async with daemon(handler) as (address, paths):
        await received(f"{address}?token=abc")
    assert (seen, paths) == (["Bearer abc"], ["/v1/captions"])


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (b"401 X", "--token-file"),
        (b"403 X", "--token-file"),
        (b"404 X", "404"),
        (b"500 X", "streamer run"),
        (b"200 X", "ws://127"),
        (b"302 Found\r\nLocation: ws://[", "ws://127"),
        (b"302 Found\r\nLocation: http://[::1", "ws://127"),
        (b"302 Found\r\nLocation: https://h", "ws://127"),
        (b"302 Found\r\nLocation: ws://h:99999", "ws://127"),
    ],
)
async def test_a_refusal_is_one_line_with_the_servers_words(answer: bytes, remedy: str) -> None:
    head = b"HTTP/1.1 " + answer + b"\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
    async with answering(head + b"no\nthanks") as address:
        line = await refused(address)
    assert remedy in line
    assert "no thanks" in line or answer.startswith((b"200", b"302"))


@pytest.mark.parametrize(
    "answer", [b"220 mail.example ESMTP\r\n", b"x" * (1 << 20), b"HTTP/1.1 101 x\r\n" + b"A: b\r\n" * 100_000]
)
async def test_an_answer_in_another_protocol_or_without_end_is_an_error(answer: bytes) -> None:
    async with answering(answer) as address:
        assert f"ws://{address}" in await refused(address)


@pytest.fixture
def certificate(tmp_path: Path) -> Tls:
    path = tmp_path / "self-signed.pem"
    renew_self_signed(path)
    return Tls(path, path)


async def test_a_daemon_is_known_by_the_fingerprint_of_its_certificate(certificate: Tls) -> None:
    sent = session()
    async with daemon(sending(*sent), sending(*sent), ssl=certificate.context) as (address, paths):
        for fingerprint in (certificate.fingerprint, f"sha-256:{certificate.fingerprint.replace(':', '').lower()}"):
            found = parse_address(address, fingerprint=fingerprint)
            assert found.url == f"wss://{address}/v1/captions"
            assert await received(found) == (sent, [])
        # To another one nothing is sent, and no token.
        paths.clear()
        assert "ab" * 32 in await refused(parse_address(address, "secret", "AB" * 32))
        assert "--fingerprint" in await refused(f"wss://{address}")
        assert paths == []


async def test_tls_and_no_tls_do_not_understand_each_other_and_say_so(certificate: Tls) -> None:
    async with daemon() as (address, _):
        await refused(f"wss://{address}")
    async with daemon(ssl=certificate.context) as (address, _):
        assert "TLS" in await refused(address)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no Unix sockets for asyncio")
async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "a socket"
    found = parse_address(f"unix://{path}", "secret")
    seen: list[str | None] = []

    async def handler(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization"))
        await sending(*session())(connection)

    async with unix_serve(handler, str(path)):
        assert await received(found) == (session(), [])
    assert seen == ["Bearer secret"]
    assert f"unix://{path}" in await refused(found)


async def test_a_daemon_cannot_fill_the_memory() -> None:
    async def nothings() -> AsyncIterator[str]:
        while True:
            yield ""
            await asyncio.sleep(0)

    async def fragments(connection: ServerConnection) -> None:
        with contextlib.suppress(Exception):
            await connection.send(nothings())

    for handler in (sending("x" * ((1 << 20) + 1)), fragments):
        async with daemon(handler) as (address, _):
            await refused(address)


async def test_what_the_program_has_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.1)
    n_sent = 0

    async def flood(connection: ServerConnection) -> None:
        nonlocal n_sent
        text = final("text", segment=1).stamped(2, "s").to_json().ljust(200_000)
        with contextlib.suppress(Exception):
            while True:
                await connection.send(text)
                n_sent += 1

    async with (
        daemon(flood) as (address, _),
        contextlib.aclosing(aiter(listen(address, on_notice=print))) as events,
    ):
        await anext(events)
        before = -1
        while n_sent > before:  # until nothing more is taken
            before = n_sent
            await asyncio.sleep(0.1)
        assert n_sent * 200_000 < 16e6
