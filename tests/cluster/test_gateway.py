"""A gateway before workers that only keep to the protocol: nothing is lost or doubled, whoever is."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder
from streamer.cluster.bus import Bus
from streamer.cluster.gateway import ClusterStreams
from streamer.cluster.kept import WAITING_SAMPLES
from streamer.cluster.log import SessionLog
from streamer.cluster.messages import (
    ALIVE_GATEWAYS,
    ALIVE_WORKERS,
    GATEWAYS,
    VERSION,
    Audio,
    Checkpoint,
    GatewayAlive,
    Message,
    Open,
    Refused,
    Told,
)
from streamer.engine.state import SessionState
from streamer.errors import BusyError, ClusterError, ConfigError, UnknownSessionError
from streamer.events import End, Error, Event, Final, Flushed, Ready
from streamer.protocols.native import StreamStart
from streamer.sessions.streams import ClientStream
from streamer.settings.table import ClusterSettings, ServerSettings, Settings
from tests.cluster.fake_worker import FakeWorker, texts_of
from tests.cluster.support import NatsServer, until

BLOCK = 800  # samples


class Lossy(Bus):
    """A connection on which a test can lose messages."""

    # Says which messages do not come.
    lose: Callable[[Message], bool] = staticmethod(lambda message: False)

    async def publish(self, subject: str, message: Message) -> None:
        if not self.lose(message):
            await super().publish(subject, message)


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

    async def worker(self, name: str, **more: Any) -> FakeWorker:  # noqa: ANN401 - passed on
        worker = self.workers[name] = await FakeWorker(*await self.bus(name), name, **more).start()
        self._stack.push_async_callback(worker.close)
        return worker

    async def gateway(self, name: str = "g1", server: ServerSettings | None = None, **more: Any) -> ClusterStreams:  # noqa: ANN401
        bus, log = await self.bus(name)
        cluster = msgspec.structs.replace(self.settings, **more)
        streams = ClusterStreams(Settings(cluster=cluster, server=server or ServerSettings()), bus, log, name)
        streams.on_stall = lambda why, stall_s: self.stalls.append(why)
        await streams.start()
        self._stack.push_async_callback(streams.close)
        return streams

    async def owner(self, stream: ClientStream, but: FakeWorker | None = None) -> FakeWorker:
        """Wait until a worker, other than one, has a session."""
        name = stream.feed.session

        def found() -> list[FakeWorker]:
            return [w for w in self.workers.values() if name in w.sessions and w is not but and not w.stopped]

        await until(lambda: bool(found()))
        return found()[0]


@pytest.fixture
async def places(nats: str) -> AsyncIterator[Places]:
    async with contextlib.AsyncExitStack() as stack:
        yield Places(nats, stack)


def speech(n_samples: int, seed: int = 1) -> tuple[bytes, Float32Array]:
    """Return audio as a client sends it, and as samples."""
    audio = np.random.default_rng(seed).integers(-20_000, 20_000, n_samples).astype("<i2")
    return audio.tobytes(), audio.astype(np.float32) / np.float32(32_768)


def events_of(stream: ClientStream) -> list[Event]:
    """Return the list to which a stream's events are added, from the first on."""
    events: list[Event] = []
    events.extend(stream.feed.subscribe(events.append, after=0).backlog)
    return events


def finals(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Final)]


async def speak(stream: ClientStream, data: bytes) -> None:
    for first in range(0, len(data), 2 * BLOCK):
        await stream.write(data[first : first + 2 * BLOCK])


async def heard(stream: ClientStream, n_samples: int) -> None:
    """Wait until a worker has heard so much."""
    remote = stream._session
    await until(lambda: remote.checkpoint.state.heard >= n_samples)  # type: ignore[attr-defined]


async def test_a_session_is_transcribed_by_a_worker(places: Places) -> None:
    await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart(language="en"))
    events = events_of(stream)
    data, samples = speech(8000)
    await speak(stream, data[:8000])
    await stream.command("flush")
    await stream.change(msgspec.structs.replace(stream.options, language="de"))
    await speak(stream, data[8000:])
    await stream.finish()
    assert isinstance(events[0], Ready)
    assert finals(events) == texts_of(samples)
    assert [event.time for event in events if isinstance(event, Flushed)] == [0.25]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert isinstance(events[-1], End)
    assert stream.options.language == "de"
    assert [(do.what, do.position) for do in places.workers["w1"].done] == [
        ("flush", 4000),
        ("set", 4000),
        ("end", 8000),
    ]


