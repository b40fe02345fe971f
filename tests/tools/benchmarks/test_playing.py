"""Playing to a server: what is sent, what is kept, and that nothing waits for ever."""

import asyncio
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.sync.server import ServerConnection

from tests.tools.benchmarks.scripted import serving
from tools.benchmarks import playing
from tools.benchmarks.playing import Samples, Screen, pcm16, play
from tools.benchmarks.processes import Meter, Server, ServerFailure
from tools.benchmarks.timeline import Revision


class Echo:
    """Says its audio as numbers; everything that comes back is shown."""

    def __init__(self, port: int) -> None:
        self.address = f"ws://127.0.0.1:{port}"
        self.screen = Screen()
        self._ended = False

    async def open(self, connection: ClientConnection) -> None:
        assert await connection.recv() == "welcome"

    def encode(self, samples: Samples) -> bytes:
        return pcm16(samples)

    async def finish(self, connection: ClientConnection) -> None:
        await connection.send("finish")

    def hear(self, message: str | bytes, wall_s: float) -> bool:
        assert isinstance(message, str)
        self._ended = message == "bye"
        return not self._ended and self.screen.show(message, "", wall_s)

    def is_over(self, quiet_s: float) -> bool:
        return self._ended


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    server = Server("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"], {})
    with Meter(server) as entered:
        yield entered
    server.stop()


def noise(n_samples: int) -> Samples:
    return np.random.default_rng(0).uniform(-0.5, 0.5, n_samples).astype(np.float32)


def test_all_audio_is_sent_at_its_pace_and_all_answers_are_kept(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter.energy, "joules", lambda: 2.5)
    heard = bytearray()

    def script(connection: ServerConnection) -> None:
        connection.send("welcome")
        while isinstance(message := connection.recv(), bytes):
            heard.extend(message)
            if len(heard) == 6400:  # 0.2 s
                connection.send("one")
        connection.send("one two")
        connection.send("bye")

    samples = noise(8000 + 77)
    with serving(script) as port:
        echo = Echo(port)
        cost = asyncio.run(play(echo, samples, meter))
    assert bytes(heard) == pcm16(samples)
    assert [revision.words for revision in echo.screen.revisions] == [("one",), ("one", "two")]
    first, last = echo.screen.revisions
    # Nothing is heard before it has been spoken.
    assert first.wall_s >= 0.2
    assert last.wall_s >= len(samples) / 16000
    assert cost.wall_s >= last.wall_s
    assert cost.peak_rss_mb > 1
    assert cost.cpu_s >= 0
    assert cost.energy_j == 2.5


def test_a_server_that_goes_away_is_a_failure(meter: Meter) -> None:
    def script(connection: ServerConnection) -> None:
        connection.send("welcome")
        connection.recv()

    with serving(script) as port, pytest.raises(ServerFailure, match=rf"ws://127.0.0.1:{port}"):
        asyncio.run(play(Echo(port), noise(32000), meter))


def test_a_server_that_never_ends_is_not_waited_for(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(connection: ServerConnection) -> None:
        connection.send("welcome")
        while True:
            connection.recv()
            connection.send("for ever")

    monkeypatch.setattr(playing, "END_TIMEOUT_S", 2.0)
    with serving(script) as port:
        echo = Echo(port)
        asyncio.run(play(echo, noise(1600), meter))
    assert [revision.words for revision in echo.screen.revisions] == [("for", "ever")]


def test_a_server_that_says_nothing_is_a_failure(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "OPEN_TIMEOUT_S", 0.3)
    with (
        serving(lambda connection: [*connection].clear()) as port,
        pytest.raises(ServerFailure, match="did not answer"),
    ):
        asyncio.run(play(Echo(port), noise(1600), meter))


def test_a_port_where_nothing_listens_is_a_failure(meter: Meter) -> None:
    with serving(lambda connection: None) as port:
        pass
    with pytest.raises(ServerFailure, match=f"127.0.0.1:{port}"):
        asyncio.run(play(Echo(port), noise(1600), meter))


def test_a_refusal_while_audio_is_sent_ends_the_playing(meter: Meter) -> None:
    class Refused(Echo):
        def hear(self, message: str | bytes, wall_s: float) -> bool:
            raise ServerFailure("refused")

    def script(connection: ServerConnection) -> None:
        connection.send("welcome")
        while True:
            connection.recv()
            connection.send("no")

    with serving(script) as port, pytest.raises(ServerFailure, match="refused"):
        asyncio.run(play(Refused(port), noise(160000), meter))


def test_the_screen_shows_a_text_once_and_knows_what_is_promised() -> None:
    screen = Screen()
    assert not screen.show("", "", 0.5)
    assert screen.show("one two ", " three", 1.0)
    assert not screen.show("one two", "three", 2.0)
    assert screen.show("one two three", "", 3.0)
    assert screen.revisions == [
        Revision(wall_s=1.0, words=("one", "two", "three"), n_stable=2),
        Revision(wall_s=3.0, words=("one", "two", "three"), n_stable=3),
    ]
