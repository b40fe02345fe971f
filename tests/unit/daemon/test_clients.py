"""Who is let in to send audio, who is told to come back, and what becomes of audio whose client is gone."""

import asyncio
import contextlib
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
import numpy as np
import pytest

from streamer.daemon.backend import Backend
from streamer.daemon.clients import SPARE_S, ClientStreams
from streamer.daemon.local import LocalBackend
from streamer.daemon.sessions import session_settings
from streamer.daemon.streams import ClientStream
from streamer.engine.engine import Engine
from streamer.errors import BusyError, ConfigError, ProtocolError, UnknownSessionError
from streamer.events import Error, Event
from streamer.history.audio import find_spans
from streamer.history.history import History, open_history
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.unit.engine.simulation import Machine
from tests.waiting import WAIT_S, until
from tests.wire.engine import ListeningSession, stream_to
from tests.wire.support import wait_published, within

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


async def test_nobody_is_let_in_before_the_model_is_there() -> None:
    with pytest.raises(BusyError):
        await ClientStreams(ServerSettings(), LocalBackend(Settings())).open(StreamStart())


async def test_a_clients_text_is_kept_where_it_asks_for_it_and_nowhere_else(machine: Machine, tmp_path: Path) -> None:
    with contextlib.closing(History(tmp_path / "history.db").start()) as history:
        streams = streams_of(machine, history)
        await streams.open(StreamStart())
        kept = await streams.open(StreamStart(keep=True))
        await until(lambda: bool(history.sessions(9)))  # where the disk is slow, `ready` is published first
        (session,) = history.sessions(9)
        assert (session.id, session.own, session.ended) == (kept.feed.session, False, None)
        streams.abandon(kept)
        await asyncio.to_thread(wait_published, kept.feed)
        (session,) = history.sessions(9)
        assert session.ended is not None


@pytest.mark.parametrize(
    ("whose", "keep", "kept"), [("none", True, False), ("own", True, False), ("all", True, True), ("all", None, False)]
)
async def test_a_clients_audio_is_kept_if_the_operator_and_the_client_want_that(
    machine: Machine, tmp_path: Path, whose: Literal["none", "own", "all"], keep: bool | None, kept: bool
) -> None:
    server: dict[str, Any] = {"history": str(tmp_path / "history.db"), "history_audio": whose}
    with open_history(ServerSettings(**server)) as history:
        streams = streams_of(machine, history, **server)
        stream = await streams.open(StreamStart(keep=keep))
        await stream.write(bytes(2 * 16_000))
        streams.abandon(stream)
    assert history is not None
    assert find_spans(history, stream.feed.session) == ([(0, 16_000)] if kept else [])


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


async def test_the_number_of_clients_has_a_limit_also_where_there_is_time(machine: Machine) -> None:
    streams = streams_of(machine, max_streams=2)
    for _ in range(2):
        await streams.open(StreamStart())
    with pytest.raises(BusyError):
        await streams.open(StreamStart())


async def test_names_of_sessions_cannot_be_guessed(machine: Machine) -> None:
    streams = streams_of(machine)
    names = {(await streams.open(StreamStart())).feed.session for _ in range(20)}
    assert len(names) == 20
    assert all(len(name) == 32 for name in names)  # 192 bits


async def test_a_kept_stream_is_found_until_its_time_is_over(machine: Machine) -> None:
    streams = streams_of(machine, resume_s=0.01)
    stream = await streams.open(StreamStart())
    streams.keep(stream)
    assert await streams.resume(stream.feed.session) is stream
    await asyncio.sleep(0.03)  # its connection is back: there is no time that could be over
    assert await streams.resume(stream.feed.session) is stream
    given_up = asyncio.Event()
    stream.feed.subscribe(lambda event: given_up.set())
    streams.keep(stream)
    await within(given_up.wait())
    with pytest.raises(UnknownSessionError):
        await streams.resume(stream.feed.session)
    assert machine.engine.n_sessions == 0


async def test_a_stream_is_resumed_with_the_token_that_began_it_and_with_no_other(machine: Machine) -> None:
    streams = streams_of(machine)
    stream = await streams.open(StreamStart(), tenant="anna")
    streams.keep(stream)
    for tenant in ("berta", ""):
        with pytest.raises(UnknownSessionError) as refused:
            await streams.resume(stream.feed.session, tenant=tenant)
        with pytest.raises(UnknownSessionError) as unknown:
            await streams.resume("no session", tenant=tenant)
        assert str(refused.value) == str(unknown.value)  # nobody learns that there is one
    assert await streams.resume(stream.feed.session, tenant="anna") is stream


async def test_nothing_is_kept_where_that_is_switched_off(machine: Machine) -> None:
    streams = streams_of(machine, resume_s=0.0)
    stream = await streams.open(StreamStart())
    streams.keep(stream)
    assert machine.engine.n_sessions == 0
    with pytest.raises(UnknownSessionError):
        await streams.resume(stream.feed.session)


