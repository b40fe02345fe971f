"""A gateway before workers that only keep to the protocol: nothing is lost or doubled, whatever fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.daemon.clients import ClientStreams
from streamer.daemon.streams import ClientStream
from streamer.errors import BusyError, ClusterError, ConfigError, UnknownSessionError
from streamer.events import End, Error, Event, Final, Flushed, Ready
from streamer.plugins.cluster.bus import Bus
from streamer.plugins.cluster.gateway import ClusterBackend
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    ALIVE_WORKERS,
    GATEWAYS,
    AudioBlock,
    Message,
    OpenSession,
    Refused,
    SessionCheckpoint,
    SessionUpdate,
)
from streamer.plugins.cluster.replay import WAITING_SAMPLES
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.protocols.native import StreamStart
from streamer.session.state import SessionState
from streamer.settings.table import ServerSettings, Settings
from tests.plugins.cluster.fake_worker import FakeWorker, texts_of
from tests.plugins.cluster.support import NatsServer
from tests.waiting import until

BLOCK = 800  # samples


class Lossy(Bus):
    """A connection on which a test can lose messages."""

    # Returns whether a message is lost.
    lose: Callable[[Message], bool] = staticmethod(lambda message: False)

    async def publish(self, subject: str, message: Message) -> None:
        if not self.lose(message):
            await super().publish(subject, message)


class Client:
    """A client's stream: its audio, and the events that it has received."""

    def __init__(self, streams: "Gateway", stream: ClientStream, n_samples: int, said: int = 0) -> None:
        self.stream = stream
        self.session = streams.backend._sessions[stream.feed.session]
        self.name = stream.feed.session
        self.data, self.samples = speech(n_samples)
        self.said = said
        self.events = events_of(stream)

    async def speak(self, until_sample: int | None = None) -> None:
        """Send audio up to a sample, by default all of it."""
        end = len(self.samples) if until_sample is None else until_sample
        for first in range(self.said, end, BLOCK):
            await self.stream.write(self.data[2 * first : 2 * min(end, first + BLOCK)])
        self.said = end

    async def processed(self) -> None:
        """Wait until a worker has processed what was sent."""
        await until(lambda: self.session.checkpoint.state.received >= self.said)

    async def finish(self, before: tuple[Event, ...] = ()) -> None:
        """End, and hold that each piece of the audio has its text once, in order, with the events before."""
        await self.speak()
        await self.stream.finish()
        assert finals([*before, *self.events]) == texts_of(self.samples)
        numbers = [event.seq for event in self.events if event.seq]
        assert numbers == sorted(set(numbers))
        assert isinstance(self.events[-1], End)


class Gateway(ClientStreams):
    """The streams of a gateway, and what runs their sessions."""

    def __init__(self, settings: ServerSettings, backend: ClusterBackend) -> None:
        super().__init__(settings, backend)
        self.backend = backend


class Places:
    """Gateways and workers of one NATS server."""

    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.settings = ClusterSettings(nats=(url,))
        self._stack = stack
        self.workers: dict[str, FakeWorker] = {}
        self.stalls: list[str] = []

    async def bus(self, name: str) -> tuple[Lossy, SessionLog]:
        bus = await Lossy.connect(self.settings, name)
        self._stack.push_async_callback(bus.close)
        log = SessionLog(bus, self.settings)
        await log.prepare()
        return bus, log  # type: ignore[return-value]

    async def worker(self, name: str = "w1", **more: Any) -> FakeWorker:  # noqa: ANN401 - passed on
        worker = self.workers[name] = await FakeWorker(*await self.bus(name), name, **more).start()
        self._stack.push_async_callback(worker.close)
        return worker

    async def gateway(self, name: str = "g1", **server: Any) -> Gateway:  # noqa: ANN401 - settings
        settings = Settings(plugins=(self.settings,), server=ServerSettings(**server))
        backend = ClusterBackend(settings, *await self.bus(name), name)
        backend.on_stall = lambda why, stall_s: self.stalls.append(why)
        await backend.start()
        self._stack.push_async_callback(backend.close)
        return Gateway(settings.server, backend)

    async def client(self, n_samples: int, streams: Gateway | None = None) -> Client:
        """Open a stream, by default at a gateway of its own."""
        streams = streams or await self.gateway()
        return Client(streams, await streams.open(StreamStart()), n_samples)

    async def owner(self, client: Client, but: FakeWorker | None = None) -> FakeWorker:
        """Wait until a worker, other than one, has a session."""

        def found() -> list[FakeWorker]:
            return [w for w in self.workers.values() if client.name in w.sessions and w is not but and not w.stopped]

        await until(lambda: bool(found()))
        return found()[0]


