import asyncio
import json
import re
import socket
from http.client import HTTPConnection, HTTPResponse
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from websockets.exceptions import InvalidStatus

from streamer.daemon.clients import ClientStreams
from streamer.errors import ConfigError, PortInUseError
from streamer.events import Error, Final
from streamer.server.context import Services
from streamer.server.front import Server
from streamer.server.pages import PAGE_FILES
from streamer.settings.table import ServerSettings
from tests.waiting import WAIT_S
from tests.wire.support import (
    RecordingStreams,
    Running,
    events_until,
    final,
    next_event,
    serving,
    within,
)

TOKEN = "a-secret-of-16-or-more"


async def get(
    running: Running, path: str, method: str = "GET", body: str = "", **headers: str
) -> tuple[HTTPResponse, str]:
    """Ask over HTTP; return the response and its body."""

    def ask() -> tuple[HTTPResponse, str]:
        connection = HTTPConnection("127.0.0.1", running.port, timeout=WAIT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        response = connection.getresponse()
        said = response.read().decode("utf-8")
        connection.close()
        return response, said

    return await asyncio.to_thread(ask)


async def refusal(running: Running, path: str, **headers: str) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with running.socket(path, additional_headers=headers):
            pass
    return caught.value.response.status_code


async def test_the_page_and_its_files_are_served_from_the_package() -> None:
    async with serving() as running:
        for path, (_, content_type) in PAGE_FILES.items():
            response, body = await get(running, path)
            assert (response.status, response.getheader("Content-Type")) == (200, content_type)
            assert body
            assert response.getheader("X-Content-Type-Options") == "nosniff"
            policy = response.getheader("Content-Security-Policy") or ""
            assert "default-src 'none'" in policy
            assert f"ws://127.0.0.1:{running.port}" in policy


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with serving() as running:
        for path in PAGE_FILES:
            _, body = await get(running, path)
            addresses = body.replace("http://www.w3.org/2000/svg", "").replace("http://localhost", "")
            assert "http://" not in addresses
            assert "https://" not in addresses


async def test_health_says_ok_or_503() -> None:
    async with serving() as running:
        response, body = await get(running, "/healthz")
        assert (response.status, json.loads(body)) == (200, {"status": "ok", "model": "nano.en"})
        running.health["status"] = "starting"
        response, body = await get(running, "/healthz")
        assert (response.status, json.loads(body)["status"]) == (503, "starting")


async def test_health_that_cannot_be_told_is_503_too(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, object]:
        raise OSError("no")

    async with serving(health=broken) as running:
        response, body = await get(running, "/healthz")
        assert (response.status, json.loads(body)["status"]) == (503, "failed")


async def test_metrics_count_what_happens() -> None:
    async with serving() as running:
        async with running.socket("/v1/captions") as client:
            await next_event(client)
            running.log.append(final(1, "one"))
            await next_event(client)
            await running.value("streamer_events_sent_total", {"type": "final"}, 1)
            response, body = await get(running, "/metrics")
            assert response.status == 200
            assert "streamer_subscribers 1.0" in body
            assert 'streamer_events_sent_total{type="ready"} 1.0' in body
        await running.value("streamer_subscribers", {}, 0)


async def test_what_does_not_exist_is_told_together_with_what_does() -> None:
    async with serving() as running:
        response, body = await get(running, "/v2/captions")
        assert response.status == 404
        assert "/v1/captions" in json.loads(body)["error"]
        assert body.count("\n") == 1
        response, body = await get(running, "/", method="DELETE")
        assert response.status == 405
        assert set((response.getheader("Allow") or "").split(", ")) == {"GET", "HEAD"}  # in any order
        response, body = await get(running, "/v1/stream")
        assert response.status == 426
        assert "ws://" in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/captions", "/v1/realtime", "/v1/listen", "/vosk", "/"])
async def test_a_recording_that_is_posted_to_a_websocket_is_told_where_it_belongs(path: str) -> None:
    async with serving() as running:
        for body in ("", "x" * 200_000):
            response, said = await get(running, path, method="POST", body=body)
            assert response.status == 426
            assert "recordings go to /v1/audio/transcriptions" in said


@pytest.mark.parametrize("command", ["pause", "resume", "flush", "clear"])
async def test_the_input_does_what_it_is_told(command: str) -> None:
    async with serving() as running:
        response, body = await get(running, f"/v1/input/{command}", method="POST")
        assert (response.status, json.loads(body)) == (
            200,
            {"paused": command == "pause", "kept": False, "audio": False},
        )
        assert running.own.commands == [command]
        assert json.loads((await get(running, "/v1/input"))[1]) == {
            "paused": command == "pause",
            "kept": False,
            "audio": False,
        }


async def test_looking_at_a_command_does_not_do_it() -> None:
    async with serving() as running:
        response, _ = await get(running, "/v1/input/pause")
        assert (response.status, response.getheader("Allow")) == (405, "POST")
        assert (await get(running, "/v1/input", method="POST"))[0].status == 405
        assert (await get(running, "/v1/input/stop", method="POST"))[0].status == 404
        assert running.own.commands == []


async def test_nobody_else_commands_the_input() -> None:
    async with serving(token=TOKEN) as running:
        path = "/v1/input/clear"
        assert (await get(running, path, method="POST"))[0].status == 401
        assert (await get(running, f"{path}?token=wrong", method="POST"))[0].status == 401
        token = f"Bearer {TOKEN}"
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
            assert (await get(running, path, method="POST", Authorization=token, **headers))[0].status == 403
        assert running.own.commands == []
        assert (await get(running, "/v1/input"))[0].status == 401
        own = running.url.rstrip("/")
        assert (await get(running, path, method="POST", Authorization=token, Origin=own))[0].status == 200
        assert running.own.commands == ["clear"]


async def test_an_input_that_is_not_there_cannot_be_commanded() -> None:
    async with serving(input=None) as running:
        for path, method in (("/v1/input", "GET"), ("/v1/input/pause", "POST")):
            response, body = await get(running, path, method=method)
            assert response.status == 404
            assert "--input" in json.loads(body)["error"]
    async with serving() as running:
        own = running.server._context.services.input
        assert own is not None
        own.session = None  # the model is being loaded
        response, body = await get(running, "/v1/input/pause", method="POST")
        assert response.status == 503
        assert "loaded" in json.loads(body)["error"]
        assert json.loads((await get(running, "/v1/input"))[1]) == {"paused": False, "kept": False, "audio": False}


async def test_a_daemon_without_input_has_no_captions() -> None:
    async with serving(input=None) as running:
        assert await refusal(running, "/v1/captions") == 404
        _, body = await get(running, "/v1/captions")
        assert "/v1/stream" in json.loads(body)["error"]


async def test_without_the_token_nothing_but_health_is_shown() -> None:
    async with serving(token=TOKEN) as running:
        for path in ("/v1/input", "/metrics"):
            assert (await get(running, path))[0].status == 401
            assert (await get(running, f"{path}?token=wrong"))[0].status == 401
            assert (await get(running, f"{path}?token={TOKEN}"))[0].status == 200
            assert (await get(running, path, Authorization=f"Bearer {TOKEN}"))[0].status == 200
        for path in ("/healthz", *PAGE_FILES):  # of the page nothing but the program
            assert (await get(running, path))[0].status == 200
        for path in ("/v1/captions", "/v1/stream"):
            assert await refusal(running, path) == 401
        async with running.socket(f"/v1/captions?token={TOKEN}") as client:
            assert (await next_event(client)).type == "ready"
        async with running.socket("/v1/captions", additional_headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            assert (await next_event(client)).type == "ready"


async def test_strangers_are_told_the_status_and_no_more() -> None:
    async with serving(token="x" * 16) as running:
        bearer = {"Authorization": f"Bearer {'x' * 16}"}
        for headers, known in (({}, False), ({"Authorization": "Bearer wrong"}, False), (bearer, True)):
            response, body = await get(running, "/healthz", **headers)
            assert response.status == 200
            assert json.loads(body) == ({"status": "ok", "model": "nano.en"} if known else {"status": "ok"})
        running.health["status"] = "failing"
        response, body = await get(running, "/healthz")
        assert (response.status, body) == (503, '{"status":"failing"}\n')


@pytest.mark.parametrize(("is_live", "expected"), [(True, (200, "ok")), (False, (503, "stuck"))])
async def test_whether_the_daemon_makes_progress_is_told_to_all(is_live: bool, expected: tuple[int, str]) -> None:
    async with serving(token="x" * 16, is_live=lambda: is_live) as running:
        running.health["status"] = "starting"
        response, body = await get(running, "/livez")
        assert (response.status, json.loads(body)["status"]) == expected


async def test_bytes_and_what_waits_are_counted() -> None:
    async with serving() as running, running.socket("/v1/stream") as client:
        await client.send(b"12345678")
        await next_event(client)
        await running.value("streamer_received_bytes_total", {}, 8)
        assert (running.registry.get_sample_value("streamer_sent_bytes_total") or 0) > 20
        assert running.registry.get_sample_value("streamer_events_waiting_max") == 0


async def test_a_short_message_waits_for_no_acknowledgement_of_the_one_before() -> None:
    async with serving() as running, running.socket("/v1/captions") as client:
        await next_event(client)
        (connection,) = running.server._state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_requests_are_logged_where_asked_for_but_no_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="streamer.access")
    async with serving() as running:
        await get(running, "/metrics?token=secret", Authorization="Bearer secret")
        await get(running, "/nowhere")
        async with running.socket("/v1/captions?token=secret") as client:
            await next_event(client)
    lines = [record.getMessage() for record in caplog.records if record.name == "streamer.access"]
    shown = [re.sub(r"(duration_s|bytes_\w+)=\S+ ?", "", line).rstrip() for line in lines]
    assert shown[:2] == [
        "client=127.0.0.1 token=- method=GET path=/metrics status=200",
        "client=127.0.0.1 token=- method=GET path=/nowhere status=404",
    ]
    assert re.fullmatch(r"client=127.0.0.1 token=- method=GET path=/v1/captions status=101 close_code=10\d\d", shown[2])
    assert "secret" not in caplog.text


async def test_another_web_site_cannot_listen_in() -> None:
    async with serving(origins=("https://friend.example",)) as running:
        for path in ("/v1/captions", "/v1/stream"):
            assert await refusal(running, path, Origin="https://evil.example") == 403
        assert (await get(running, "/metrics", Origin="https://evil.example"))[0].status == 403
        assert (await get(running, "/", Host="evil.example"))[0].status == 403
        for origin in ("https://friend.example", running.url.rstrip("/")):
            async with running.socket("/v1/captions", additional_headers={"Origin": origin}) as client:
                assert (await next_event(client)).type == "ready"


def make_server(host: str, port: int, token: str = "") -> Server:
    services = Services(streams=cast("ClientStreams", RecordingStreams()), health=lambda: {"status": "ok"})
    return Server(ServerSettings(host=host, port=port, token=token), services, CollectorRegistry())


async def test_an_address_open_to_a_network_needs_a_token() -> None:
    with pytest.raises(ConfigError, match=r"server\.token"):
        make_server("0.0.0.0", 0)
    server = make_server("0.0.0.0", 0, TOKEN)
    assert (await server.start()).startswith("http://127.0.0.1:")
    await server.stop()


async def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=str(port)):
            await make_server("127.0.0.1", port).start()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 300])
