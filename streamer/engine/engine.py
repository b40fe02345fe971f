"""The threads that do the work of all sessions: one detects speech, one encodes, one decodes.

While a window is decoded the next is encoded: the one with the earliest deadline, which amounts to taking turns if the
time is too short for all. Between the two is one slot: a newer window of the same session replaces the one in it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.host import EngineStats, Host
from streamer.engine.load import MAX_LOAD, BusyTime, Load, LoadMeter, Pass
from streamer.engine.runner import AudioKind, SessionRunner
from streamer.session.task import Request, Span, Task
from streamer.whisper.result import N_BUFFERS, Hypothesis

logger = logging.getLogger(__name__)

Encoded = TypeVar("Encoded")
EncodedOut = TypeVar("EncodedOut", covariant=True)
EncodedIn = TypeVar("EncodedIn", contravariant=True)

IDLE_S = 0.5  # longest sleep of a thread before it checks again, while there are sessions
MAX_PACE_S = 2.0  # longest time from one pass of a session to the next at which captions count as live, by default
STOP_S = 30.0  # longest time that a stop waits for the windows at hand; a pass may take 27 s
RETRY_S = 2.0  # longest time that a live session may spend on a better text for a final
MAX_RETRY_LOAD = 0.5  # above it finals are not decoded again, as that would take time from other sessions


class WindowEncoder(Protocol[EncodedOut]):
    def encode(self, mel: Float32Array, buffer: int, n_samples: int) -> EncodedOut:
        """Encode `mel`, shape (n_mels, 3000), of `n_samples` of audio and silence, into one of `N_BUFFERS` buffers."""


class WindowDecoder(Protocol[EncodedIn]):
    def decode(self, encoded: EncodedIn, request: Request) -> Hypothesis:
        """Decode a window as asked for."""


class _Worker(threading.Thread):
    """A thread that takes turns while there is something to do, and sleeps in between."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], bool],
        turned: threading.Condition,
        clock: Callable[[], float],
        rest_s: Callable[[], float | None],
    ) -> None:
        """Take turns once it is started.

        turn : returns whether to take the next at once
        turned : is notified after each
        rest_s : returns the longest sleep between two; None: until it is woken
        """
        super().__init__(name=name, daemon=True)
        self._turn = turn
        self._turned = turned
        self._clock = clock
        self._rest_s = rest_s
        # Set when there may be something to do; cleared before a turn, so that nothing is missed.
        self._woken = threading.Event()
        # When the current turn began, or its last progress; infinity between two turns.
        self._progress_s = math.inf
        self.stopping = False

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """End after the current turn."""
        self.stopping = True
        self.wake()

    def note_progress(self) -> None:
        """Note that the current turn, which may be long, has come further."""
        self._progress_s = self._clock()

    @property
    def stalled_s(self) -> float:
        """Seconds since the last progress of the current turn; infinity if the thread has died."""
        if self.ident and not self.is_alive() and not self.stopping:
            return math.inf
        return max(0.0, self._clock() - self._progress_s)

    def run(self) -> None:
        while not self.stopping:
            self._woken.clear()
            self.note_progress()
            try:
                busy = self._turn()
            except Exception:
                logger.exception("a turn of the engine failed")  # a bug of ours: the sessions need this thread
                busy = False
            self._progress_s = math.inf
            with self._turned:
                self._turned.notify_all()
            if not busy and not self.stopping:
                self._woken.wait(self._rest_s())


@dataclass(frozen=True, slots=True)
class _Slotted(Generic[Encoded]):
    """An encoded window, the buffer that it is in, and the seconds that encoding took."""

    runner: SessionRunner
    window: Span
    encoded: Encoded
    buffer: int
    encode_s: float


