"""What sinks that post share: bounds of time and size, and no address in any message, since it may be a secret."""

import contextlib
import time
import urllib.parse
from collections.abc import Mapping

import httpx

from streamer import __version__
from streamer.errors import ConfigError, PeerError, RefusalError
from streamer.outside import is_loopback, one_line

TIMEOUT_S = 10.0  # for a connection, for an answer to begin, and for its body
MAX_ANSWER_BYTES = 65_536


class PostingSink:
    """A sink at a web address; a subclass says what it posts. One thread at a time may use it."""

    def __init__(self, url: str, setting: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Prepare; `setting` is where the address comes from. Raises ConfigError where it is none."""
        try:
            _ = urllib.parse.urlsplit(url).port  # it refuses brackets and port numbers that httpx lets through
            address = httpx.URL(url)
        except (httpx.InvalidURL, ValueError):
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            found = "no web address" if url else "empty"
            raise ConfigError(f"{setting} is {found}: expected https://HOST/..., or @FILE of a file that has it")
        self._url = url.partition("#")[0]  # parameters are added behind it
        self._host = address.host
        self._timeout_s = timeout_s
        self._client = httpx.Client(
            timeout=timeout_s,
            headers={"User-Agent": f"streamer/{__version__}", "Accept-Encoding": "identity"},
            trust_env=not is_loopback(address.host),  # a proxy cannot reach this machine's own ports
        )

    def post(self, body: bytes, headers: Mapping[str, str], query: str = "") -> str:
        """Post a body, return the beginning of the answer. Raises PeerError where to try again, else RefusalError."""
        # Appended as text: the address is signed, and to be sent as it was given.
        more = f"{'&' if '?' in self._url else '?'}{query}" if query else ""
        return self._send("POST", self._url + more, body, headers)

    def get(self, below: str) -> str:
        """Return what is at a path below that of the address, with the same query. Raises as `post` does."""
        path, mark, query = self._url.partition("?")
        return self._send("GET", f"{path}/{below}{mark}{query}", b"", {})

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _send(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> str:
        try:
            with self._client.stream(method, url, content=body, headers=headers) as response:
                answer = self._beginning(response)
        except httpx.TimeoutException:
            raise PeerError(f"{self._host} did not answer within {self._timeout_s:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            reason = one_line(error) or type(error).__name__
            raise PeerError(f"{self._host} cannot be reached ({reason})") from None
        if response.is_success:
            return answer
        status = f"{self._host} answers {response.status_code} {one_line(response.reason_phrase)}".strip()
        if response.status_code >= 500 or response.status_code in (408, 425, 429):
            raise PeerError(status)
        raise RefusalError(status)

    def _beginning(self, response: httpx.Response) -> str:
        """Return the first bytes of a body. One that breaks off ends there: the status has said what counts."""
        data = bytearray()
        deadline = time.monotonic() + self._timeout_s
        with contextlib.suppress(httpx.HTTPError):
            for piece in response.iter_raw():
                data += piece
                if len(data) >= MAX_ANSWER_BYTES or time.monotonic() > deadline:
                    break
        return data[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