async def test_a_host_that_is_not_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=host[:20]):
        await make_server(host, 0, TOKEN).start()


async def test_localhost_has_one_port_for_all_its_addresses() -> None:
    server = make_server("localhost", 0)
    url = await server.start()
    port = int(url.rsplit(":", 1)[1].strip("/"))
    assert port > 0
    for _, _, _, _, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        try:
            probe = socket.create_connection((str(address[0]), port), timeout=WAIT_S)
        except OSError:
            assert address[0] == "::1"  # there is no IPv6 on this machine
        else:
            probe.close()
    await server.stop()


async def test_stopping_sends_what_is_queued_and_closes_with_1001() -> None:
    async with serving() as running, running.socket("/v1/captions") as client:
        assert (await next_event(client)).type == "ready"
        for n in range(100):
            running.log.append(final(n, f"number {n}"))
        stopping = asyncio.create_task(running.server.stop())
        for n in range(100):
            event = await next_event(client)
            assert isinstance(event, Final)
            assert event.segment == n
        await within(client.wait_closed())
        assert client.close_code == 1001
        await within(stopping)


async def test_stopping_does_not_wait_for_those_who_do_nothing() -> None:
    async with serving() as running:
        idle = socket.create_connection(("127.0.0.1", running.port))
        async with running.socket("/v1/stream") as client:
            await client.send(bytes(640))
            stream = await running.streams.first()
            stream.room.clear()  # finishing takes for ever
            await within(running.server.stop(timeout_s=0.2))
            await within(stream.abandoned.wait())
        idle.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", running.port), timeout=WAIT_S)


