"""Who is let in to send audio, who is told to come back, and what becomes of audio whose client is gone."""

import asyncio
import contextlib
import selectors
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamer.daemon.backend import Backend
from streamer.daemon.clients import SPARE_S, ClientStreams
from streamer.daemon.local import LocalBackend
from streamer.daemon.streams import ClientStream
from streamer.engine.engine import Engine
from streamer.errors import BusyError, ConfigError, ProtocolError, UnknownSessionError
from streamer.events import Event
from streamer.history.audio import find_spans
from streamer.history.writer import History, open_history
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings, Settings
from streamer.setup.session import session_settings
from streamer.whisper.model import WhisperModel
from tests.unit.engine.simulation import Machine
from tests.waiting import WAIT_S, until
from tests.wire.harness import ListeningStream, finished, wait_published, within

# What a session asks of its model.
MODEL = cast(
    "WhisperModel",
    SimpleNamespace(
        name="model",
        n_beams=1,
        dims=SimpleNamespace(n_mels=80, n_text_ctx=448),
        runtime=SimpleNamespace(devices={}, decoder=SimpleNamespace(beams=None), windows_s=(30,)),
        generation=SimpleNamespace(prompted=False),
        knows_heads=True,
        loaded=True,
        choose_language=lambda language, task, languages=(): language,
        tokenizer=SimpleNamespace(
            known_languages=["en"],
            start_sequence=lambda language, task: [0, 1, 2],
            encode=lambda text: [0 for _ in text.split()],
        ),
    ),
)


@pytest.fixture
def machine() -> Machine:
    """A machine that keeps four sessions in real time."""
    return Machine(encode_s=0.1, decode_s=0.3)


def streams_of(machine: Machine, history: History | None = None, /, **server: Any) -> ClientStreams:  # noqa: ANN401
    """Return the streams of a daemon whose engine is simulated."""
    settings = ServerSettings(**server)
    backend = LocalBackend(Settings(server=settings), history)
    backend.serve_with(cast("Engine[Any]", machine.engine), MODEL)
    return ClientStreams(settings, backend)


async def test_a_clients_text_is_kept_where_it_asks_for_it_and_nowhere_else(machine: Machine, tmp_path: Path) -> None:
    with contextlib.closing(History(tmp_path / "history.db")) as history:
        streams = streams_of(machine, history)
        await streams.open(StreamStart())
        kept = await streams.open(StreamStart(keep=True, room="main"))
        await until(lambda: bool(history.sessions(9)))  # where the disk is slow, `ready` is published first
        (session,) = history.sessions(9)
        assert (session.id, session.own, session.ended) == (kept.log.session, False, None)
        assert session.source == "room main"
        streams.abandon(kept)
        await asyncio.to_thread(wait_published, kept.log)
        (session,) = history.sessions(9)
        assert session.ended is not None


@pytest.mark.parametrize(
    ("whose", "keep", "kept"), [("none", True, False), ("own", True, False), ("all", True, True), ("all", False, False)]
)
async def test_a_clients_audio_is_kept_if_the_operator_and_the_client_want_that(
    machine: Machine, tmp_path: Path, whose: Literal["none", "own", "all"], keep: bool, kept: bool
) -> None:
    server: dict[str, Any] = {"history": str(tmp_path / "history.db"), "history_audio": whose}
    with open_history(ServerSettings(**server)) as history:
        streams = streams_of(machine, history, **server)
        stream = await streams.open(StreamStart(keep=keep))
        await stream.write(bytes(2 * 16_000))
        streams.abandon(stream)
    assert history is not None
    assert find_spans(history, stream.log.session) == ([(0, 16_000)] if kept else [])


async def test_a_client_that_wants_its_text_kept_is_told_that_it_is_not(machine: Machine) -> None:
    with pytest.raises(ConfigError):
        await streams_of(machine).open(StreamStart(keep=True))


async def test_a_client_that_could_not_be_kept_in_real_time_is_refused_until_another_leaves(machine: Machine) -> None:
    machine.talker(60.0, pause=0.0)
    machine.run_until(5.0)
    streams = streams_of(machine)
    clients = [await streams.open(StreamStart()) for _ in range(3)]
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    streams.abandon(clients[0])
    await streams.open(StreamStart())


