"""The threads that turn sessions' decisions into work: one encodes, one decodes, for all sessions.

While a window is decoded the next is encoded. Between the two is one slot: a newer window of the same session replaces
the one that waits there. Whose window is encoded next is a matter of deadlines; where there is not time enough for all,
that comes to taking turns.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import LogMelStream
from streamer.audio.ring import Overrun, RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.errors import StreamerError
from streamer.events import Error, Event, Gap, GapReason, seconds
from streamer.stream.arrivals import Arrivals
from streamer.stream.load import Activity, Load, LoadMeter
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

# Audio that has waited for too long is given up in pieces of at least this, since each piece ends a segment.
MIN_SHED_SAMPLES = 2 * SAMPLE_RATE

# Least distance kept from where the buffer is being overwritten.
OVERRUN_MARGIN_SAMPLES = SAMPLE_RATE

# How long a window of a recording may wait while live sessions have windows that are due.
RECORDED_PATIENCE_S = 2.0

# Time from one pass of a session to the next up to which captions still count as live, unless told otherwise.
MAX_PACE_S = 2.0

# Recorded audio looked at for speech at a time, so that it does not keep the others waiting. Live audio is looked at
# up to its end, so that a window shows all there is.
MAX_CHUNKS_A_TURN = 64


class Encoder(Protocol[EncodedOut]):
    """Turns a window's mel spectrogram into what the decoder looks at."""

    def encode(self, mel: FloatArray, buffer: int, n_samples: int) -> EncodedOut:
        """Encode `mel`, shape (n_mels, 3000), of `n_samples` of audio and silence, into one of `N_BUFFERS` buffers."""
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
        max_delay_s: float = math.inf,
        can_wait: bool = False,
        reserved: bool = False,
        on_event: Callable[[Event], object],
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a session; `Engine.add` sets it to work.

        A recording is heard on only when no window of its waits or is being transcribed, so that audio that comes
        faster than real time is transcribed as carefully as live audio. It loses nothing. Recordings are what a
        `patient` session has, and one whose sender `can_wait` and has been ahead of the clock.

        Live audio that has waited for `max_delay_s` when its turn comes is given up.

        A `reserved` session counts as speaking when it is asked whether there is room for another.
        """
        self.ring = RingBuffer(capacity_samples)
        self.patient = patient
        self.max_delay_s = max_delay_s
        self.can_wait = can_wait
        self.reserved = reserved
        self.pace_s = settings.pace_s
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
        # Since when the next window is due, and by when it should be encoded; None and infinity while none is.
        self.due_since_s: float | None = None
        self.deadline_s = math.inf
        # When its audio came, and how much of it was speech.
        self.arrivals = Arrivals(max_delay_s if math.isfinite(max_delay_s) else 0.0)
        self.activity = Activity()
        # Whether `on_finished` was called, or the session was taken away.
        self.over = False
        # Holes in the audio that the source told of: (start, end, reason).
        self.holes: list[tuple[int, int, GapReason]] = []

    @property
    def recorded(self) -> bool:
        """Whether its audio is a recording that waits to be transcribed, and not live."""
        return self.patient or (self.can_wait and self.arrivals.recorded)

    @property
    def has_news(self) -> bool:
        """Whether there is something to listen to, or to say, that needs no window."""
        return (
            self.ring.head - self.position >= CHUNK_SAMPLES
            or bool(self.holes)
            or (self.end is not None and not self.session.ended)
            or self.session.finished
        )

    def note_change(self, now_s: float) -> None:
        """Note what audio is still needed, whether a window is due, and by when it should be encoded.

        A final that is awaited is late already, a partial may take as long as the pace has it, a recording longer.
        """
        self.ring.release(min(self.position, self.session.needed_from))
        if not self.session.next_window_due():
            self.due_since_s, self.deadline_s = None, math.inf
            return
        if self.due_since_s is None:
            self.due_since_s = now_s
        if self.recorded:
            self.deadline_s = self.due_since_s + RECORDED_PATIENCE_S
        else:
            self.deadline_s = self.due_since_s + (0.0 if self.session.final_awaited else self.pace_s)

    def overdue(self, now_s: float) -> int | None:
        """Return the position before which speech has waited for too long, or None where none has."""
        waiting = self.session.waiting_from
        if waiting is None or self.recorded or self.end is not None or not math.isfinite(self.max_delay_s):
            return None
        limit = self.arrivals.position_at(now_s - self.max_delay_s)
        return min(max(limit, waiting + MIN_SHED_SAMPLES), self.position) if limit > waiting else None


@dataclass(slots=True)
class EngineStats:
    """What the engine has done, for the metrics page."""

    encodes: int = 0
    decodes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    # Calls of the decoder; tokens that were found; tokens that were given before these, and how many of the given ones
    # are of settled words, with which hypotheses begin (see `Hypothesis`).
    decoder_calls: int = 0
    decoder_tokens: int = 0
    given_tokens: int = 0
    settled_tokens: int = 0
    windows_replaced: int = 0
    failures: int = 0
    # Seconds of audio that were told to be lost, by reason.
    gap_s: dict[GapReason, float] = field(default_factory=lambda: dict.fromkeys(get_args(GapReason), 0.0))


@dataclass(slots=True)
class _Job(Generic[Encoded]):
    live: LiveSession
    window: Window
    encoded: Encoded
    buffer: int


class Engine(Generic[Encoded]):
    """The two threads, `encoder` and `decoder`, and the sessions they serve."""

    def __init__(
        self,
        encoder: Encoder[Encoded],
        decoder: Decoder[Encoded],
        *,
        max_pace_s: float = MAX_PACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an engine; `max_pace_s` is the pace down to which `load` says that there is room, in seconds."""
        self._encoder = encoder
        self._decoder = decoder
        self._clock = clock
        self._meter = LoadMeter(max_pace_s)
        self.stats = EngineStats()
        # Guards what follows.
        self._changed = threading.Lock()
        self._lives: list[LiveSession] = []
        # The window that waits to be decoded.
        self._slot: _Job[Encoded] | None = None
        # Buffer that the decoder reads from; None while it waits.
        self._decoding: int | None = None
        self._stopping = False
        # Set when a thread has something to look at: cleared before it looks, so that nothing is missed.
        self._encoder_called = threading.Event()
        self._decoder_called = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(turn, called), name=name, daemon=True)
            for name, turn, called in (
                ("encoder", self._encode_next, self._encoder_called),
                ("decoder", self._decode_next, self._decoder_called),
            )
        ]

    @property
    def n_sessions(self) -> int:
        """Sessions that are being served."""
        return len(self._lives)

    @property
    def load(self) -> Load:
        """How much of the machine the sessions take."""
        with self._changed:
            lives = list(self._lives)
        return self._meter.load([1.0 if live.reserved or live.recorded else live.activity.share for live in lives])

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads after the window each is busy with; sessions that are not finished stay so."""
        self._stopping = True
        self._encoder_called.set()
        self._decoder_called.set()
        for thread in self._threads:
            thread.join()

    def add(self, live: LiveSession) -> None:
        """Serve a session from now on, until it is finished or removed."""
        live.arrivals.note(live.ring.head, self._clock())
        live.ring.on_write = lambda: self._take_audio(live)
        with self._changed:
            self._lives.append(live)
        self._encoder_called.set()

    def end_audio(self, live: LiveSession) -> None:
        """Say that a session's audio is complete; `on_finished` follows when everything is final."""
        with live.lock:
            live.end = live.ring.head
        self._encoder_called.set()

    def add_hole(self, live: LiveSession, start: int, end: int, reason: GapReason) -> None:
        """Say that audio between two positions is silence standing in for what was lost."""
        with live.lock:
            live.holes.append((start, end, reason))
        self._encoder_called.set()

    def remove(self, live: LiveSession) -> None:
        """Serve a session no more; nothing is published for it when this has returned."""
        with live.lock:
            live.over = True
        with self._changed:
            if live in self._lives:
                self._lives.remove(live)
        live.ring.on_write = None
        live.ring.wake()
        self._encoder_called.set()

    def cut_short(self, live: LiveSession, reason: GapReason) -> None:
        """Serve a session no more: what is known of it becomes final, the rest of its audio a gap."""
        with live.lock:
            if not live.over:
                live.over = True
                self._tell(live, live.session.lose(live.ring.head, reason))
        self.remove(live)

    def _take_audio(self, live: LiveSession) -> None:
        """Audio has come: called by the thread that wrote it."""
        live.arrivals.note(live.ring.head, self._clock())
        if live.has_news:
            self._encoder_called.set()

    def _run(self, turn: Callable[[], bool], called: threading.Event) -> None:
        while not self._stopping:
            called.clear()
            try:
                busy = turn()
            except Exception:
                # Only an `on_event` or `on_finished` that raises gets here; the other sessions need this thread.
                logger.exception("a session's listener failed")
                busy = False
            if not busy and not self._stopping:
                called.wait(IDLE_S)

    def _encode_next(self) -> bool:
        """Listen for speech in all sessions, encode the most urgent window. Returns whether there was work."""
        with self._changed:
            lives = list(self._lives)
        busy = False
        for live in lives:
            if not live.has_news:
                continue
            try:
                busy |= self._listen(live)
            except Exception as error:  # noqa: BLE001 - a bug in one session must not end everybody's captions
                self._give_up(live, error)
        with self._changed:
            waiting = self._slot.live if self._slot is not None else None
        # Where a window waits only a newer one of the same session may take its place.
        deadlines = {live: live.deadline_s for live in lives if waiting in (None, live)}
        for live in sorted(deadlines, key=deadlines.__getitem__):
            if deadlines[live] == math.inf:
                break
            try:
                window = self._due_window(live)
            except Exception as error:  # noqa: BLE001 - as above
                self._give_up(live, error)
                continue
            if window is None:
                continue
            # To the back of the queue: of those that are equally urgent the others come first next time.
            with self._changed:
                if live in self._lives:
                    self._lives.remove(live)
                    self._lives.append(live)
            self._encode(live, *window)
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
            begin_s, begin = self._clock(), live.position
            for _ in range(MAX_CHUNKS_A_TURN if live.recorded else live.ring.capacity_samples // CHUNK_SAMPLES):
                if live.recorded and (live.n_in_flight or live.session.next_window_due()):
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
                if len(samples) < CHUNK_SAMPLES:
                    samples = np.pad(samples, (0, CHUNK_SAMPLES - len(samples)))
                (probability,) = live.detector.process(samples)
                events += live.session.hear(live.position, probability)
                live.activity.hear(CHUNK_SAMPLES / SAMPLE_RATE, speech=live.session.waiting_from is not None)
            now_s = self._clock()
            if live.position > begin:
                self._meter.take_listening(now_s - begin_s, (live.position - begin) / SAMPLE_RATE)
            if live.position == live.end and not live.session.ended:
                events += live.session.finish(live.position)
            events += [Gap(start=seconds(start), end=seconds(end), reason=reason) for start, end, reason in live.holes]
            live.holes.clear()
            live.note_change(now_s)
            self._tell(live, events)
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
        """Return the window that is due and its audio, or None where there is none after all."""
        with live.lock:
            if live.over:
                return None
            now_s = self._clock()
            lost = self._lost(live, now_s)
            if lost is not None:
                if live.n_in_flight:
                    return None  # what is on its way is told first
                self._tell(live, live.session.shed(*lost))
            window = live.session.next_window(now_s)
            live.due_since_s = None
            live.note_change(now_s)
            if window is None:
                return None
            try:
                samples = live.ring.read(window.start, window.end)
            except Overrun:
                self._tell(live, live.session.lose(live.position, "overrun"))
                return None
            live.n_in_flight += 1
            return window, samples

    @staticmethod
    def _lost(live: LiveSession, now_s: float) -> tuple[int, GapReason] | None:
        """Return up to where speech has to be given up, and why; None where it need not be."""
        oldest = live.ring.oldest
        overdue = live.overdue(now_s)
        if live.session.needed_from < oldest:
            return min(max(oldest + OVERRUN_MARGIN_SAMPLES, overdue or 0), live.position), "overrun"
        return (overdue, "overload") if overdue is not None else None

    def _encode(self, live: LiveSession, window: Window, samples: FloatArray) -> None:
        with self._changed:
            replaced, self._slot = self._slot, None
            buffer = next(i for i in range(N_BUFFERS) if i != self._decoding)
        if replaced is not None:
            self.stats.windows_replaced += 1
            with live.lock:
                live.n_in_flight -= 1
        begin_s = self._clock()
        try:
            encoded = self._encoder.encode(live.mel.window(samples, window.start), buffer, len(samples))
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(live, window, error)
            return
        self.stats.encodes += 1
        cost_s = self._clock() - begin_s
        self.stats.encode_s += cost_s
        self._meter.take_encode(cost_s)
        with self._changed:
            self._slot = _Job(live, window, encoded, buffer)
        self._decoder_called.set()

    def _decode_next(self) -> bool:
        """Decode the window in the slot. Returns whether there was one."""
        with self._changed:
            job, self._slot = self._slot, None
            self._decoding = job.buffer if job is not None else None
        if job is None:
            return False
        self._encoder_called.set()  # the slot is free: the next window can be encoded while this one is decoded
        live = job.live
        finished = False
        begin_s = self._clock()
        try:
            with live.lock:
                request = None if live.over else live.session.request(job.window)
            if request is not None:
                hypothesis = self._decoder.decode(job.encoded, request)
                now_s = self._clock()
                self.stats.decodes += 1
                self.stats.decode_s += now_s - begin_s
                self.stats.decoder_calls += hypothesis.n_calls
                self.stats.decoder_tokens += hypothesis.n_sampled
                self.stats.given_tokens += hypothesis.n_given
                self.stats.settled_tokens += hypothesis.n_begins_with
                self._meter.take_decode(now_s - begin_s)
                logger.debug(
                    "window %d-%d ms: %s",
                    job.window.start * 1000 // 16000,
                    job.window.end * 1000 // 16000,
                    "".join(word.text for word in hypothesis.words),
                )
                with live.lock:
                    if not live.over:
                        self._tell(live, live.session.take(job.window, request, hypothesis, now_s))
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(live, job.window, error)
        else:
            with live.lock:
                live.n_in_flight -= 1
                live.note_change(self._clock())
                finished = live.session.finished and not live.over
                live.over |= finished
        finally:
            with self._changed:
                self._decoding = None
            self._encoder_called.set()
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
            self._tell(live, live.session.fail(window, "device"))
            live.note_change(self._clock())
        self._encoder_called.set()

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

    def _tell(self, live: LiveSession, events: Iterable[Event]) -> None:
        """Publish what there is to say of a session, whose lock is held."""
        for event in events:
            if isinstance(event, Gap):
                self.stats.gap_s[event.reason] += event.end - event.start
            live.on_event(event)

    def _finish(self, live: LiveSession) -> None:
        with self._changed:
            if live in self._lives:
                self._lives.remove(live)
        live.ring.on_write = None
        live.on_finished()