@pytest.fixture
async def places(nats: str) -> AsyncIterator[Places]:
    async with contextlib.AsyncExitStack() as stack:
        yield Places(nats, stack)


def speech(n_samples: int) -> tuple[bytes, Float32Array]:
    """Return audio as a client sends it, and as samples."""
    audio = np.random.default_rng(1).integers(-20_000, 20_000, n_samples).astype("<i2")
    return audio.tobytes(), audio.astype(np.float32) / np.float32(32_768)


def events_of(stream: ClientStream) -> list[Event]:
    """Return the list to which a stream's events are added, from the first on."""
    events: list[Event] = []
    events.extend(stream.feed.subscribe(events.append, after=0).backlog)
    return events


def finals(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Final)]


async def test_a_session_is_transcribed_by_a_worker(places: Places) -> None:
    worker = await places.worker()
    client = await places.client(8000)
    await client.speak(4000)
    await client.stream.command("flush")
    await client.stream.change(msgspec.structs.replace(client.stream.options, language="de"))
    await client.finish()
    assert isinstance(client.events[0], Ready)
    assert [event.time for event in client.events if isinstance(event, Flushed)] == [0.25]
    assert client.stream.options.language == "de"
    assert [(do.what, do.position) for do in worker.done] == [("flush", 4000), ("set", 4000), ("end", 8000)]


async def test_without_a_worker_no_client_is_admitted(places: Places) -> None:
    streams = await places.gateway()
    with pytest.raises(BusyError, match="start one with `streamer worker"):
        await streams.open(StreamStart())
    assert streams.backend.health()["status"] == "failing"


async def test_if_one_worker_refuses_the_next_is_asked_and_the_last_refusal_raised(places: Places) -> None:
    full, free = await places.worker("full"), await places.worker("free")
    full.refusal = "busy"
    streams = await places.gateway()
    await until(lambda: len(streams.backend.neighbours.workers()) == 2)
    for _ in range(4):
        await streams.open(StreamStart())
    assert (len(full.sessions), len(free.sessions), streams.backend.alive.sessions) == (0, 4, 4)
    free.refusal = "busy"
    with pytest.raises(BusyError, match="does not want to"):
        await streams.open(StreamStart())
    full.refusal = free.refusal = ConfigError.code
    with pytest.raises(ConfigError, match="does not want to"):
        await streams.open(StreamStart())
    with pytest.raises(ConfigError, match="keeps no history"):
        await streams.open(StreamStart(keep=True))
    assert streams.backend.alive.sessions == 4


async def test_nothing_is_lost_with_a_worker(places: Places) -> None:
    await places.worker("w1")
    await places.worker("w2")
    streams = await places.gateway()
    client = await places.client(32_000, streams)
    first = await places.owner(client)
    await client.speak(16_050)
    await client.stream.command("flush")
    first.kill()
    await client.finish()
    assert sum(isinstance(event, Flushed) for event in client.events) == 1
    assert places.stalls == ["lost"]
    assert streams.backend.alive.counters == {"moves_lost": 1.0}


