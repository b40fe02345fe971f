"""A protocol over WebSockets, here one that is made for the test: the conversations of tests/golden/runtime.txt."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from streamer.errors import BusyError, ConfigError, StreamerError, UsageError
from streamer.events import End, Error, Event, Final
from streamer.protocols.adapter import Action, Adapter, Change, Do, Finish, Hangup, Open, Query, Say, Write
from streamer.protocols.native import StreamStart
from streamer.server.responses import ERROR_BODIES
from streamer.server.routes import SOCKETS, Socket
from tests.builders import final
from tests.waiting import until
from tests.wire.harness import TOKEN, RecordingStream, Running, closing, pass_time, serving, within

PATH = "/v1/parrot"


class Parrot(Adapter):
    """Repeats what it is told, and opens a session where it is told to."""

    def begin(self) -> Sequence[Action]:
        return [Say("hello")]

    def receive(self, message: str | bytes) -> Sequence[Action]:
        if isinstance(message, bytes):
            return [Write(message)]
        match message:
            case "open":
                return [Open(StreamStart(language="en"))]
            case "flush":
                return [Say("will flush"), Do("flush")]
            case "change":
                return [Change({"language": "de"})]
            case "finish":
                return [Finish()]
            case "later":
                return [Say("wait"), Hangup(1013, "full", after_s=60.0)]
            case "fail":
                raise ValueError(message)
        return [Say(message)]

    def on_event(self, event: Event) -> Sequence[Action]:
        match event:
            case Final():
                return [Say(event.text)]
            case Error():
                return [Say(f"error {event.code}")]
            case End():
                return [Say("bye"), self.hangup]
        return []

    def refused(self, error: StreamerError) -> Sequence[Action]:
        return [Say(f"no: {error.code}"), *([Hangup(1013, "full")] if isinstance(error, BusyError) else [])]

    def unchanged(self, error: StreamerError) -> Sequence[Action]:
        return [Say(f"no: {error.code}")]


class Flushing(Parrot):
    def on_event(self, event: Event) -> Sequence[Action]:
        return [Do("flush"), *super().on_event(event)] if isinstance(event, Final) else super().on_event(event)


class Lasting(Parrot):
    """Stays when a session ends."""

    def on_event(self, event: Event) -> Sequence[Action]:
        return [Say("bye")] if isinstance(event, End) else []


class Hasty(Parrot):
    """Waits no longer than this for its client."""

    timeout_s: float | None = 30.0


def make(query: Query, headers: Mapping[str, str]) -> Parrot:
    if query.get("colour", "green") != "green":
        raise UsageError("the parrot is green: expected colour=green")
    return Parrot()


@pytest.fixture(autouse=True)
def speaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Parrot]], None]:
    """Serve parrots; another kind of them if that is asked for."""
    monkeypatch.setitem(SOCKETS, PATH, Socket(make, max_message_bytes=2_000_000))
    monkeypatch.setitem(ERROR_BODIES, PATH, lambda status, message: {"squawk": message})
    return lambda kind: monkeypatch.setitem(SOCKETS, PATH, Socket(lambda query, headers: kind()))


async def talk(client: ClientConnection, *script: str) -> None:
    """Say what stands behind `>`, expect what stands behind `<`."""
    for line in script:
        if line.startswith("> "):
            n, _, unit = line[2:].partition(" ")
            await client.send(bytes(int(n)) if unit == "bytes" else line[2:])
        else:
            assert await within(client.recv()) == line[2:]


class Stage:
    """Where a conversation takes place: what happens beside it, and what is true then."""

    def __init__(self, running: Running, client: ClientConnection, caplog: pytest.LogCaptureFixture) -> None:
        self.running, self.client, self.caplog = running, client, caplog

    @property
    def stream(self) -> RecordingStream:
        return self.running.streams.opened[0]

    async def happen(self, what: str) -> None:
        """Let something happen, a line that begins with `!`."""
        name, _, more = what.partition(" ")
        match name, more:
            case "refuse", "options":
                (await self.running.streams.first()).refusal = ConfigError("no German")
            case "accept", "options":
                self.stream.refusal = None
            case "refuse", _:
                self.running.streams.refusal = BusyError("full")
            case "no", "room":
                self.running.streams.prepare = lambda stream: stream.room.clear()
            case "room", _:
                self.stream.room.set()
            case "final", text:
                self.stream.log.append(final(text))
            case "pass", seconds:
                pass_time(float(seconds))
            case "ping", _:
                await (await self.client.ping())
            case "vanish", _:
                await self.running.streams.first()
                self.client.transport.abort()
            case "drain", _:
                self.running.server.drain()
            case _:
                raise ValueError(what)

    async def check(self, what: str) -> None:
        """Expect something, a line that begins with `=`."""
        name, _, more = what.partition(" ")
        match name:
            case "close":
                code, reason = await closing(self.client)
                assert more in (f"{code} {reason}", str(code))
            case "started":
                assert self.stream.start.language == more
            case "options":
                assert self.stream.options.language == more
            case "commands":
                assert ", ".join(f"{command} {n}" for command, n in self.stream.commands) == more
            case "writing" | "abandoned":
                await within(getattr(await self.running.streams.first(), name).wait())
            case "sessions":
                assert len(self.running.streams.opened) == int(more)
            case "refused":
                assert (self.running.count("refusals_total", reason=more) or 0) >= 1
            case "logged":
                assert [record.levelname for record in self.caplog.records] == [more]
            case _:
                raise ValueError(what)


GOLDEN = (Path(__file__).parents[1] / "golden" / "runtime.txt").read_text(encoding="utf-8")
KINDS = {kind.__name__: kind for kind in (Parrot, Flushing, Hasty)}


@pytest.mark.parametrize("script", GOLDEN.split("\n## ")[1:], ids=lambda script: script.partition("\n")[0])
async def test_a_conversation(
    script: str, speaking: Callable[[type[Parrot]], None], caplog: pytest.LogCaptureFixture
) -> None:
    title, *lines = script.strip().splitlines()
    speaking(KINDS.get(title.rpartition("(")[2].rstrip(")"), Parrot))
    async with serving() as running, running.socket(PATH) as client, running.socket(PATH) as other:
        stage = Stage(running, client, caplog)
        for line in lines:
            if line.startswith("! "):
                await stage.happen(line[2:])
            elif line.startswith("= "):
                await stage.check(line[2:])
            else:
                await talk(client, line)
        if "drain" not in script and "pass" not in script:  # other connections go on
            await talk(other, "< hello", "> polly", "< polly")


@pytest.mark.parametrize("finished", [True, False])
async def test_many_sessions_of_one_connection_leave_no_tasks_behind(
    finished: bool, speaking: Callable[[type[Parrot]], None]
) -> None:
    speaking(Lasting)
    async with serving() as running, running.socket(PATH) as client:
        await talk(client, "< hello")
        counts = set()
        for n in range(50):
            await talk(client, "> open", *(["> finish", "< bye"] if finished else []), "> polly", "< polly")
            if finished:
                await within(running.streams.opened[n].abandoned.wait())
            counts.add(len(asyncio.all_tasks()))
        assert len(running.streams.opened) == 50
        assert [stream.abandoned.is_set() for stream in running.streams.opened[:49]] == [True] * 49
        assert max(counts) - min(counts) < 5  # those that were just cancelled


async def test_a_session_that_cannot_be_finished_closes_its_connection_as_internal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("cannot finish")

    def prepare(stream: RecordingStream) -> None:
        stream.finish = fail  # type: ignore[method-assign]

    async with serving() as running:
        running.streams.prepare = prepare
        async with running.socket(PATH) as client, running.socket(PATH) as other:
            await talk(client, "> open", "> finish")
            assert await closing(client) == (1011, "internal")
            await within((await running.streams.first()).abandoned.wait())
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            await talk(other, "> open", "< hello")
            await until(lambda: len(running.streams.opened) >= 2)
            running.server.drain()
            assert await closing(other) == (1011, "internal")


@pytest.mark.parametrize(("query", "status"), [("", 401), (f"?token={TOKEN}&colour=red", 400)])
async def test_before_the_upgrade_too(query: str, status: int) -> None:
    async with serving(token=TOKEN) as running:
        with pytest.raises(InvalidStatus) as refusal:
            await running.socket(PATH + query)
        assert refusal.value.response.status_code == status
        assert (refusal.value.response.body or b"").startswith(b'{"squawk":"')
        assert (await running.ask(f"GET {PATH}?token={TOKEN}")).json().keys() == {"squawk"}


async def test_a_client_that_does_not_read_is_not_read_and_closed_when_too_far_behind() -> None:
    async with serving(queue_events=8) as running, running.socket(PATH, max_queue=1) as client:
        await talk(client, "> open")
        stream = await running.streams.first()
        for i in range(1000):  # more than the sockets hold
            stream.log.append(final("word " * 200, segment=i))
            await asyncio.sleep(0)
        await within(stream.abandoned.wait())
        await running.value("streamer_subscribers_too_slow_total", {}, 1)
        assert (await closing(client))[0] in (1013, 1006)  # the latter if it did not even read that


async def test_a_client_that_speaks_first_has_less_time_for_it() -> None:
    async with serving() as running, running.socket("/vosk", ping_interval=None) as client:
        await until(lambda: running.server._context.sockets != {})
        pass_time(30.1)
        code, reason = await closing(client)
        assert (code, "30 s (server.first_message_s)" in reason) == (1008, True)


async def test_messages_may_be_as_long_as_the_protocol_wants_them() -> None:
    async with serving() as running, running.socket(PATH, max_size=None) as client:
        await talk(client, "> " + "p" * 1_900_000, "< hello", "< " + "p" * 1_900_000, "> " + "p" * 2_100_000)
        assert (await closing(client))[0] == 1009
