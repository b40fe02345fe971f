"""Connections that are cut at any moment: nothing is lost, nothing doubled, neither audio nor events."""

import asyncio
import json
import os
import random

import numpy as np
import pytest
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from streamer.events import End, Error, Event, Final, Ready, Resumed
from tests.waiting import WAIT_S
from tests.wire.harness import SAMPLES_A_FINAL, ListeningStream, Running, next_event, serving, streams_to, within

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("CUTS_SEED", "1"))
# A thousand, over other seeds, once in a while: CUTS=1000 CUTS_SEED=2 make tests ARGS=tests/wire/test_cuts.py
N_CUTS = int(os.environ.get("CUTS", "200"))
N_CUTS_AFTER_FINISH = 100  # of them


def audio(start: int, end: int) -> NDArray[np.int64]:
    """Return what the client has to say from sample `start` to `end`: no two stretches are alike."""
    return (np.arange(start, end, dtype=np.int64) * 2654435761 >> 7) % 65536 - 32768


class Client:
    """A client whose connection is cut again and again, and which goes on as docs/protocol.md has it."""

    def __init__(self, running: Running, seed: int) -> None:
        self._running = running
        self._rng = random.Random(seed)
        # Every event that it was sent, but for the greeting of each connection.
        self.events: list[Event] = []
        # Samples sent, whether they arrived or not; the length of all that there is once that is decided.
        self._n_sent = 0
        self.n_samples: int | None = None
        # Connections that it has left without a word, and that are still open.
        self._left_open: list[ClientConnection] = []

    async def run(self) -> None:
        """Talk, with a thousand cuts."""
        for cut in range(N_CUTS + 1):
            after = self.events[-1].seq if self.events else 0
            connection = await within(self._running.socket("/v1/stream").__aenter__())
            if self.events:
                resume = {"type": "resume", "session": self.events[-1].session, "after": after}
                await within(connection.send(json.dumps(resume)))
                resumed = await next_event(connection)
                assert isinstance(resumed, Resumed)
                assert (resumed.seq, resumed.session) == (after, self.events[-1].session)
                assert resumed.heard_samples <= self._n_sent
                self._n_sent = resumed.heard_samples
            if cut == N_CUTS - N_CUTS_AFTER_FINISH:
                self.n_samples = self._n_sent + 5000
            if cut == N_CUTS:
                await self._say_the_rest(connection)
                await self._read(connection, to_end=True)
                await connection.close()
            else:
                await self._talk(connection)
                await self._cut(connection)
        for connection in self._left_open:
            await connection.close()

    async def _talk(self, connection: ClientConnection) -> None:
        if self.n_samples is not None and self._rng.random() < 0.5:
            await self._say_the_rest(connection)
        elif self.n_samples is None:
            for _ in range(self._rng.randrange(0 if self.events else 1, 4)):
                await self._say(connection, self._rng.randrange(1, 1500), odd=self._rng.random() < 0.2)
        # Without an event it knows no session, and could not come back.
        while not self.events:
            self.events.append(await next_event(connection))
        if self._rng.random() < 0.5:
            await self._read(connection, to_end=False)

    async def _say(self, connection: ClientConnection, n_samples: int, *, odd: bool = False) -> None:
        data = audio(self._n_sent, self._n_sent + n_samples).astype("<i2").tobytes()
        self._n_sent += n_samples
        if odd:  # a message may end anywhere
            await connection.send(data[:-1])
            data = data[-1:]
        await connection.send(data)

    async def _say_the_rest(self, connection: ClientConnection) -> None:
        assert self.n_samples is not None
        try:
            if self._n_sent < self.n_samples:
                await self._say(connection, self.n_samples - self._n_sent)
            await connection.send('{"type":"finish"}')
        except ConnectionClosed:  # the daemon has said all, and closed
            pass

    async def _read(self, connection: ClientConnection, *, to_end: bool) -> None:
        """Read what comes: everything, or what is there at the moment."""
        try:
            while True:
                async with asyncio.timeout(WAIT_S if to_end else self._rng.random() * 0.004):
                    message = await next_event(connection)
                if isinstance(message, End) and isinstance(self.events[-1], End):
                    continue  # repeated to one who has it
                self.events.append(message)
        except ConnectionClosed as closed:
            assert closed.rcvd is not None  # noqa: PT017
            assert closed.rcvd.code == 1000  # noqa: PT017
        except TimeoutError:
            assert not to_end

    async def _cut(self, connection: ClientConnection) -> None:
        match self._rng.randrange(4):
            case 0:
                connection.transport.abort()
            case 1:
                await asyncio.sleep(self._rng.random() * 0.002)
                connection.transport.abort()
            case 2:
                await connection.close(1001)
            case 3:  # the client sees it break, the daemon does not
                self._left_open.append(connection)
                if len(self._left_open) > 5:
                    self._left_open.pop(0).transport.abort()


async def test_cuts_at_any_moment_lose_and_double_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    monkeypatch.setattr("streamer.server.connection.CLOSE_TIMEOUT_S", 0.5)  # of those that were left open
    listening = ListeningStream(capacity_samples=2000, seed=SEED)
    listening.start()
    async with serving(streams=streams_to(listening), max_subscribers=N_CUTS) as running:
        client = Client(running, SEED)
        await client.run()
    assert client.n_samples is not None
    assert client.n_samples > 80 * N_CUTS
    assert np.array_equal(listening.received(), audio(0, client.n_samples))
    assert listening.commands == [("end", client.n_samples)]

    assert [event.seq for event in client.events] == list(range(1, len(client.events) + 1))
    first, *rest, last = [event for event in client.events if not isinstance(event, Error)]
    assert isinstance(first, Ready)
    assert isinstance(last, End)
    assert [event.text for event in rest if isinstance(event, Final)] == [
        str(n) for n in range(1, client.n_samples // SAMPLES_A_FINAL + 1)
    ]
    assert [event.code for event in client.events if isinstance(event, Error)] == ["odd_bytes"]
