"""A daemon that publishes what a test has it publish."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from streamer.events import End, Error, Event
from tests import builders
from tests.waiting import WAIT_S

READY = builders.ready().stamped(1, "s")
END = End().stamped(9, "s")

# The daemon stays open after it.
STAY = Error(code="busy", message="stay open", fatal=False).stamped(8, "s")


def said(seq: int, text: str) -> Event:
    """Return a final of half a second, half of its number after the beginning."""
    spoken = builders.timed_words((text, seq / 2, seq / 2 + 0.5)) if text else ()
    return builders.final(text, start=seq / 2, segment=seq, words=spoken, seq=seq, session="s")


@dataclass
class Published:
    """Where a daemon is, and what its clients have asked for."""

    address: str = ""
    paths: list[str] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)


@contextlib.contextmanager
def publishing(*connections: list[Event] | str) -> Iterator[Published]:
    """A daemon that sends these events, or this text, in its nth connection.

    It closes in order after `end`, stays open after STAY and a text, and vanishes after anything else.
    """
    published, waiting = Published(), list(connections)

    def publish(connection: ServerConnection) -> None:
        assert connection.request is not None
        published.paths.append(connection.request.path)
        published.authorizations.append(connection.request.headers.get("Authorization"))
        script = waiting.pop(0)
        for message in [script] if isinstance(script, str) else [event.to_json() for event in script]:
            connection.send(message)
        if isinstance(script, str) or script[-1] == STAY:
            with contextlib.suppress(ConnectionClosed):  # the client goes
                connection.recv(WAIT_S)
        elif not isinstance(script[-1], End):
            connection.socket.shutdown(socket.SHUT_RDWR)

    with serve(publish, "127.0.0.1", 0) as server:
        published.address = f"127.0.0.1:{server.socket.getsockname()[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield published
        finally:
            server.shutdown()
            thread.join()
