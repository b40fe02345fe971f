"""What a worker takes, refuses and gives away; and a session that moves between two with the real model and NATS."""

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from streamer.engine.decoder import make_engine
from streamer.engine.engine import Engine
from streamer.engine.load import Load
from streamer.errors import ConfigError
from streamer.events import End
from streamer.plugins.cluster.log import SessionLog
from streamer.plugins.cluster.messages import (
    ALIVE_GATEWAYS,
    ALIVE_WORKERS,
    VERSION,
    WORKERS,
    GatewayAlive,
    WorkerAlive,
    decoded,
)
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.worker import identity_of, run_worker
from streamer.protocols.native import StreamStart
from streamer.settings.table import ServerSettings, Settings, SpeakersSettings
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import LoadOptions, load_model
from tests.daemon import SAMPLE, Outcome, sample_text
from tests.fakes import FakeEncoded
from tests.plugins.cluster.stand_ins import (
    Gateway,
    LocalBus,
    LocalLog,
    Speech,
    Workers,
    engine_for,
    identity,
    workplace,
)
from tests.plugins.cluster.support import bus_on
from tests.promises import check_promises
from tests.waiting import until
from tests.wer import wer
from tests.wire.support import within

if TYPE_CHECKING:
    from streamer.whisper.model import WhisperModel

SPEECH = Speech(10.0)

# Of the sample, for the real model.
AUDIO_S = 6

# Up to window placement: passes fall elsewhere by the clock, and nano.en gets one word in six wrong.
MAX_WER = 0.5


class Scene:
    """A worker that runs, on a bus in this process."""

    def __init__(self, engine: Engine[FakeEncoded]) -> None:
        self.bus, self.log, self.engine = LocalBus(), LocalLog(), engine
        self.gateways: list[Gateway] = []

    @contextlib.asynccontextmanager
    async def workers(self, *names: str, **server: int | float) -> AsyncIterator[Workers]:
        settings = Settings(server=ServerSettings(**server))  # type: ignore[arg-type]
        places = [workplace(self.bus, self.log, self.engine, worker=name, settings=settings) for name in names]
        async with Workers(*places) as workers:
            yield workers
        self.bus.close()

    async def gateway(self, session: str) -> Gateway:
        gateway = Gateway(self.bus, self.log, identity(), session)
        await gateway.listen()
        self.gateways.append(gateway)
        return gateway

    def published(self, subject: str) -> list[object]:
        return [message for where, message in self.bus.published if where == subject]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with engine_for(SPEECH, monkeypatch) as engine:
        yield Scene(engine)


async def test_only_as_many_are_taken_as_are_kept_in_real_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene.workers("w1", max_streams=3) as workers:
        first, second, third, fourth = [await scene.gateway(f"s{i}") for i in range(4)]
        await first.opened("w1")
        load = Load(0.85, 1, room=False)
        monkeypatch.setattr(type(scene.engine), "load", property(lambda engine: load))
        assert (await second.refused("w1")).code == "busy"
        assert not workers.workers[0].alive.room
        await second.opened("w1", must=True)
        load = Load(0.3, 5, room=True)
        await third.opened("w1")
        assert (await fourth.refused("w1")).code == "busy"  # server.max_streams
        assert workers.workers[0].alive.sessions == 3


