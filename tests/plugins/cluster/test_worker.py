"""What a worker takes, refuses, stores and gives away; and a session that moves with the real model and NATS."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from streamer.constants import SAMPLE_RATE
from streamer.daemon.clients import ClientStreams
from streamer.engine.load import Load
from streamer.events import Event, Partial, from_json
from streamer.events import Speech as SpeechEvent
from streamer.plugins.cluster import worker as worker_module
from streamer.plugins.cluster import worker_session
from streamer.plugins.cluster.gateway import ClusterBackend
from streamer.plugins.cluster.messages import (
    ALIVE_GATEWAYS,
    ALIVE_WORKERS,
    WORKERS,
    AudioBlock,
    Leave,
    Opened,
    SessionCommand,
    SessionUpdate,
    WorkerAlive,
)
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.worker import run_worker
from streamer.plugins.cluster.worker_session import without_old_partials
from streamer.protocols.native import StreamStart
from streamer.session.state import SessionState
from streamer.settings.table import InputSettings, ServerSettings, Settings
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from tests.builders import final
from tests.builders import partial as partial_of
from tests.daemon import SAMPLE, pcm16, recording, sample_text
from tests.plugins.cluster.stage import IDENTITY, Stage
from tests.plugins.cluster.support import checkpoint, log_on
from tests.promises import check_promises, transcript
from tests.refusals import Refusal, refusals
from tests.waiting import WAIT_S, until
from tests.wer import wer
from tests.wire.harness import finished


async def test_only_as_many_are_taken_as_are_kept_in_real_time(stage: Stage) -> None:
    worker = await stage.worker(settings=Settings(server=ServerSettings(max_streams=3)))
    await stage.ask("w1", "s1")
    worker.engine.hand_load = Load(0.85, 1, room=False)
    assert not worker.alive.room
    assert await stage.refused("w1", "s2") == "busy"
    assert isinstance(await stage.ask("w1", "s2", must=True), Opened)
    worker.engine.hand_load = Load(0.3, 5, room=True)
    await stage.ask("w1", "s3")
    assert await stage.refused("w1", "s4") == "busy"  # server.max_streams
    assert worker.alive.sessions == 3


async def test_sessions_whose_audio_is_still_to_come_count(stage: Stage) -> None:
    worker = await stage.worker()
    worker.engine.hand_load = Load(0.5, 4, room=True)
    needed = msgspec.structs.replace(SessionState.behind_loss(0, 10 * SAMPLE_RATE, 1, mark=0), needed_from=0)
    for more in ({"checkpoint": checkpoint(3, state=needed, model=IDENTITY)}, {}):
        await stage.ask("w1", "s1", **more)
        assert not worker.alive.room  # 0.5 and two sessions of 0.225 each


STATES: dict[str, SessionState] = {
    "needs what is to come": msgspec.structs.replace(SessionState(), needed_from=1),
    "needs what never was": msgspec.structs.replace(SessionState(), needed_from=-1),
    "needs more than fits": msgspec.structs.replace(
        SessionState.behind_loss(0, 200 * SAMPLE_RATE, 1, mark=0), needed_from=0
    ),
}


@refusals("cluster_worker")
async def test_a_worker_refuses(stage: Stage, refusal: Refusal) -> None:
    worker = await stage.worker()
    given: dict[str, Any] = dict(refusal.given)
    known = msgspec.structs.replace(
        checkpoint(model=given.pop("model", IDENTITY)),
        start=StreamStart(**given.pop("start", {})),
        state=STATES.get(given.pop("state", ""), SessionState()),
    )
    if given.pop("after", "") == "it was opened":
        await stage.ask("w1")
    elif worker_is := given.pop("worker", ""):
        worker.draining, worker.engine.hand_stalled_s = worker_is == "drains", 31.0 if worker_is == "fails" else None
    answer = await stage.ask("w1", checkpoint=known, **given)
    assert not isinstance(answer, Opened)
    refusal.check("Refused", answer.code, answer.message)
    assert worker.engine.n_sessions == worker.alive.sessions == len(stage.wire.records["s1"][:1])


async def test_a_state_with_tokens_of_another_model_is_refused(stage: Stage) -> None:
    _, client = await stage.session()
    while not client.checkpoint.state.text.stable.words:
        await client.speak(client.said / SAMPLE_RATE + 1.0, wait=True)
    known, changed = client.checkpoint, msgspec.structs.replace
    text = known.state.text
    foreign = tuple(replace(word, tokens=(-1,)) for word in text.stable.words)
    text = changed(text, stable=changed(text.stable, words=foreign))
    known = changed(known, state=changed(known.state, text=text))
    assert await stage.refused("w1", "s2", checkpoint=known) == "session_state"


async def test_malformed_messages_are_logged_and_change_nothing(stage: Stage) -> None:
    _, client = await stage.session()
    for subject in (f"{WORKERS}.w1", f"{ALIVE_WORKERS}.w9", f"{ALIVE_GATEWAYS}.g9"):
        for data in (b"", b"\xc1", b"\x80", b"\x81\xa4type\xa4open", msgspec.msgpack.encode({"type": "update"})):
            stage.wire.deliver(subject, data)
    await client.finish()
    assert len(stage.wire.troubles) == 5 * (1 + 2 + 2)  # gateway and worker read the signs of life
    stage.wire.troubles.clear()


async def test_a_stopping_worker_gives_another_gateway_the_session_that_it_still_has_and_takes_no_new_one(
    stage: Stage,
) -> None:
    g1, client = await stage.session()
    worker, g2 = stage.owner(client), await stage.gateway("g2")
    clients = [client, await stage.client(g1)]
    for client in clients:
        await client.speak(5.0, wait=True)
    worker.stopping.set()
    await until(lambda: worker.draining)
    clients[0] = await stage.back(clients[0], g2)
    assert await stage.refused("w1", "new", must=True) == "stopping"
    await stage.worker("w2")
    await asyncio.wait_for(worker.task, WAIT_S)
    for client in clients:
        await client.finish()
    last = [each for each in stage.wire.sent(WorkerAlive) if each.worker == "w1"][-1]
    assert (last.draining, last.room, last.sessions, last.counters["moved_away"]) == (True, False, 0, 2)


async def test_sessions_that_no_worker_takes_over_are_in_the_log_when_a_worker_has_stopped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "DRAIN_S", 0.1)
    _, client = await stage.session()
    worker = stage.owner(client)
    await client.speak(wait=True)
    worker.stopping.set()
    await asyncio.wait_for(worker.task, WAIT_S)
    assert worker.engine.n_sessions == 0
    assert stage.wire.records[client.name][-1].record.checkpoint.state.received >= 11 * SAMPLE_RATE


async def test_a_session_whose_gateway_is_lost_ends_if_no_other_asks_for_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LOST_S", 0.5)
    worker = await stage.worker(settings=Settings(server=ServerSettings(resume_s=0.0)))
    await stage.ask("w1")
    await until(lambda: worker.alive.sessions == 0)
    assert stage.wire.events("s1")[-1].type == "end"


async def test_a_request_may_be_repeated_and_older_ones_take_and_end_nothing(stage: Stage) -> None:
    workers = [await stage.worker(name) for name in ("w1", "w2")]
    epochs = [await stage.ask("w1", epoch=epoch) for epoch in range(3)]
    assert [answer.epoch for answer in epochs if isinstance(answer, Opened)] == [1, 2, 3]
    await stage.port("g9").publish(f"{WORKERS}.w1", Leave(session="s1", epoch=2))
    for worker in workers:  # as one that was stopped when it was asked, and goes on now
        assert await stage.refused(worker.name, epoch=1) == "cluster"
    assert [worker.alive.sessions for worker in workers] == [1, 0]
    await stage.port("g9").publish(f"{WORKERS}.w1", Leave(session="s1", epoch=3))
    await until(lambda: workers[0].alive.sessions == 0)
    assert await stage.refused("w1", epoch=3) == "unknown_session"


async def test_events_are_stored_before_they_are_published(stage: Stage) -> None:
    _, client = await stage.session()
    worker = stage.owner(client)
    await client.speak(4.0, wait=True)
    stage.wire.storing.clear()
    n_events = len(stage.wire.events(client.name))
    await client.speak()
    await until(lambda: worker.engine.simulated.encoded[-1].end > 9 * SAMPLE_RATE)
    assert len([event for event in client.events if not isinstance(event, Partial)]) <= n_events
    stage.wire.storing.set()
    await client.finish()
    records = {each.sequence: each.record for each in stage.wire.records[client.name]}
    for update in stage.wire.sent(SessionUpdate, client.name):
        lasting = tuple(event for event in update.events if not isinstance(from_json(event), Partial))
        stored = update.previous < update.sequence
        assert lasting == (records[update.sequence].events if stored else ())
        assert not stored or update.checkpoint == records[update.sequence].checkpoint


async def test_audio_waits_if_the_buffer_has_no_room(stage: Stage) -> None:
    slow = await stage.worker(settings=Settings(input=InputSettings(buffer_s=60.0)), runs=False)
    await stage.ask("w1")
    silence = bytes(2 * 5 * SAMPLE_RATE)
    for position in range(0, 80 * SAMPLE_RATE, 5 * SAMPLE_RATE):
        block = AudioBlock(session="s1", epoch=1, position=position, command=0, data=silence, wide=False)
        await stage.port("g9").publish(f"{WORKERS}.w1", block)
    await until(lambda: any(update.head == 80 * SAMPLE_RATE for update in stage.wire.sent(SessionUpdate)))
    slow.engine.start()
    await until(lambda: stage.wire.sent(SessionUpdate)[-1].checkpoint.state.received > 79 * SAMPLE_RATE)
    slow.engine.stop()


async def test_what_a_client_chooses_and_what_is_reported_moves_with_it(stage: Stage) -> None:
    _gateway, client = await stage.session("w1", "w2")
    first = stage.owner(client)
    await client.speak(4.0)
    for changes in ({"pace_s": 0.7, "words": False}, {"beam_size": 5}):  # the model was not loaded for the latter
        await client.stream.change(msgspec.structs.replace(client.stream.options, **changes))
    await client.stream.command("pause")
    await client.stream.command("resume")
    first.stopping.set()
    await stage.moved(client, off=first)
    await client.finish(wordless=True)
    start = client.checkpoint.start
    assert (start.pace_s, start.words, start.beam_size) == (0.7, False, None)
    assert not any(event.words for event in client.of_type("final")[1:])
    assert [event.code for event in client.of_type("error")] == ["config"]


async def test_a_report_is_an_event_and_a_command_of_another_version_is_passed_over(stage: Stage) -> None:
    await stage.worker()
    await stage.ask("w1")
    for number, what in enumerate(("sing", "report"), start=1):
        command = SessionCommand(session="s1", epoch=1, position=0, command=number, what=what, code="audio")
        await stage.port("g9").publish(f"{WORKERS}.w1", command)
    await until(lambda: any(update.checkpoint.command == 2 for update in stage.wire.sent(SessionUpdate)))
    assert [event.type for event in stage.wire.events("s1")] == ["ready", "error"]


async def test_progress_is_reported_during_silence_and_the_log_is_renewed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_session, "PROGRESS_S", 0.01)
    _, client = await stage.session()
    await client.stream.write(bytes(2 * 25 * SAMPLE_RATE))
    await until(lambda: client.checkpoint.state.needed_from > 23 * SAMPLE_RATE)
    assert len(stage.wire.records[client.name]) == 2  # the owner, and `ready`
    monkeypatch.setattr(worker_session, "RENEW_S", 0.05)
    await until(lambda: len(stage.wire.records[client.name]) > 3)
    last = stage.wire.records[client.name][-1].record
    assert (last.events, last.checkpoint.state.needed_from > 23 * SAMPLE_RATE) == ((), True)


def test_partials_that_wait_leave_for_newer_text() -> None:
    speech = SpeechEvent(state="start", time=0.0)
    events = (speech, partial_of("a"), partial_of("a b"), final("a b c"), partial_of("d"), partial_of("d e"))
    assert [(event.type, getattr(event, "text", "")) for event in without_old_partials(events)] == [
        ("speech", ""),
        ("final", "a b c"),
        ("partial", "d e"),
    ]


@pytest.mark.slow
async def test_a_session_moves_in_mid_speech_with_the_real_model_and_nats(model: WhisperModel, nats: str) -> None:
    audio, tasks = recording(SAMPLE, 0.0, 6.0), dict[str, "asyncio.Task[int]"]()
    async with log_on(nats, name="g1") as (bus, log):
        backend = ClusterBackend(Settings(), bus, log, "g1")
        await backend.start()
        for name in ("w1", "w2"):
            settings = Settings(plugins=(ClusterSettings(nats=(nats,), name=name),))
            # Models of their own: a fork has the one buffer that recordings need, and live windows take two.
            load = partial(load_model, model.name, LoadOptions(DeviceSettings("CPU")))
            tasks[name] = asyncio.create_task(run_worker(settings, load))
        await until(lambda: len(backend.neighbours.workers()) == 2)
        stream = await ClientStreams(ServerSettings(), backend).open(StreamStart())
        said: list[Event] = []
        events = [*stream.log.subscribe(said.append, after=0).backlog]
        await stream.write(pcm16(audio[: len(audio) // 2]))
        stored = await log.last(stream.log.session)
        assert stored is not None
        tasks[stored.record.worker].cancel()
        await stream.write(pcm16(audio[len(audio) // 2 :]))
        await finished(stream)
        await backend.close()
        for task in tasks.values():
            task.cancel()
    check_promises([*events, *said])
    assert backend.alive.counters == {"moves_lost": 1.0}
    # Passes fall elsewhere by the clock, and nano.en gets one word in six wrong.
    assert wer(sample_text(0.0, 6.0), transcript([*events, *said])) <= 0.5
