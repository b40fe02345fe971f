"""Commands for a daemon's own input."""

import asyncio
from typing import Any

import httpx

from streamer.client.connection import CAPTIONS_PATH, DaemonAddress, check_certificate, tls_context
from streamer.errors import PeerError
from streamer.outside import is_loopback, one_line

ANSWER_S = 5.0


async def command(address: DaemonAddress, name: str) -> None:
    """Command a daemon's own input: flush, pause, resume or clear. Raises PeerError if that fails."""
    url = httpx.URL(address.url.replace("ws", "http", 1))
    url = url.copy_with(path=url.path.removesuffix(CAPTIONS_PATH) + f"/v1/input/{name}", query=None)
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}

    async def check(step: str, info: dict[str, Any]) -> None:
        if address.fingerprint and step.endswith("start_tls.complete"):  # nothing was sent yet
            check_certificate(info["return_value"].get_extra_info("ssl_object"), address.fingerprint)

    how: dict[str, Any] = {
        "verify": url.scheme == "https" and tls_context(address),  # it takes 25 ms to make one
        "trust_env": not is_loopback(url.host),  # a proxy cannot reach this machine's own ports
    }
    if address.unix_socket:
        how["transport"] = httpx.AsyncHTTPTransport(verify=False, uds=address.unix_socket)
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            httpx.AsyncClient(**how) as client,
            client.stream("POST", url, headers=headers, extensions={"trace": check}) as response,
        ):
            status = response.status_code
    except (httpx.HTTPError, TimeoutError) as error:
        raise PeerError(f"{address} does not answer ({one_line(error) or type(error).__name__:.200})") from None
    if status != 200:
        remedy = ": give a token with the scope control" if status in (401, 403) else ""
        raise PeerError(f"{address} refuses to {name} (HTTP status {status}){remedy}")