async def test_a_daemon_that_drains_tells_streams_at_once_and_takes_no_more() -> None:
    async with serving() as running, running.socket("/v1/captions") as reader, running.socket("/v1/stream") as client:
        assert (await next_event(reader)).type == "ready"
        await client.send(bytes(640))
        assert (await next_event(client)).type == "ready"
        async with running.socket("/v1/stream") as silent:
            await running.value("streamer_streams", {}, 1)
            running.server.drain()
            told = await next_event(client)
            assert isinstance(told, Error)
            assert (told.code, told.fatal, told.heard_samples) == ("stopping", False, 320)
            assert "320 samples" in told.message
            await events_until(client, "end")
            await within(client.wait_closed())
            assert (client.close_code, client.close_reason) == (
                1001,
                "the daemon stops: 320 samples of session client-1 were heard",
            )
            await within(silent.wait_closed())  # it has said nothing yet, and nothing is waited for
            assert silent.close_code == 1001
        assert await refusal(running, "/v1/stream") == 503
        assert (await get(running, "/healthz"))[0].status == 200
        running.log.append(final(1, "the daemon's own last words"))
        assert (await next_event(reader)).type == "final"
        stopping = asyncio.create_task(running.server.stop())
        await within(reader.wait_closed())
        assert (reader.close_code, reader.close_reason) == (
            1001,
            "the daemon stops: reconnect with ?after=2&session=s1",
        )
        await within(stopping)


