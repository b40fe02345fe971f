"""HTTP responses, and the form of errors at each address."""

from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from streamer.errors import BusyError, StoppingError, StreamerError
from streamer.protocols import deepgram, openai_rest

RETRY_AFTER_S = 5

# Answers are not cached, and browsers do not guess their type.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}

# Prefix of an address -> function from an error's HTTP status and message to its JSON body.
ERROR_BODIES: dict[str, Callable[[int, str], object]] = {
    "/v1/listen": deepgram.describe_error,
    **dict.fromkeys(("/v1/audio", "/v1/models", "/v1/realtime", "/whisper"), openai_rest.error_body),
}


def respond(status: int, body: bytes, content_type: str, more_headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with the common headers."""
    return Response(body, status, {**(more_headers or {}), "Content-Type": content_type, **HEADERS})


def respond_json(status: int, value: object, more_headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of one line of JSON."""
    return respond(status, msgspec.json.encode(value, enc_hook=str) + b"\n", "application/json", more_headers)


def respond_error(status: int, message: str, headers: Mapping[str, str] | None = None, *, path: str = "") -> Response:
    """Return an error in the form that the clients of its address expect."""
    if status == HTTPStatus.UPGRADE_REQUIRED:
        headers = {"Upgrade": "websocket", "Connection": "Upgrade, close"}
    for start, write in ERROR_BODIES.items():
        if path == start or path.startswith(f"{start}/"):
            return respond_json(status, write(status, message), headers)
    return respond_json(status, {"error": message}, headers)


def respond_failure(error: StreamerError, path: str) -> Response:
    """Return the response to a request that failed with an error."""
    later = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, BusyError | StoppingError) else None
    return respond_error(error.status, str(error), later, path=path)
