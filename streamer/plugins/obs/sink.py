"""Finals as captions and text in OBS Studio. Source: obs-websocket's protocol 5; libobs, `caption_text_new`."""

import base64
import contextlib
import hashlib
import json
import time
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.uri import parse_uri

from streamer.errors import ConfigError, RefusalError
from streamer.events import Event, Final, Ready
from streamer.outputs.pieces import pieces
from streamer.outputs.sink import MAX_WAITING_LIVE, Answer, Delivered, Later, Refused, Sink, Target
from streamer.outside import host_port, is_loopback, one_line
from streamer.plugins.obs.settings import ObsSettings

DEFAULT_PORT = 4455
TIMEOUT_S = 10.0  # for a connection, and for the answer to a request
MAX_MESSAGE_BYTES = 1 << 20
MAX_CAPTION_BYTES = 128  # libobs truncates longer captions
PAUSE_S = 2.0  # between two captions of one final; libobs shows each for that long

# The protocol's codes of operations, of a close and of answers.
HELLO, IDENTIFY, IDENTIFIED, REQUEST, RESPONSE = 0, 1, 2, 6, 7
AUTHENTICATION_FAILED = 4009
OUTPUT_NOT_RUNNING = 501


class Obs(Sink):
    """Connects at the start of a session, and again after a restart of OBS."""

    max_waiting = MAX_WAITING_LIVE

    def __init__(self, target: Target) -> None:
        """Prepare. Raises ConfigError for an invalid address."""
        url = target.address("outputs.obs_url")
        try:
            parts = urlsplit(url if "://" in url else f"ws://{url}")
            if parts.scheme == "ws" and parts.port is None:
                parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{DEFAULT_PORT}")
            self._url = parts.geturl()
            uri = parse_uri(self._url)
        except (InvalidURI, ValueError):
            raise ConfigError("outputs.obs_url is not an address: expected ws://HOST:4455") from None
        self._name = f"OBS at {host_port(uri.host, uri.port)}"
        self._proxy: Literal[True] | None = None if is_loopback(uri.host) else True
        self._password = target.secret("outputs.obs_password")
        # The source whose text each final becomes; empty: none.
        self._text_source = target.settings.of(ObsSettings).obs_text_source
        # Ready for requests; None before the first request, and after one that failed.
        self._connection: ClientConnection | None = None
        self._n_requests = 0
        # The newest final, and how many pieces of it OBS has accepted.
        self._final: Final | None = None
        self._n_sent = 0

    def deliver(self, event: Event) -> Answer:
        """Send a final to OBS, of one that OBS took in part the rest."""
        try:
            if isinstance(event, Ready):
                self._connected()  # so that errors are reported before anyone speaks
            elif isinstance(event, Final) and event.text.strip():
                self._show(event)
        except RefusalError as error:
            return Refused(str(error))
        except ConnectionClosed as error:
            self.close()
            if error.rcvd is not None and error.rcvd.code == AUTHENTICATION_FAILED:
                return Refused(f"{self._name} refuses the password: correct outputs.obs_password")
            return Later(f"{self._name} closed the connection ({one_line(error)})")
        except TimeoutError:
            self.close()
            return Later(f"{self._name} did not answer within {TIMEOUT_S:g} s")
        except (OSError, WebSocketException) as error:
            self.close()
            return Later(f"{self._name} cannot be reached ({one_line(error)})")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.close()
            return Later(f"{self._name} answers what is not obs-websocket 5: is the port its own?")
        return Delivered()

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _show(self, final: Final) -> None:
        if final is not self._final:
            self._final, self._n_sent = final, 0
        if self._text_source and self._n_sent == 0:
            settings = {"text": one_line(final.text)}
            self._request("SetInputSettings", {"inputName": self._text_source, "inputSettings": settings})
        for _, text in pieces(final, MAX_CAPTION_BYTES)[self._n_sent :]:
            if self._n_sent:
                time.sleep(PAUSE_S)
            if not self._request("SendStreamCaption", {"captionText": text}) and not self._text_source:
                raise RefusalError(f"{self._name} is not streaming: captions begin with the stream")
            self._n_sent += 1

    def _request(self, name: str, data: dict[str, Any]) -> bool:
        """Make a request; return whether it was executed: not if OBS is not streaming. Raises RefusalError."""
        connection = self._connected()
        self._n_requests += 1
        number = str(self._n_requests)
        _send(connection, REQUEST, {"requestType": name, "requestId": number, "requestData": data})
        deadline = time.monotonic() + TIMEOUT_S
        while (found := _received(connection, RESPONSE, deadline)).get("requestId") != number:
            pass
        status = found["requestStatus"]
        if status["result"] is not True and status["code"] != OUTPUT_NOT_RUNNING:
            said = one_line(status.get("comment", ""))
            raise RefusalError(f"{self._name} refuses {name} ({status['code']!r:.10} {said:.100})")
        return status["result"] is True

    def _connected(self) -> ClientConnection:
        """Return the connection, reconnecting if it is closed."""
        if self._connection is not None and self._connection.close_code is None:
            return self._connection
        self._connection = connection = connect(
            self._url,
            proxy=self._proxy,
            compression=None,
            open_timeout=TIMEOUT_S,
            close_timeout=TIMEOUT_S,
            max_size=MAX_MESSAGE_BYTES,
        ).__enter__()  # newer versions of the library require a context; `close` leaves it
        deadline = time.monotonic() + TIMEOUT_S
        asked = _received(connection, HELLO, deadline).get("authentication")
        identify: dict[str, Any] = {"rpcVersion": 1, "eventSubscriptions": 0}
        if asked and not self._password:
            self.close()
            raise RefusalError(f"{self._name} asks for a password: set outputs.obs_password")
        if asked:
            identify["authentication"] = authentication(self._password, asked["salt"], asked["challenge"])
        _send(connection, IDENTIFY, identify)
        _received(connection, IDENTIFIED, deadline)
        return connection


def authentication(password: str, salt: str, challenge: str) -> str:
    """Return the answer to a challenge."""
    return _hashed(_hashed(password + salt) + challenge)


def _hashed(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _received(connection: ClientConnection, op: int, deadline: float) -> dict[str, Any]:
    """Return the data of the next message of a kind. Raises TimeoutError at `deadline` (monotonic)."""
    while True:
        message = json.loads(connection.recv(max(0.0, deadline - time.monotonic())))
        if message["op"] == op:
            data: dict[str, Any] = message["d"]
            return data


def _send(connection: ClientConnection, op: int, data: dict[str, Any]) -> None:
    connection.send(json.dumps({"op": op, "d": data}))
