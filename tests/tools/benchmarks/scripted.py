"""A server that says what a test tells it to, in a thread of its own."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

Script = Callable[[ServerConnection], None]


@contextlib.contextmanager
def serving(script: Script) -> Iterator[int]:
    """Follow a script with every client; yield the port of the loopback interface."""

    def follow(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            script(connection)

    with serve(follow, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()
