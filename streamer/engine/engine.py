"""The three turns that do the work of all sessions, each in a thread: one detects speech, one encodes, one decodes.

While a window is decoded the next is encoded: the one with the earliest deadline, which amounts to taking turns if the
time is too short for all. Between the two is one slot: a newer window of the same session replaces the one in it.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.follower import surviving
from streamer.engine.host import Host
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.engine.load import MAX_LOAD, BusyTime, Load, LoadMeter, Pass
from streamer.engine.workers import IDLE_S, Worker
from streamer.session.task import Request, Span
from streamer.whisper.result import N_BUFFERS, Hypothesis

Encoded = TypeVar("Encoded")
EncodedOut = TypeVar("EncodedOut", covariant=True)
EncodedIn = TypeVar("EncodedIn", contravariant=True)

MAX_PACE_S = 2.0  # longest time from one pass of a session to the next at which captions count as live, by default
STOP_S = 30.0  # longest time that a stop waits for the windows at hand; a pass may take 27 s
RETRY_S = 2.0  # longest time that a live session may spend on a better text for a final
MAX_RETRY_LOAD = 0.5  # above it finals are not decoded again, as that would take time from other sessions


class WindowEncoder(Protocol[EncodedOut]):
    def encode(self, mel: Float32Array, buffer: int, n_samples: int) -> EncodedOut:
        """Encode `mel`, shape (n_mels, 3000), of `n_samples` of audio and silence, into one of `N_BUFFERS` buffers."""


class WindowDecoder(Protocol[EncodedIn]):
    def decode(self, encoded: EncodedIn, request: Request, others_wait: Callable[[], bool]) -> Hypothesis:
        """Decode a window as asked for.

        others_wait : returns whether another session waits for the decoder: attempts at a better text end then
        """


@dataclass(frozen=True, slots=True)
class _Window(Generic[Encoded]):
    """An encoded window of a session, the buffer that it is in, and the seconds that encoding took."""

    live: LiveSession
    span: Span
    encoded: Encoded
    buffer: int
    encode_s: float


class Engine(Generic[Encoded]):
    """The sessions that are served, and the three threads `listen`, `encode` and `decode`."""

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
        self._prepare = prepare
        self._loading = loading
        self._host = Host(clock, empty_since_s=clock())
        self.stats = self._host.stats
        self._meter = LoadMeter(max_pace_s)
        self._busy = BusyTime(clock)
        # The window that waits to be decoded, and the one that is being decoded, both under the host's lock.
        self._slot: _Window[Encoded] | None = None
        self._being_decoded: _Window[Encoded] | None = None
        # Notified after each turn of a thread: only then the engine becomes idle. No other lock is held then.
        self._turned = threading.Condition()
        self._workers = self._listening, self._encoding, self._decoding = (
            Worker("listen", self.listen, self._turned, self._host, self._host.news),
            Worker("encode", self.encode, self._turned, self._host, threading.Event()),
            Worker("decode", self.decode, self._turned, self._host, threading.Event()),
        )

    @property
    def n_sessions(self) -> int:
        return len(self._host.sessions)

    @property
    def idle_s(self) -> float:
        """Seconds since the last session ended, or since the start; 0 while there is a session."""
        return 0.0 if self._host.sessions else self._host.clock() - self._host.empty_since_s

    @property
    def n_waiting(self) -> int:
        """Sessions with a window that is due and not yet encoded."""
        return sum(live.due.deadline_s < math.inf for live in self._host.sessions)

    @property
    def busy(self) -> bool:
        """Whether a session's window is due, or being transcribed."""
        return self._busy.n_busy > 0 or self._slot is not None or self.n_waiting > 0

    def wait_idle(self, timeout_s: float, duration_s: float = 0.0) -> bool:
        """Wait, for `timeout_s` at most, until no window is due or being transcribed; return whether it is so.

        duration_s : for how long none will be without new speech
        """
        with self._turned:
            return self._turned.wait_for(
                lambda: not self.busy and all(live.due.quiet_s >= duration_s for live in self._host.sessions), timeout_s
            )

    @property
    def failing(self) -> str:
        """The message of a failure after which a session is to try again; empty if there is no failure."""
        return next((live.failing for live in self._host.sessions if live.failing and live.due.retrying), "")

    @property
    def load(self) -> Load:
        now_s = self._host.clock()
        return self._meter.load([live.share(now_s) for live in self._host.sessions])

    @property
    def stalled_s(self) -> float:
        """Seconds since the last progress of the thread that has had none for longest; infinity if one has died."""
        return max(worker.stalled_s for worker in self._workers)

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

    def add(self, live: LiveSession) -> None:
        """Serve a session from now on, until it is finished or closed."""
        live.start(self._host)
        with self._host.lock:
            if not live.over:  # one that is closed from here on is removed, which waits for the lock
                self._host.sessions += (live,)
        for worker in self._workers:  # from now on they check the time
            worker.wake()

    def listen(self) -> bool:
        """Process new audio and commands of all sessions. Returns whether there may be more to process at once."""
        more = False
        for live in self._host.sessions:
            begin_s, begin = self._host.clock(), live.position
            if not live.has_news(begin_s):
                continue
            more |= live.listen(begin_s)
            if live.position > begin:
                self._meter.take_listening(self._host.clock() - begin_s, (live.position - begin) / SAMPLE_RATE)
            if live.due.deadline_s < math.inf:
                self._encoding.wake()
        return more

    def encode(self) -> bool:
        """Encode the most urgent window. Returns whether there was one."""
        slot = self._slot
        # While a window waits, only one of the same session may be encoded, to replace it.
        sessions = [live for live in self._host.sessions if slot is None or live is slot.live]
        for live in sorted(sessions, key=lambda live: live.due.deadline_s):
            if live.due.deadline_s == math.inf:
                break
            try:
                self._prepare_model()
            except Exception as error:  # noqa: BLE001 - the session tries again
                if (span := self._next_span(live)) is None:
                    continue
                # Not kept: it refers to this frame, and with that to the session.
                live.fail(span, error)
                self._host.news.set()
                return True
            begin_s = self._host.clock()
            if (span := self._next_span(live)) is None:
                continue
            try:
                samples = live.ring.read(span.start, span.end)
            except Exception as error:  # noqa: BLE001 - it was overwritten meanwhile, or there is no memory for it
                live.fail(span, error)
                continue
            with self._busy.at_work():
                self._encode(live, span, samples, begin_s)
            return True
        return False

    def _prepare_model(self) -> None:
        """Prepare for a window. The time that loading takes is part of no pass."""
        begin_s = self._host.clock()
        try:
            self._prepare()
        finally:
            if self._host.clock() - begin_s > IDLE_S:  # it was loaded
                self._host.prepared_s = self._host.clock()

    def _next_span(self, live: LiveSession) -> Span | None:
        return None if self._encoding.stopping else live.next_span(self._host.clock())

    def _encode(self, live: LiveSession, span: Span, samples: Float32Array, begin_s: float) -> None:
        with self._host.lock:
            replaced, self._slot = self._slot, None
            if live in self._host.sessions:  # its turn was now
                self._host.sessions = (*(other for other in self._host.sessions if other is not live), live)
            used = None if self._being_decoded is None else self._being_decoded.buffer
        if replaced is not None:
            self.stats.windows_replaced += 1
            live.withdraw()
        buffer = next(i for i in range(N_BUFFERS) if i != used)
        try:
            encoded = self._encoder.encode(live.mel.window(samples, span.start), buffer, len(samples))
        except Exception as error:  # noqa: BLE001 - a fault in one session must not end everybody's captions
            live.fail(span, error)
            self._host.news.set()
            return
        cost_s = self._host.clock() - begin_s
        with self._host.lock:
            self._slot = _Window(live, span, encoded, buffer, cost_s)
        self._decoding.wake()
        self.stats.count_encoded(cost_s)

    def decode(self) -> bool:
        """Decode the window in the slot. Returns whether there was one."""
        with self._host.lock:
            window, self._slot = self._slot, None
            self._being_decoded = window
        if window is None:
            return False
        self._encoding.wake()  # the slot is free: the next window can be encoded while this one is decoded
        try:
            with self._busy.at_work():
                self._decode(window)
        finally:
            with self._host.lock:
                self._being_decoded = None
            self._encoding.wake()
            self._host.news.set()  # a recording is processed further when none of its windows is on its way
        return True

    def _decode(self, window: _Window[Encoded]) -> None:
        live, begin_s = window.live, self._host.clock()
        retry_s = math.inf
        if live.input.kind is not AudioKind.RECORDED:  # what remains of the time may be spent on a better text
            most = MAX_LOAD if self.n_sessions == 1 else MAX_RETRY_LOAD
            retry_s = RETRY_S if self.load.ratio < most else 0.0
        task = live.task(window.span, retry_s=retry_s)
        if task is None:
            return
        try:
            hypothesis = self._decoder.decode(window.encoded, task.request, partial(self._others_wait, live))
        except Exception as error:  # noqa: BLE001 - a fault in one session must not end everybody's captions
            live.fail(window.span, error)
            return
        decode_s = self._host.clock() - begin_s
        with surviving(live.logger, "a window is not counted"):
            self.stats.count_decoded(hypothesis, decode_s)
            self._meter.take_pass(
                Pass(
                    busy_s=self._busy.take(),
                    encode_s=window.encode_s,
                    decode_s=decode_s,
                    n_calls=hypothesis.n_calls,
                    n_tokens=hypothesis.n_begins_with + hypothesis.n_sampled,
                    window_s=(window.span.end - window.span.start) / SAMPLE_RATE,
                    new_s=task.n_new_samples / SAMPLE_RATE,
                )
            )
        text, span = "".join(word.text for word in hypothesis.words), window.span
        live.logger.debug("window %.2f-%.2f s: %s", span.start / SAMPLE_RATE, span.end / SAMPLE_RATE, text)
        live.take(task, hypothesis)

    def _others_wait(self, live: LiveSession) -> bool:
        """Return whether a window waits for the decoder and keeps another session from it."""
        slot = self._slot
        if slot is None or slot.live is not live:
            return slot is not None
        return any(other.due.deadline_s < math.inf for other in self._host.sessions if other is not live)
