"""A protocol over WebSockets: here one that is made for the test."""

import asyncio
import http.client
import time
from collections.abc import Mapping, Sequence

import pytest
from websockets.exceptions import InvalidStatus

from streamer.errors import BusyError, ConfigError, StreamerError, UsageError
from streamer.events import End, Error, Event, Final
from streamer.protocols.adapter import Action, Adapter, Change, Do, Finish, Hangup, Open, Query, Say, Write
from streamer.protocols.native import StreamStart
from streamer.server.responses import ERROR_BODIES
from streamer.server.routes import SOCKETS, Socket
from tests.waiting import until
from tests.wire.support import RecordingStream, closing, final, serving, within

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
                return [Say("bye"), Hangup()]
        return []

    def refused(self, error: StreamerError) -> Sequence[Action]:
        return [Say(f"no: {error}"), *([Hangup(1013, "full")] if isinstance(error, BusyError) else [])]

    def unchanged(self, error: StreamerError) -> Sequence[Action]:
        return [Say(f"no: {error}")]


def make(query: Query, headers: Mapping[str, str]) -> Parrot:
    if query.get("colour", "green") != "green":
        raise UsageError("the parrot is green: expected colour=green")
    return Parrot()


@pytest.fixture(autouse=True)
def parrot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOCKETS, PATH, Socket(make, max_message_bytes=2_000_000))
    monkeypatch.setitem(ERROR_BODIES, PATH, lambda status, message: {"squawk": message})


async def test_a_session_is_opened_heard_and_finished() -> None:
    async with serving() as running, running.socket(PATH) as client:
        for message in ("open", b"\1\2", "flush", b"\3\4", "finish"):
            await client.send(message)
        said = [await within(client.recv()) for _ in range(4)]
        assert said == ["hello", "will flush", "4 bytes", "bye"]
        assert (await closing(client))[0] == 1000
        stream = await running.streams.first()
        assert stream.start.language == "en"
        assert stream.commands == [("flush", 2)]
        await within(stream.abandoned.wait())  # its place is free


@pytest.mark.parametrize("finished", [True, False])
async def test_many_sessions_of_one_connection_leave_no_tasks_behind(
    finished: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lasting(Parrot):
        """Stays when a session ends."""

        def on_event(self, event: Event) -> Sequence[Action]:
            return [Say("bye")] if isinstance(event, End) else []

    monkeypatch.setitem(SOCKETS, PATH, Socket(lambda query, headers: Lasting()))
    async with serving() as running, running.socket(PATH) as client:
        assert await within(client.recv()) == "hello"
        counts = set()
        for n in range(50):
            await client.send("open")
            if finished:
                await client.send("finish")
                assert await within(client.recv()) == "bye"
                await within(running.streams.opened[n].abandoned.wait())
            await client.send("polly")
            assert await within(client.recv()) == "polly"
            counts.add(len(asyncio.all_tasks()))
        assert len(running.streams.opened) == 50
        assert max(counts) - min(counts) < 5  # those that were just cancelled


async def test_a_session_that_cannot_be_finished_closes_the_dialogue_as_internal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("cannot finish")

    def prepare(stream: RecordingStream) -> None:
        stream.finish = fail  # type: ignore[method-assign]

    async with serving() as running:
        running.streams.prepare = prepare
        async with running.socket(PATH) as client, running.socket(PATH) as other:
            await client.send("open")
            await client.send("finish")
            assert await closing(client) == (1011, "internal")
            await within((await running.streams.first()).abandoned.wait())
            assert caplog.messages.count("serving a client failed") == 1
            await other.send("open")
            assert await within(other.recv()) == "hello"
            await until(lambda: len(running.streams.opened) >= 2)
            running.server.drain()
            assert await closing(other) == (1011, "internal")


async def test_without_a_session_nothing_that_needs_one_happens() -> None:
    async with serving() as running, running.socket(PATH) as client:
        for message in (b"\1\2", "flush", "change", "finish", "polly"):
            await client.send(message)
        assert [await within(client.recv()) for _ in range(3)] == ["hello", "will flush", "polly"]
        assert running.streams.opened == []


async def test_what_is_refused_is_told_in_the_protocols_words() -> None:
    async with serving() as running:
        running.streams.refusal = BusyError("no room")
        async with running.socket(PATH) as client:
            await client.send("open")
            assert [await within(client.recv()) for _ in range(2)] == ["hello", "no: no room"]
            assert await closing(client) == (1013, "full")
        running.streams.refusal = None
        async with running.socket(PATH) as client:
            await client.send("open")
            stream = await running.streams.first()
            stream.refusal = ConfigError("no German")
            await client.send("change")
            assert [await within(client.recv()) for _ in range(2)] == ["hello", "no: no German"]
            await client.send("polly")
            assert await within(client.recv()) == "polly"


async def test_before_the_upgrade_too() -> None:
    async with serving(token="0123456789abcdef") as running:
        for query, status in (("?token=wrong-but-long-enough", 401), ("?token=0123456789abcdef&colour=red", 400)):
            with pytest.raises(InvalidStatus) as refusal:
                await running.socket(PATH + query)
            assert refusal.value.response.status_code == status
            assert refusal.value.response.body is not None
            assert refusal.value.response.body.startswith(b'{"squawk":"')

        def get() -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", running.port)
            connection.request("GET", f"{PATH}?token=0123456789abcdef")
            response = connection.getresponse()
            return response.status, response.read()

        status, body = await asyncio.to_thread(get)
        assert status == 426
        assert body.startswith(b'{"squawk":"')


async def test_a_client_that_vanishes_gives_its_place_up() -> None:
    async with serving() as running:
        client = await running.socket(PATH)
        await client.send("open")
        stream = await running.streams.first()
        client.transport.abort()
        await within(stream.abandoned.wait())


async def test_what_events_bring_about_waits_for_room_and_other_events_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flushing(Parrot):
        def on_event(self, event: Event) -> Sequence[Action]:
            return [Do("flush"), *super().on_event(event)] if isinstance(event, Final) else super().on_event(event)

    writing = asyncio.Event()

    def prepare(stream: RecordingStream) -> None:
        async def write(data: bytes) -> None:
            writing.set()
            await RecordingStream.write(stream, data)

        stream.room.clear()
        stream.write = write  # type: ignore[method-assign]

    monkeypatch.setitem(SOCKETS, PATH, Socket(lambda query, headers: Flushing()))
    async with serving() as running:
        running.streams.prepare = prepare
        async with running.socket(PATH) as client:
            assert await within(client.recv()) == "hello"
            for message in ("open", b"\1\2", "polly"):
                await client.send(message)
            stream = await running.streams.first()
            await within(writing.wait())
            for text in ("One.", "Two."):
                stream.log.append(final(1, text))
                assert await within(client.recv()) == text
            assert stream.commands == []
            stream.room.set()
            assert await within(client.recv()) == "polly"
            assert stream.commands == [("flush", 2), ("flush", 2)]


async def test_who_does_not_read_is_not_listened_to_and_closed_when_too_far_behind() -> None:
    async with serving(queue_events=8) as running, running.socket(PATH, max_queue=1) as client:
        await client.send("open")
        stream = await running.streams.first()
        for i in range(2_000):  # more than the sockets hold
            stream.log.append(final(i + 1, "word " * 100))
            await asyncio.sleep(0)
        await within(stream.abandoned.wait())
        await running.value("streamer_subscribers_too_slow_total", {}, 1)
        assert (await closing(client))[0] in (1013, 1006)  # the latter where it did not even read that


class Hasty(Parrot):
    """Waits no longer than this for its client."""

    timeout_s: float | None = 0.2


async def test_a_silent_client_is_refused_in_its_session_too_if_its_protocol_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SOCKETS, PATH, Socket(lambda query, headers: Hasty()))
    async with serving() as running, running.socket(PATH) as client:
        await client.send("open")
        stream = await running.streams.first()
        assert [await within(client.recv()) for _ in range(2)] == [
            "hello",
            "no: nothing came for 0.2 s (server.idle_s)",
        ]
        assert (await closing(client))[0] == 1008
        await within(stream.abandoned.wait())


