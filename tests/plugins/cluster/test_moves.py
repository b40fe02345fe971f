"""Sessions that move between machines: nothing is lost, doubled or taken back, whatever fails."""

import asyncio
import itertools
import random
from collections.abc import Iterable

import numpy as np
import pytest

from streamer.audio.pcm import PcmDecoder
from streamer.constants import SAMPLE_RATE, PcmFormat
from streamer.engine.load import Load
from streamer.errors import BusyError, UnknownSessionError
from streamer.plugins.cluster import gateway_session, progress, worker_session
from streamer.plugins.cluster.messages import AudioBlock, Message, SessionCommand, SessionUpdate, unpack_samples
from streamer.plugins.cluster.replay import WAITING_SAMPLES
from tests.plugins.cluster.stage import SPEECH, Client, Speech, Stage, Worker
from tests.waiting import until
from tests.wire.harness import finished


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less than a real network needs."""
    monkeypatch.setattr(worker_session, "PROGRESS_S", 0.1)
    monkeypatch.setattr(worker_session, "RENEW_S", 1.0)
    monkeypatch.setattr(gateway_session, "OTHER_MODEL_S", 0.3)


def befall(worker: Worker, fault: str) -> None:
    match fault:
        case "it ends":
            worker.port.end()
        case "it is stopped":
            worker.port.running.clear()
        case "it is cut off":
            worker.port.connected = False
        case "it drains":
            worker.stopping.set()
        case "it fails":
            worker.engine.hand_stalled_s = 31.0
        case "it is mute":
            worker.port.becomes = lambda message: () if isinstance(message, SessionUpdate) else (message,)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("it ends", "lost"),
        pytest.param("it is stopped", "lost", marks=pytest.mark.slow),
        ("it is cut off", "lost"),
        ("it drains", "drain"),
        ("it fails", "failing"),
        ("it is mute", "silent"),
    ],
)
async def test_whatever_becomes_of_its_worker_a_session_goes_on_elsewhere(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    gateway, client = await stage.session("w1", "w2")
    first = stage.owner(client)
    await client.speak(5.0)
    await client.stream.command("flush")
    await client.processed()
    befall(first, fault)
    if why == "silent":
        monkeypatch.setattr(progress, "SILENT_S", 0.8)
    await client.speak(7.0)
    second = await stage.moved(client, off=first)
    monkeypatch.setattr(progress, "SILENT_S", 10.0)
    await client.speak()
    if fault not in ("it ends", "it drains"):  # it comes back: its sessions belong to another now
        first.port.becomes = lambda message: (message,)
        first.port.running.set()
        if not first.port.connected:
            first.port.mend()
        await until(lambda: first.alive.sessions == 0)
    await client.finish()
    assert len(client.of_type("flushed")) == 1
    assert stage.stalls == {why: 1}
    assert gateway.backend.alive.counters == {f"moves_{why}": 1.0}
    assert second.alive.counters["taken_over"] == 1
    assert first.alive.counters["fenced"] == (fault == "it is cut off")  # nothing told it to let go


@pytest.mark.slow
@pytest.mark.parametrize("stage", [Speech(40.0)], ids=[""], indirect=True)
@pytest.mark.parametrize("seed", range(2))
async def test_a_session_moves_again_and_again(stage: Stage, seed: int) -> None:
    """Workers and gateways end, in any order, while the client speaks."""
    chance, last = random.Random(seed), await stage.worker("w0")
    gateway, partials = await stage.gateway("g0"), True
    client = await stage.client(gateway)
    for i in range(1, 8):
        await client.speak(min(40.0, client.said / SAMPLE_RATE + chance.uniform(1.0, 8.0)))
        if chance.random() < 0.5:
            await client.processed(client.said / SAMPLE_RATE - 3.0)
        fault = chance.choice(["it ends", "it drains", "its gateway ends", "both end"])
        if fault in ("its gateway ends", "both end"):
            await gateway.backend.close()
        if fault != "its gateway ends":
            owner, last = last, await stage.worker(f"w{i}")
            befall(owner, "it drains" if fault == "it drains" else "it ends")
        if fault in ("its gateway ends", "both end"):
            partials &= fault != "both end"  # no machine knows them then
            gateway = await stage.gateway(f"g{i}", last.name)
            client = await stage.back(client, gateway)
        else:
            await stage.moved(client, off=owner)
    await client.finish(partials=partials)


@pytest.mark.parametrize("kind", [AudioBlock | SessionCommand, SessionUpdate], ids=["to the worker", "from it"])
async def test_messages_that_get_lost_come_twice_or_out_of_order_make_no_difference(
    stage: Stage, kind: type[Message]
) -> None:
    worker, gateway = await stage.worker(), await stage.gateway()
    client, chance, late = await stage.client(gateway), random.Random(1), list[Message]()

    def becomes(message: Message) -> Iterable[Message]:
        if not isinstance(message, kind):
            return (message,)
        if chance.random() < 0.2:
            late.append(message)
            return ()
        return (*[late.pop() for _ in range(len(late)) if chance.random() < 0.5], *[message] * chance.randrange(1, 3))

    port = worker.port if kind is SessionUpdate else gateway.port
    port.becomes = becomes
    for second in range(1, 12):
        await client.speak(float(second))
        await client.stream.change(client.stream.options)
    port.becomes = lambda message: (message,)
    await client.finish()
    assert all(seq > 0 for seq in gateway.port.reads)  # of the log only what is missing
    assert gateway.backend.alive.counters == {}


async def test_an_overloaded_worker_gives_one_session_at_a_time(stage: Stage) -> None:
    first = await stage.worker("w1")
    gateway = await stage.gateway()
    clients = [await stage.client(gateway) for _ in range(3)]
    for client, until_s in zip(clients, (9.0, 3.0, 9.0), strict=True):
        await client.speak(until_s)
    second = await stage.worker("w2")
    second.engine.hand_load = Load(0.1, 5, room=True)
    await gateway.knows("w1", "w2")
    first.engine.hand_load = Load(1.2, 2, room=False)
    await until(lambda: second.alive.sessions == 1)
    first.engine.hand_load = Load(0.5, 2, room=False)
    for client in clients:
        await client.finish()
    assert first.alive.counters["moved_away"] == 1


async def test_a_slow_worker_is_left_and_a_client_is_held_back_while_too_much_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "STUCK_S", 0.5)
    slow = await stage.worker("w1", runs=False)
    gateway = await stage.gateway()
    client = await stage.client(gateway)
    await client.speak()
    writing = asyncio.create_task(client.stream.write(bytes(2 * WAITING_SAMPLES)))
    await until(lambda: client.stream._free < SAMPLE_RATE // 2)
    assert not writing.done()
    await stage.worker("w2")
    await stage.moved(client, off=slow)
    await writing
    await client.finish()
    assert stage.stalls == {"slow": 1}


async def test_another_model_continues_behind_a_gap_also_if_it_is_full(stage: Stage) -> None:
    _gateway, client = await stage.session()
    first = stage.owner(client)
    await client.speak(6.0, wait=True)
    second = await stage.worker("w2", identity="other 2")
    second.engine.hand_load = Load(0.95, 1, room=False)  # no other has room
    first.port.end()
    assert await stage.moved(client, off=first) is second
    await client.speak()
    await finished(client.stream)
    ((gap,), finals) = client.of_type("gap"), client.of_type("final")
    assert gap.end == pytest.approx(6.0, abs=0.2)
    assert finals[-1].text.split()[-1] == SPEECH.texts[-1]
    assert all(final.start >= gap.end or final.end <= gap.start for final in finals)


async def test_no_session_moves_while_the_gateway_is_cut_off_and_all_go_on_when_nats_is_back(stage: Stage) -> None:
    gateway, client = await stage.session("w1", "w2")
    await client.speak(4.0)
    gateway.port.connected = False
    assert gateway.backend.health()["status"] == "failing"
    await client.speak(8.0)
    await gateway.knows()  # all workers seem lost
    gateway.port.mend()
    await client.finish()
    assert gateway.backend.alive.counters == {}


async def test_a_worker_whose_answer_was_lost_does_not_take_the_session_from_its_gateway(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.worker.OPEN_S", 0.2)
    _gateway, client = await stage.session()
    first = stage.owner(client)
    await client.speak(4.0)
    second = await stage.worker("w2")
    second.port.loses_answers = True
    first.port.end()
    await until(lambda: stage.owner(client) is second)  # as the log has it; the gateway was refused
    second.port.loses_answers = False
    await client.finish()


@pytest.mark.slow
async def test_a_client_is_warned_once_if_no_worker_serves_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WAIT_S", 1.5)
    _gateway, client = await stage.session()
    await client.speak(4.0)
    stage.owner(client).port.end()
    await client.speak(8.0)
    await until(lambda: bool(client.of_type("error")))
    await stage.worker("w2")
    await client.finish()
    (warning,) = client.of_type("error")
    assert (warning.code, warning.fatal, warning.seq, warning.session) == ("waiting", False, 0, client.name)


@pytest.mark.parametrize("lost", ["gateway", "gateway and worker"])
async def test_a_client_continues_at_another_gateway_and_what_took_effect_is_not_repeated(
    stage: Stage, lost: str
) -> None:
    for name in ("w1", "w2"):
        await stage.worker(name)
    g1, g2 = await stage.gateway("g1"), await stage.gateway("g2")
    client = await stage.client(g1, tenant="anna", language="de")
    await client.speak(5.0)
    await client.stream.command("flush")
    await client.speak(8.0, wait=True)
    await g1.backend.close()
    if lost != "gateway":
        stage.owner(client).port.end()
    again = await stage.back(client, g2, tenant="anna")
    assert again.stream.options == client.stream.options
    assert again.said == again.checkpoint.state.needed_from
    await again.stream.command("flush")  # the client repeats what it does not know to have arrived
    await again.finish(partials=lost == "gateway")
    assert len(again.of_type("flushed")) == 1
    assert g2.backend.alive.counters["moves_resumed"] == 1


async def test_a_client_that_comes_back_without_audio_comes_to_an_end(stage: Stage) -> None:
    await stage.worker()
    g1, g2 = await stage.gateway("g1"), await stage.gateway("g2")
    client = await stage.client(g1)
    await client.speak(8.0, wait=True)
    await g1.backend.close()
    again = await stage.back(client, g2)
    assert again.said < client.said
    await finished(again.stream)
    last = stage.wire.sent(SessionCommand, client.name)[-1]
    assert (last.what, last.position) == ("end", again.stream.ring.head)  # type: ignore[attr-defined]


async def test_a_session_that_went_elsewhere_is_lost_here_and_its_last_words_can_be_fetched(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.worker()
    g1, g2, g3 = [await stage.gateway(name) for name in ("g1", "g2", "g3")]
    client = await stage.client(g1)
    await client.speak(5.0, wait=True)
    again = await stage.back(client, g2)
    monkeypatch.setattr(progress, "SILENT_S", 0.8)
    await until(lambda: client.events[-1].type == "end")
    monkeypatch.setattr(progress, "SILENT_S", 10.0)
    (error,) = client.of_type("error")
    assert (error.code, error.fatal) == ("unknown_session", True)
    assert g1.backend.alive.sessions == 0
    await again.finish()
    fetched = Client(stage, await g3.resume(client.name, after=0))
    assert fetched.stream.complete
    assert [event for event in fetched.events if event.type == "final"] == again.of_type("final")


async def test_a_session_is_resumed_with_the_token_that_began_it_and_no_other(stage: Stage) -> None:
    await stage.worker()
    g1, g2 = await stage.gateway("g1"), await stage.gateway("g2")
    client = await stage.client(g1, tenant="anna")
    wrong = [(client.name, "berta"), (client.name, ""), ("unknown", "anna"), ("a.b", "anna"), (">", "anna")]
    for gateway, (name, tenant) in itertools.product((g1, g2), wrong):
        with pytest.raises(UnknownSessionError):
            await gateway.resume(name, tenant=tenant)
    assert await g1.resume(client.name, tenant="anna") is client.stream


async def test_a_refused_client_finds_its_session_when_it_tries_again_and_else_it_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamer.plugins.cluster.gateway.RESUME_S", 0.3)
    worker = await stage.worker()
    g1, g2 = await stage.gateway("g1"), await stage.gateway("g2", resume_s=2.0)
    client = await stage.client(g1)
    await client.speak(5.0, wait=True)
    await g1.backend.close()
    stage.wire.storing.clear()
    with pytest.raises(BusyError):
        await stage.back(client, g2)
    stage.wire.storing.set()
    await until(lambda: stage.owner(client).alive.sessions == 1)
    await until(lambda: worker.alive.sessions == 0)  # no client has come
    assert stage.wire.events(client.name)[-1].type == "end"


@pytest.mark.parametrize(
    ("rate", "channels", "format"), [(16_000, 2, "s16le"), (44_100, 2, "s16le"), (8000, 1, "f32le")]
)
async def test_other_rates_sound_the_same_at_another_gateway(
    stage: Stage, rate: int, channels: int, format: PcmFormat
) -> None:
    await stage.worker()
    g1, g2 = await stage.gateway("g1"), await stage.gateway("g2")
    noise = np.random.default_rng(7).normal(0, 0.1, 6 * rate * channels)
    noise[: 2 * rate * channels] = 0.0  # silence, which no worker needs again
    data = noise.astype("<f4").tobytes() if format == "f32le" else (noise * 32_768).astype("<i2").tobytes()
    decoder = PcmDecoder(format, rate, channels)
    expected = np.concatenate([decoder.decode(data), decoder.finish()])
    client = await stage.client(g1, format=format, sample_rate=rate, channels=channels)
    await client.stream.write(data[: len(data) // 2])
    await client.processed(2.5)
    await g1.backend.close()
    n_before = len(stage.wire.published)
    again = await stage.back(client, g2)
    first = again.stream.ring.first  # type: ignore[attr-defined]
    await again.stream.write(data[again.said * len(data) // (6 * rate) :])
    await again.processed(5.5)
    blocks = [each for each in stage.wire.published[n_before:] if isinstance(each, AudioBlock)]
    assert SAMPLE_RATE < blocks[0].position == first
    for block in blocks:
        found = unpack_samples(block.data, wide=block.wide)
        assert np.allclose(found, expected[block.position :][: len(found)], atol=1e-4)
