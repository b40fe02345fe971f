"""The threads that turn sessions' decisions into work: one encodes, one decodes, for all sessions.

While a window is decoded the next is encoded. Between the two is one slot: a newer window of the same session replaces
the one that waits there. Sessions take turns.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import LogMelStream
from streamer.audio.ring import Overrun, RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.errors import StreamerError
from streamer.events import Error, Event, Gap, GapReason, seconds
from streamer.stream.session import Request, Session, SessionSettings, Window
from streamer.whisper.result import Hypothesis

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float32]
Encoded = TypeVar("Encoded")
EncodedOut = TypeVar("EncodedOut", covariant=True)
EncodedIn = TypeVar("EncodedIn", contravariant=True)

# Windows that are encoded and not decoded yet: one in the decoder's hands, one in the slot.
N_BUFFERS = 2

# How long a thread sleeps at most before it looks again, should a wake-up be missed.
IDLE_S = 0.5

# A session this far behind its audio was sent it faster than real time, or stood still: it catches up pass by pass.
FAR_BEHIND_SAMPLES = 2 * SAMPLE_RATE

# Audio looked at for speech at a time, so that one session's backlog does not keep the others waiting.
MAX_CHUNKS_A_TURN = 64


class Encoder(Protocol[EncodedOut]):
    """Turns a window's mel spectrogram into what the decoder looks at."""

    def encode(self, mel: FloatArray, buffer: int) -> EncodedOut:
        """Encode `mel`, shape (n_mels, 3000), into one of `N_BUFFERS` buffers."""
        ...


class Decoder(Protocol[EncodedIn]):
    """Turns an encoded window into text."""

    def decode(self, encoded: EncodedIn, request: Request) -> Hypothesis:
        """Decode a window as asked for."""
        ...


