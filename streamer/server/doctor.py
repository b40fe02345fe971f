"""What `streamer doctor` checks of the server: whether it could start, and which program holds its port."""

import asyncio
import contextlib
import http.client
import json
import ssl
from pathlib import Path

from streamer.errors import ConfigError, PortInUseError
from streamer.findings import Finding, ok, problem
from streamer.outside import one_line, own_host
from streamer.server.access import Access
from streamer.server.sockets import listen
from streamer.settings.table import ServerSettings

# How long a daemon may take to say how it is.
HEALTH_TIMEOUT_S = 2.0


def check_port(server: ServerSettings, token_file: Path) -> Finding:
    """Check whether the server of these settings could start; `token_file` is the default one."""
    host = server.host.strip("[]")
    try:
        Access.of(server, token_file)
        if server.tls == "on" or server.tls_certificate or server.tls_key:
            from streamer.server.tls import make_tls

            make_tls(server)
        sockets = asyncio.run(listen(host, server.port))
    except PortInUseError:
        return _check_holder(host, server.port)
    except ConfigError as error:
        return problem(str(error))
    for sock in sockets:
        sock.close()
    return ok(f"{host} port {server.port} is free" if server.port else f"{host}, any free port")


def _check_holder(host: str, port: int) -> Finding:
    """Return which program holds a port."""
    status = _daemon_status(own_host(host), port)
    if status is None:
        return problem(
            f"{host} port {port} is taken by another program",
            "stop it, or choose another port: server.port, or --port N (0 picks a free one)",
        )
    return ok(
        f"a streamer daemon runs on {host} port {port}, its status is {status}; a second one needs another --port"
    )


def _daemon_status(host: str, port: int) -> str | None:
    """Return what a daemon says of its health, in plain HTTP or over TLS; None if another program answers, or none."""
    # The certificate need not be trusted: nothing secret is sent, and nothing depends on the answer.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    over_tls = http.client.HTTPSConnection(host, port, timeout=HEALTH_TIMEOUT_S, context=context)
    no_daemon = (OSError, http.client.HTTPException, ValueError, TypeError, KeyError, RecursionError)
    for connection in (http.client.HTTPConnection(host, port, timeout=HEALTH_TIMEOUT_S), over_tls):
        with contextlib.closing(connection), contextlib.suppress(*no_daemon):
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            if response.getheader("Server") == "streamer":
                return one_line(json.loads(response.read(1 << 16))["status"])[:40]
    return None
