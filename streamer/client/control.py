"""Commands for a daemon's own input."""

import asyncio
import hashlib
import ssl
import urllib.parse
from typing import Any

from streamer.client.connection import CAPTIONS_PATH, DaemonAddress, unverified
from streamer.errors import PeerError
from streamer.outside import one_line

ANSWER_S = 5.0


async def command(address: DaemonAddress, name: str) -> None:
    """Command a daemon's own input: flush, pause, resume or clear. Raises PeerError if that fails."""
    parts = urllib.parse.urlsplit(address.url)
    path = parts.path.replace(CAPTIONS_PATH, f"/v1/input/{name}")
    token = f"Authorization: Bearer {address.token}\r\n" if address.token else ""
    tls: dict[str, Any] = {}
    if parts.scheme == "wss":
        tls = {"ssl": unverified() if address.fingerprint else ssl.create_default_context()}
    try:
        async with asyncio.timeout(ANSWER_S):
            if address.unix_socket:
                reader, writer = await asyncio.open_unix_connection(address.unix_socket)
            else:
                port = parts.port or (443 if tls else 80)
                reader, writer = await asyncio.open_connection(parts.hostname, port, **tls)
            try:
                if address.fingerprint:
                    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                    if hashlib.sha256(shown).hexdigest() != address.fingerprint:
                        raise PeerError(f"{address} shows another certificate than that of the fingerprint")
                head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{token}Content-Length: 0\r\nConnection: close"
                writer.write(f"{head}\r\n\r\n".encode())
                status = one_line((await reader.readline()).decode("latin-1"))
            finally:
                writer.close()
    except (OSError, ValueError) as error:
        raise PeerError(f"{address} does not answer ({one_line(error) or type(error).__name__:.200})") from None
    if " 200 " not in status:
        remedy = ": give a token with the scope control" if " 401" in status or " 403" in status else ""
        raise PeerError(f"{address} refuses to {name} ({status:.100}){remedy}")