async def test_without_a_worker_nobody_is_let_in(places: Places) -> None:
    streams = await places.gateway()
    with pytest.raises(BusyError, match="start one with `streamer worker"):
        await streams.open(StreamStart())
    assert streams.health()["status"] == "failing"


async def test_where_one_is_full_the_next_is_asked(places: Places) -> None:
    full, free = await places.worker("full"), await places.worker("free")
    full.refusal = "busy"
    streams = await places.gateway()
    await until(lambda: len(streams.workers()) == 2)
    for _ in range(4):
        await streams.open(StreamStart())
    assert (len(full.sessions), len(free.sessions)) == (0, 4)
    free.refusal = "busy"
    with pytest.raises(BusyError, match="does not want to"):
        await streams.open(StreamStart())
    assert len(streams.alive.sessions) == 1
    assert streams.alive.sessions[""] == 4


async def test_what_a_model_cannot_do_is_told(places: Places) -> None:
    worker = await places.worker("w1")
    worker.refusal = ConfigError.code
    streams = await places.gateway()
    with pytest.raises(ConfigError, match="does not want to"):
        await streams.open(StreamStart())
    with pytest.raises(ConfigError, match="keeps no history"):
        await streams.open(StreamStart(keep=True))


async def test_nothing_is_lost_when_a_worker_is(places: Places) -> None:
    await places.worker("w1")
    await places.worker("w2")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(32_000)
    first = await places.owner(stream)
    await speak(stream, data[:32_100])
    await stream.command("flush")
    first.kill()
    await speak(stream, data[32_100:])
    second = await places.owner(stream, but=first)
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert sum(isinstance(event, Flushed) for event in events) == 1
    assert second.name != first.name
    assert places.stalls == ["lost"]
    assert streams.alive.counters == {"moves_lost": 1.0}


async def test_a_worker_that_was_stopped_and_comes_back_doubles_nothing(places: Places) -> None:
    await places.worker("w1")
    await places.worker("w2")
    stream = await (await places.gateway()).open(StreamStart())
    events = events_of(stream)
    data, samples = speech(16_000)
    first = await places.owner(stream)
    await speak(stream, data[:8000])
    first.stopped = True
    await speak(stream, data[8000:20_000])
    await places.owner(stream, but=first)
    await first.go_on()
    await until(lambda: first.n_fenced == 1)
    await speak(stream, data[20_000:])
    await stream.finish()
    assert finals(events) == texts_of(samples)


async def test_a_worker_that_was_asked_before_it_stopped_steals_nothing_when_it_goes_on(places: Places) -> None:
    first = await places.worker("w1")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(16_000)
    await speak(stream, data[:8000])
    second = await places.worker("w2")
    await until(lambda: len(streams.workers()) == 2)
    second.stopped = True
    await first.ask_to_move(stream.feed.session, "load")
    await until(lambda: bool(second._waiting))
    await speak(stream, data[8000:16_000])
    await until(lambda: stream.feed.session in first.sessions)
    await second.go_on()
    await speak(stream, data[16_000:])
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert second.sessions == {}
    assert first.n_fenced == 0


@pytest.mark.parametrize("why", ["drain", "load"])
async def test_a_session_moves_where_its_worker_asks_for_it(places: Places, why: str) -> None:
    await places.worker("w1")
    await places.worker("w2")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(16_000)
    first = await places.owner(stream)
    await speak(stream, data[:16_100])
    first.draining = why == "drain"
    await first.ask_to_move(stream.feed.session, why)
    second = await places.owner(stream, but=first)
    await speak(stream, data[16_100:])
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert first.sessions == second.sessions == {}
    assert places.stalls == [why]


async def test_a_worker_that_drains_alone_keeps_its_session_until_there_is_another(places: Places) -> None:
    first = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    events = events_of(stream)
    first.draining = True
    await first.ask_to_move(stream.feed.session, "drain")
    data, samples = speech(8000)
    await speak(stream, data)
    await until(lambda: len(finals(events)) == 5)
    assert first.sessions
    await places.worker("w2")
    await places.owner(stream, but=first)
    await stream.finish()
    assert finals(events) == texts_of(samples)


async def test_a_full_worker_takes_what_went_on_elsewhere_and_has_no_other_place(places: Places) -> None:
    first = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    second = await places.worker("w2", room=False)
    first.kill()
    assert await places.owner(stream, but=first) is second


