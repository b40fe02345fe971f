"""What holds for the adapters of all protocols: how a connection is closed."""

import pytest
from starlette.datastructures import Headers, QueryParams

from streamer.errors import BusyError, ConfigError, StoppingError, StreamerError
from streamer.events import End, Error
from streamer.protocols.adapter import Adapter, Hangup
from streamer.protocols.wyoming import Wyoming
from streamer.server.routes import SOCKETS
from tests.wire.support import ready

PATHS = ("/v1/stream", "/v1/listen", "/v1/realtime", "/vosk")


def make(path: str) -> Adapter:
    return SOCKETS[path].make(QueryParams(""), Headers({}))


def hangup(adapter: Adapter, *errors: StreamerError) -> Hangup:
    """Return how a client is closed whose session is refused."""
    last = [action for error in errors for action in adapter.refused(error)][-1]
    assert isinstance(last, Hangup)
    return last


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("code", "closed"), [("idle", 1008), ("internal", 1011), ("device", 1011)])
def test_the_failure_of_a_session_is_the_close_code(path: str, code: str, closed: int) -> None:
    adapter = make(path)
    adapter.begin()
    adapter.on_event(ready().stamped(1, "s1"))
    adapter.on_event(Error(code=code, message="why\nnot", fatal=True).stamped(2, "s1"))
    last = adapter.on_event(End().stamped(3, "s1"))[-1]
    assert isinstance(last, Hangup)
    assert last.code == closed
    assert last.reason.startswith(code)
    assert "\n" not in last.reason


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("code", ["stopping", "audio_file"])
def test_an_error_that_is_not_fatal_does_not_change_how_it_is_closed(path: str, code: str) -> None:
    adapter = make(path)
    adapter.begin()
    adapter.on_event(ready().stamped(1, "s1"))
    adapter.on_event(Error(code=code, message="why", fatal=False).stamped(2, "s1"))
    assert adapter.on_event(End().stamped(3, "s1"))[-1] == Hangup()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("error", "code"), [(BusyError("full"), 1013), (StoppingError("later"), 1001)])
def test_a_refusal_is_the_close_code(path: str, error: StreamerError, code: int) -> None:
    assert hangup(make(path), error).code == code


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/listen", "/vosk"])
@pytest.mark.parametrize(("error", "code"), [(ConfigError("no"), 1008), (StreamerError("no"), 1011)])
def test_so_are_a_wrong_request_and_a_failure(path: str, error: StreamerError, code: int) -> None:
    assert hangup(make(path), error).code == code


def test_a_client_of_wyoming_gets_the_error_before_the_close() -> None:
    said, last = Wyoming("{}").refused(BusyError("full"))
    assert '"full"' in str(said)
    assert last == Hangup(1008)