async def test_sessions_whose_audio_is_still_to_come_count(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene.workers("w1", "w2") as workers:
        monkeypatch.setattr(type(scene.engine), "load", property(lambda engine: Load(0.5, 4, room=True)))
        gateway = await scene.gateway("s1")
        await gateway.opened("w2")
        await gateway.write(SPEECH.audio)
        await gateway.processed(9 * SAMPLE_RATE)
        await gateway.release()
        audio, gateway.audio = gateway.audio, gateway.audio[:0]  # the gateway has none
        await gateway.opened("w1")
        assert not workers.workers[0].alive.room  # 0.5 and two sessions of 0.225 each
        gateway.audio = audio
        await gateway.send_from(gateway.checkpoint.state.needed_from, 0)
        await until(lambda: workers.workers[0].alive.room)


async def test_impossible_requests_are_refused_with_a_reason(scene: Scene) -> None:
    async with scene.workers("w1") as workers:
        gateway = await scene.gateway("s1")
        good, codes = gateway.checkpoint, []
        for changes in (
            {"model": "other \x1b[31m"},
            {"start": StreamStart(beam_size=16)},
        ):
            gateway.checkpoint = msgspec.structs.replace(good, **changes)
            refused = await gateway.refused("w1")
            assert refused.message.isprintable()
            codes.append(refused.code)
        gateway.checkpoint, gateway.name = good, "g.>"
        refused = await gateway.refused("w1")
        assert codes == ["session_state", "config"]
        assert scene.engine.n_sessions == workers.workers[0].alive.sessions == 0


async def test_malformed_messages_are_logged_and_change_nothing(scene: Scene) -> None:
    async with scene.workers("w1"):
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")
        for subject in (f"{WORKERS}.w1", f"{ALIVE_WORKERS}.w9", f"{ALIVE_GATEWAYS}.g9"):
            for data in (b"", b"\xc1", b"\x80", b"\x81\xa4type\xa4open", msgspec.msgpack.encode({"type": "update"})):
                await scene.bus.send_raw(subject, data)
        await until(lambda: len(scene.bus.troubles) == 15)
        scene.bus.troubles.clear()
        await gateway.write(SPEECH.audio)
        await gateway.do("end")
        await within(gateway.ended())
        assert gateway.words == SPEECH.texts


async def test_a_request_whose_answer_was_lost_may_be_made_again(scene: Scene) -> None:
    async with scene.workers("w1") as workers:
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")
        await gateway.write(SPEECH.audio[: 5 * SAMPLE_RATE])
        assert [(await gateway.opened("w1")).epoch for _ in range(2)] == [2, 3]
        assert workers.workers[0].alive.sessions == 1
        await gateway.write(SPEECH.audio[5 * SAMPLE_RATE :])
        await gateway.do("end")
        await within(gateway.ended())
        assert gateway.words == SPEECH.texts
        check_promises(gateway.events)


async def test_a_request_that_is_older_than_what_the_log_has_takes_nothing(scene: Scene) -> None:
    async with scene.workers("w1", "w2") as workers:
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")
        for worker in ("w1", "w2"):  # as one that was stopped when it was asked, and goes on now
            epoch, gateway.epoch = gateway.epoch, 0
            assert "opened elsewhere since" in (await gateway.refused(worker)).message
            gateway.epoch = epoch
        assert [worker.alive.sessions for worker in workers.workers] == [1, 0]


async def test_a_worker_that_stops_has_its_sessions_taken_elsewhere(scene: Scene) -> None:
    async with scene.workers("w1", "w2") as workers:
        gateways = [await scene.gateway(f"s{i}") for i in range(3)]
        for gateway in gateways:
            await gateway.opened("w1")
            await gateway.write(SPEECH.audio[: 5 * SAMPLE_RATE])
        workers.stops[0].set()
        for gateway in gateways:
            await gateway.asked_to_move()
            assert gateway.moves[0].move == "drain"
            await gateway.release()
            assert (await gateway.refused("w1", must=True)).code == "stopping"
            await gateway.opened("w2")
        await within(workers.tasks[0])
        last = [alive for alive in scene.published(f"{ALIVE_WORKERS}.w1") if isinstance(alive, WorkerAlive)][-1]
        assert (last.draining, last.room, last.sessions, last.counters["moved_away"]) == (True, False, 0, 3)
        assert workers.workers[1].alive.counters["taken_over"] == 3
        for gateway in gateways:
            await gateway.write(SPEECH.audio[5 * SAMPLE_RATE :])
            await gateway.do("end")
            await within(gateway.ended())
            assert gateway.words == SPEECH.texts
            check_promises(gateway.events)


async def test_a_worker_that_stops_gives_another_gateway_the_session_that_it_still_has(scene: Scene) -> None:
    async with scene.workers("w1", "w2") as workers:
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")
        await gateway.write(SPEECH.audio[: 5 * SAMPLE_RATE])
        workers.stops[0].set()
        await gateway.asked_to_move()
        assert (await gateway.opened("w1", must=True)).epoch == 2
        gateway.moves.clear()
        await gateway.asked_to_move()
        await gateway.release()
        await gateway.opened("w2")
        await within(workers.tasks[0])
        await gateway.write(SPEECH.audio[5 * SAMPLE_RATE :])
        await gateway.do("end")
        await within(gateway.ended())
        assert gateway.words == SPEECH.texts
        check_promises(gateway.events)


async def test_sessions_that_no_worker_takes_over_are_in_the_log_when_a_worker_has_stopped(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.worker.DRAIN_S", 0.1)
    async with scene.workers("w1") as workers:
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")
        await gateway.write(SPEECH.audio)
        await gateway.processed(9 * SAMPLE_RATE)
        workers.stops[0].set()
        await within(workers.tasks[0])
        assert scene.engine.n_sessions == 0
        assert scene.log.records["s1"][-1].record.checkpoint.state.received >= 9 * SAMPLE_RATE


@pytest.mark.parametrize(("why", "room"), [("load", True), ("failing", True), ("failing", False)])
async def test_one_session_at_a_time_is_given_away(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, why: str, room: bool
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.worker.BEAT_S", 0.01)
    async with scene.workers("w1") as workers:
        gateways = [await scene.gateway(f"s{i}") for i in range(3)]
        for gateway, seconds in zip(gateways, (9, 3, 9), strict=True):
            await gateway.opened("w1")
            await gateway.write(SPEECH.audio[: seconds * SAMPLE_RATE])
        await asyncio.sleep(0.1)
        other = WorkerAlive(worker="w2", version=VERSION, model=identity(), load=0.1, capacity=5, sessions=0, room=room)
        await scene.bus.publish(f"{ALIVE_WORKERS}.w2", other)
        await asyncio.sleep(0.1)
        assert not any(gateway.moves for gateway in gateways)
        if why == "load":
            monkeypatch.setattr(type(scene.engine), "load", property(lambda engine: Load(1.2, 2, room=False)))
        else:
            monkeypatch.setattr(type(scene.engine), "stalled_s", property(lambda engine: 31.0))
            assert "no progress" in workers.workers[0].alive.failing
        if not room:
            await asyncio.sleep(0.1)
            assert not any(gateway.moves for gateway in gateways)
            return
        await until(lambda: any(gateway.moves for gateway in gateways))
        await asyncio.sleep(0.1)
        ((gateway, move),) = [(gateway, move) for gateway in gateways for move in gateway.moves]
        assert move.move == why
        await gateway.release()
        await until(lambda: sum(len(gateway.moves) for gateway in gateways) == 2)


async def test_a_session_whose_gateway_is_lost_ends_when_no_other_asks_for_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.worker.BEAT_S", 0.02)
    async with scene.workers("w1", resume_s=0.0) as workers:
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")

        async def beat() -> None:
            while True:
                await scene.bus.publish(f"{ALIVE_GATEWAYS}.g1", GatewayAlive(gateway="g1"))
                await asyncio.sleep(0.02)

        beating = asyncio.create_task(beat())
        monkeypatch.setattr("streamer.plugins.cluster.worker.LOST_S", 0.5)
        await asyncio.sleep(0.8)
        assert workers.workers[0].alive.sessions == 1
        scene.bus.connected = False  # without NATS, silence says nothing
        beating.cancel()
        await asyncio.sleep(0.8)
        assert workers.workers[0].alive.sessions == 1
        scene.bus.connected = True
        await until(lambda: workers.workers[0].alive.sessions == 0)
        assert isinstance(scene.log.events("s1")[-1], End)


async def test_labels_of_speakers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"speakers\.enabled is true, and labels .* do not move"):
        await run_worker(Settings(speakers=SpeakersSettings(enabled=True)), lambda: cast("WhisperModel", None))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "cluster.nats names no server: give some with --nats URL"),
        (("--nats", "nats://127.0.0.1:1"), "NATS at 127.0.0.1:1 cannot be used"),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    run_here: Callable[..., Outcome], arguments: tuple[str, ...], said: str
) -> None:
    done = run_here("worker", *arguments)
    assert done.exit_code in (1, 2)
    assert said in done.error()