def test_what_a_client_chooses_wins_over_the_settings() -> None:
    plain = session_settings(Settings(), MODEL)
    assert session_settings(Settings(), MODEL, StreamStart(channels=2)) == plain
    options = StreamStart(language="de", task="translate", pace_s=2.0, vad_threshold=0.7, min_silence_s=0.2)
    chosen = session_settings(Settings(), MODEL, options)
    assert (chosen.language, chosen.task, chosen.pace_s) == ("de", "translate", 2.0)
    assert chosen.gate == msgspec.structs.replace(plain.gate, threshold=0.7, min_silence_s=0.2)
    # Who says what silence ends speech wants a final then.
    assert chosen.final_silence_s == 0.2
    names = ("language", "task", "pace_s", "gate", "final_silence_s", "options")
    own = {name: getattr(plain, name) for name in names}
    assert msgspec.structs.replace(chosen, **own) == plain


async def test_commands_stay_behind_the_audio_that_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    stream = ListeningStream(capacity_samples=1000)
    writing = asyncio.create_task(stream.write(np.zeros(3000, dtype="<i2").tobytes()))
    await asyncio.sleep(0)
    writing.cancel()  # its connection broke; the audio is there all the same
    flushing = asyncio.create_task(stream.command("flush"))
    await asyncio.sleep(0)
    assert stream.commands == []
    stream.start()
    await within(flushing)
    await within(stream.command("pause"))
    await within(stream.write(bytes(20)))
    await within(stream.command("resume"))
    await within(stream.command("clear"))
    await finished(stream)
    assert stream.commands == [("flush", 3000), ("pause", 3000), ("resume", 3010), ("clear", 3010), ("end", 3010)]
    assert len(stream.received()) == 3010


async def test_half_a_sample_before_a_cut_is_neither_heard_nor_counted() -> None:
    stream = ListeningStream(options=StreamStart(channels=2))
    await stream.write(np.array([16, 16, 32, 32, 48], dtype="<i2").tobytes())
    assert stream.go_on() == 2
    await stream.write(np.array([48, 48, 64, 64], dtype="<i2").tobytes())
    assert stream.go_on() == 4
    stream.start()
    await finished(stream)
    assert stream.received().tolist() == [16, 32, 48, 64]


class SlowBackend(Backend):
    """Opens sessions that only take notes, when a test allows it; one of another machine's can be resumed."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        # Names and tenants of those that are being opened.
        self.asked: list[tuple[str, str]] = []
        # What runs elsewhere, and whose; and what was asked of it.
        self.elsewhere: dict[str, str] = {}
        self.resumed: list[int] = []

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> ListeningStream:
        self.asked.append((name, tenant))
        await self.go_on.wait()
        if start.language == "de":
            raise ConfigError("the model does not know the language")
        return ListeningStream(options=start, name=name)

    async def knows(self, name: str, *, tenant: str) -> bool:
        return self.elsewhere.get(name) == tenant

    async def resume(self, name: str, *, after: int) -> ListeningStream:
        self.resumed.append(after)
        await self.go_on.wait()
        stream = ListeningStream(name=name)
        stream.go_on_from(1000)
        if name == "over":
            stream.log.close()
        return stream


async def asked(backend: SlowBackend, n_sessions: int) -> None:
    await until(lambda: len(backend.asked) == n_sessions)


async def test_a_slot_is_taken_while_a_session_is_being_opened() -> None:
    backend = SlowBackend()
    streams = ClientStreams(ServerSettings(max_streams=2), backend)
    opening = [asyncio.create_task(streams.open(StreamStart(), tenant=tenant)) for tenant in ("anna", "berta")]
    await asked(backend, 2)
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    opening.pop().cancel()
    await asyncio.sleep(0)
    opening.append(asyncio.create_task(streams.open(StreamStart(language="de"))))
    await asked(backend, 3)
    backend.go_on.set()
    stream = await opening[0]
    assert (stream.log.session, stream.tenant) == backend.asked[0] == (stream.log.session, "anna")
    with pytest.raises(ConfigError):
        await opening[1]
    await streams.open(StreamStart())
    with pytest.raises(BusyError):
        await streams.open(StreamStart())


async def test_a_session_of_another_machine_is_resumed_once_and_by_its_tenant() -> None:
    backend = SlowBackend()
    backend.elsewhere = {"moved": "anna"}
    streams = ClientStreams(ServerSettings(), backend)
    for name, tenant in (("moved", "berta"), ("unknown", "anna")):
        with pytest.raises(UnknownSessionError):
            await streams.resume(name, tenant=tenant)
    resuming = [asyncio.create_task(streams.resume("moved", after=7, tenant="anna")) for _ in range(2)]
    await until(lambda: backend.resumed == [7])
    backend.go_on.set()
    stream, same = await asyncio.gather(*resuming)
    assert stream is same
    assert backend.resumed == [7]
    assert (stream.tenant, stream.go_on()) == ("anna", 1000)


async def test_who_starts_a_daemon_by_connecting_waits_for_its_model(machine: Machine) -> None:
    ready = asyncio.Event()
    backend = LocalBackend(Settings(), ready=ready)
    opening = asyncio.create_task(ClientStreams(ServerSettings(), backend).open(StreamStart()))
    await asyncio.sleep(0.01)
    assert not opening.done()
    backend.serve_with(cast("Engine[Any]", machine.engine), MODEL)
    ready.set()
    assert not (await opening).complete


async def test_a_model_that_left_memory_is_loaded_when_a_session_is_opened(machine: Machine) -> None:
    waking = threading.Event()
    asleep = SimpleNamespace(**{**vars(MODEL), "loaded": False, "wake": waking.set})
    backend = LocalBackend(Settings())
    backend.serve_with(cast("Engine[Any]", machine.engine), cast("WhisperModel", asleep))
    await ClientStreams(ServerSettings(), backend).open(StreamStart())
    assert await asyncio.to_thread(waking.wait, WAIT_S)


@pytest.mark.parametrize(
    "start",
    [
        StreamStart(sample_rate=4_000),
        StreamStart(sample_rate=4_000, format="f32le"),
        StreamStart(sample_rate=384_000, channels=32),
        StreamStart(sample_rate=16_000),
        StreamStart(sample_rate=11_025, channels=3),
        StreamStart(sample_rate=4_000, channels=32, format="f32le"),
    ],
)
async def test_a_message_takes_little_more_memory_than_its_bytes(start: StreamStart) -> None:
    stream = ListeningStream(20_000, start)
    await stream.write(bytes(stream._pcm.frame_bytes * 1000))  # the resampler is there
    data = bytes(2**20)
    tracemalloc.start()
    try:
        writing = asyncio.create_task(stream.write(data))
        await asyncio.sleep(0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**19
    stream.start()
    await within(writing)
    await finished(stream)
    n_frames = (len(data) + 1000 * stream._pcm.frame_bytes) // stream._pcm.frame_bytes
    assert stream.go_on() == n_frames
    assert len(stream.received()) == pytest.approx(n_frames * 16_000 / start.sample_rate, abs=2)


class Timers(selectors.SelectSelector):
    """What a loop waits with: time moves on to the next timer at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0.0
        return super().select(0)


