"""The server as a whole: its pages, health, metrics and commands, how it starts and how it stops."""

import asyncio
import re
import socket

import pytest

from streamer.errors import ConfigError, PortInUseError
from streamer.events import Error, Final
from streamer.server.pages import PAGE_FILES
from tests.builders import final
from tests.waiting import WAIT_S
from tests.wire.harness import TOKEN, bearer, closing, events_until, next_event, serving, within


@pytest.mark.parametrize("path", PAGE_FILES)
async def test_a_page_is_served_from_the_package_and_needs_nothing_from_elsewhere(path: str) -> None:
    async with serving() as running:
        answer = await running.ask(f"GET {path}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, PAGE_FILES[path][1])
        assert answer.headers["x-content-type-options"] == "nosniff"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert f"connect-src 'self' ws://127.0.0.1:{running.port} wss://127.0.0.1:{running.port};" in policy
        assert "://" not in re.sub(r"http://(www.w3.org/2000/svg|localhost)", "", answer.text).replace("wss://", "")
    async with serving(host="0.0.0.0", token=TOKEN) as running:
        answer = await running.ask(f"GET {path}", Host="a;b")
        assert "connect-src 'self';" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("known", [True, False])
async def test_health_says_ok_or_503_and_more_to_those_who_have_a_token(known: bool) -> None:
    more = {"model": "nano.en", "scopes": ["read", "stream", "control"], "history": False} if known else {}
    async with serving(token=TOKEN) as running:
        headers = bearer(TOKEN if known else "wrong")
        answer = await running.ask("GET /healthz", **headers)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", **more})
        running.health["status"] = "failing"
        answer = await running.ask("GET /healthz", **headers)
        assert (answer.status_code, answer.json()) == (503, {"status": "failing", **more})
    async with serving(health=lambda: 1 // 0) as running:  # it cannot be told
        answer = await running.ask("GET /healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")


@pytest.mark.parametrize(("is_live", "expected"), [(True, (200, "ok")), (False, (503, "stuck"))])
async def test_whether_the_daemon_makes_progress_is_shown_to_all(is_live: bool, expected: tuple[int, str]) -> None:
    async with serving(token=TOKEN, is_live=lambda: is_live) as running:
        running.health["status"] = "starting"
        answer = await running.ask("GET /livez")
        assert (answer.status_code, answer.json()["status"]) == expected


async def test_metrics_count_what_happens() -> None:
    async with serving() as running:
        async with running.captions() as client, running.streaming():
            running.log.append(final("one"))
            await next_event(client)
            await running.value("streamer_events_sent_total", {"type": "final"}, 1)
            shown = (await running.ask("GET /metrics")).text.splitlines()
            for line in ("subscribers 1.0", "streams 1.0", "received_bytes_total 640.0", "events_waiting_max 0.0"):
                assert f"streamer_{line}" in shown
            assert 'streamer_events_sent_total{type="ready"} 2.0' in shown
            assert (running.count("sent_bytes_total") or 0) > 200
        await running.value("streamer_subscribers", {}, 0)
        await running.value("streamer_streams", {}, 0)


@pytest.mark.parametrize("command", ["pause", "resume", "flush", "clear"])
async def test_the_input_obeys(command: str) -> None:
    async with serving() as running:
        state = {"paused": command == "pause", "kept": False, "audio": False}
        assert (await running.ask(f"POST /v1/input/{command}")).json() == state
        assert running.own.commands == [command]
        assert (await running.ask("GET /v1/input")).json() == state
        assert await running.status(f"GET /v1/input/{command}") == 405
        assert await running.status(f"POST /v1/input/{command}", Origin="https://evil.example") == 403
        assert running.own.commands == [command]


async def test_short_messages_wait_for_no_acknowledgement_of_the_one_before() -> None:
    async with serving() as running, running.captions():
        (connection,) = running.server._state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError) as caught:
            async with serving(port=port):
                pass
        assert str(port) in str(caught.value)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 300])
async def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        async with serving(host=host, token=TOKEN):
            pass
    assert host[:90] in str(caught.value)


async def test_localhost_has_one_port_for_all_its_addresses() -> None:
    async with serving(host="localhost") as running:
        for _, _, _, _, address in socket.getaddrinfo("localhost", running.port, type=socket.SOCK_STREAM):
            try:
                socket.create_connection((str(address[0]), running.port), timeout=WAIT_S).close()
            except OSError:
                assert address[0] == "::1"  # there is no IPv6 on this machine


async def test_stopping_sends_what_is_queued_and_closes_with_1001() -> None:
    async with serving() as running, running.captions() as client:
        for n in range(100):
            running.log.append(final(segment=n))
        stopping = asyncio.create_task(running.server.stop())
        events = [await next_event(client) for _ in range(100)]
        assert [event.segment for event in events if isinstance(event, Final)] == list(range(100))
        assert await closing(client) == (1001, "the daemon stops: reconnect with ?after=101&session=s1")
        await within(stopping)


async def test_stopping_does_not_wait_for_clients_that_do_nothing() -> None:
    async with serving() as running, running.streaming() as (_, stream):
        with socket.create_connection(("127.0.0.1", running.port)):
            stream.room.clear()  # finishing takes for ever
            await within(running.server.stop(timeout_s=0.1))
            await within(stream.abandoned.wait())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S)


async def test_a_daemon_that_drains_ends_streams_at_once_and_takes_no_more() -> None:
    async with (
        serving() as running,
        running.captions() as reader,
        running.streaming() as (client, _),
        running.socket("/v1/stream") as silent,
    ):
        running.server.drain()
        error = await next_event(client)
        assert isinstance(error, Error)
        assert (error.code, error.fatal, error.heard_samples) == ("stopping", False, 320)
        await events_until(client, "end")
        assert await closing(client) == (1001, "the daemon stops: 320 samples of session client-1 were heard")
        assert (await closing(silent))[0] == 1001  # it has said nothing yet, and nothing is waited for
        assert await running.status("WS /v1/stream") == 503
        assert await running.status("GET /healthz") == 200
        running.log.append(final("the daemon's own last words"))
        assert (await next_event(reader)).type == "final"


async def test_pages_of_listed_origins_and_no_others_read_answers() -> None:
    origin = "https://captions.example.org"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with serving(token=TOKEN, origins=(origin,)) as running:
        answer = await running.ask("OPTIONS /v1/audio/transcriptions", Origin=origin, **asked)
        allowed = {name: answer.headers[f"access-control-allow-{name}"] for name in ("origin", "headers", "methods")}
        assert allowed == {"origin": origin, "headers": "authorization", "methods": "GET, HEAD, POST, DELETE"}
        for request, body, status in (
            ("GET /healthz", b"", 200),
            ("GET /metrics", b"", 401),
            ("GET /v1/input", bytes(100_000), 413),
        ):
            answer = await running.ask(request, body, Origin=origin)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin)
            assert answer.headers["access-control-expose-headers"] == "Retry-After, WWW-Authenticate"
        for request in ("GET /healthz", "OPTIONS /healthz"):
            answer = await running.ask(request, Origin="https://evil.example", **asked)
            assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (403, None)
        assert "access-control-allow-origin" not in (await running.ask("GET /healthz")).headers