class Engine(Generic[Encoded]):
    """The three threads, `listen`, `encode` and `decode`, and the sessions they serve."""

    def __init__(
        self,
        encoder: WindowEncoder[Encoded],
        decoder: WindowDecoder[Encoded],
        *,
        max_pace_s: float = MAX_PACE_S,
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[], object] = lambda: None,
        loading: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve sessions once it is started.

        max_pace_s : slowest pace, in seconds, at which `load` reports room for another session
        prepare : called before each window; it may load the model, and what it raises fails the window
        loading : returns whether the model is being loaded or compiled again, which may take minutes
        """
        self._encoder = encoder
        self._decoder = decoder
        self._clock = clock
        self._prepare = prepare
        self._loading = loading
        # When `prepare` last ended after it had loaded the model.
        self._prepared_s = -math.inf
        # When the last session ended.
        self._empty_since_s = clock()
        self._meter = LoadMeter(max_pace_s)
        self._busy = BusyTime(clock)
        self.stats = EngineStats()
        # Guards what follows. Sessions are in the order of their turns, longest ago first.
        self._lock = threading.Lock()
        self._runners: tuple[SessionRunner, ...] = ()
        # The window that waits to be decoded, and the one that is being decoded.
        self._slot: _Slotted[Encoded] | None = None
        self._being_decoded: _Slotted[Encoded] | None = None
        # Notified after each turn of a thread: only then the engine becomes idle. No other lock is held then.
        self._turned = threading.Condition()
        self._workers = self._listening, self._encoding, self._decoding = (
            _Worker("listen", self.listen, self._turned, clock, self._rest_s),
            _Worker("encode", self.encode, self._turned, clock, self._rest_s),
            _Worker("decode", self.decode, self._turned, clock, self._rest_s),
        )

    @property
    def n_sessions(self) -> int:
        return len(self._runners)

    @property
    def idle_s(self) -> float:
        """Seconds since the last session ended, or since the start; 0 while there is a session."""
        return 0.0 if self._runners else self._clock() - self._empty_since_s

    @property
    def n_waiting(self) -> int:
        """Sessions with a window that is due and not yet encoded."""
        return sum(runner.due.deadline_s < math.inf for runner in self._runners)

    @property
    def busy(self) -> bool:
        """Whether a session's window is due, or being transcribed."""
        return self._busy.n_busy > 0 or self._slot is not None or self.n_waiting > 0

    def is_free_for(self, duration_s: float) -> bool:
        """Return whether no window is due or being transcribed, nor will be for `duration_s` without new speech."""
        return not self.busy and all(runner.due.quiet_s >= duration_s for runner in self._runners)

    def wait_idle(self, timeout_s: float, duration_s: float = 0.0) -> bool:
        """Wait until `is_free_for(duration_s)`, for `timeout_s` at most; return its value."""
        with self._turned:
            return self._turned.wait_for(lambda: self.is_free_for(duration_s), timeout_s)

    @property
    def failing(self) -> str:
        """The message of a failure after which a session is to try again; empty if there is no failure."""
        return next((runner.failing for runner in self._runners if runner.failing and runner.due.retrying), "")

    @property
    def load(self) -> Load:
        now_s = self._clock()
        return self._meter.load([runner.share(now_s) for runner in self._runners])

    @property
    def stalled_s(self) -> float:
        """Seconds since the last progress of the thread that has had none for longest; infinity if one has died."""
        return max(worker.stalled_s for worker in self._workers)

    def note_progress(self) -> None:
        """Note that the calling thread, if it is one of these, is about to run a graph: its turn is long, not stuck."""
        if isinstance(thread := threading.current_thread(), _Worker):
            thread.note_progress()

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """Stop the threads after their current windows; sessions that are not finished stay so.

        A thread is left behind, whatever it is in, while the model is being loaded, or if it needs more than STOP_S.
        """
        until_s = time.monotonic() + STOP_S
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            while worker.is_alive():
                worker.join(IDLE_S)
                if self._loading() or time.monotonic() >= until_s:
                    break

    def add(self, runner: SessionRunner) -> None:
        """Serve a session from now on, until it is finished or closed."""
        host = Host(self.stats, self._clock, self._listening.wake, self._remove, lambda: self._prepared_s)
        with self._lock:
            runner.start(host)
            if not runner.over:  # one that is closed from here on is removed, which waits for the lock
                self._runners += (runner,)
        for worker in self._workers:  # from now on they check the time
            worker.wake()

    def listen(self) -> bool:
        """Process new audio and commands of all sessions. Returns whether there may be more to process at once."""
        more = False
        for runner in self._runners:
            begin_s, begin = self._clock(), runner.position
            if not runner.has_news(begin_s):
                continue
            more |= runner.listen(begin_s)
            if runner.position > begin:
                self._meter.take_listening(self._clock() - begin_s, (runner.position - begin) / SAMPLE_RATE)
            if runner.due.deadline_s < math.inf:
                self._encoding.wake()
        return more

    def encode(self) -> bool:
        """Encode the most urgent window. Returns whether there was one."""
        with self._lock:
            slot = self._slot
            # While a window waits, only one of the same session may be encoded, to replace it.
            runners = [runner for runner in self._runners if slot is None or runner is slot.runner]
        for runner in sorted(runners, key=lambda runner: runner.due.deadline_s):
            if runner.due.deadline_s == math.inf:
                break
            failure, begin_s = self._prepared(), self._clock()
            if self._encoding.stopping or (issued := runner.issue(begin_s)) is None:
                continue
            if failure is not None:
                runner.fail(issued[0], failure)
                self._listening.wake()
                return True
            with self._busy.at_work():
                self._encode(runner, *issued, begin_s)
            return True
        return False

    def _prepared(self) -> Exception | None:
        """Prepare for a window; return what that failed with. The time that loading takes is part of no pass."""
        begin_s = self._clock()
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - the sessions try again
            return error
        finally:
            if self._clock() - begin_s > IDLE_S:  # it was loaded
                self._prepared_s = self._clock()
        return None

    def _rest_s(self) -> float | None:
        return IDLE_S if self._runners else None

    def decode(self) -> bool:
        """Decode the window in the slot. Returns whether there was one."""
        with self._lock:
            encoded, self._slot = self._slot, None
            self._being_decoded = encoded
        if encoded is None:
            return False
        self._encoding.wake()  # the slot is free: the next window can be encoded while this one is decoded
        try:
            with self._busy.at_work():
                self._decode(encoded)
        finally:
            with self._lock:
                self._being_decoded = None
            self._encoding.wake()
            self._listening.wake()  # a recording is processed further when none of its windows is on its way
        return True

    def _encode(self, runner: SessionRunner, window: Span, samples: Float32Array, begin_s: float) -> None:
        with self._lock:
            replaced, self._slot = self._slot, None
            if runner in self._runners:  # its turn was now
                self._runners = (*(other for other in self._runners if other is not runner), runner)
            used = None if self._being_decoded is None else self._being_decoded.buffer
        if replaced is not None:
            self.stats.windows_replaced += 1
            runner.withdraw()
        buffer = next(i for i in range(N_BUFFERS) if i != used)
        try:
            mel = runner.mel.window(samples, window.start)
            encoded = self._encoder.encode(mel, buffer, len(samples))
        except Exception as error:  # noqa: BLE001 - a fault in one session must not end everybody's captions
            runner.fail(window, error)
            self._listening.wake()
            return
        cost_s = self._clock() - begin_s
        with self._lock:
            self._slot = _Slotted(runner, window, encoded, buffer, cost_s)
        self._decoding.wake()
        self.stats.encodes += 1
        self.stats.encode_s += cost_s
        self.stats.on_encode(cost_s)

    def _decode(self, waiting: _Slotted[Encoded]) -> None:
        runner, window = waiting.runner, waiting.window

        def decode(task: Task) -> Hypothesis:
            begin_s = self._clock()
            wanted = replace(task.request, others_wait=lambda: self._others_wait(runner))
            hypothesis = self._decoder.decode(waiting.encoded, wanted)
            try:
                self._count(waiting, task, hypothesis, self._clock() - begin_s)
            except Exception:
                runner.logger.exception("a window is not counted")
            return hypothesis

        runner.decode(window, decode, retry_s=self._retry_s(runner))

    def _others_wait(self, runner: SessionRunner) -> bool:
        """Return whether a window waits for the decoder and keeps another session from it."""
        slot = self._slot
        if slot is None or slot.runner is not runner:
            return slot is not None
        return any(other.due.deadline_s < math.inf for other in self._runners if other is not runner)

    def _retry_s(self, runner: SessionRunner) -> float:
        """Return the seconds that may be spent on a better text for a final."""
        if runner.input.kind is AudioKind.RECORDED:
            return math.inf
        most = MAX_LOAD if self.n_sessions == 1 else MAX_RETRY_LOAD
        return RETRY_S if self.load.ratio < most else 0.0

    def _count(self, decoded: _Slotted[Encoded], task: Task, hypothesis: Hypothesis, decode_s: float) -> None:
        runner, window = decoded.runner, decoded.window
        text = "".join(word.text for word in hypothesis.words)
        runner.logger.debug("window %.2f-%.2f s: %s", window.start / SAMPLE_RATE, window.end / SAMPLE_RATE, text)
        self.stats.decodes += 1
        self.stats.decode_s += decode_s
        self.stats.on_decode(decode_s)
        self.stats.decoder_calls += hypothesis.n_calls
        self.stats.decoder_tokens += hypothesis.n_sampled
        self.stats.given_tokens += hypothesis.n_given
        self.stats.settled_tokens += hypothesis.n_begins_with
        self._meter.take_pass(
            Pass(
                busy_s=self._busy.take(),
                encode_s=decoded.encode_s,
                decode_s=decode_s,
                n_calls=hypothesis.n_calls,
                n_tokens=hypothesis.n_begins_with + hypothesis.n_sampled,
                window_s=(window.end - window.start) / SAMPLE_RATE,
                new_s=task.n_new_samples / SAMPLE_RATE,
            )
        )

    def _remove(self, runner: SessionRunner) -> None:
        with self._lock:
            self._empty_since_s = self._clock()  # first: `idle_s` takes no lock
            self._runners = tuple(other for other in self._runners if other is not runner)
        self._encoding.wake()