class HandLoop(asyncio.SelectorEventLoop):
    """A loop in which an hour takes no time."""

    def __init__(self) -> None:
        self._timers = Timers()
        super().__init__(self._timers)

    def time(self) -> float:
        return self._timers.now_s


@dataclass
class Place:
    """What is known of a stream that has a place, was told to go, or is gone."""

    stream: ClientStream
    tenant: str
    received_s: float
    kept_s: float | None = None
    expired: bool = False
    gone: bool = False


class Places(RuleBasedStateMachine):
    """Clients come, speak, break off, come back and leave, with two places, in any order and at any time."""

    TENANTS = st.sampled_from(("anna", "anna", "anna", "berta"))
    WHO = st.integers(0, 9)

    @initialize(resume_s=st.sampled_from((0.0, 40.0)))
    def begin(self, resume_s: float) -> None:
        self.runner = asyncio.Runner(loop_factory=HandLoop)
        self.now_s = self.runner.get_loop().time
        backend = SlowBackend()
        backend.go_on.set()
        self.settings = ServerSettings(max_streams=2, resume_s=resume_s, idle_s=100.0)
        self.streams = ClientStreams(self.settings, backend)
        self.places: list[Place] = []
        for _ in range(2):
            self.come("anna", 10.0, 0)

    def teardown(self) -> None:
        self.runner.close()

    def drawn(self, who: int, *, kept: bool = True, gone: bool = False) -> list[Place]:
        """Return one of the places, those that are kept or gone among them if that is said; none if there is none."""
        places = [place for place in self.places[-4:] if (kept or place.kept_s is None) and (gone or not place.gone)]
        return [places[who % len(places)]] if places else []

    def call(self, call: Callable[..., object], *arguments: object) -> None:
        async def on_the_loop() -> None:
            call(*arguments)

        self.runner.run(on_the_loop())

    @rule(tenant=TENANTS, seconds=st.sampled_from((0.0, 35.0, 65.0)), n_cuts=st.integers(0, 2))
    def come(self, tenant: str, seconds: float, n_cuts: int) -> None:
        for who in range(n_cuts):
            self.break_off(who)
        self.let_pass(seconds)
        taken = [place for place in self.places if not (place.gone or place.expired)]
        kept = sorted((place for place in taken if place.kept_s is not None), key=lambda place: place.kept_s or 0.0)
        idle = [place for place in taken if self.now_s() - place.received_s >= SPARE_S]
        spare = [*kept, *sorted(idle, key=lambda place: place.received_s)][: int(len(taken) == 2)]
        if len(taken) == 2 and not spare:
            with pytest.raises(BusyError):
                self.runner.run(self.streams.open(StreamStart(), tenant=tenant))
            return
        stream = self.runner.run(self.streams.open(StreamStart(), tenant=tenant))
        assert len(stream.log.session) == 32, "192 bits, which nobody guesses"
        for place in spare:
            place.gone, place.expired = place.kept_s is not None, place.kept_s is None
        self.places.append(Place(stream, tenant, self.now_s()))

    @rule(start=st.sampled_from((StreamStart(sample_rate=1), StreamStart(language="de"))))
    def be_refused_which_takes_nobodys_place(self, start: StreamStart) -> None:
        with pytest.raises((ProtocolError, ConfigError, BusyError)):
            self.runner.run(self.streams.open(start))

    @rule(who=WHO, data=st.sampled_from((b"", bytes(2))))
    def speak(self, who: int, data: bytes) -> None:
        for place in self.drawn(who, kept=False):
            self.runner.run(place.stream.write(data))
            place.received_s = self.now_s() if data else place.received_s

    @rule(who=WHO)
    def break_off(self, who: int) -> None:
        for place in self.drawn(who, kept=False):
            self.call(self.streams.keep, place.stream)
            place.kept_s = self.now_s()
            self.let_pass(1.0)  # nobody else breaks off at the same moment

    @rule(who=WHO, tenant=TENANTS)
    def come_back(self, who: int, tenant: str) -> None:
        for place in self.drawn(who, gone=True):
            back = self.streams.resume(place.stream.log.session, tenant=tenant)
            if place.gone or place.tenant != tenant:
                with pytest.raises(UnknownSessionError):
                    self.runner.run(back)
            else:
                assert self.runner.run(back) is place.stream
                place.kept_s, place.received_s = None, self.now_s()

    @rule(who=WHO, elsewhere=st.booleans())
    def leave(self, who: int, elsewhere: bool) -> None:
        for place in self.drawn(who):
            if elsewhere:  # its client is with another daemon
                cast("ListeningStream", place.stream).here = False
                self.call(place.stream.log.close)
            else:
                self.call(self.streams.abandon, place.stream)
            place.gone = True
            self.call(self.streams.keep, place.stream)  # its connection breaks only now

    @rule(seconds=st.sampled_from((10.0, 35.0, 65.0, 110.0)))
    def let_pass(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))
        for place in self.places:
            if place.kept_s is not None:
                place.gone |= self.now_s() - place.kept_s >= self.settings.resume_s
            elif not place.gone:
                place.expired |= self.now_s() - place.received_s >= self.settings.idle_s

    @invariant()
    def who_has_a_place_is_open_and_who_has_none_is_closed(self) -> None:
        for place in self.places:
            assert place.stream.log.closed == place.gone
            assert place.gone or place.stream.expired == place.stream.complete == place.expired


