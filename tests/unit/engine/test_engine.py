"""The engine's threads, with an encoder and a decoder that do as they are told."""

import dataclasses
import gc
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from streamer.constants import SAMPLE_RATE
from streamer.engine import engine as engine_module
from streamer.engine.host import Host
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.engine.load import Pass
from streamer.engine.workers import note_progress
from streamer.errors import InferenceError
from streamer.session.task import Request, Span
from streamer.whisper.result import Hypothesis
from tests.fakes import FakeDecoder, FakeEncoded
from tests.unit.engine.simulation import Machine, Talker
from tests.waiting import WAIT_S, wait_until


class Threads(Machine):
    """A machine whose engine has threads, for recordings."""

    def __init__(self, pause: float = 0.15, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._pause = pause
        # Holds a thread where a test puts it.
        self.barrier = Barrier()

    def listener(self, **options: Any) -> Talker:  # noqa: ANN401 - see Talker
        """Open a session in which words are said for 12 s."""
        return self.talker(12.0, pause=self._pause, **{"kind": AudioKind.RECORDED, "max_delay_s": math.inf, **options})


@pytest.fixture
def setting(request: pytest.FixtureRequest) -> Iterator[Threads]:
    setting = Threads(*getattr(request, "param", ()))
    setting.engine.start()
    yield setting
    # A test that failed may have left a thread waiting.
    setting.barrier.let_go.set()
    setting.engine.stop()


class Barrier:
    """Holds a thread at a window until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, encoded: FakeEncoded | None) -> None:
        self.reached.set()
        assert self.let_go.wait(WAIT_S)

    def wait(self) -> None:
        assert self.reached.wait(WAIT_S)


def check_one_gap(listener: Talker) -> None:
    """Check that a failure has cost the first voice one gap, and that what follows it is transcribed."""
    (gap,) = listener.gaps
    assert gap.reason == "device"
    assert listener.text
    assert listener.said.endswith(listener.text)
    listener.check()


def test_the_threads_see_no_session_before_it_is_ready_and_none_that_was_closed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, start, seen = Machine(), LiveSession.start, []

    def close_and_start(live: LiveSession, host: Host) -> None:
        seen.append(machine.engine.n_sessions)
        live.close()
        start(live, host)

    monkeypatch.setattr(LiveSession, "start", close_and_start)
    machine.add(Talker(0, []))
    assert seen == [0]
    assert machine.engine.n_sessions == 0


@pytest.mark.parametrize("setting", [(0.0,)], indirect=True, ids=["unbroken speech"])
def test_several_sessions_are_told_apart(setting: Threads) -> None:
    listeners = [setting.listener() for voice in range(4)]
    for listener in listeners:
        listener.write_until(14.0)
        listener.live.end()
    for listener in listeners:
        assert listener.finished.wait(WAIT_S)
        assert listener.text == listener.said
    assert setting.decoder.overwritten == []


@pytest.mark.parametrize("where", ["model", "encoder", "decoder"])
@pytest.mark.parametrize("failure", [InferenceError("the device is gone"), ZeroDivisionError("a bug")])
def test_a_window_that_fails_is_an_error_and_a_gap_and_the_session_goes_on(
    setting: Threads, where: str, failure: Exception
) -> None:
    failures = iter([failure])

    def fail_once(encoded: FakeEncoded | None = None) -> None:
        for error in failures:
            raise error

    if where == "model":
        setting.prepare = fail_once
    else:
        getattr(setting, where).before = fail_once
    listener = setting.listener()
    listener.end(14.0)
    (error,) = listener.errors
    assert not error.fatal
    assert error.code == ("device" if isinstance(failure, InferenceError) else "failed")
    assert "\n" not in error.message
    check_one_gap(listener)
    assert setting.engine.stats.failures == 1


@pytest.mark.parametrize("where", ["model", "encoder", "decoder"])
def test_a_failure_keeps_no_session_that_is_over(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    talker = machine.talker(12.0)
    monkeypatch.setattr(talker.live.logger.logger, "disabled", True)  # pytest keeps what is logged
    attempts = iter([1])

    def fail_once(encoded: FakeEncoded | None = None) -> None:
        if next(attempts, None):
            raise InferenceError("the device is gone")

    if where == "model":
        machine.prepare = fail_once
    else:
        getattr(machine, where).before = fail_once
    gc.collect()
    gc.disable()  # it would hide a cycle
    try:
        machine.run_until(4.0)
        assert len(talker.errors) == 1
        talker.live.close()
        machine.talkers.clear()
        machine.work()  # what was encoded is dropped
        left = weakref.ref(talker.live)
        del talker.live
        assert left() is None
    finally:
        gc.enable()


def test_metrics_that_fail_lose_no_window(setting: Threads) -> None:
    setting.engine.stats.on_encode = setting.engine.stats.on_decode = lambda cost_s: 1 / 0
    listener = setting.listener()
    listener.end(14.0)
    assert (listener.text, listener.errors) == (listener.said, [])
    listener.check()
    assert listener.promises.partials > 0
    assert setting.engine.stats.windows_replaced == 0  # a recording waits for each


@pytest.mark.parametrize("setting", [(0.0,)], indirect=True, ids=["unbroken speech"])
def test_the_newest_window_wins(setting: Threads) -> None:
    barrier = setting.barrier
    setting.decoder.before = barrier
    listener = setting.listener(kind=AudioKind.LIVE)
    position_s = 0.0
    n_replaced: int | None = None  # when the decoder began with its first window
    # Half a second at a time: a session far behind its audio waits for its windows.
    while n_replaced is None or setting.engine.stats.windows_replaced == n_replaced:
        if n_replaced is None and barrier.reached.is_set():
            n_replaced = setting.engine.stats.windows_replaced
        listener.write_until(position_s + 0.5)
        position_s += 0.5
        wait_until(lambda: listener.live.ring.head - listener.live.position < 512)
        assert position_s < 14.0, setting.engine.stats
        # A window that is due is encoded before more audio comes.
        wait_until(lambda: setting.engine.n_waiting == 0)
    newest = setting.encoder.encoded[-1].serial
    setting.decoder.before = lambda encoded: None
    barrier.let_go.set()
    wait_until(lambda: len(setting.decoder.decoded) >= 2)
    assert setting.decoder.decoded[1].serial == newest
    listener.end(14.0)
    assert listener.text == listener.said
    assert setting.decoder.overwritten == []


@pytest.mark.parametrize("where", ["encoder", "decoder"])
def test_a_session_that_is_removed_while_it_is_being_served_says_nothing_more(setting: Threads, where: str) -> None:
    barrier = setting.barrier
    getattr(setting, where).before = barrier
    removed, other = setting.listener(), setting.listener()
    removed.write_until(14.0)
    barrier.wait()
    removed.live.close()
    n_events = len(removed.events)
    setting.encoder.before = setting.decoder.before = lambda encoded: None
    barrier.let_go.set()
    other.end(14.0)
    assert other.text == other.said
    assert len(removed.events) == n_events
    assert not removed.finished.is_set()
    assert setting.engine.n_sessions == 0


def test_a_session_that_is_removed_as_its_turn_begins_has_no_further_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Threads()  # no thread runs
    listener = setting.listener()
    next_span = listener.live.next_span

    def issue_and_close(now_s: float) -> Span | None:
        span = next_span(now_s)
        listener.live.close()
        return span

    monkeypatch.setattr(listener.live, "next_span", issue_and_close)
    listener.write_until(14.0)
    while setting.engine.n_waiting == 0:
        setting.engine.listen()
    assert setting.engine.encode()
    assert setting.engine.n_sessions == 0


def test_a_session_that_is_cut_short_says_what_is_lost(setting: Threads) -> None:
    setting.decoder.before = setting.barrier
    listener = setting.listener()
    listener.write_until(14.0)
    setting.barrier.wait()
    listener.live.cut_short("overload")
    (gap,) = listener.gaps
    assert (gap.end, gap.reason) == (14.0, "overload")
    assert gap.start < 1.0
    n_events = len(listener.events)
    setting.barrier.let_go.set()
    wait_until(lambda: not setting.engine.n_sessions)
    assert len(listener.events) == n_events


def test_stop_waits_for_the_window_at_hand_and_ends_its_threads() -> None:
    setting = Threads()
    barrier = setting.barrier
    setting.decoder.before = barrier
    setting.engine.start()
    listener = setting.listener()
    listener.write_until(14.0)
    barrier.wait()
    stopper = threading.Thread(target=setting.engine.stop)
    stopper.start()
    wait_until(lambda: setting.engine._decoding.stopping)
    barrier.let_go.set()
    stopper.join(WAIT_S)
    assert not stopper.is_alive()
    assert not any(worker.is_alive() for worker in setting.engine._workers)
    assert setting.engine.stats.decodes == len(setting.decoder.decoded) == 1
    assert not listener.finished.is_set()


@dataclass
class Doubtful(FakeDecoder):
    """Doubts the texts of the first voice, unless further attempts had all the time that they wanted."""

    retrying: threading.Event = field(default_factory=threading.Event)
    # Whether each was cut short.
    retries: list[bool] = field(default_factory=list)
    # How much that is.
    wanted_s: float = 20.0

    def decode(
        self, encoded: FakeEncoded, request: Request, others_wait: Callable[[], bool] = lambda: False
    ) -> Hypothesis:
        hypothesis = super().decode(encoded, request)
        if encoded.voice != 0:
            return hypothesis
        if not request.retry_s:
            return dataclasses.replace(hypothesis, avg_logprob=-2.0)
        until_s, cut_short = time.monotonic() + min(self.wanted_s, request.retry_s), False
        self.retrying.set()
        while not cut_short and time.monotonic() < until_s:
            time.sleep(0.001)
            cut_short = others_wait()
        self.retries.append(cut_short)
        return dataclasses.replace(hypothesis, avg_logprob=-2.0, cut_short=True) if cut_short else hypothesis


@pytest.mark.parametrize("kind", [AudioKind.LIVE, AudioKind.RECORDED])
def test_a_second_look_ends_when_another_session_waits(
    setting: Threads, kind: AudioKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "RETRY_S", WAIT_S)
    decoder = Doubtful(setting.encoder, setting.decoder.speakers)
    setting.engine._decoder = decoder
    doubtful, other = setting.listener(kind=kind), setting.listener(kind=AudioKind.LIVE)
    doubtful.write_until(14.0)
    doubtful.live.end()
    assert decoder.retrying.wait(WAIT_S)
    n_decoded, decoder.wanted_s = len(decoder.decoded), 0.0  # the next is as short as can be
    other.write_until(2.0)
    assert doubtful.finished.wait(WAIT_S)
    assert decoder.retries[:2] == [True, False]
    assert decoder.decoded[n_decoded].voice == 1
    assert doubtful.text == doubtful.said


def test_an_engine_is_busy_while_a_window_is_at_work(setting: Threads) -> None:
    assert not setting.engine.busy
    assert setting.engine.wait_idle(0.0, 1e9)
    setting.decoder.before = setting.barrier
    listener = setting.listener()
    listener.write_until(14.0)
    setting.barrier.wait()
    assert setting.engine.busy
    assert not setting.engine.wait_idle(0.0)
    setting.barrier.let_go.set()
    listener.live.end()
    assert listener.finished.wait(WAIT_S)
    assert setting.engine.wait_idle(WAIT_S, 1e9)


def test_a_long_turn_is_not_stuck_while_it_runs_graphs() -> None:
    """As one of six temperatures of 400 tokens each, of a file on a slow machine; another is seen to be."""
    now_s = 100.0
    setting = Threads(clock=lambda: now_s)
    engine = setting.engine
    stalled_s: list[float] = []

    def run_graphs(encoded: FakeEncoded) -> None:
        nonlocal now_s
        for _ in range(10):
            now_s += 100.0
            stalled_s.append(engine._decoding.stalled_s)
            note_progress()

    setting.decoder.before = run_graphs
    assert engine.stalled_s == 0.0  # not started
    engine.start()
    try:
        setting.listener().end(14.0)
        wait_until(lambda: engine.stalled_s == 0.0)
    finally:
        engine.stop()
    assert set(stalled_s) == {100.0}
    note_progress()  # from a thread that is none of its own
    assert engine.stalled_s == 0.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_can_be_seen(setting: Threads) -> None:
    def die(encoded: FakeEncoded) -> None:
        raise SystemExit

    setting.decoder.before = die
    listener = setting.listener()
    listener.write_until(14.0)
    wait_until(lambda: setting.engine.stalled_s == math.inf)


def test_nothing_is_lost_while_the_model_is_loaded_for_longer_than_audio_may_wait() -> None:
    machine = Machine(encode_s=0.05, decode_s=0.1)
    talker = machine.talker(60.0, max_delay_s=10.0)
    loading = iter([25.0])

    def load() -> None:
        for seconds in loading:
            machine.pass_time(seconds)

    machine.prepare = load
    machine.run_until(61.0)
    load_before = machine.engine.load.ratio
    machine.finish()
    assert talker.gaps == []
    assert talker.text == talker.said
    assert load_before < 1.0, "loading is part of no pass"


def test_what_a_pass_cost_is_told_with_the_audio_that_it_showed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, passes = Machine(encode_s=0.2, decode_s=0.3), list[Pass]()
    monkeypatch.setattr(machine.engine._meter, "take_pass", passes.append)
    machine.talker(5.0, pause=0.0)
    machine.run_until(5.0)
    shown_s = [(window.end - window.start) / SAMPLE_RATE for window in machine.decoder.decoded]
    assert [measured.window_s for measured in passes] == shown_s
    assert sum(measured.new_s for measured in passes) == pytest.approx(shown_s[-1], abs=0.5)
    for measured in passes:
        assert (measured.encode_s, measured.decode_s) == pytest.approx((0.2, 0.3))


def test_threads_sleep_while_there_is_no_session(setting: Threads) -> None:
    listener = setting.listener()
    assert setting.engine.idle_s == 0.0
    assert setting.engine._listening.rest_s is not None
    listener.end(14.0)
    assert listener.text == listener.said
    wait_until(lambda: setting.engine.idle_s > 0.0)
    assert {worker.rest_s for worker in setting.engine._workers} == {None}
    # They wake up for the next one.
    again = setting.listener()
    again.end(14.0)
    assert again.text


@pytest.mark.parametrize("why", ["the model is loaded", "it took too long"])
def test_the_end_does_not_wait_for_ever_for_a_window(
    setting: Threads, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> None:
        setting.loading = why == "the model is loaded"
        setting.barrier(None)

    if why == "it took too long":
        monkeypatch.setattr(engine_module, "STOP_S", 0.0)
    setting.decoder.before = wait
    setting.listener().write_until(14.0)
    setting.barrier.wait()
    setting.engine.stop()
    assert setting.engine.n_sessions == 1
