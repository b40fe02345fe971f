"""A session that moves from worker to worker: nothing is lost, doubled or taken back, whatever becomes of messages."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine.engine import Engine
from streamer.events import End, Error, Partial, Ready
from streamer.events import Speech as SpeechEvent
from streamer.plugins.cluster.messages import WORKERS, AudioBlock, Leave, Message, Refused, SessionCommand
from streamer.plugins.cluster.worker_session import WorkerState, without_old_partials
from streamer.session.state import SessionState
from streamer.settings.table import Settings
from tests.fakes import FakeEncoded
from tests.plugins.cluster.stand_ins import (
    Gateway,
    LocalBus,
    LocalLog,
    Speech,
    Workers,
    engine_for,
    identity,
    is_partial,
    workplace,
)
from tests.promises import check_promises
from tests.waiting import until
from tests.wire.support import final, partial, within

SPEECH = Speech(40.0)


class Scene:
    """Two workers, and a gateway with one session."""

    def __init__(self, bus: LocalBus, log: LocalLog, engine: Engine[FakeEncoded], workers: Workers) -> None:
        self.bus, self.log, self.engine, self.workers = bus, log, engine, workers
        self.gateway = Gateway(bus, log, identity())

    def check(self, *, wordless: bool = False, partials: bool = True) -> None:
        """Hold that everything was said, once, and that all of it but partials is in the log."""
        gateway = self.gateway
        assert gateway.words == SPEECH.texts
        lasting = [event for event in gateway.events if not isinstance(event, Partial)]
        check_promises(gateway.events if partials else lasting, wordless=wordless)
        assert self.log.events(gateway.session) == lasting


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    bus, log = LocalBus(), LocalLog()
    settings = Settings()
    with engine_for(SPEECH, monkeypatch) as engine:
        places = [workplace(bus, log, engine, worker=name, settings=settings) for name in ("w1", "w2")]
        async with Workers(*places) as workers:
            scene = Scene(bus, log, engine, workers)
            await scene.gateway.listen()
            yield scene
    bus.close()


async def test_a_session_from_its_beginning_to_its_end(scene: Scene) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    await gateway.write(SPEECH.audio)
    await gateway.do("end")
    await within(gateway.ended())
    scene.check()
    assert isinstance(gateway.events[0], Ready)
    assert scene.engine.n_sessions == 0
    assert isinstance(await gateway.open("w1"), Refused)  # there is nothing to go on with


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("how", ["released", "killed", "log"])
async def test_a_session_that_moves_again_and_again(scene: Scene, how: str, seed: int) -> None:
    gateway, rng = scene.gateway, random.Random(seed)
    await gateway.opened("w1")
    position = n_moves = 0
    while position < len(SPEECH.audio):
        end = position + rng.randrange(SAMPLE_RATE, 8 * SAMPLE_RATE)
        await gateway.write(SPEECH.audio[position:end])
        position = end
        if rng.random() < 0.5:
            await gateway.processed(min(end, len(SPEECH.audio)) - 3 * SAMPLE_RATE)
        if how == "released":
            await gateway.release()
        else:
            scene.workers.workers[gateway.worker == "w2"]._owned["s1"].drop()
        if how == "log":
            gateway.checkpoint = scene.log.records["s1"][-1].record.checkpoint
        opened = await gateway.opened("w2" if gateway.worker == "w1" else "w1")
        n_moves += 1
        assert opened.epoch == n_moves + 1
    await gateway.do("end")
    await within(gateway.ended())
    # If worker and gateway are lost at once, no machine knows the partials.
    scene.check(partials=how != "log")


async def test_events_are_stored_before_they_are_published(scene: Scene) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    await gateway.write(SPEECH.audio[: 5 * SAMPLE_RATE])
    await until(lambda: len(gateway.events) > 3)
    scene.log.answers.clear()
    await gateway.write(SPEECH.audio[5 * SAMPLE_RATE :])
    await asyncio.sleep(0.3)
    n_stored = len(scene.log.records["s1"])
    assert gateway.updates[-1].sequence <= scene.log.records["s1"][n_stored - 1].sequence
    scene.log.answers.set()
    await gateway.do("end")
    await within(gateway.ended())
    scene.check()
    stored = [update for update in gateway.updates if update.previous < update.sequence]
    for update in stored:
        (record,) = (each.record for each in scene.log.records["s1"] if each.sequence == update.sequence)
        assert record.events == tuple(event for event in update.events if not is_partial(event))
        assert record.checkpoint == update.checkpoint
    assert all(is_partial(event) for update in gateway.updates if update not in stored for event in update.events)


async def test_audio_and_commands_that_get_lost_come_twice_or_out_of_order_make_no_difference(scene: Scene) -> None:
    gateway, rng, held = scene.gateway, random.Random(1), list[tuple[str, Message]]()

    def loses(subject: str, message: Message) -> bool:
        if not isinstance(message, AudioBlock | SessionCommand) or message in [each for _, each in held]:
            return False
        if rng.random() < 0.1:
            held.append((subject, message))
            return True
        return rng.random() < 0.05

    scene.bus.loses = loses
    await gateway.opened("w1")
    for begin in range(0, len(SPEECH.audio), SAMPLE_RATE):
        await gateway.write(SPEECH.audio[begin : begin + SAMPLE_RATE])
        if rng.random() < 0.3:
            await gateway.do("set")
        await asyncio.sleep(0)
        for subject, message in held:
            await scene.bus.publish(subject, message)
    scene.bus.loses = lambda subject, message: False
    await gateway.do("end")
    await within(gateway.ended())
    scene.check()


async def test_audio_waits_where_the_buffer_has_no_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    owned = scene.workers.workers[0]._owned["s1"]
    with monkeypatch.context() as patch:
        patch.setattr(owned.live, "has_news", lambda now_s: False)  # it processes nothing meanwhile
        await gateway.write(np.concatenate([SPEECH.audio, np.zeros(70 * SAMPLE_RATE, dtype=np.float32)]))
        await until(lambda: owned.live.ring.free < SAMPLE_RATE // 2)
        await until(lambda: owned.intake.head == len(gateway.audio))
        assert owned.intake.waiting
    await gateway.do("end")
    await within(gateway.ended())
    scene.check()


async def test_what_a_client_chooses_and_what_is_reported_moves_with_it(scene: Scene) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    await gateway.write(SPEECH.audio[: 10 * SAMPLE_RATE])
    await gateway.do("set", choose={"pace_s": 0.7, "words": False})
    await gateway.do("report", code="audio", message="too\nloud")
    await gateway.do("set", choose={"beam_size": 5})  # the model was not loaded for it
    await gateway.do("report", code="audio", message="too loud")
    for worker in ("w2", "w1", "w2"):
        await gateway.release()
        await gateway.opened(worker)
    await until(lambda: gateway.checkpoint.command == 4)
    assert (gateway.checkpoint.start.pace_s, gateway.checkpoint.start.words) == (0.7, False)
    await gateway.release()
    await gateway.opened("w1")
    live = scene.workers.workers[0]._owned["s1"].live
    assert (live.settings.pace_s, live.settings.words) == (0.7, False)
    await gateway.write(SPEECH.audio[10 * SAMPLE_RATE :])
    await gateway.do("end")
    await within(gateway.ended())
    scene.check(wordless=True)
    errors = [(event.code, event.message[:9]) for event in gateway.events if isinstance(event, Error)]
    assert errors == [("audio", "too loud"), ("config", "beam_size"), ("audio", "too loud")]


async def test_a_pause_and_a_flush_move_with_it(scene: Scene) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    for what, end_s in (("flush", 5), ("pause", 10), ("resume", 20), ("end", 42)):
        await gateway.write(SPEECH.audio[len(gateway.audio) : end_s * SAMPLE_RATE])
        await gateway.do(what)
        await gateway.release()
        await gateway.opened("w2" if gateway.worker == "w1" else "w1")
    await within(gateway.ended())
    check_promises(gateway.events)
    gaps = [(event.start, event.end, event.reason) for event in gateway.events if event.type == "gap"]  # type: ignore[attr-defined]
    assert gaps == [(10.0, 20.0, "paused")]
    assert [event.time for event in gateway.events if event.type == "flushed"] == [5.0]  # type: ignore[attr-defined]


async def test_a_worker_that_no_longer_owns_it_publishes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.worker_session.RENEW_S", 1.0)  # where it has nothing to say
    gateway = scene.gateway
    await gateway.opened("w1")
    zombie = scene.workers.workers[0]._owned["s1"]
    await gateway.write(SPEECH.audio[: 10 * SAMPLE_RATE])
    scene.log.answers.clear()  # it is stopped
    await gateway.write(SPEECH.audio[10 * SAMPLE_RATE : 20 * SAMPLE_RATE])
    opening = asyncio.create_task(gateway.open("w2"))
    await asyncio.sleep(0.1)
    scene.log.answers.set()
    if isinstance(await opening, Refused):  # what it had said was stored first
        await gateway.opened("w2")
    n_updates = len(gateway.updates)
    await gateway.write(SPEECH.audio[20 * SAMPLE_RATE :])
    await gateway.do("end")
    await within(gateway.ended())
    assert all(update.epoch == gateway.epoch for update in gateway.updates[n_updates:])
    await until(lambda: scene.workers.workers[0].alive.counters["fenced"] == 1)
    assert zombie.state is WorkerState.FENCED
    scene.check()


async def test_a_client_that_leaves(scene: Scene) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    await gateway.write(SPEECH.audio[: 5 * SAMPLE_RATE])
    await scene.bus.publish(f"{WORKERS}.w1", Leave(session="s1", epoch=gateway.epoch - 1))
    await scene.bus.publish(f"{WORKERS}.w1", Leave(session="s1", epoch=gateway.epoch))
    await within(gateway.ended())
    assert isinstance(scene.log.events("s1")[-1], End)
    assert scene.workers.workers[0].alive.sessions == scene.engine.n_sessions == 0


async def test_progress_is_reported_during_silence_and_the_log_is_renewed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.worker_session.PROGRESS_S", 0.01)
    gateway = scene.gateway
    await gateway.opened("w1")
    await gateway.write(np.zeros(30 * SAMPLE_RATE, dtype=np.float32))
    await until(lambda: gateway.checkpoint.state.needed_from > 28 * SAMPLE_RATE)
    assert len(scene.log.records["s1"]) == 2  # the owner, and `ready`
    monkeypatch.setattr("streamer.plugins.cluster.worker_session.RENEW_S", 0.05)
    await gateway.write(np.zeros(SAMPLE_RATE, dtype=np.float32))
    await until(lambda: len(scene.log.records["s1"]) > 3)
    last = scene.log.records["s1"][-1].record
    assert last.events == ()
    assert last.checkpoint.state.needed_from > 28 * SAMPLE_RATE


async def test_an_impossible_state_is_refused(scene: Scene) -> None:
    gateway = scene.gateway
    await gateway.opened("w1")
    while not gateway.checkpoint.state.text.stable.words:
        await gateway.write(SPEECH.audio[len(gateway.audio) : len(gateway.audio) + SAMPLE_RATE])
        await gateway.processed(len(gateway.audio) - SAMPLE_RATE // 10)
    await gateway.release()
    good = gateway.checkpoint
    state, text = good.state, good.state.text
    foreign = tuple(replace(word, tokens=(-1,)) for word in text.stable.words)
    stable = msgspec.structs.replace(text.stable, words=foreign)
    behind = msgspec.structs.replace(text, stable=stable)
    for bad in (
        msgspec.structs.replace(state, needed_from=state.received + 1),
        msgspec.structs.replace(state, needed_from=-1),
        msgspec.structs.replace(state, text=behind),
        SessionState.behind_loss(0, 10**15, 1, mark=0),
    ):
        gateway.checkpoint = msgspec.structs.replace(good, state=bad, seq=good.seq + 1)
        assert (await gateway.refused("w2")).code == "session_state"
    # It goes on behind a gap.
    processed = len(gateway.audio) - SAMPLE_RATE
    published_until = round(max((event.end for event in gateway.finals), default=0.0) * SAMPLE_RATE)
    lost = SessionState.behind_loss(published_until, processed, state.text.segment, mark=state.mark)
    gateway.checkpoint = msgspec.structs.replace(good, state=lost)
    await gateway.opened("w2")
    assert len(scene.log.records["s1"]) > 2


def test_partials_that_wait_leave_for_newer_text() -> None:
    speech = SpeechEvent(state="start", time=0.0)
    events = (speech, partial(1, "a"), partial(1, "a b"), final(1, "a b c"), partial(2, "d"), partial(2, "d e"))
    assert [(event.type, getattr(event, "text", "")) for event in without_old_partials(events)] == [
        ("speech", ""),
        ("final", "a b c"),
        ("partial", "d e"),
    ]
