"""Tokens that are revoked or guessed, and clients behind a proxy, over real sockets."""

import asyncio
import json
import logging
import os
import time
from pathlib import Path

import msgspec
import pytest
from websockets.typing import Subprotocol

from streamer.errors import ConfigError
from streamer.server import access, front, limits
from streamer.server.limits import MAX_WRONG
from streamer.server.tokens import TokenFile
from tests.unit.daemon.test_clients import streams_of
from tests.unit.engine.simulation import Machine
from tests.waiting import until
from tests.wire.harness import TOKEN, Running, added, bearer, closing, next_event, serving

REVOKED = (1008, "token revoked or expired")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for revoked tokens all the time, and forgive no wrong token while a test runs, however long that takes."""
    monkeypatch.setattr(front, "TOKENS_S", 0.02)
    monkeypatch.setattr(access, "GUESS_DELAY_S", 0.0)
    monkeypatch.setattr(limits, "WINDOW_S", 3600.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


async def statuses(running: Running, n: int, token: str, **headers: str) -> list[int]:
    """Ask for the metrics n times."""
    return [await running.status("GET /metrics", **bearer(token), **headers) for _ in range(n)]


async def test_the_subprotocol_of_a_client_is_answered() -> None:
    offered = [Subprotocol("token"), Subprotocol(TOKEN)]
    async with serving(token=TOKEN) as running, running.captions(subprotocols=offered) as client:
        assert client.subprotocol == "token"


async def test_a_revoked_token_closes_its_connections_and_no_other(path: Path) -> None:
    gone, stays = added(path, "gone"), added(path, "stays")
    async with (
        serving(token_file=str(path)) as running,
        running.captions(additional_headers=bearer(gone)) as reader,
        running.streaming(additional_headers=bearer(gone)) as (sender, _),
        running.captions(additional_headers=bearer(stays)) as other,
    ):
        TokenFile(path).change(lambda tokens: tokens[1:])
        assert [await closing(client) for client in (reader, sender)] == [REVOKED] * 2
        assert await running.status("WS /v1/captions", **bearer(gone)) == 401
        assert await running.status("WS /v1/captions", **bearer(added(path, "late"))) == 101  # at once
        await (await other.ping())


@pytest.mark.parametrize("connected", [False, True])
async def test_streams_of_a_revoked_token_give_their_slots_back_at_once_and_others_are_kept(
    path: Path, connected: bool
) -> None:
    tokens = [added(path, name) for name in ("gone", "stays")]
    machine = Machine()
    async with serving(token_file=str(path), streams=streams_of(machine, resume_s=3600.0)) as running:
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
        async with running.socket("/v1/stream", additional_headers=bearer(tokens[1])) as again:
            await again.send(json.dumps({"type": "resume", "session": sessions[1], "after": 1}))
            assert (await next_event(again)).type == "resumed"


async def test_the_first_token_is_asked_of_clients_that_are_connected(path: Path) -> None:
    async with serving(default_token_file=path) as running, running.captions() as client:
        token = added(path, "first")
        assert await closing(client) == REVOKED
        assert await statuses(running, 1, "wrong") + await statuses(running, 1, token) == [401, 200]


async def test_a_reload_uses_another_token_or_changes_nothing() -> None:
    async with serving(token=TOKEN) as running, running.captions(additional_headers=bearer(TOKEN)) as client:
        settings, other = running.server._context.settings, "another of 16 or more"
        for bad in ({"token": "short"}, {"proxies": ("x",)}, {"token_file": "/missing"}):
            with pytest.raises(ConfigError):
                running.server.reload(msgspec.structs.replace(settings, **bad))
        assert await statuses(running, 1, TOKEN) == [200]
        running.server.reload(msgspec.structs.replace(settings, token=other))
        assert await closing(client) == REVOKED
        assert await statuses(running, 1, TOKEN) + await statuses(running, 1, other) == [401, 200]


async def test_guessing_is_slowed_and_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(token=TOKEN) as running:
        assert await statuses(running, MAX_WRONG + 1, "guess") == [*MAX_WRONG * [401], 429]
        monkeypatch.setattr(access, "GUESS_DELAY_S", 0.1)
        begin_s = time.monotonic()
        answer = await running.ask("GET /metrics", **bearer("guess"))
        assert 1 <= int(answer.headers["Retry-After"]) <= limits.WINDOW_S
        # Health tells more to a client with a token.
        assert (await running.ask("GET /healthz", **bearer("guess"))).json() == {"status": "ok"}
        assert await running.status("WS /v1/captions", **bearer("guess")) == 429
        assert time.monotonic() - begin_s >= 0.3
        assert running.count("refusals_total", reason="token") == MAX_WRONG
        assert running.count("refusals_total", reason="guessing") == 3
        assert await running.status("GET /metrics") == 401  # without a token it is no guess
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "guess" not in caplog.text
    assert TOKEN not in caplog.text


async def test_a_client_that_guesses_does_not_keep_the_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(front, "ABORT_TIMEOUT_S", 0.1)
    async with serving(token=TOKEN) as running:
        await statuses(running, MAX_WRONG, "guess")
        monkeypatch.setattr(access, "GUESS_DELAY_S", 3600.0)
        guessing = asyncio.create_task(running.status("WS /v1/captions", **bearer("guess")))
        assert await statuses(running, 2, TOKEN) == [200, 200]
        assert not guessing.done()
        guessing.cancel()


@pytest.mark.parametrize("proxies", [("127.0.0.0/8",), ()])
async def test_behind_a_proxy_each_client_has_its_own_address(
    proxies: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(token=TOKEN, proxies=proxies, max_connections_per_address=2) as running:

        async def told(n: int, token: str, client: str) -> list[int]:
            return await statuses(running, n, token, X_Forwarded_For=f"10.6.6.6, {client}")

        assert await told(MAX_WRONG + 1, "guess", "192.0.2.1") == [*MAX_WRONG * [401], 429]
        assert await told(1, "guess", "192.0.2.2") == [401 if proxies else 429]
        assert await told(1, TOKEN, "192.0.2.1") == [200]
        assert ("192.0.2.1" in caplog.text) == bool(proxies)
        seen = {**bearer(TOKEN), "X-Forwarded-For": "192.0.2.3"}
        async with running.captions(additional_headers=seen), running.captions(additional_headers=seen):
            assert await told(1, TOKEN, "192.0.2.3") == [503]
            assert await told(1, TOKEN, "192.0.2.4") == [200 if proxies else 503]
            assert (running.count("refusals_total", reason="connections_per_address") or 0) > 0
        assert await told(1, TOKEN, "192.0.2.3") == [200]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no Unix sockets")
@pytest.mark.parametrize(("proxies", "known"), [(("unix",), True), (("127.0.0.1",), False)])
async def test_a_proxy_at_the_unix_socket_is_believed_if_it_is_named(
    tmp_path: Path, proxies: tuple[str, ...], known: bool
) -> None:
    unix = str(tmp_path / "socket")
    async with serving(token=TOKEN, proxies=proxies, unix_socket=unix) as running:

        async def told(client: str) -> int:
            return await running.status("GET /metrics", unix=unix, X_Forwarded_For=client, **bearer("guess"))

        assert [await told("192.0.2.1") for _ in range(MAX_WRONG + 1)] == [*MAX_WRONG * [401], 429]
        assert await told("192.0.2.2") == (401 if known else 429)
