"""Tokens, guessing and proxies, over real sockets."""

import asyncio
import base64
import json
import logging
import os
import time
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from streamer.errors import ConfigError
from streamer.server import access, front, limits
from streamer.server.connection import HttpProtocol
from streamer.server.limits import MAX_WRONG
from streamer.server.tokens import TokenFile
from tests.unit.daemon.test_clients import streams_of
from tests.unit.engine.simulation import Machine
from tests.waiting import until
from tests.wire.support import Running, added, closing, next_event, serving, within
from tests.wire.test_front import TOKEN, get


@pytest.fixture(autouse=True)
def _unforgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgive no wrong token while a test runs, however long that takes."""
    monkeypatch.setattr(limits, "WINDOW_S", 3600.0)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def status(running: Running, path: str, token: str, **headers: str) -> int:
    """Open a WebSocket; return the HTTP status."""
    try:
        async with running.socket(path, additional_headers={**bearer(token), **headers}):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


async def test_each_address_needs_its_scope(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    reader, sender, master = (added(path, scope, scopes=(scope,)) for scope in ("read", "stream", "control"))
    async with serving(token_file=str(path)) as running:
        for token, allowed in ((reader, "read"), (sender, "stream"), (master, "control")):
            for address, needs in (
                ("/metrics", "read"),
                ("/v1/input", "read"),
                ("/v1/sessions/s0/2.wav", "read"),
                ("/v1/stream", "stream"),
            ):
                response, body = await get(running, address, **bearer(token))
                answered = {"/v1/stream": 426, "/v1/sessions/s0/2.wav": 404}.get(address, 200)
                assert response.status == answered if allowed == needs else 403, address
                if allowed != needs:
                    assert f"lacks the scope {needs}" in body
                    assert token not in body
            response, _ = await get(running, "/v1/input/pause", method="POST", **bearer(token))
            assert response.status == (200 if allowed == "control" else 403)
            assert await status(running, "/v1/captions", token) == (101 if allowed == "read" else 403)
            assert await status(running, "/v1/stream", token) == (101 if allowed == "stream" else 403)
        await running.value("streamer_refusals_total", {"reason": "scope"}, 2 * 7)


@pytest.mark.parametrize(
    ("offered", "answered"),
    [
        (["streamer.v1", "streamer.token." + base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")], 0),
        (["realtime", f"openai-insecure-api-key.{TOKEN}", "openai-beta.realtime-v1"], 0),
        (["token", TOKEN], 0),
    ],
)
async def test_a_browser_shows_its_token_as_a_subprotocol(offered: list[str], answered: int) -> None:
    async with serving(token=TOKEN) as running:
        protocols = [Subprotocol(protocol) for protocol in offered]
        async with running.socket("/v1/captions", subprotocols=protocols) as client:
            assert client.subprotocol == offered[answered]
            assert (await next_event(client)).type == "ready"
        wrong = [Subprotocol(protocol.replace(TOKEN, "x").replace(".Y", ".Z")) for protocol in offered]
        with pytest.raises(InvalidStatus, match="401"):
            async with running.socket("/v1/captions", subprotocols=wrong):
                pass


async def test_a_revoked_token_closes_its_connections_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path = tmp_path / "tokens.json"
    gone, stays = added(path, "gone"), added(path, "stays")
    async with serving(token_file=str(path)) as running:
        sockets: list[ClientConnection] = []
        for token, address in ((gone, "/v1/captions"), (gone, "/v1/stream"), (stays, "/v1/captions")):
            sockets.append(await running.socket(address, additional_headers=bearer(token)))
            if address == "/v1/stream":
                await sockets[-1].send(bytes(640))
            assert (await next_event(sockets[-1])).type == "ready"
        TokenFile(path).change(lambda tokens: tokens[1:])
        for client in sockets[:2]:
            assert await closing(client) == (1008, "token revoked or expired")
        assert await status(running, "/v1/captions", gone) == 401
        late = added(path, "late")
        assert await status(running, "/v1/captions", late) == 101  # at once
        await within(await sockets[2].ping())
        await sockets[2].close()


async def test_several_authorization_headers_match_nothing() -> None:
    async with serving(token=TOKEN) as running:
        twice = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")]
        with pytest.raises(InvalidStatus, match="401"):
            async with running.socket("/v1/captions", additional_headers=twice):
                pass
        async with running.socket("/v1/captions", additional_headers={"Authorization": f"Token {TOKEN}"}):
            pass


@pytest.mark.parametrize("connected", [False, True])
async def test_streams_of_a_revoked_token_give_their_slots_back_at_once_and_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path = tmp_path / "tokens.json"
    tokens = [added(path, name) for name in ("gone", "stays")]
    machine = Machine()
    streams = streams_of(machine, resume_s=3600.0)
    async with serving(token_file=str(path), streams=streams) as running:
        sessions, sockets = [], []
        for token in tokens:
            sockets.append(await running.socket("/v1/stream", additional_headers=bearer(token)))
            await sockets[-1].send('{"type":"start"}')
            sessions.append((await next_event(sockets[-1])).session)
        for client in sockets[connected:]:
            client.transport.abort()
        await running.value("streamer_streams", {}, int(connected))
        TokenFile(path).change(lambda tokens: tokens[1:])
        await until(lambda: machine.engine.n_sessions <= 1)
        again = await running.socket("/v1/stream", additional_headers=bearer(tokens[1]))
        await again.send(json.dumps({"type": "resume", "session": sessions[1], "after": 1}))
        assert (await next_event(again)).type == "resumed"
        await again.close()


async def test_the_first_token_is_asked_of_who_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    path = tmp_path / "tokens.json"
    async with serving(default_token_file=path) as running:
        async with running.socket("/v1/captions") as client:
            assert (await next_event(client)).type == "ready"
            token = added(path, "first")
            assert await closing(client) == (1008, "token revoked or expired")
        assert await status(running, "/v1/captions", "wrong") == 401
        assert await status(running, "/v1/captions", token) == 101


async def test_a_reload_takes_up_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    async with serving(token=TOKEN) as running:
        settings = running.server._context.settings
        client = await running.socket("/v1/captions", additional_headers=bearer(TOKEN))
        for bad in ({"token": "short"}, {"proxies": ("x",)}, {"token_file": "/missing"}):
            with pytest.raises(ConfigError):
                running.server.reload(msgspec.structs.replace(settings, **bad))
        assert await status(running, "/v1/captions", TOKEN) == 101
        other = "another of 16 or more"
        running.server.reload(msgspec.structs.replace(settings, token=other))
        assert (await closing(client))[0] == 1008
        assert await status(running, "/v1/captions", TOKEN) == 401
        assert await status(running, "/v1/captions", other) == 101


async def test_guessing_is_slowed_and_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "GUESS_DELAY_S", 0.05)
    async with serving(token=TOKEN) as running:
        found = [(await get(running, "/metrics", **bearer(f"guess {n}")))[0] for n in range(MAX_WRONG + 5)]
        assert [response.status for response in found] == MAX_WRONG * [401] + 5 * [429]
        assert 1 <= int(found[-1].getheader("Retry-After") or 0) <= limits.WINDOW_S
        begin_s = time.monotonic()
        for path, expected in (("/metrics", 429), ("/healthz", 200)):  # which tells who has a token more
            response, body = await get(running, path, **bearer("guess"))
            assert response.status == expected
            assert "too many wrong ones" in body or expected == 200
        assert await status(running, "/v1/captions", "guess") == 429
        assert time.monotonic() - begin_s >= 3 * 0.05
        await running.value("streamer_refusals_total", {"reason": "token"}, MAX_WRONG)
        await running.value("streamer_refusals_total", {"reason": "guessing"}, 7)
        assert (await get(running, "/metrics"))[0].status == 401  # without a token it is no guess
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in told] == [
        "a wrong token from 127.0.0.1",
        "more than 20 wrong tokens within a minute from 127.0.0.1: it is answered late",
    ]
    assert "guess 0" not in caplog.text
    assert TOKEN not in caplog.text


async def test_who_guesses_does_not_keep_the_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "GUESS_DELAY_S", 60.0)
    monkeypatch.setattr(front, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(front, "ABORT_TIMEOUT_S", 0.1)
    async with serving(token=TOKEN) as running:
        for _ in range(MAX_WRONG):
            assert (await get(running, "/metrics", **bearer("guess")))[0].status == 401
        guessing = asyncio.create_task(status(running, "/v1/captions", "guess"))
        assert (await get(running, "/metrics", **bearer(TOKEN)))[0].status == 200
        assert await status(running, "/v1/captions", TOKEN) == 101
        assert await status(running, "/v1/captions", TOKEN) == 101
        assert not guessing.done()
        guessing.cancel()


async def test_another_web_site_cannot_use_up_the_guesses() -> None:
    async with serving(token=TOKEN) as running:
        for site in ("cross-site", "same-site"):
            response, _ = await get(running, "/metrics?token=x", Sec_Fetch_Site=site)
            assert response.status == 403
        assert (await get(running, "/", Sec_Fetch_Site="cross-site"))[0].status == 200  # a link to the page
        for site in ("none", "same-origin"):
            assert (await get(running, "/metrics", Sec_Fetch_Site=site, **bearer(TOKEN)))[0].status == 200
        assert running.registry.get_sample_value("streamer_refusals_total", {"reason": "token"}) in (None, 0)


async def test_a_proxy_that_passes_the_host_on_is_let_in() -> None:
    public = "https://captions.example.org"
    async with serving(origins=(public,)) as running:
        headers = {"Host": "captions.example.org", "X-Forwarded-For": "192.0.2.9", "X-Forwarded-Proto": "https"}
        assert (await get(running, "/", **headers))[0].status == 200
        assert (await get(running, "/v1/input", Origin=public, **headers))[0].status == 200
        assert (await get(running, "/", Host="evil.example"))[0].status == 403
    async with serving(proxies=("127.0.0.1",)) as running:
        assert (await get(running, "/", X_Forwarded_Host="evil.example"))[0].status == 403
        await running.value("streamer_refusals_total", {"reason": "host"}, 1)


async def test_behind_a_proxy_each_client_has_its_own_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(client: str) -> dict[str, str]:
        return {"X-Forwarded-For": f"10.6.6.6, {client}"}

    monkeypatch.setattr(access, "GUESS_DELAY_S", 0.0)
    async with serving(token=TOKEN, proxies=("127.0.0.0/8",), max_connections_per_address=2) as running:
        for _ in range(MAX_WRONG):
            assert (await get(running, "/metrics", **bearer("guess"), **seen("192.0.2.1")))[0].status == 401
        assert (await get(running, "/metrics", **bearer("guess"), **seen("192.0.2.1")))[0].status == 429
        assert (await get(running, "/metrics", **bearer("guess"), **seen("192.0.2.2")))[0].status == 401
        assert (await get(running, "/metrics", **bearer(TOKEN), **seen("192.0.2.1")))[0].status == 200
        many = [running.socket("/v1/captions", additional_headers={**bearer(TOKEN), **seen("192.0.2.3")}) for _ in "ab"]
        async with many[0], many[1]:
            assert await status(running, "/v1/captions", TOKEN, **seen("192.0.2.3")) == 503
            assert await status(running, "/v1/captions", TOKEN, **seen("192.0.2.4")) == 101
        await running.value("streamer_refusals_total", {"reason": "connections_per_address"}, 1)
        assert await status(running, "/v1/captions", TOKEN, **seen("192.0.2.3")) == 101
    assert "from 192.0.2.1" in caplog.text
    async with serving(token=TOKEN) as running:  # who is no named proxy is not believed
        for n in range(MAX_WRONG):
            await get(running, "/metrics", **bearer("guess"), **seen(f"192.0.2.{n}"))
        assert (await get(running, "/metrics", **bearer("guess"), **seen("192.0.2.99")))[0].status == 429


async def test_a_page_behind_a_proxy_is_judged_by_what_the_proxy_was_asked_for() -> None:
    async with serving(host="127.0.0.1", proxies=("127.0.0.1",), origins=("https://c.example",)) as running:
        forwarded = {"X-Forwarded-Host": "c.example", "X-Forwarded-Proto": "https"}
        for origin in ("https://c.example", "http://c.example", "https://c.example:8443", "https://evil.example"):
            response, _ = await get(running, "/v1/input", Origin=origin, **forwarded)
            assert response.status == (200 if origin == "https://c.example" else 403), origin


@pytest.mark.skipif(os.name == "nt", reason="Windows has no Unix sockets")
@pytest.mark.parametrize(("proxies", "known"), [(("unix",), True), (("127.0.0.1",), False)])
async def test_a_proxy_at_the_unix_socket_is_believed_where_it_is_named(
    tmp_path: Path, proxies: tuple[str, ...], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "GUESS_DELAY_S", 0.0)

    async def ask(token: str, client: str) -> str:
        reader, writer = await asyncio.open_unix_connection(path)
        request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {client}\r\nConnection: close\r\n"
        writer.write(f"{request}Authorization: Bearer {token}\r\n\r\n".encode())
        answer = await within(reader.read())
        writer.close()
        return answer.split()[1].decode()

    path = str(tmp_path / "socket")
    async with serving(token=TOKEN, proxies=proxies) as running:
        server = running.server
        listener = await asyncio.get_running_loop().create_unix_server(
            lambda: HttpProtocol(server._config, server._state, {}), path
        )
        async with listener:
            assert {await ask("guess", "192.0.2.1") for _ in range(MAX_WRONG)} == {"401"}
            assert await ask("guess", "192.0.2.1") == "429"
            assert await ask("guess", "192.0.2.2") == ("401" if known else "429")