async def test_a_client_that_is_held_back_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOCKETS, PATH, Socket(lambda query, headers: Hasty()))
    async with serving() as running:
        running.streams.prepare = lambda stream: stream.room.clear()
        async with running.socket(PATH) as client:
            await client.send("open")
            await client.send(b"\1\2")
            stream = await running.streams.first()
            await asyncio.sleep(0.5)
            stream.log.append(final(1, "Heard meanwhile."))
            assert [await within(client.recv()) for _ in range(2)] == ["hello", "Heard meanwhile."]
            stream.room.set()
            assert await within(client.recv()) == "no: nothing came for 0.2 s (server.idle_s)"


async def test_a_connection_is_closed_after_a_while_if_its_protocol_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(Parrot):
        def receive(self, message: str | bytes) -> Sequence[Action]:
            return [Say("wait"), Hangup(1013, "full", after_s=0.2)]

    monkeypatch.setitem(SOCKETS, PATH, Socket(lambda query, headers: Patient()))
    async with serving() as running, running.socket(PATH) as client:
        await client.send("polly")
        assert [await within(client.recv()) for _ in range(2)] == ["hello", "wait"]
        before_s = time.monotonic()
        assert await closing(client) == (1013, "full")
        assert time.monotonic() - before_s > 0.1


async def test_a_fault_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running, running.socket(PATH) as other:
        async with running.socket(PATH) as client:
            await client.send("open")
            await client.send("fail")
            assert (await closing(client))[0] == 1011
        await within((await running.streams.first()).abandoned.wait())
        await other.send("polly")
        assert [await within(other.recv()) for _ in range(2)] == ["hello", "polly"]
    assert "serving a client failed" in caplog.messages


async def test_when_the_daemon_stops_what_was_said_becomes_final() -> None:
    async with serving() as running, running.socket(PATH) as client, running.socket(PATH) as quiet:
        await client.send("open")
        await client.send(b"\1\2")
        stream = await running.streams.first()
        await within(stream.written.wait())
        running.server.drain()
        assert [await within(client.recv()) for _ in range(3)] == ["hello", "2 bytes", "bye"]
        assert (await closing(client))[0] == 1001
        assert (await closing(quiet))[0] == 1001


async def test_who_opens_nothing_is_ended() -> None:
    async with serving(idle_s=1.0, first_message_s=0.1) as running:
        async with running.socket(PATH) as client:
            assert await closing(client) == (1008, "idle: nothing came for 1 s (server.idle_s)")
        async with running.socket("/vosk") as client:  # here the client speaks first
            assert await closing(client) == (1008, "nothing came for 0.1 s (server.first_message_s)")


async def test_messages_may_be_as_long_as_the_protocol_wants_them() -> None:
    async with serving() as running, running.socket(PATH, max_size=None) as client:
        await client.send("p" * 1_900_000)
        assert await within(client.recv()) == "hello"
        assert len(await within(client.recv())) == 1_900_000
        await client.send("p" * 2_100_000)
        assert (await closing(client))[0] == 1009