async def test_a_newcomer_takes_the_place_that_was_kept_longest(machine: Machine) -> None:
    streams = streams_of(machine, max_streams=3)
    first, second, third = [await streams.open(StreamStart()) for _ in range(3)]
    streams.keep(first)
    streams.keep(second)
    await streams.resume(first.feed.session)
    streams.keep(first)  # now it is the newer of the two
    with pytest.raises(ProtocolError):
        await streams.open(StreamStart(sample_rate=1))  # one who is refused takes nobody's place
    await streams.open(StreamStart())
    with pytest.raises(UnknownSessionError):
        await streams.resume(second.feed.session)
    await streams.open(StreamStart())
    with pytest.raises(UnknownSessionError):
        await streams.resume(first.feed.session)
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    assert await streams.resume(third.feed.session) is third
    assert machine.engine.n_sessions == 3


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
    session = ListeningSession(capacity_samples=1000)
    stream = stream_to(session)
    writing = asyncio.create_task(stream.write(np.zeros(3000, dtype="<i2").tobytes()))
    await asyncio.sleep(0)
    writing.cancel()  # its connection broke; the audio is there all the same
    flushing = asyncio.create_task(stream.command("flush"))
    await asyncio.sleep(0)
    assert session.commands == []
    session.start()
    await within(flushing)
    await within(stream.command("pause"))
    await within(stream.write(bytes(20)))
    await within(stream.command("resume"))
    await within(stream.command("clear"))
    await within(stream.finish())
    assert session.commands == [("flush", 3000), ("pause", 3000), ("resume", 3010), ("clear", 3010), ("end", 3010)]
    assert len(session.received()) == 3010


async def test_half_a_sample_before_a_cut_is_neither_heard_nor_counted() -> None:
    session = ListeningSession(options=StreamStart(channels=2))
    stream = stream_to(session)
    await stream.write(np.array([16, 16, 32, 32, 48], dtype="<i2").tobytes())
    assert stream.go_on() == 2
    await stream.write(np.array([48, 48, 64, 64], dtype="<i2").tobytes())
    assert stream.go_on() == 4
    session.start()
    await within(stream.finish())
    assert session.received().tolist() == [16, 32, 48, 64]


async def test_options_are_checked_first_and_change_behind_the_audio() -> None:
    session = ListeningSession()
    stream = stream_to(session)
    await stream.write(bytes(200))
    await stream.change(StreamStart(pace_s=2.0))
    assert (session.commands, session.settings) == ([("set", 100)], [StreamStart(pace_s=2.0)])
    assert stream.options == StreamStart(pace_s=2.0)

    session.refusal = ConfigError("the model does not know the language")
    with pytest.raises(ConfigError):
        await stream.change(StreamStart(language="xx"))
    assert stream.options == StreamStart(pace_s=2.0)
    assert len(session.commands) == 1


async def test_a_session_that_ends_by_itself_lets_go_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    stream = stream_to(ListeningSession(capacity_samples=1000))
    writing = asyncio.create_task(stream.write(bytes(6000)))
    await asyncio.sleep(0)
    stream.feed.close()
    await within(writing)
    await within(stream.finish())


def be_silent(stream: ClientStream, seconds: float) -> None:
    """Let it be that long ago that the client has sent something."""
    stream._received_s -= seconds


async def test_who_sends_nothing_is_told_so_and_ended(machine: Machine) -> None:
    streams = streams_of(machine, idle_s=0.05)
    stream = await streams.open(StreamStart())
    events: list[Event] = []
    stream.feed.subscribe(events.append)
    await stream.write(bytes(320))
    await until(lambda: stream.complete)
    machine.run_until(machine.clock.now_s + 1.0)
    await within(stream.finish())
    assert [event.type for event in events] == ["error", "end"]
    assert isinstance(events[0], Error)
    assert (events[0].code, events[0].fatal) == ("idle", True)
    assert machine.engine.n_sessions == 0


async def test_audio_and_commands_are_signs_of_life_and_an_empty_message_is_none(machine: Machine) -> None:
    stream = await streams_of(machine).open(StreamStart())
    for said in (stream.write(bytes(2)), stream.command("flush"), stream.change(StreamStart(pace_s=1.0))):
        be_silent(stream, 100.0)
        await stream.write(b"")
        assert stream.idle_s >= 100.0
        await said
        assert stream.idle_s < 50.0


async def test_who_waits_for_us_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    session = ListeningSession(capacity_samples=1000)
    stream = stream_to(session)
    writing = asyncio.create_task(stream.write(bytes(6000)))
    await asyncio.sleep(0)
    be_silent(stream, 100.0)
    assert stream.idle_s == 0.0
    session.start()
    await within(writing)
    assert stream.idle_s < 50.0
    finishing = asyncio.create_task(stream.finish())
    await asyncio.sleep(0)
    be_silent(stream, 100.0)
    assert stream.idle_s == 0.0
    await within(finishing)


async def test_a_kept_stream_is_not_ended_for_being_idle(machine: Machine) -> None:
    streams = streams_of(machine, idle_s=0.2)
    stream = await streams.open(StreamStart())
    streams.keep(stream)
    be_silent(stream, 100.0)
    await asyncio.sleep(0.2)
    assert not stream.complete
    assert await streams.resume(stream.feed.session) is stream
    assert not stream.complete
    assert stream.idle_s < 50.0