async def test_a_worker_whose_process_has_ended_is_left_before_its_silence_is_long(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.placement.LOST_S", 600.0)
    monkeypatch.setattr("streamer.plugins.cluster.progress.SILENT_S", 600.0)
    await places.worker("w1")
    await places.worker("w2")
    client = await places.client(16_000)
    first = await places.owner(client)
    await client.speak(8000)
    first.kill()
    await first.bus.close()
    await client.speak(12_000)  # NATS answers that there is no subscriber
    await places.owner(client, but=first)
    await client.finish()


async def test_gateways_see_each_other(places: Places) -> None:
    gateways = [await places.gateway(name) for name in ("g1", "g2")]
    for gateway in gateways:
        await until(lambda gateway=gateway: len(gateway.backend.neighbours.gateways()) == 2)  # type: ignore[misc]


async def test_a_worker_that_was_stopped_and_comes_back_doubles_nothing(places: Places) -> None:
    await places.worker("w1")
    await places.worker("w2")
    client = await places.client(16_000)
    first = await places.owner(client)
    await client.speak(4000)
    first.stopped = True
    await client.speak(10_000)
    await places.owner(client, but=first)
    await first.go_on()
    await until(lambda: first.n_fenced == 1)
    await client.finish()


async def test_a_worker_that_was_asked_before_it_stopped_takes_nothing_when_it_continues(places: Places) -> None:
    first = await places.worker("w1")
    streams = await places.gateway()
    client = await places.client(16_000, streams)
    await client.speak(4000)
    second = await places.worker("w2")
    await until(lambda: len(streams.backend.neighbours.workers()) == 2)
    second.stopped = True
    await first.ask_to_move(client.name, "load")
    await until(lambda: bool(second._waiting))
    await client.speak(8000)
    await until(lambda: client.name in first.sessions)
    await second.go_on()
    await client.finish()
    assert second.sessions == {}
    assert first.n_fenced == 0


@pytest.mark.parametrize("why", ["drain", "load"])
async def test_a_session_moves_if_its_worker_asks_for_it(places: Places, why: str) -> None:
    await places.worker("w1")
    await places.worker("w2")
    streams = await places.gateway()
    await until(lambda: len(streams.backend.neighbours.workers()) == 2)
    client = await places.client(16_000, streams)
    first = await places.owner(client)
    await client.speak(8050)
    first.draining = why == "drain"
    await first.ask_to_move(client.name, why)
    second = await places.owner(client, but=first)
    await client.finish()
    assert first.sessions == second.sessions == {}
    assert first.moved == [client.name] or first.n_fenced == 1
    assert places.stalls == [why]


async def test_a_worker_that_drains_alone_keeps_its_session_until_there_is_another(places: Places) -> None:
    first = await places.worker("w1")
    client = await places.client(8000)
    first.draining = True
    await first.ask_to_move(client.name, "drain")
    await client.speak()
    await until(lambda: len(finals(client.events)) == 5)
    assert first.sessions
    await places.worker("w2")
    await places.owner(client, but=first)
    await client.finish()


async def test_a_full_worker_takes_over_what_no_other_has_room_for(places: Places) -> None:
    first = await places.worker("w1")
    client = await places.client(0)
    second = await places.worker("w2", room=False)
    first.kill()
    assert await places.owner(client, but=first) is second


async def test_a_slow_worker_is_left(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.progress.STUCK_S", 0.5)
    monkeypatch.setattr("streamer.plugins.cluster.progress.SLOW_SAMPLES", 8000)
    await places.worker("w1")
    await places.worker("w2")
    client = await places.client(20_000)
    first = await places.owner(client)
    first.idle = True
    await client.speak()
    await places.owner(client, but=first)
    await client.finish()
    assert places.stalls == ["slow"]


async def test_a_worker_that_forgot_a_session_is_given_it_again(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.progress.SILENT_S", 0.8)
    worker = await places.worker()
    client = await places.client(8000)
    await client.speak(4000)
    worker.sessions.clear()
    await client.speak()
    await places.owner(client)
    await client.finish()
    assert places.stalls == ["silent"]


@pytest.mark.parametrize("kind", [AudioBlock, SessionUpdate], ids=["to the worker", "from the worker"])
async def test_lost_messages_are_made_good(places: Places, kind: type[Message]) -> None:
    worker = await places.worker()
    streams = await places.gateway()
    bus = streams.backend._bus if kind is AudioBlock else worker.bus
    chance = np.random.default_rng(3)
    bus.lose = lambda message: isinstance(message, kind) and chance.random() < 0.3  # type: ignore[attr-defined]
    client = await places.client(16_000, streams)
    await client.speak()
    finishing = asyncio.create_task(client.finish())
    await until(lambda: not worker.sessions)
    bus.lose = lambda message: False  # type: ignore[attr-defined]
    if kind is SessionUpdate:  # `end` may be among those lost
        await client.session.read_log(client.stream.feed.last_seq)
    await finishing


async def test_a_client_is_held_back_while_too_much_waits(places: Places) -> None:
    worker = await places.worker()
    client = await places.client(WAITING_SAMPLES + 16_000)
    worker.idle = True
    speaking = asyncio.create_task(client.speak())
    await until(lambda: client.stream.session.free < 8000)
    await asyncio.sleep(0.1)
    assert not speaking.done()
    worker.idle = False
    await speaking
    await client.processed()


async def test_a_session_whose_client_has_left_ends(places: Places) -> None:
    worker = await places.worker()
    streams = await places.gateway()
    client = await places.client(0, streams)
    streams.abandon(client.stream)
    await until(lambda: worker.left == [client.name])
    assert streams.backend.alive.sessions == 0


async def test_a_session_that_was_being_opened_as_its_client_left_ends_at_its_owner(places: Places) -> None:
    worker = await places.worker()
    streams = await places.gateway()
    await until(lambda: len(streams.backend.neighbours.workers()) == 1)
    worker.stopped = True
    opening = asyncio.create_task(streams.open(StreamStart()))
    await until(lambda: bool(worker._waiting))
    (name,) = streams.backend._sessions
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    # An update of a former owner does not count for the session as a whole.
    checkpoint = SessionCheckpoint(model="", start=StreamStart(), seq=0, command=0, state=SessionState())
    old = SessionUpdate(
        session=name, worker="w0", epoch=0, previous=0, sequence=0, events=(), checkpoint=checkpoint, head=0, command=0
    )
    await worker.bus.publish(f"{GATEWAYS}.g1", old)
    await asyncio.sleep(0.2)
    await worker.go_on()
    await until(lambda: worker.left == [name])


async def test_a_session_is_resumed_with_the_token_that_began_it_and_with_no_other(places: Places) -> None:
    await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    client = Client(g1, await g1.open(StreamStart(), tenant="anna"), 8000)
    await client.speak()
    await client.processed()
    g1.keep(client.stream)
    for gateway in (g1, g2):
        for tenant in ("berta", ""):
            with pytest.raises(UnknownSessionError):
                await gateway.resume(client.name, tenant=tenant)
    assert await g1.resume(client.name, after=3, tenant="anna") is client.stream
    assert client.stream.go_on() == 8000
    await g1.backend.close()
    again = await g2.resume(client.name, after=client.stream.feed.last_seq, tenant="anna")
    assert g2.backend.alive.sessions == 1
    await again.finish()


@pytest.mark.parametrize("lost", ["gateway", "gateway and worker"])
async def test_a_client_continues_at_another_gateway(places: Places, lost: str) -> None:
    await places.worker("w1")
    await places.worker("w2")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    client = Client(g1, await g1.open(StreamStart(), tenant="anna"), 32_000)
    first = await places.owner(client)
    await client.stream.command("pause")
    await client.stream.command("resume")
    await client.speak(15_050)
    await client.stream.command("flush")
    await client.speak(17_500)
    await client.processed()
    before, seen = tuple(client.events), client.stream.feed.last_seq
    await g1.backend.close()
    if lost != "gateway":
        first.kill()

    stream = await g2.resume(client.name, after=seen, tenant="anna")
    assert g2.backend.alive.sessions == 1
    assert stream.feed.last_seq >= seen
    assert stream.options == client.stream.options
    position = stream.go_on()
    assert position == 16_000  # where the open segment begins
    again = Client(g2, stream, 32_000, said=position)
    await again.finish(before)
    assert min(event.seq for event in again.events) > seen  # what the client has is not read again
    whats = [do.what for worker in places.workers.values() for do in worker.done]
    assert whats.count("pause") == whats.count("flush") == 1


async def test_a_command_that_took_effect_is_not_repeated_with_its_audio(places: Places) -> None:
    worker = await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    client = await places.client(3000, g1)
    await client.speak(2000)  # the open segment begins at 1600
    await client.stream.command("flush")
    await client.speak()
    await client.processed()
    await g1.backend.close()
    stream = await g2.resume(client.name, after=client.stream.feed.last_seq)
    assert stream.go_on() == 1600
    again = Client(g2, stream, 3000, said=1600)
    await again.speak(2000)
    await stream.command("flush")
    await again.speak()
    await stream.finish()
    assert [do.what for do in worker.done] == ["flush", "end"]


async def test_a_client_that_does_not_send_audio_again_comes_to_an_end(places: Places) -> None:
    worker = await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    client = await places.client(3000, g1)
    await client.speak()
    await client.processed()
    await g1.backend.close()
    stream = await g2.resume(client.name, after=client.stream.feed.last_seq)
    assert stream.go_on() == 1600
    await stream.finish()
    assert worker.done[-1].position == 3000  # a worker waits for all audio that was processed before


async def test_a_session_that_went_elsewhere_is_lost_here(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.progress.SILENT_S", 0.8)
    await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    client = await places.client(8000, g1)
    await client.speak(2000)
    await client.processed()
    stream = await g2.resume(client.name, after=0)
    await until(lambda: isinstance(client.events[-1], End))
    lost = client.events[-2]
    assert isinstance(lost, Error)
    assert (lost.code, lost.fatal) == (UnknownSessionError.code, True)
    assert g1.backend.alive.sessions == 0
    await Client(g2, stream, 8000, said=stream.go_on()).finish()


async def test_a_client_that_comes_back_for_the_last_words_gets_them(places: Places) -> None:
    await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    client = await places.client(4000, g1)
    await client.finish()
    await g1.backend.close()
    stream = await g2.resume(client.name, after=0)
    assert stream.complete
    await Client(g2, stream, 4000, said=4000).finish()


async def test_unknown_and_malformed_sessions_are_refused(places: Places) -> None:
    await places.worker()
    streams = await places.gateway()
    for name in ("unknown", "a.b", "*", ">", "", "x" * 2000):
        with pytest.raises(UnknownSessionError):
            await streams.resume(name, after=0)


@pytest.mark.parametrize(
    ("rate", "channels", "format"),
    [(16_000, 1, "s16le"), (16_000, 2, "s16le"), (48_000, 1, "f32le"), (44_100, 2, "s16le"), (8000, 1, "s16le")],
)
async def test_other_rates_sound_the_same_at_another_gateway(
    places: Places, rate: int, channels: int, format: str
) -> None:
    worker = await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    noise = np.random.default_rng(7).normal(0, 0.1, 3 * rate * channels)
    data = noise.astype("<f4").tobytes() if format == "f32le" else (noise * 32_768).astype("<i2").tobytes()
    frame_bytes = channels * (4 if format == "f32le" else 2)
    expected = PcmDecoder(format, rate, channels).decode(data)

    def at(streams: Gateway, position: int) -> bool:
        (session,) = streams.backend._sessions.values()
        return session.checkpoint.state.received >= position

    stream = await g1.open(StreamStart(format=format, sample_rate=rate, channels=channels))
    await stream.write(data[: 2 * rate * frame_bytes])
    await until(lambda: at(g1, 30_000))
    await g1.backend.close()
    again = await g2.resume(stream.feed.session, after=stream.feed.last_seq)
    frame = again.go_on()
    needed_from = again.session.ring.first  # type: ignore[attr-defined]
    assert 0 < frame * 16_000 / rate <= needed_from
    worker.received.clear()
    await again.write(data[frame * frame_bytes :])
    await until(lambda: at(g2, len(expected) - 1600))
    (pieces,) = worker.received.values()
    assert min(pieces) == needed_from
    found = np.concatenate([pieces[position] for position in sorted(pieces)])
    assert np.allclose(found, expected[needed_from : needed_from + len(found)], atol=1e-5)
    assert len(found) >= 14_000


async def test_slots_are_those_of_one_gateway_and_taken_while_sessions_are_opened(places: Places) -> None:
    await places.worker()
    streams = await places.gateway(max_streams=2, resume_s=30.0)
    await until(lambda: len(streams.backend.neighbours.workers()) == 1)
    opened = await asyncio.gather(*(streams.open(StreamStart()) for _ in range(5)), return_exceptions=True)
    refused = [each for each in opened if isinstance(each, BusyError)]
    assert len(refused) == 3
    assert "all 2 places" in str(refused[0])
    first = next(each for each in opened if isinstance(each, ClientStream))
    streams.keep(first)
    await streams.open(StreamStart())
    assert first.feed.closed


async def test_another_model_continues_behind_a_gap(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.gateway_session.OTHER_MODEL_S", 0.3)
    first = await places.worker("w1")
    client = await places.client(8000)
    await client.speak(3000)
    await client.processed()
    second = await places.worker("w2", model="base.en 2")
    first.kill()
    assert await places.owner(client, but=first) is second
    known = second.sessions[client.name].checkpoint
    assert known.model == "base.en 2"
    assert known.state.needed_from == 3040  # behind what was processed
    assert known.state.losses.waiting[0].start == 1600
    known.state.check()
    await client.speak()
    await client.stream.finish()


async def test_no_session_moves_while_this_gateway_is_cut_off_and_all_continue_when_nats_is_back(
    nats_server: NatsServer, places: Places
) -> None:
    await places.worker("w1")
    await places.worker("w2")
    streams = await places.gateway()
    client = await places.client(16_000, streams)
    owner = await places.owner(client)
    await client.speak(8000)
    nats_server.kill()
    await until(lambda: not streams.backend._bus.connected)
    assert streams.backend.health()["status"] == "failing"
    await client.speak(12_000)
    await asyncio.sleep(2.5)
    nats_server.start()
    await until(lambda: streams.backend._bus.connected and len(streams.backend.neighbours.workers()) == 2)
    await client.finish()
    assert streams.backend.alive.counters == {}
    assert owner.done[-1].what == "end"


async def test_a_worker_that_owns_a_session_and_refuses_it_does_not_take_it_from_its_gateway(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await places.worker("w1")
    client = await places.client(8000)
    second = await places.worker("w2")
    open_there, n_asked = second._open, 0

    async def too_late(request: OpenSession) -> Message:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 1:
            await open_there(request)
            del second.sessions[request.session]
        elif n_asked > 5:
            monkeypatch.setattr(second, "_open", open_there)
        return Refused(code=ClusterError.code, message="NATS has taken too long to store it")

    monkeypatch.setattr(second, "_open", too_late)
    first.kill()
    assert await places.owner(client, but=first) is second
    await client.finish()


async def test_of_a_long_session_only_what_is_missing_is_read(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await places.worker()
    streams = await places.gateway()
    client = await places.client(32_000, streams)
    await client.speak(30_000)
    await until(lambda: len(finals(client.events)) == 18)
    read: list[int | None] = []
    get = streams.backend._log._get

    async def counted(session: str, sequence: int | None = None) -> Any:  # noqa: ANN401 - passed on
        read.append(sequence)
        return await get(session, sequence)

    monkeypatch.setattr(streams.backend._log, "_get", counted)
    lost: list[Message] = []

    def lose(message: Message) -> bool:
        lost.append(message)
        return isinstance(message, SessionUpdate)

    worker.bus.lose = lose  # type: ignore[attr-defined]
    await client.speak(31_000)
    await until(lambda: any(isinstance(each, SessionUpdate) and each.previous < each.sequence for each in lost))
    worker.bus.lose = lambda message: False  # type: ignore[attr-defined]
    await client.finish()
    assert 0 < len(read) < 10


async def test_a_client_that_is_refused_finds_its_session_when_it_tries_again(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.gateway.RESUME_S", 0.3)
    worker = await places.worker()
    g1, g2 = await places.gateway("g1"), await places.gateway("g2", resume_s=2.0)
    client = await places.client(8000, g1)
    await client.speak()
    await client.processed()
    await g1.backend.close()
    open_there = worker._open

    async def late(request: OpenSession) -> Message:
        await asyncio.sleep(0.6)
        return await open_there(request)

    monkeypatch.setattr(worker, "_open", late)
    with pytest.raises(BusyError):
        await g2.resume(client.name, after=client.stream.feed.last_seq)
    await until(lambda: client.name in worker.sessions)
    await asyncio.sleep(0.6)  # it has reported the session
    assert worker.left == []
    await until(lambda: worker.left == [client.name])  # no client has come


async def test_workers_that_come_and_go_are_logged(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "streamer.plugins.cluster.neighbours")
    first, second = await places.worker("w1"), await places.worker("w2")
    await places.gateway()
    await until(lambda: "worker w2 joins, with nano.en 1" in caplog.messages)
    assert "worker w1 joins, with nano.en 1" in caplog.messages
    first.draining = True
    await first.bus.publish(f"{ALIVE_WORKERS}.w1", first.alive)
    first.kill()
    await until(lambda: "worker w1 has left" in caplog.messages)
    assert "no worker is left" not in caplog.text
    second.kill()
    await until(lambda: "no worker is left" in caplog.text)
    assert caplog.text.count("worker w2 is lost") == 1
    assert len(caplog.messages) == 5


async def test_a_client_is_warned_once_when_no_worker_serves_it(
    places: Places, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.progress.WAIT_S", 1.5)
    caplog.set_level("INFO", "streamer.plugins.cluster.gateway_session")
    first = await places.worker("w1")
    client = await places.client(16_000)
    await client.speak(4000)
    await asyncio.sleep(2.0)  # a client's silence is not its worker's
    first.kill()
    await client.speak(8000)
    await until(lambda: any(isinstance(event, Error) for event in client.events))
    (warning,) = (event for event in client.events if isinstance(event, Error))
    assert (warning.code, warning.fatal, warning.seq, warning.session) == ("waiting", False, 0, client.name)
    second = await places.worker("w2")
    await places.owner(client, but=first)
    await client.finish()
    assert [event for event in client.events if isinstance(event, Error)] == [warning]
    for worker in (first, second):
        assert f"worker {worker.name} has the session" in caplog.text
