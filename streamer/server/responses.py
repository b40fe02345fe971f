"""HTTP responses, and in which words a request is refused at which address."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from streamer.errors import BusyError, StoppingError, StreamerError
from streamer.protocols import deepgram, openai_rest

RETRY_AFTER_S = 5

# No cache keeps an answer, and no browser guesses about it.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

# Beginning of an address -> writes the JSON body of an error there, from its HTTP status and message.
ERROR_BODIES: dict[str, Callable[[int, str], object]] = {
    "/v1/listen": deepgram.describe_error,
    **dict.fromkeys(("/v1/audio", "/v1/models", "/v1/realtime", "/whisper"), openai_rest.error_body),
}


def respond(status: int, body: bytes, content_type: str, more_headers: Mapping[str, str] | None = None) -> Response:
    """Build a response that no cache keeps and no browser guesses about."""
    return Response(body, status, {**(more_headers or {}), "Content-Type": content_type, **HEADERS})


def respond_json(status: int, value: object, more_headers: Mapping[str, str] | None = None) -> Response:
    """Build a response of one line of JSON."""
    return respond(status, msgspec.json.encode(value, enc_hook=str) + b"\n", "application/json", more_headers)


def respond_error(status: int, message: str, headers: Mapping[str, str] | None = None, *, path: str = "") -> Response:
    """Build the response to a request that cannot be met, in the words that the clients of its address expect."""
    if status == HTTPStatus.UPGRADE_REQUIRED:
        headers = {"Upgrade": "websocket", "Connection": "Upgrade, close"}
    for start, write in ERROR_BODIES.items():
        if path == start or path.startswith(f"{start}/"):
            return respond_json(status, write(status, message), headers)
    return respond_json(status, {"error": message}, headers)


def respond_failure(error: StreamerError, path: str) -> Response:
    """Build the response to a request that failed with an error."""
    later = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, BusyError | StoppingError) else None
    return respond_error(error.status, str(error), later, path=path)
