"""Other people's protocols on our port: at which address each is spoken, and in whose words a request is refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.responses import Response

from streamer.protocols import deepgram, openai_realtime, openai_rest
from streamer.protocols.adapter import Adapter, Query
from streamer.protocols.root import Root
from streamer.protocols.stream import Captions, Stream
from streamer.protocols.vosk import Vosk
from streamer.server.http import respond_error, respond_json
from streamer.server.tokens import Scope
from streamer.settings.table import ServerSettings

CAPTIONS_PATH = "/v1/captions"


@dataclass(frozen=True, slots=True)
class Wire:
    """A protocol over WebSockets."""

    # Makes the adapter of a connection from its query and its headers (names in lower case). Raises UsageError where
    # what they ask for cannot be: HTTP 400.
    make: Callable[[Query, Mapping[str, str]], Adapter]

    # Most bytes of a message; 1 MiB: 5.5 s of stereo float audio at 24 kHz, more than a live client sends at a time.
    max_message_bytes: int = 2**20
    needs: Scope = "stream"


# Address -> the protocol that is spoken over WebSockets there.
WIRES: dict[str, Wire] = {
    CAPTIONS_PATH: Wire(lambda query, headers: Captions(query), needs="read"),
    "/v1/stream": Wire(lambda query, headers: Stream(query)),
    "/v1/listen": Wire(deepgram.make_live),
    "/v1/realtime": Wire(openai_realtime.make, max_message_bytes=16 * 2**20),  # 15 MiB of base64, and JSON around it
    "/": Wire(lambda query, headers: Root(vosk=False)),
    "/vosk": Wire(lambda query, headers: Vosk()),
}

# Beginning of an address -> writes the JSON body of an error there, from its HTTP status and message.
ERROR_BODIES: dict[str, Callable[[int, str], object]] = {
    "/v1/listen": deepgram.describe_error,
    **dict.fromkeys(("/v1/audio", "/v1/models", "/v1/realtime", "/whisper"), openai_rest.error_body),
}


def wires(settings: ServerSettings) -> Mapping[str, Wire]:
    """Return the protocols as the settings want them."""
    return {**WIRES, "/": Wire(lambda query, headers: Root(vosk=True))} if settings.vosk_at_root else WIRES


def respond_error_at(
    path: str, status: HTTPStatus, message: str, more_headers: Mapping[str, str] | None = None
) -> Response:
    """Build the response to a request that cannot be met, in the words that the clients of its address expect."""
    for start, write in ERROR_BODIES.items():
        if path == start or path.startswith(f"{start}/"):
            return respond_json(status, write(status, message), more_headers)
    return respond_error(status, message, more_headers)