async def test_a_newcomer_takes_the_place_of_who_was_idle_longest(machine: Machine) -> None:
    streams = streams_of(machine, max_streams=2)
    first, second = [await streams.open(StreamStart()) for _ in range(2)]
    be_silent(first, SPARE_S - 20.0)
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    be_silent(first, 40.0)
    be_silent(second, 60.0)
    third = await streams.open(StreamStart())
    assert (first.expired, second.expired) == (False, True)
    first.touch()
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    # Its connection broke before it had been told: it takes no place, and has none to give.
    streams.keep(second)
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    streams.keep(third)
    await streams.open(StreamStart())
    with pytest.raises(UnknownSessionError):
        await streams.resume(third.feed.session)
    assert await streams.resume(second.feed.session) is second


class SlowBackend(Backend):
    """Opens sessions that only take notes, when a test allows it; one of another machine's can be resumed."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        # Names and tenants of those that are being opened.
        self.asked: list[tuple[str, str]] = []
        # What runs elsewhere, and whose; and what was asked of it.
        self.elsewhere: dict[str, str] = {}
        self.resumed: list[int] = []

    async def open(self, name: str, start: StreamStart, *, tenant: str) -> ListeningSession:
        self.asked.append((name, tenant))
        await self.go_on.wait()
        if start.language == "de":
            raise ConfigError("the model does not know the language")
        return ListeningSession(options=start, name=name)

    async def knows(self, name: str, *, tenant: str) -> bool:
        return self.elsewhere.get(name) == tenant

    async def resume(self, name: str, *, after: int) -> ListeningSession:
        self.resumed.append(after)
        await self.go_on.wait()
        session = ListeningSession(name=name)
        session.n_frames = 1000
        if name == "over":
            session.feed.close()
        return session


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
    assert (stream.feed.session, stream.tenant) == backend.asked[0] == (stream.feed.session, "anna")
    with pytest.raises(ConfigError):
        await opening[1]
    await streams.open(StreamStart())
    with pytest.raises(BusyError):
        await streams.open(StreamStart())


async def test_a_stream_ends_for_one_newcomer_only_and_if_that_is_let_in() -> None:
    backend = SlowBackend()
    backend.go_on.set()
    streams = ClientStreams(ServerSettings(max_streams=2), backend)
    kept, other = [await streams.open(StreamStart()) for _ in range(2)]
    streams.keep(kept)
    backend.go_on.clear()
    refused = asyncio.create_task(streams.open(StreamStart(language="de")))
    await asked(backend, 3)
    with pytest.raises(BusyError):
        await streams.open(StreamStart())
    backend.go_on.set()
    with pytest.raises(ConfigError):
        await refused
    assert not kept.feed.closed
    await streams.open(StreamStart())
    assert (kept.feed.closed, other.feed.closed) == (True, False)


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


async def test_who_comes_back_for_the_last_events_of_a_session_need_not_wait_for_its_end() -> None:
    backend = SlowBackend()
    backend.elsewhere = {"over": ""}
    backend.go_on.set()
    stream = await ClientStreams(ServerSettings(), backend).resume("over")
    await within(stream.write(bytes(2)))
    await within(stream.finish())
    assert stream.go_on() == 1000


async def test_a_session_that_goes_on_elsewhere_frees_its_slot() -> None:
    backend = SlowBackend()
    backend.go_on.set()
    streams = ClientStreams(ServerSettings(max_streams=1), backend)
    lost = await streams.open(StreamStart())
    name = lost.feed.session
    lost.session.on_lost()
    assert lost.feed.closed
    await streams.open(StreamStart())
    with pytest.raises(UnknownSessionError):
        await streams.resume(name)
    streams.keep(lost)  # its connection breaks only now
    with pytest.raises(BusyError):
        await streams.open(StreamStart())


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
    session = ListeningSession(20_000, start)
    stream = stream_to(session)
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
    session.start()
    await within(writing)
    await within(stream.finish())
    n_frames = (len(data) + 1000 * stream._pcm.frame_bytes) // stream._pcm.frame_bytes
    assert stream.go_on() == n_frames
    assert len(session.received()) == pytest.approx(n_frames * 16_000 / start.sample_rate, abs=2)


async def test_what_is_sent_between_two_cuts_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.daemon.streams.MAX_WRITE_SAMPLES", 400)
    stream = stream_to(ListeningSession(capacity_samples=1000))
    heard = 0
    for _ in range(5):
        writing = asyncio.create_task(stream.write(bytes(6000)))
        await asyncio.sleep(0)
        writing.cancel()
        heard = stream.go_on()
    assert heard == 800
    assert not any(isinstance(item, memoryview) for item in stream._waiting)
    writing = asyncio.create_task(stream.write(bytes(6000)))
    await asyncio.sleep(0)
    stream.go_on()
    await within(writing)  # no call waits for what is forgotten
