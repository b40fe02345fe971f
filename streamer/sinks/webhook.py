"""Finals, and what is learnt of them, posted as JSON, signed.

Source: Standard Webhooks 1.0 (standardwebhooks.com) for the headers and the signature; draft-ietf-httpapi-idempotency-
key-header for `Idempotency-Key`.
"""

import base64
import binascii
import hashlib
import hmac
import time

from streamer.errors import ConfigError
from streamer.events import Event, Final, Revision, Speakers, Translation
from streamer.sinks.post import PostingSink

SECRET_PREFIX = "whsec_"  # of a key in base64  # noqa: S105


class Webhook(PostingSink):
    """A sink that posts each final with words, and each event about one. A post that is tried again has the same id."""

    def __init__(self, url: str, secret: str = "") -> None:
        """Prepare; empty `secret`: unsigned. Raises ConfigError where address or secret is broken."""
        super().__init__(url, "outputs.webhook_url")
        self._key = _key(secret)

    def handle(self, event: Event) -> None:
        """Post an event. Raises PeerError."""
        if not isinstance(event, Final | Revision | Speakers | Translation):
            return
        if isinstance(event, Final) and not event.text.strip():
            return
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
        self.post(body, headers)


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
        raise ConfigError("outputs.webhook_secret is not base64 behind whsec_: copy it again") from None