async def test_a_session_moves_in_mid_speech_with_the_real_model_and_nats(model: "WhisperModel", nats: str) -> None:
    audio, _ = soundfile.read(SAMPLE, dtype="float32", stop=AUDIO_S * SAMPLE_RATE)
    settings = Settings(plugins=(ClusterSettings(nats=(nats,), name="w2"),))
    engine = make_engine(model, settings.decoding)
    engine.start()
    # Of its own: a twin has the one buffer that recordings need, and live windows take two.
    second = asyncio.create_task(
        run_worker(settings, lambda: load_model(model.name, LoadOptions(DeviceSettings("CPU"))))
    )
    try:
        async with bus_on(nats, name="g1") as bus, bus_on(nats, name="w1") as bus_of_first:
            log = SessionLog(bus, settings.of(ClusterSettings))
            await log.prepare()
            place = dataclasses.replace(
                workplace(LocalBus(), LocalLog(), engine),
                bus=bus_of_first,
                log=log,
                model=model,
                identity=identity_of(model),
            )
            alive: dict[str, WorkerAlive] = {}

            async def note(data: bytes, _reply: object) -> None:
                message = decoded(data, WorkerAlive)
                alive[message.worker] = message

            await bus.subscribe(f"{ALIVE_WORKERS}.*", note)
            gateway = Gateway(bus, log, identity_of(model))
            await gateway.listen()
            async with Workers(place):
                await until(lambda: set(alive) == {"w1", "w2"} or second.done())
                await gateway.opened("w1")
                half = len(audio) // 2
                await gateway.write(audio[:half])
                await gateway.processed(half - SAMPLE_RATE)
                await gateway.release()
                await gateway.opened("w2")
                await gateway.write(audio[half:])
                await gateway.do("end")
                await within(gateway.ended())
                await until(lambda: alive["w2"].sessions == 0)
                stop = signal.getsignal(signal.SIGTERM)
                assert callable(stop)
                stop(signal.SIGTERM, None)
                assert await within(second) == 0
    finally:
        second.cancel()
        await asyncio.to_thread(engine.stop)
    check_promises(gateway.events)
    assert wer(sample_text(0.0, AUDIO_S), " ".join(gateway.words)) <= MAX_WER


async def test_a_worker_says_which_sessions_it_takes_and_why_it_has_them_no_longer(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "streamer.plugins.cluster.worker")
    async with scene.workers("w1", "w2"):
        gateway = await scene.gateway("s1")
        await gateway.opened("w1")
        await gateway.release()
        await gateway.opened("w2")
        await gateway.do("end")
        await until(lambda: "it has ended" in caplog.text)
    logged = [record for record in caplog.records if record.levelname == "INFO"]
    # The second takes it while the first may still be letting go of it.
    assert sorted(record.getMessage() for record in logged) == [
        "goes on with the session, for gateway g1",
        "no longer has the session: it has ended",
        "no longer has the session: it was given away",
        "takes the session, for gateway g1",
    ]
    assert {record.__dict__["session"] for record in logged} == {"s1"}