TestPlaces = Places.TestCase
TestPlaces.settings = hypothesis.settings(max_examples=50, stateful_step_count=40)


async def test_who_is_ended_for_sending_nothing_is_told_so_and_has_what_was_said(machine: Machine) -> None:
    streams = streams_of(machine, idle_s=0.05)
    stream = await streams.open(StreamStart())
    events: list[Event] = []
    stream.log.subscribe(events.append)
    await stream.write(bytes(320))
    await until(lambda: stream.complete)
    machine.run_until(machine.clock.now_s + 1.0)
    await finished(stream)
    assert [(event.type, getattr(event, "code", "")) for event in events] == [("error", "idle"), ("end", "")]
    assert machine.engine.n_sessions == 0


def test_who_waits_for_us_is_not_idle_and_commands_are_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)

    async def idle() -> list[float]:
        stream = ListeningStream(capacity_samples=1000)
        found = []
        for command in (stream.command("flush"), stream.change(StreamStart(pace_s=1.0))):
            await asyncio.sleep(100.0)
            await stream.write(b"")
            found.append(stream.idle_s)
            await command
            found.append(stream.idle_s)
        writing = asyncio.create_task(stream.write(bytes(6000)))  # there is no room
        await asyncio.sleep(100.0)
        found.append(stream.idle_s)
        stream.log.close()  # a session that ends by itself lets go of its client
        await writing
        stream.finish()
        return found

    with asyncio.Runner(loop_factory=HandLoop) as runner:
        assert runner.run(idle()) == [100.0, 0.0, 100.0, 0.0, 0.0]
