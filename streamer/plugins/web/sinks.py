"""Outputs at a web address: Zoom, YouTube and webhooks.

Sources: Zoom's support article "Using a third-party closed captioning service" (POST of plain text with `seq` and
`lang`; GET .../seq for the last number). YouTube Help, "Live caption vendor info" (closed captions over HTTP: POST with
`seq`, a line with the time in UTC and one with the text for each caption; the answer is YouTube's clock). Standard
Webhooks 1.0 (standardwebhooks.com) for headers and signature; draft-ietf-httpapi-idempotency-key-header.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import re
import time
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime

import httpx

from streamer.errors import ConfigError
from streamer.events import Event, Final, Ready, Revision, Speakers, Translation
from streamer.outputs.pieces import pieces
from streamer.outputs.sink import MAX_WAITING_LIVE, Answer, Delivered, Later, Refused, Sink, Target
from streamer.outside import is_loopback, one_line
from streamer.version import __version__

TIMEOUT_S = 10.0  # for a connection, for an answer to begin, and for its body
MAX_ANSWER_BYTES = 65_536
MAX_RETRY_S = 60.0  # that a service may ask to wait (RFC 9110, Retry-After)

SECRET_PREFIX = "whsec_"  # of a webhook's key in base64  # noqa: S105

YOUTUBE_LINE_BYTES = 84  # two rows of 42 characters
MAX_AHEAD_S = 86_400.0  # largest difference between YouTube's clock and ours

_PLAIN = {"Content-Type": "text/plain; charset=utf-8"}

# Zoom's `lang` includes a country; these languages have one that differs from the language's code.
_TAGS = (
    "ar-SA bn-BD ca-ES cs-CZ da-DK el-GR en-US et-EE fa-IR he-IL hi-IN ja-JP ko-KR ms-MY pt-BR sl-SI sv-SE ta-IN te-IN"
    " uk-UA ur-PK vi-VN zh-CN"
)
_COUNTRIES = {tag[:2]: tag[3:] for tag in _TAGS.split()}


def web_url(text: str) -> httpx.URL:
    """Return a web address. Raises ValueError with the reason if it is none."""
    try:
        _ = urllib.parse.urlsplit(text).port  # it refuses brackets and port numbers that httpx accepts
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("no http:// or https://")
    return url


class WebSink(Sink):
    """Base of sinks that post. No message contains the address, which may be a secret. For one thread at a time."""

    def __init__(self, target: Target, setting: str) -> None:
        """Prepare; `setting` is the name of the address's setting. Raises ConfigError for an invalid address."""
        url = target.address(setting)
        try:
            self._host = web_url(url).host
        except ValueError:
            found = "not a web address" if url else "empty"
            raise ConfigError(
                f"{setting} is {found}: expected https://HOST/..., or @FILE of a file that has it"
            ) from None
        self._url = url.partition("#")[0]  # parameters are added behind it
        self._client = httpx.Client(
            timeout=TIMEOUT_S,
            headers={"User-Agent": f"streamer/{__version__}", "Accept-Encoding": "identity"},
            trust_env=not is_loopback(self._host),  # a proxy cannot reach this machine's own ports
        )

    def post(self, body: bytes, headers: Mapping[str, str], query: str = "") -> str | Later | Refused:
        """Post a body, return the beginning of the answer."""
        # Appended as text: the address is signed, and must be sent as given.
        more = f"{'&' if '?' in self._url else '?'}{query}" if query else ""
        return self._send("POST", self._url + more, body, headers)

    def get(self, below: str) -> str | Later | Refused:
        """Return the content at a path below the address, with the same query."""
        path, mark, query = self._url.partition("?")
        return self._send("GET", f"{path}/{below}{mark}{query}", b"", {})

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _send(self, method: str, url: str, body: bytes, headers: Mapping[str, str]) -> str | Later | Refused:
        try:
            with self._client.stream(method, url, content=body, headers=headers) as response:
                answer = _beginning(response)
        except httpx.TimeoutException:
            return Later(f"{self._host} did not answer within {TIMEOUT_S:g} s")
        except (httpx.HTTPError, OSError) as error:
            return Later(f"{self._host} cannot be reached ({one_line(error) or type(error).__name__})")
        if response.is_success:
            return answer
        status = f"{self._host} answers {response.status_code} {one_line(response.reason_phrase)}".strip()
        if response.status_code >= 500 or response.status_code in (408, 425, 429):
            wanted = response.headers.get("Retry-After", "")
            return Later(status, min(float(wanted), MAX_RETRY_S) if re.fullmatch("[0-9]{1,9}", wanted) else 0.0)
        return Refused(status)


