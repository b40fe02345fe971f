"""The conversations of tests/golden/protocols over real sockets, with sessions that only take notes."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from streamer.engine.eventlog import EventLog
from streamer.errors import StreamerError, UnknownSessionError
from streamer.events import Error, Event
from streamer.protocols.adapter import Action, Adapter, Query
from streamer.protocols.native import Command, StreamStart
from streamer.protocols.wyoming import Wyoming
from streamer.server import wyoming
from streamer.server.routes import SOCKETS
from streamer.settings.options import SessionOptions
from tests.conversations import PROTOCOLS, SESSIONS, Conversation, Notes, Script, Step, conversations, refusal
from tests.daemon import free_port
from tests.waiting import until
from tests.wire.harness import serving, within


class Engine(Notes):
    """Opens sessions, one after another, and is the stream of each; it only takes notes."""

    complete = outlives = False

    def __init__(self, talk: Conversation) -> None:
        super().__init__()
        # The newest session; and whether it can be resumed, and its client's connection was lost.
        self.log = EventLog("", 1)
        self.in_use = asyncio.Lock()
        self.is_known = False
        self.kept = asyncio.Event()
        # The refusal of what is asked for next.
        self.refusal: StreamerError | None = None
        self._frame_bytes = talk.frame_bytes
        self._names = iter(SESSIONS)
        self._n_bytes = 0

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def open(self, start: StreamStart, *, tenant: str = "") -> "Engine":
        self.note_open(start)
        self.check()
        self.log, self.is_known, self._n_bytes = EventLog(next(self._names), 1000), True, 0
        self.in_use = asyncio.Lock()
        return self

    async def resume(self, session: str, *, after: int = 0, tenant: str = "") -> "Engine":
        self.check()
        if not self.is_known or self.log.session != session:
            raise UnknownSessionError("the session is not known: start another")
        return self

    def keep(self, stream: object) -> None:
        self.kept.set()

    def abandon(self, stream: object) -> None:
        self.is_known = False

    give_up = abandon

    def abandon_unreachable(self, tenants: object) -> None:
        """Do nothing: these take no slot."""

    async def write(self, data: bytes) -> None:
        self._n_bytes += len(data)
        self.audio += data

    async def command(self, command: Command) -> None:
        self.done.append(command)

    async def change(self, options: SessionOptions) -> None:
        self.check()
        self.note_set(options)

    def finish(self) -> None:
        self.done.append("finish")

    def report(self, error: Error) -> None:
        self.log.append(error)

    def go_on(self) -> int:
        return self._n_bytes // self._frame_bytes


class Observed:
    """An adapter that shows what it was given."""

    def __init__(self, adapter: Adapter, weight: int) -> None:
        self._adapter = adapter
        self._weight = weight
        self.n_received = 0
        self.newest: Event | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._adapter, name)

    def receive(self, message: str | bytes) -> Sequence[Action]:
        self.n_received += len(message) + self._weight
        return self._adapter.receive(message)

    def on_event(self, event: Event) -> Sequence[Action]:
        self.newest = event
        return self._adapter.on_event(event)


class Line:
    """A connection to Wyoming's port, with the methods of a WebSocket."""

    close_code, close_reason = 0, ""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, message: bytes) -> None:
        self._writer.write(message)

    async def recv(self) -> bytes:
        line = await self._reader.readline()
        if not line:
            raise ConnectionClosed(None, None)
        return line

    async def close(self) -> None:
        self._writer.transport.abort()


class Client:
    """A client of a server, as a conversation has it."""

    def __init__(self, talk: Conversation, engine: Engine, log: EventLog, adapters: list[Observed]) -> None:
        self._talk = talk
        self._engine = engine
        self._log = log
        self._adapters = adapters
        self._script = Script()
        self._socket: Any = None
        self._connected = False
        # Whether events are those of the daemon's own input.
        self._is_own = True
        self._n_sent = 0

    async def play(self, step: Step, connect: Any) -> None:  # noqa: ANN401 - a function
        """Play a line."""
        talk, text = self._talk, step.text
        match step.kind:
            case "connect":
                self._n_sent, self._socket, self._connected = 0, await connect(text), True
                self._is_own = text.startswith("/v1/captions")
            case ">" | ">>":
                await self._send(talk.message(text))
            case "!":
                self._engine.refusal = refusal(text)
                if text == "forget":
                    self._engine.is_known = False
                elif not text.startswith("refuse"):
                    await self._publish(self._script.event(text))
            case "<":
                talk.expect(text, await self._said())
            case "=":
                engine, n_bytes = self._engine, talk.n_expected(text)
                await until(lambda: len(engine.audio) >= n_bytes if n_bytes else bool(engine.done))
                engine.expect(talk, text)
            case "break":
                self._engine.kept.clear()
                self._socket.transport.abort()
                self._connected = False
                if self._engine.log.session:
                    await within(self._engine.kept.wait())
            case "leave":
                self._connected = False
                await self._socket.close(int(text))
                engine = self._engine
                await until(lambda: engine.kept.is_set() or not engine.is_known)

    async def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            await self._socket.close()

    async def _send(self, message: str | bytes) -> None:
        await self._socket.send(message)
        adapter = self._adapters[-1]
        self._n_sent += len(message) + (not isinstance(self._socket, Line))
        await until(lambda: adapter.n_received >= self._n_sent)

    async def _publish(self, event: Event) -> None:
        log = self._log
        if not self._is_own:
            await until(lambda: bool(self._engine.log.session))
            log = self._engine.log
        event = log.append(event)
        if self._connected:
            adapter = self._adapters[-1]
            await until(lambda: adapter.newest is not None and adapter.newest.seq >= event.seq)

    async def _said(self) -> Any:  # noqa: ANN401 - JSON
        try:
            return json.loads(await within(self._socket.recv()))
        except ConnectionClosed:
            self._connected = False
            return f"close {self._socket.close_code} {self._socket.close_reason}".strip()


@pytest.mark.parametrize("talk", [talk for name in PROTOCOLS for talk in conversations(name, "server")])
async def test_the_server_keeps_its_part_of_a_conversation(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, adapters, log = Engine(talk), list[Observed](), EventLog(SESSIONS[0], 1000)

    def observed(adapter: Any, weight: int = 1) -> Any:  # noqa: ANN401 - an adapter, as the server sees it
        adapters.append(Observed(adapter, weight))
        return adapters[-1]

    def observing(make: Callable[[Query, Mapping[str, str]], Adapter]) -> Callable[[Query, Mapping[str, str]], Any]:
        return lambda query, headers: observed(make(query, headers))

    for path, socket in SOCKETS.items():
        monkeypatch.setitem(SOCKETS, path, replace(socket, make=observing(socket.make)))
    monkeypatch.setattr("streamer.protocols.whisperlive.WAIT_CLOSE_S", 0)
    monkeypatch.setattr(wyoming, "Wyoming", lambda info: observed(Wyoming(info), 0))
    port = free_port() if talk.protocol == "wyoming" else 0
    async with serving(log, streams=engine, wyoming_port=port) as running:

        async def connect(address: str) -> Any:  # noqa: ANN401
            return await running.socket(address) if address else Line(*await asyncio.open_connection("127.0.0.1", port))

        if port:
            await running.server.serve_model("nano.en", ["en"])
        client = Client(talk, engine, log, adapters)
        for step in talk.steps:
            await client.play(step, connect)
        assert not engine.done
        engine.log.close()
        await client.close()