async def test_a_worker_that_does_not_get_on_is_left(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cluster.remote.STUCK_S", 0.5)
    monkeypatch.setattr("streamer.cluster.remote.SLOW_SAMPLES", 8000)
    await places.worker("w1")
    await places.worker("w2")
    stream = await (await places.gateway()).open(StreamStart())
    events = events_of(stream)
    first = await places.owner(stream)
    first.idle = True
    data, samples = speech(20_000)
    await speak(stream, data)
    await places.owner(stream, but=first)
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert places.stalls == ["slow"]


async def test_a_worker_that_forgot_a_session_is_given_it_again(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.cluster.remote.SILENT_S", 0.8)
    worker = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    events = events_of(stream)
    data, samples = speech(8000)
    await speak(stream, data[:8000])
    worker.sessions.clear()
    await speak(stream, data[8000:])
    await places.owner(stream)
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert places.stalls == ["silent"]


@pytest.mark.parametrize("kind", [Audio, Told], ids=["to the worker", "from the worker"])
async def test_messages_that_do_not_come_are_made_good(places: Places, kind: type[Message]) -> None:
    worker = await places.worker("w1")
    streams = await places.gateway()
    bus = streams._bus if kind is Audio else worker.bus
    chance = np.random.default_rng(3)
    bus.lose = lambda message: isinstance(message, kind) and chance.random() < 0.3  # type: ignore[attr-defined]
    stream = await streams.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(16_000)
    await speak(stream, data)
    finishing = asyncio.create_task(stream.finish())
    await until(lambda: not worker.sessions)
    bus.lose = lambda message: False  # type: ignore[attr-defined]
    if kind is Told:  # `end` may be among what did not come
        remote = stream._session
        await remote._read_log(stream.feed.last_seq)  # type: ignore[attr-defined]
    await finishing
    assert finals(events) == texts_of(samples)
    assert [event.seq for event in events] == sorted({event.seq for event in events})


async def test_a_client_is_held_back_while_too_much_waits(places: Places) -> None:
    worker = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    worker.idle = True
    data, samples = speech(WAITING_SAMPLES + 16_000)
    writing = asyncio.create_task(speak(stream, data))
    remote = stream._session
    await until(lambda: remote.ring.free < 8000)
    await asyncio.sleep(0.1)
    assert not writing.done()
    worker.idle = False
    await writing
    await heard(stream, len(samples))
    await stream.finish()


async def test_a_session_that_nobody_wants_is_left(places: Places) -> None:
    worker = await places.worker("w1")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    stream.abandon()
    await until(lambda: worker.left == [stream.feed.session])
    assert streams.alive.sessions == {}


async def test_a_session_that_was_being_opened_as_its_client_left_is_left(places: Places) -> None:
    worker = await places.worker("w1")
    streams = await places.gateway()
    await until(lambda: len(streams.workers()) == 1)
    worker.stopped = True
    opening = asyncio.create_task(streams.open(StreamStart()))
    await until(lambda: bool(worker._waiting))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await worker.go_on()
    await until(lambda: len(worker.left) == 1)


async def test_a_client_comes_back_to_its_gateway(places: Places) -> None:
    await places.worker("w1")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    data, samples = speech(8000)
    await speak(stream, data)
    stream.keep()
    assert await streams.resume(stream.feed.session, after=3) is stream
    assert stream.go_on() == len(samples)


async def test_a_session_is_resumed_with_the_token_that_began_it_and_with_no_other(places: Places) -> None:
    await places.worker("w1")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    stream = await g1.open(StreamStart(), tenant="anna")
    name = stream.feed.session
    data, _ = speech(8000)
    await speak(stream, data)
    await heard(stream, 8000)
    stream.keep()
    for gateway in (g1, g2):
        for tenant in ("berta", ""):
            with pytest.raises(UnknownSessionError):
                await gateway.resume(name, tenant=tenant)
    assert await g1.resume(name, after=3, tenant="anna") is stream
    await g1.close()
    again = await g2.resume(name, after=stream.feed.last_seq, tenant="anna")
    assert g2.alive.sessions == {"anna": 1}
    await again.finish()


@pytest.mark.parametrize("lost", ["gateway", "gateway and worker"])
async def test_a_client_goes_on_at_another_gateway(places: Places, lost: str) -> None:
    await places.worker("w1")
    await places.worker("w2")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    stream = await g1.open(StreamStart(), tenant="somebody")
    name = stream.feed.session
    data, samples = speech(32_000)
    first = await places.owner(stream)
    await stream.command("pause")
    await stream.command("resume")
    await speak(stream, data[:30_100])
    await stream.command("flush")
    await speak(stream, data[30_100:35_000])
    await heard(stream, 17_500)
    before, seen = events_of(stream), stream.feed.last_seq
    await g1.close()
    if lost != "gateway":
        first.kill()

    again = await g2.resume(name, after=seen, tenant="somebody")
    events = events_of(again)
    assert g2.alive.sessions == {"somebody": 1}
    assert again.feed.last_seq >= seen
    assert again.options == stream.options
    position = again.go_on()
    assert position == 16_000  # where the open segment begins
    await speak(again, data[2 * position :])
    await again.finish()
    assert finals(before + events) == texts_of(samples)
    assert min(event.seq for event in events) > seen  # what the client has is not read again
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    whats = [do.what for worker in places.workers.values() for do in worker.done]
    assert whats.count("pause") == whats.count("flush") == 1


async def test_what_was_told_before_and_stood_there_is_not_done_again(places: Places) -> None:
    await places.worker("w1")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    stream = await g1.open(StreamStart())
    data, _ = speech(3000)
    await speak(stream, data[:4000])  # 2000 samples: the open segment begins at 1600
    await stream.command("flush")
    await speak(stream, data[4000:])
    await heard(stream, 3000)
    await g1.close()
    again = await g2.resume(stream.feed.session, after=stream.feed.last_seq)
    assert again.go_on() == 1600
    await speak(again, data[3200:4000])
    await again.command("flush")
    await speak(again, data[4000:])
    await again.finish()
    assert [do.what for do in places.workers["w1"].done] == ["flush", "end"]


async def test_a_session_that_went_elsewhere_is_lost_here(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cluster.remote.SILENT_S", 0.8)
    await places.worker("w1")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    stream = await g1.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(8000)
    await speak(stream, data[:4000])
    await heard(stream, 2000)
    again = await g2.resume(stream.feed.session, after=0)
    await until(lambda: isinstance(events[-1], End))
    assert isinstance(events[-2], Error)
    assert (events[-2].code, events[-2].fatal) == (UnknownSessionError.code, True)
    assert g1.alive.sessions == {}
    await speak(again, data[2 * again.go_on() :])
    told = events_of(again)
    await again.finish()
    assert finals(told) == texts_of(samples)


async def test_who_comes_back_for_the_last_words_gets_them(places: Places) -> None:
    await places.worker("w1")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    stream = await g1.open(StreamStart())
    data, samples = speech(4000)
    await speak(stream, data)
    await stream.finish()
    await g1.close()
    again = await g2.resume(stream.feed.session, after=0)
    events = list(again.feed.subscribe(lambda event: None, after=0).backlog)
    assert finals(events) == texts_of(samples)
    assert isinstance(events[-1], End)
    assert again.complete
    await again.finish()


@pytest.mark.parametrize("name", ["nobody", "a.b", "*", ">", "", "x" * 2000])
async def test_a_session_that_nobody_knows(places: Places, name: str) -> None:
    await places.worker("w1")
    with pytest.raises(UnknownSessionError):
        await (await places.gateway()).resume(name, after=0)


@pytest.mark.parametrize(
    ("rate", "channels", "format"),
    [(16_000, 1, "s16le"), (16_000, 2, "s16le"), (48_000, 1, "f32le"), (44_100, 2, "s16le"), (8000, 1, "s16le")],
)
async def test_other_rates_sound_the_same_at_another_gateway(
    places: Places, rate: int, channels: int, format: str
) -> None:
    worker = await places.worker("w1")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    noise = np.random.default_rng(7).normal(0, 0.1, 3 * rate * channels)
    data = noise.astype("<f4").tobytes() if format == "f32le" else (noise * 32_768).astype("<i2").tobytes()
    frame_bytes = channels * (4 if format == "f32le" else 2)
    expected = PcmDecoder(format, rate, channels).decode(data)

    stream = await g1.open(StreamStart(format=format, sample_rate=rate, channels=channels))
    middle = 2 * rate * frame_bytes
    await stream.write(data[:middle])
    await heard(stream, 30_000)
    await g1.close()
    again = await g2.resume(stream.feed.session, after=stream.feed.last_seq)
    frame = again.go_on()
    needed_from = again._session.ring.first  # type: ignore[attr-defined]
    assert 0 < frame * 16_000 / rate <= needed_from
    worker.heard.clear()
    await again.write(data[frame * frame_bytes :])
    await heard(again, len(expected) - 1600)
    (pieces,) = worker.heard.values()
    assert min(pieces) == needed_from
    found = np.concatenate([pieces[position] for position in sorted(pieces)])
    assert np.allclose(found, expected[needed_from : needed_from + len(found)], atol=1e-5)
    assert len(found) >= 14_000


async def test_a_token_has_its_share_in_the_whole_cluster(places: Places) -> None:
    await places.worker("w1")
    streams = await places.gateway(max_streams_per_token=3)
    bus, _ = await places.bus("g9")
    other = GatewayAlive(gateway="g9", version=VERSION, sessions={"anna": 1, "": 50})
    await bus.publish(f"{ALIVE_GATEWAYS}.g9", other)
    await until(lambda: len(streams.gateways()) == 2)
    for _ in range(2):
        await streams.open(StreamStart(), tenant="anna")
    with pytest.raises(BusyError, match="token anna has 3 streams"):
        await streams.open(StreamStart(), tenant="anna")
    await streams.open(StreamStart(), tenant="berta")
    await streams.open(StreamStart())


async def test_places_are_those_of_one_gateway(places: Places) -> None:
    await places.worker("w1")
    streams = await places.gateway(server=ServerSettings(max_streams=1, resume_s=30.0))
    first = await streams.open(StreamStart())
    with pytest.raises(BusyError, match="all 1 places"):
        await streams.open(StreamStart())
    first.keep()
    await streams.open(StreamStart())
    assert first.feed.closed


async def test_another_model_goes_on_behind_a_gap(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cluster.remote.OTHER_MODEL_S", 0.3)
    first = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    data, _ = speech(8000)
    await speak(stream, data[:6000])
    await heard(stream, 3000)
    second = await places.worker("w2", model="base.en 2")
    first.kill()
    assert await places.owner(stream, but=first) is second
    known = second.sessions[stream.feed.session].checkpoint
    assert known.model == "base.en 2"
    assert known.state.needed_from == 3040  # behind what was heard
    assert known.state.losses[0].start == 1600
    known.state.check()
    await speak(stream, data[6000:])
    await stream.finish()


async def test_nobody_is_moved_while_this_gateway_is_cut_off_and_all_goes_on_when_nats_is_back(
    nats_server: NatsServer, places: Places
) -> None:
    await places.worker("w1")
    await places.worker("w2")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(16_000)
    owner = await places.owner(stream)
    await speak(stream, data[:16_000])
    nats_server.kill()
    await until(lambda: not streams._bus.connected)
    assert streams.health()["status"] == "failing"
    await speak(stream, data[16_000:24_000])
    await asyncio.sleep(2.5)
    nats_server.start()
    await until(lambda: streams._bus.connected and len(streams.workers()) == 2)
    await speak(stream, data[24_000:])
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert streams.alive.counters == {}
    assert owner.done[-1].what == "end"


async def test_what_is_no_message_disturbs_nobody(places: Places) -> None:
    worker = await places.worker("w1")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    for data in (b"", b"\xff", b"\x81\xa4type\xa4told", b"\xc1" * 1000):
        for subject in ("streamer.gateway.g1", "streamer.alive.worker.w9", "streamer.alive.gateway.g9"):
            await worker.bus._send(subject, data)
    data, samples = speech(4000)
    events = events_of(stream)
    await speak(stream, data)
    await stream.finish()
    assert finals(events) == texts_of(samples)


async def test_a_client_that_does_not_send_again_what_was_heard_comes_to_an_end(places: Places) -> None:
    worker = await places.worker("w1")
    g1, g2 = await places.gateway("g1"), await places.gateway("g2")
    stream = await g1.open(StreamStart())
    data, _ = speech(3000)
    await speak(stream, data)
    await heard(stream, 3000)
    await g1.close()
    again = await g2.resume(stream.feed.session, after=stream.feed.last_seq)
    assert again.go_on() == 1600
    await again.finish()
    assert worker.done[-1].position == 3000  # a worker waits for all that was heard before


async def test_who_owns_a_session_and_refuses_it_does_not_take_it_from_its_gateway(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    events = events_of(stream)
    second = await places.worker("w2")
    open_there, n_asked = second._open, 0

    async def too_late(request: Open) -> Message:
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
    assert await places.owner(stream, but=first) is second
    data, samples = speech(8000)
    await speak(stream, data)
    await stream.finish()
    assert finals(events) == texts_of(samples)


async def test_sessions_that_are_being_opened_take_places(places: Places) -> None:
    await places.worker("w1")
    streams = await places.gateway(server=ServerSettings(max_streams=2))
    await until(lambda: len(streams.workers()) == 1)
    opened = await asyncio.gather(*(streams.open(StreamStart()) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(each, BusyError) for each in opened) == 3


async def test_of_a_long_session_only_what_is_missing_is_read(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await places.worker("w1")
    streams = await places.gateway()
    stream = await streams.open(StreamStart())
    events = events_of(stream)
    data, samples = speech(32_000)
    await speak(stream, data[:60_000])
    await until(lambda: len(finals(events)) == 18)
    read: list[int | None] = []
    get = streams._log._get

    async def counted(session: str, sequence: int | None = None) -> Any:  # noqa: ANN401 - passed on
        read.append(sequence)
        return await get(session, sequence)

    monkeypatch.setattr(streams._log, "_get", counted)
    worker.bus.lose = lambda message: isinstance(message, Told)  # type: ignore[attr-defined]
    await speak(stream, data[60_000:62_000])
    await until(
        lambda: len(worker.heard[stream.feed.session]) > 0 and worker.sessions[stream.feed.session].segment > 19
    )
    worker.bus.lose = lambda message: False  # type: ignore[attr-defined]
    await speak(stream, data[62_000:])
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert 0 < len(read) < 10


async def test_what_a_former_owner_still_says_keeps_no_session_open(places: Places) -> None:
    worker = await places.worker("w1")
    streams = await places.gateway()
    await until(lambda: len(streams.workers()) == 1)
    worker.stopped = True
    opening = asyncio.create_task(streams.open(StreamStart()))
    await until(lambda: bool(worker._waiting))
    (name,) = streams._remotes
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    state = SessionState()
    checkpoint = Checkpoint(version=VERSION, model="", start=StreamStart(), seq=0, command=0, state=state)
    old = Told(session=name, epoch=0, number=0, stored=False, events=(), checkpoint=checkpoint, head=0, command=0)
    await worker.bus.publish(f"{GATEWAYS}.g1", old)
    await asyncio.sleep(0.2)
    await worker.go_on()
    await until(lambda: worker.left == [name])


async def test_who_is_told_to_try_again_finds_the_session(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.cluster.gateway.RESUME_S", 0.3)
    worker = await places.worker("w1")
    g1 = await places.gateway("g1")
    g2 = await places.gateway("g2", ServerSettings(resume_s=2.0))
    stream = await g1.open(StreamStart())
    data, _ = speech(8000)
    await speak(stream, data)
    await heard(stream, 8000)
    await g1.close()
    name, open_there = stream.feed.session, worker._open

    async def late(request: Open) -> Message:
        await asyncio.sleep(0.6)
        return await open_there(request)

    monkeypatch.setattr(worker, "_open", late)
    with pytest.raises(BusyError):
        await g2.resume(name, after=stream.feed.last_seq)
    await until(lambda: name in worker.sessions)
    await asyncio.sleep(0.6)  # it has told of the session
    assert worker.left == []
    await until(lambda: worker.left == [name])  # nobody has come


async def test_workers_that_come_and_go_are_logged(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "streamer.cluster.gateway")
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


async def test_a_client_is_told_when_no_worker_serves_it(
    places: Places, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamer.cluster.remote.WAIT_S", 1.5)
    caplog.set_level("INFO", "streamer.cluster.remote")
    first = await places.worker("w1")
    stream = await (await places.gateway()).open(StreamStart())
    events = events_of(stream)
    data, samples = speech(16_000)
    await speak(stream, data[:8000])
    await asyncio.sleep(2.0)  # silence of a client is none of a worker
    first.kill()
    await speak(stream, data[8000:16_000])
    await until(lambda: any(isinstance(event, Error) for event in events))
    (told,) = (event for event in events if isinstance(event, Error))
    assert (told.code, told.fatal, told.seq, told.session) == ("waiting", False, 0, stream.feed.session)
    second = await places.worker("w2")
    await places.owner(stream, but=first)
    await speak(stream, data[16_000:])
    await stream.finish()
    assert finals(events) == texts_of(samples)
    assert [event for event in events if isinstance(event, Error)] == [told]
    numbers = [event.seq for event in events if event is not told]
    assert numbers == list(range(1, len(numbers) + 1))
    for worker in (first, second):
        assert f"worker {worker.name} has the session" in caplog.text