async def test_pages_of_listed_origins_and_no_others_read_answers() -> None:
    origin = "https://captions.example.org"
    async with serving(token=TOKEN, origins=(origin,)) as running:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        response, _ = await get(running, "/v1/audio/transcriptions", method="OPTIONS", Origin=origin, **asked)
        assert response.status == 200
        assert response.getheader("Access-Control-Allow-Origin") == origin
        assert response.getheader("Access-Control-Allow-Headers") == "authorization"
        assert "POST" in (response.getheader("Access-Control-Allow-Methods") or "")
        for path, method, body, status in (
            ("/healthz", "GET", "", 200),
            ("/metrics", "GET", "", 401),
            ("/v1/input", "GET", "x" * 100_000, 413),
        ):
            response, _ = await get(running, path, method=method, body=body, Origin=origin)
            assert (response.status, response.getheader("Access-Control-Allow-Origin")) == (status, origin), path
        for other in ("https://evil.example", "https://captions.example.org.evil.example", "null"):
            for method, headers in (("GET", {}), ("OPTIONS", asked)):
                response, _ = await get(running, "/healthz", method=method, Origin=other, **headers)
                assert response.status == 403
                assert response.getheader("Access-Control-Allow-Origin") is None
        response, _ = await get(running, "/healthz")
        assert response.getheader("Access-Control-Allow-Origin") is None