class LiveSession:
    """A session at work: its audio, its decisions and what is told of it."""

    def __init__(
        self,
        settings: SessionSettings,
        *,
        capacity_samples: int,
        n_mels: int,
        patient: bool,
        on_event: Callable[[Event], object],
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a session; `Engine.add` sets it to work.

        A `patient` session hears no further audio while a window of its is being transcribed, so that audio that comes
        faster than real time is transcribed as carefully as live audio. Any other is patient while it is far behind.
        """
        self.ring = RingBuffer(capacity_samples)
        self.patient = patient
        self.on_event = on_event
        self.on_finished = on_finished
        # Guards everything below; held for decisions, never while a device computes.
        self.lock = threading.Lock()
        self.session = Session(settings)
        self.detector = SpeechDetector()
        self.mel = LogMelStream(n_mels)
        # Position up to which speech was looked for.
        self.position = 0
        # Length of the audio, once its end is known.
        self.end: int | None = None
        # Windows handed out and not taken yet.
        self.n_in_flight = 0
        # Whether `on_finished` was called, or the session was taken away.
        self.over = False
        # Holes in the audio that the source told of: (start, end, reason).
        self.holes: list[tuple[int, int, GapReason]] = []


@dataclass(slots=True)
class EngineStats:
    """What the engine has done, for the metrics page."""

    encodes: int = 0
    decodes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    windows_replaced: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Job(Generic[Encoded]):
    live: LiveSession
    window: Window
    encoded: Encoded
    buffer: int


class Engine(Generic[Encoded]):
    """The two threads, `encoder` and `decoder`, and the sessions they serve."""

    def __init__(self, encoder: Encoder[Encoded], decoder: Decoder[Encoded]) -> None:
        self._encoder = encoder
        self._decoder = decoder
        self.stats = EngineStats()
        # Guards what follows; notified when audio comes, the slot changes, or a session comes or goes.
        self._changed = threading.Condition()
        self._lives: list[LiveSession] = []
        # The window that waits to be decoded.
        self._slot: _Job[Encoded] | None = None
        # Buffer that the decoder reads from; None while it waits.
        self._decoding: int | None = None
        # Raised by each change, so that none is missed between looking and waiting.
        self._changes = 0
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=name, daemon=True)
            for name, loop in (("encoder", self._encode_next), ("decoder", self._decode_next))
        ]

    @property
    def n_sessions(self) -> int:
        """Sessions that are being served."""
        return len(self._lives)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads after the window each is busy with; sessions that are not finished stay so."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def add(self, live: LiveSession) -> None:
        """Serve a session from now on, until it is finished or removed."""
        live.ring.on_write = self._wake
        with self._changed:
            self._lives.append(live)
        self._wake()

    def end_audio(self, live: LiveSession) -> None:
        """Say that a session's audio is complete; `on_finished` follows when everything is final."""
        with live.lock:
            live.end = live.ring.head
        self._wake()

    def add_hole(self, live: LiveSession, start: int, end: int, reason: GapReason) -> None:
        """Say that audio between two positions is silence standing in for what was lost."""
        with live.lock:
            live.holes.append((start, end, reason))
        self._wake()

    def remove(self, live: LiveSession) -> None:
        """Serve a session no more; nothing is published for it when this has returned."""
        with live.lock:
            live.over = True
        with self._changed:
            if live in self._lives:
                self._lives.remove(live)
        live.ring.on_write = None
        live.ring.wake()
        self._wake()

    def cut_short(self, live: LiveSession, reason: GapReason) -> None:
        """Serve a session no more: what is known of it becomes final, the rest of its audio a gap."""
        with live.lock:
            if not live.over:
                live.over = True
                for event in live.session.lose(live.ring.head, reason):
                    live.on_event(event)
        self.remove(live)

    def _wake(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _run(self, turn: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                changes = self._changes
            try:
                busy = turn()
            except Exception:
                # Only an `on_event` or `on_finished` that raises gets here; the other sessions need this thread.
                logger.exception("a session's listener failed")
                busy = False
            with self._changed:
                if self._stopping:
                    return
                if not busy:
                    self._changed.wait_for(lambda: self._stopping or self._changes != changes, IDLE_S)  # noqa: B023

    def _encode_next(self) -> bool:
        """Listen for speech in all sessions, encode the first window that is due. Returns whether there was work."""
        with self._changed:
            lives = list(self._lives)
            # Looked at once: were the slot to become free on the way, those further down would overtake the others.
            waiting = self._slot.live if self._slot is not None else None
        busy = False
        for live in lives:
            try:
                busy |= self._listen(live)
            except Exception as error:  # noqa: BLE001 - a bug in one session must not end everybody's captions
                self._give_up(live, error)
                continue
            if waiting is not None:
                if waiting is not live:
                    continue  # another session's window waits; replacing it would be unfair
                with self._changed:
                    if self._slot is None:
                        return True  # it was taken meanwhile: those that were passed over come first
            due = self._due_window(live)
            if due is None:
                continue
            window, samples = due
            # To the back of the queue: the others come first next time.
            with self._changed:
                if live in self._lives:
                    self._lives.remove(live)
                    self._lives.append(live)
            self._encode(live, window, samples)
            return True
        return busy

    def _listen(self, live: LiveSession) -> bool:
        """Look for speech in audio that has come. Returns whether there may be more to do at once."""
        events: list[Event] = []
        finished = False
        more = False
        with live.lock:
            if live.over:
                return False
            for _ in range(MAX_CHUNKS_A_TURN):
                behind = live.ring.head - live.position > max(FAR_BEHIND_SAMPLES, 2 * live.session.cost_samples)
                if (live.patient or behind) and (live.n_in_flight or live.session.next_window_due()):
                    break
                try:
                    samples = self._next_chunk(live)
                except Overrun as overrun:
                    # Whole chunks and mel frames, so that positions stay on their grid.
                    oldest = -(-overrun.oldest // CHUNK_SAMPLES) * CHUNK_SAMPLES
                    live.position = min(max(oldest, live.position), live.ring.head)
                    live.detector.reset()
                    events += live.session.lose(live.position, "overrun")
                    continue
                if samples is None:
                    break
                more = True
                live.position += len(samples)
                padded = np.pad(samples, (0, CHUNK_SAMPLES - len(samples)))
                (probability,) = live.detector.process(padded)
                events += live.session.hear(live.position, probability)
            if live.position == live.end and not live.session.ended:
                events += live.session.finish(live.position)
            events += [Gap(start=seconds(start), end=seconds(end), reason=reason) for start, end, reason in live.holes]
            live.holes.clear()
            live.ring.release(min(live.position, live.session.needed_from))
            for event in events:
                live.on_event(event)
            finished = live.session.finished
            live.over |= finished
        if finished:
            self._finish(live)
        return more

    def _next_chunk(self, live: LiveSession) -> FloatArray | None:
        """Read the next chunk of audio, a shorter one at the very end, None where there is none yet."""
        end = min(live.position + CHUNK_SAMPLES, live.ring.head)
        if end == live.position or (end - live.position < CHUNK_SAMPLES and live.end is None):
            return None
        return live.ring.read(live.position, end)

    def _due_window(self, live: LiveSession) -> tuple[Window, FloatArray] | None:
        with live.lock:
            if live.over:
                return None
            window = live.session.next_window(time.monotonic())
            if window is None:
                return None
            try:
                samples = live.ring.read(window.start, window.end)
            except Overrun:
                for event in live.session.lose(live.position, "overrun"):
                    live.on_event(event)
                return None
            live.n_in_flight += 1
            return window, samples

    def _encode(self, live: LiveSession, window: Window, samples: FloatArray) -> None:
        with self._changed:
            replaced, self._slot = self._slot, None
            buffer = next(i for i in range(N_BUFFERS) if i != self._decoding)
        if replaced is not None:
            self.stats.windows_replaced += 1
            with live.lock:
                live.n_in_flight -= 1
        begin = time.monotonic()
        try:
            encoded = self._encoder.encode(live.mel.window(samples, window.start), buffer)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(live, window, error)
            return
        self.stats.encodes += 1
        self.stats.encode_s += time.monotonic() - begin
        with self._changed:
            self._slot = _Job(live, window, encoded, buffer)
        self._wake()

    def _decode_next(self) -> bool:
        """Decode the window in the slot. Returns whether there was one."""
        with self._changed:
            job, self._slot = self._slot, None
            self._decoding = job.buffer if job is not None else None
        if job is None:
            return False
        self._wake()  # the slot is free: the next window can be encoded while this one is decoded
        live = job.live
        finished = False
        begin = time.monotonic()
        try:
            with live.lock:
                request = None if live.over else live.session.request(job.window)
            if request is not None:
                hypothesis = self._decoder.decode(job.encoded, request)
                now = time.monotonic()
                self.stats.decodes += 1
                self.stats.decode_s += now - begin
                logger.debug(
                    "window %d-%d ms: %s",
                    job.window.start * 1000 // 16000,
                    job.window.end * 1000 // 16000,
                    "".join(word.text for word in hypothesis.words),
                )
                with live.lock:
                    if not live.over:
                        for event in live.session.take(job.window, request, hypothesis, now):
                            live.on_event(event)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(live, job.window, error)
        else:
            with live.lock:
                live.n_in_flight -= 1
                finished = live.session.finished and not live.over
                live.over |= finished
        finally:
            with self._changed:
                self._decoding = None
            self._wake()
        if finished:
            self._finish(live)
        return True

    def _fail(self, live: LiveSession, window: Window, error: Exception) -> None:
        """A window cannot be transcribed: say so, and that its audio is lost, and go on with what follows."""
        self.stats.failures += 1
        if isinstance(error, StreamerError):
            logger.error("%s", error)
        else:
            logger.error("a window was given up", exc_info=error)
            error = StreamerError(f"a window was given up ({type(error).__name__}): the log has more")
        with live.lock:
            live.n_in_flight -= 1
            if live.over:
                return
            live.on_event(Error(code=error.code, message=str(error), fatal=False))
            for event in live.session.fail(window, "device"):
                live.on_event(event)
        self._wake()

    def _give_up(self, live: LiveSession, error: Exception) -> None:
        """A session cannot go on: say so and serve the others."""
        self.stats.failures += 1
        logger.error("a session was given up", exc_info=error)
        message = f"the session was given up ({type(error).__name__}): the log has more; start another"
        with live.lock:
            if live.over:
                return
            live.over = True
        try:
            live.on_event(Error(code=StreamerError.code, message=message, fatal=True))
        finally:
            self._finish(live)

    def _finish(self, live: LiveSession) -> None:
        with self._changed:
            if live in self._lives:
                self._lives.remove(live)
        live.ring.on_write = None
        live.on_finished()