def _beginning(response: httpx.Response) -> str:
    """Return the first bytes of a body, however it ends: the status has been received."""
    data = bytearray()
    deadline = time.monotonic() + TIMEOUT_S
    with contextlib.suppress(httpx.HTTPError):
        for piece in response.iter_raw():
            data += piece
            if len(data) >= MAX_ANSWER_BYTES or time.monotonic() > deadline:
                break
    return data[:MAX_ANSWER_BYTES].decode("utf-8", "replace")


class Zoom(WebSink):
    """Posts each final as a line to a Zoom meeting. A retried post keeps its number."""

    max_waiting = MAX_WAITING_LIVE

    def __init__(self, target: Target) -> None:
        super().__init__(target, "outputs.zoom_url")
        # Number of the next post; None until Zoom has returned the last one's.
        self._next: int | None = None

    def deliver(self, event: Event) -> Answer:
        """Post a final."""
        if self._next is None and isinstance(event, Ready | Final):
            # Number of the meeting's last post, which may be an earlier run's.
            match self.get("seq"):
                case Later() as later:
                    return later
                case Refused():  # the meeting has not begun
                    self._next = 1
                case str() as last:
                    self._next = int(last) + 1 if re.fullmatch(r"\s*[0-9]{1,15}\s*", last) else 1
        if not isinstance(event, Final) or not (text := one_line(event.text)):
            return Delivered()
        answer = self.post(f"{text}\n".encode(), _PLAIN, f"seq={self._next}&lang={language_tag(event.language)}")
        if not isinstance(answer, str):
            return answer
        assert self._next is not None
        self._next += 1
        return Delivered()


def language_tag(code: str) -> str:
    """Return Zoom's name of a language, such as `en-US`."""
    return f"{code}-{_COUNTRIES.get(code, code.upper())}"


class YouTube(WebSink):
    """Posts each final to a YouTube live stream, as lines with the times of speech by YouTube's clock."""

    max_waiting = MAX_WAITING_LIVE

    def __init__(self, target: Target) -> None:
        super().__init__(target, "outputs.youtube_url")
        self._said_at = target.said_at
        # Number of the next post. Numbers must grow across restarts, and YouTube does not return the last one. There is
        # less than one final a second.
        self._next = int(time.time())
        # YouTube's clock minus ours, in seconds, once known.
        self._ahead_s = 0.0

    def deliver(self, event: Event) -> Answer:
        """Post a final."""
        if not isinstance(event, Final) or not event.text.strip():
            return Delivered()
        lines = [
            f"{_time_text(self._said_at(start) + self._ahead_s)}\n{text}\n"
            for start, text in pieces(event, YOUTUBE_LINE_BYTES)
        ]
        answer = self.post("".join(lines).encode("utf-8"), _PLAIN, f"seq={self._next}")
        if not isinstance(answer, str):
            return answer
        self._next += 1
        with contextlib.suppress(ValueError, OverflowError):  # an answer that is not a time, or out of range
            theirs = datetime.fromisoformat(answer.strip())
            found_s = theirs.replace(tzinfo=theirs.tzinfo or UTC).timestamp() - time.time()
            self._ahead_s = found_s if abs(found_s) < MAX_AHEAD_S else self._ahead_s
        return Delivered()


def _time_text(unix_s: float) -> str:
    """Return a time in YouTube's format: UTC in milliseconds, without a zone."""
    return datetime.fromtimestamp(unix_s, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")


class Webhook(WebSink):
    """Posts finals with words, and events about them, as JSON. A retried post keeps its id."""

    def __init__(self, target: Target) -> None:
        """Prepare. Raises ConfigError for an invalid address or secret."""
        super().__init__(target, "outputs.webhook_url")
        # What posts are signed with; empty: they are not.
        self._key = _key(target.secret("outputs.webhook_secret"))

    def deliver(self, event: Event) -> Answer:
        """Post an event."""
        if not isinstance(event, Final | Revision | Speakers | Translation):
            return Delivered()
        if isinstance(event, Final) and not event.text.strip():
            return Delivered()
        body = event.to_json().encode("utf-8")
        name, timestamp = f"{event.session}-{event.seq}", str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": f'"{name}"',
            "webhook-id": name,
            "webhook-timestamp": timestamp,
        }
        if self._key:
            headers["webhook-signature"] = signature(self._key, name, timestamp, body)
        answer = self.post(body, headers)
        return Delivered() if isinstance(answer, str) else answer


def signature(key: bytes, name: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a post: HMAC-SHA256 of its id, its Unix time and its body, in base64."""
    digest = hmac.digest(key, f"{name}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode('ascii')}"


def _key(secret: str) -> bytes:
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode("utf-8")
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("outputs.webhook_secret is not base64 after whsec_: copy it again") from None
