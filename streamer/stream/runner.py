"""A session at work: its audio, its decisions, and what is published of it.

Audio, losses and commands come in order, from any thread, and wait in the ring buffer and in a queue beside it; the
listening thread hears them one after the other. Windows go out to the encoding thread and come back from the decoding
thread. All decisions are made, and all events published, under one lock, under which nothing is computed that takes
time: whoever sends audio or commands never waits for it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar, get_args

import msgspec
import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import LogMelStream
from streamer.audio.ring import Overrun, RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.errors import StreamerError
from streamer.events import Error, Event, Final, Gap, GapReason, Partial
from streamer.stream.arrivals import Arrivals
from streamer.stream.inbox import Command, Inbox
from streamer.stream.load import Activity
from streamer.stream.outage import Outage
from streamer.stream.schedule import deadline
from streamer.stream.session import Session
from streamer.stream.settings import SessionSettings
from streamer.stream.state import SessionState
from streamer.stream.window import Request, Window
from streamer.whisper.result import Hypothesis

logger = logging.getLogger(__name__)

Taken = TypeVar("Taken")

# Audio that has waited for too long is given up in pieces of at least this, since each piece ends a segment.
MIN_SHED_SAMPLES = 2 * SAMPLE_RATE

# Recorded audio looked at for speech at a time, so that the others need not wait. Live audio is looked at to its end.
MAX_CHUNKS_A_TURN = 64

# With less room than this in the buffer its sender has to wait: who sends so much at a time does so at once.
HELD_BACK_SAMPLES = 5 * SAMPLE_RATE

OVERRUN_MARGIN_SAMPLES = SAMPLE_RATE  # least distance kept from where the buffer is being overwritten
SILENCE_SAMPLES = SAMPLE_RATE  # written at a time in place of audio that was lost
ARRIVALS_KEPT_S = 60.0  # how long it is known when audio came, where no audio waits for too long
TICK_S = 0.5  # how often a session looks at the clock while nothing comes
RETRY_S = 2.0  # that a live session may spend on a better text for a final
WARMING_CHUNKS = 32  # a second of audio, that a detector hears again before it goes on where another was


class AudioKind(Enum):
    """Whether audio waits until it is transcribed."""

    # It does not: where the machine is too slow for it, some is lost.
    LIVE = auto()

    # It does: it is heard on only when no window of it waits or is being transcribed, and nothing is lost.
    RECORDED = auto()

    # Its sender can wait. What comes faster than it can be spoken counts as recorded, the rest as live.
    EITHER = auto()


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
    # Seconds of audio that were told to be lost, by reason; that came in, lost or not, by whose it is.
    gap_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(get_args(GapReason), 0.0))
    audio_s: dict[str, float] = field(default_factory=lambda: {"own": 0.0, "client": 0.0})
    # Called with the seconds that a pass took; with the event that first shows live audio, and its age.
    on_encode: Callable[[float], object] = lambda cost_s: None
    on_decode: Callable[[float], object] = lambda cost_s: None
    on_delay: Callable[[str, float], object] = lambda event_type, delay_s: None


@dataclass(frozen=True, slots=True)
class Job:
    """A window that was handed out."""

    window: Window
    samples: Float32Array  # its audio, shape (n,)


class SessionRunner:
    """A session at work. `Engine.add` sets it to work; what is public may be called from any thread."""

    def __init__(
        self,
        settings: SessionSettings,
        *,
        kind: AudioKind,
        capacity_samples: int,
        n_mels: int,
        max_delay_s: float = math.inf,
        reserved: bool = False,
        name: str = "",
        new_detector: Callable[[], SpeechDetector] = SpeechDetector,
        label: Callable[[Event], Event] = lambda event: event,
        on_event: Callable[[Event], object],
        on_finished: Callable[[], object] = lambda: None,
        state: SessionState | None = None,
        live_from: int = 0,
    ) -> None:
        """Make a session for audio of a kind, of which the buffer holds `capacity_samples`.

        Live audio that has waited for `max_delay_s` when its turn comes is given up. A `reserved` session counts as
        speaking when it is asked whether there is room for another. `name` is what the log calls it by. `label` returns
        an event as it is to be published; it sees the words of a text also where nobody wants them. It, `on_event` and
        `on_finished` are called under the session's lock, from the engine's threads: they return at once.

        With `state` it goes on where another was. Audio from `state.needed_from` on is to be written first, and the
        session to be set to work when all of it up to `state.heard` is there (`restored`). Up to position `live_from`
        it says nothing of the pace at which it comes. Raises SessionStateError where the state is none.
        """
        self.logger = logging.LoggerAdapter(logger, {"session": name})
        self.ring = RingBuffer(capacity_samples, start=0 if state is None else state.needed_from)
        self.kind = kind
        self.reserved = reserved
        self.settings = settings
        # Whether what comes is not heard, as somebody has asked last.
        self.paused = state is not None and state.paused_from is not None
        # Until then its sender is waited for, who may have more audio than can reach us.
        self.excused_until_s = -math.inf
        self._live_from = live_from
        self._max_delay_s = max_delay_s
        self._label = label
        self._on_event = on_event
        self._on_finished = on_finished
        # What tells the time, and what is to be called when there may be something to do; set by `start`.
        self._clock: Callable[[], float] = time.monotonic
        self._wake: Callable[[], None] = lambda: None
        self._on_over: Callable[[SessionRunner], None] = lambda runner: None
        self._stats = EngineStats()

        self._inbox = Inbox()
        # When audio came, and how much of it was speech.
        self._arrivals = Arrivals(max_delay_s if math.isfinite(max_delay_s) else ARRIVALS_KEPT_S)
        self._activity = Activity(self._clock())

        # The listening thread's own: what hears speech; position up to which it has listened; when to look again.
        self._new_detector = new_detector
        self._detector = new_detector()
        self.position = 0 if state is None else state.heard
        self._tick_at_s = -math.inf
        # Whether what comes next does not follow what the detector has heard.
        self._detector_behind = False
        # Whether the detector has yet to hear what came before the position.
        self._detector_cold = state is not None
        # The encoding thread's own.
        self.mel = LogMelStream(n_mels)
        # The decoding thread's own: position up to which windows were decoded.
        self._decoded_until = 0

        # Guards everything below.
        self._lock = threading.Lock()
        self._session = Session(settings) if state is None else Session.restored(settings, state)
        # Length of the audio, once its end is known.
        self.end_position: int | None = None
        # Windows handed out that have not come back.
        self._n_in_flight = 0
        # Since when the next window is due, and by when it should be encoded; None and infinity while none is.
        self._due_since_s: float | None = None
        self.deadline_s = math.inf
        # For how long none will be, as audio comes at the pace of speech.
        self.quiet_s = math.inf
        # Second of the audio up to which partials have shown words.
        self._shown_s = 0.0
        # Whether nothing is published any more: the session is finished, or was given up or removed.
        self.over = False
        self._outage = Outage()
        # Whether what failed is going to be tried again: nobody knows how things are where nobody has spoken since.
        self.trying = False

    def start(
        self,
        clock: Callable[[], float],
        wake: Callable[[], None],
        on_over: Callable[["SessionRunner"], None],
        stats: EngineStats,
    ) -> None:
        """Be served by an engine from now on."""
        self._clock, self._wake, self._on_over, self._stats = clock, wake, on_over, stats
        self._activity = Activity(clock())
        self._arrivals.note(self.ring.head, clock(), again=True)
        self.ring.on_write = self._note_arrival

    # What comes in.

    def write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono float32, shape (n,). Only one thread at a time may write."""
        self._stats.audio_s["own" if self.reserved else "client"] += len(samples) / SAMPLE_RATE
        self.ring.write(samples)

    def write_gap(self, n_samples: int, reason: GapReason) -> None:
        """Take it that so much audio is lost here. Only the thread that writes may call it."""
        for first in range(0, n_samples, SILENCE_SAMPLES):
            n_silent = min(SILENCE_SAMPLES, n_samples - first)
            self._command("", lambda end=self.ring.head + n_silent: self._miss(end, reason))  # type: ignore[misc]
            self.ring.write(np.zeros(n_silent, dtype=np.float32))

    def end(self) -> None:
        """The audio is complete: `on_finished` follows when everything is final. Harmless the second time."""
        # Without the lock: it stores one number, which listening looks at without the lock, too.
        self._outage.wait_no_longer()
        self._command("end", self._end)

    def flush(self) -> None:
        self._command("flush", lambda: self._session.flush())

    def pause(self) -> None:
        self.paused = True
        self._command("pause", lambda: self._session.pause())

    def resume(self) -> None:
        self.paused = False
        self._command("resume", self._resume)

    def clear(self) -> None:
        self._command("clear", lambda: self._session.clear())

    def change(self, settings: SessionSettings) -> None:
        self._command("change", lambda: self._change(settings))

    def mark(self, number: int, events: Sequence[Event] = ()) -> None:
        """Have the session's state say `number` when all that was asked for before has taken effect.

        The events are published in the same moment: no snapshot has one without the other.
        """
        self._command("" if events else "mark", lambda: self._mark(number, events))

    def snapshot(self, take: Callable[[], Taken]) -> tuple[Taken, SessionState]:
        """Return what `take` returns and the session's state; between the two nothing is decided or published."""
        with self._lock:
            return take(), self._session.state

    def close(self) -> None:
        """Publish nothing any more: when this has returned nothing is. `on_finished` is not called."""
        with self._lock:
            self.over = True
        self._leave()

    def cut_short(self, reason: GapReason) -> None:
        """Make final what is known, tell the rest of the audio as a gap, and be over. `on_finished` is not called."""
        with self._lock:
            if not self.over:
                self._give_up(reason)
                self.over = True
        self._leave()

    # What can be seen.

    @property
    def restored(self) -> bool:
        """Whether all audio is there that a session which goes on where another was has heard before."""
        return self.ring.head >= self.position

    @property
    def failing(self) -> str:
        """What has failed and is being tried again, in a few words; empty while all is well."""
        return self._outage.reason

    @property
    def recorded(self) -> bool:
        """Whether its audio waits to be transcribed, and is not live."""
        if self.kind is AudioKind.EITHER:
            return self._arrivals.recorded(self.position)
        return self.kind is AudioKind.RECORDED

    @property
    def retry_s(self) -> float:
        """Seconds that may be spent on a better text for a final."""
        return math.inf if self.kind is AudioKind.RECORDED else RETRY_S

    def share(self, now_s: float) -> float:
        """Return the share of its time in which there is something to transcribe, 0 to 1."""
        if self.reserved or (self.recorded and self.ring.head > self.position):
            return 1.0
        return self._activity.share(now_s)

    # What the engine's threads do.

    def has_news(self, now_s: float) -> bool:
        """Say whether there is something to listen to, to be done, or to look at the clock for."""
        return not self.over and (
            self.ring.head - self.position >= CHUNK_SAMPLES or len(self._inbox) > 0 or now_s >= self._tick_at_s
        )

    def listen(self, now_s: float) -> bool:
        """Hear what has come. Returns whether there may be more to hear at once."""
        self._tick_at_s = now_s + TICK_S
        try:
            return self._listen(now_s)
        except Exception as error:  # noqa: BLE001 - a fault in one session must not end everybody's captions
            self.recover(error, listening=True)
            return False

    def issue(self, now_s: float) -> Job | None:
        """Hand out the window that is due, None where there is none after all."""
        with self._lock:
            if self.over:
                return None
            lost = self._lost(now_s)
            if lost is not None:
                if self._n_in_flight:
                    return None  # what is on its way is told first
                self._publish(self._session.drop_before(*lost))
            window = None if self._outage.waits(now_s) else self._session.next_window(now_s)
            self._due_since_s = None
            self._note_change(now_s)
            if window is None:
                return None
            try:
                samples = self.ring.read(window.start, window.end)
            except Overrun:
                self._publish(self._session.lose(self.position, "overrun"))
                self._note_change(now_s)
                return None
            self._n_in_flight += 1
        return Job(window, samples)

    def spectrogram(self, job: Job) -> Float32Array:
        """Return the log-mel spectrogram of a window, shape (n_mels, 3000)."""
        return self.mel.window(job.samples, job.window.start)

    def withdraw(self) -> None:
        """A window that was handed out is not decoded: a newer one takes its place."""
        with self._lock:
            self._n_in_flight -= 1

    def request(self, job: Job, *, retry_s: float) -> Request | None:
        """Return how to decode a window; None where it is not wanted any more."""
        with self._lock:
            return None if self.over else self._session.request(job.window, retry_s=retry_s)

    def read_anew(self, job: Job) -> int:
        """Return how many samples of a window that was decoded lay in none before it."""
        begin = max(job.window.start, self._decoded_until)
        self._decoded_until = max(job.window.end, self._decoded_until)
        return max(0, job.window.end - begin)

    def complete(self, job: Job, request: Request | None, hypothesis: Hypothesis | None, now_s: float) -> None:
        """Take what a window reads; nothing where it was not wanted any more."""
        with self._lock:
            self._n_in_flight -= 1
            if self.over:
                return
            if request is not None and hypothesis is not None:
                self._publish(self._session.apply_hypothesis(job.window, request, hypothesis, now_s))
                self._note_success(listening=False)
            self._note_change(now_s)

    def fail(self, job: Job, error: Exception, now_s: float) -> None:
        """A window cannot be transcribed: its audio is lost. The next is tried after a while."""
        with self._lock:
            self._n_in_flight -= 1
            if self.over or self._note_failure(error, listening=False):
                return
            lasting = self._outage.lasting
            self._publish(self._session.give_up(self.position) if lasting else self._session.fail(job.window))
            self._note_change(now_s)

    def recover(self, error: Exception, *, listening: bool = False) -> None:
        """The session itself has failed: make final what is known, and open it again on the same audio."""
        with self._lock:
            again = listening and self._outage.listening and self.kind is not AudioKind.RECORDED
            if self.over or self._note_failure(error, listening=listening):
                return
            # What broke it is lost too, or it would break what comes next; all that has come, where that did not help.
            until = self.ring.head if again else min(self.position + CHUNK_SAMPLES, self.ring.head)
            try:
                events = self._session.give_up(until)
            except Exception:
                self.logger.exception("what was known of a session that failed is lost")
                events = []
            self._publish(events)
            self._session = self._session.successor(until)
            if self._session.finished:
                self._publish(self._session.recovered())
            self.position = until
            self._detector_behind = True
            self._note_change(self._clock())

    def _command(self, name: str, apply: Callable[[], Iterable[Event]]) -> None:
        if not self.over:  # else nobody would take it
            self._inbox.put(Command(name, self.ring.head, apply))
            self._wake()

    def _note_arrival(self) -> None:
        """Audio has come: called by the thread that wrote it."""
        again = self.ring.head <= self._live_from
        held_back = self.ring.free < HELD_BACK_SAMPLES
        self._arrivals.note(self.ring.head, self._clock(), held_back=held_back, again=again)
        if self.ring.head - self.position >= CHUNK_SAMPLES:
            self._wake()

    def _listen(self, now_s: float) -> bool:
        more = False
        for _ in range(MAX_CHUNKS_A_TURN if self.recorded else self.ring.capacity_samples // CHUNK_SAMPLES):
            if not self._may_listen():
                more = False
                break
            command = self._inbox.take(self.position)
            if command is not None:
                with self._lock:
                    if not self.over:
                        self._publish(command.apply())
                more = True
                continue
            end = self._listen_until()
            more = end > self.position and not (self._outage.listening and self._outage.waits(now_s))
            if not more:
                break
            self._hear(end, now_s)
        with self._lock:
            if self.over:
                return False
            heard_all = not more and self.ring.head - self.position < CHUNK_SAMPLES and not self._inbox
            # A file that is read slowly goes on.
            if heard_all and self.kind is not AudioKind.RECORDED and now_s >= self.excused_until_s:
                self._publish(self._session.tick(now_s))
            self._note_change(now_s)
        return more

    def _may_listen(self) -> bool:
        with self._lock:
            busy = self._n_in_flight > 0 or self._session.next_window_due()
            return not self.over and not (self.recorded and busy and not self._outage.lasting)

    def _listen_until(self) -> int:
        """Return up to where to listen next: a chunk further, or to where a command waits; in a pause, all there is."""
        end = self._inbox.next_position
        if end is None:
            head = self.ring.head
            end = head if head - self.position >= CHUNK_SAMPLES else self.position
        return end if self._session.paused else min(end, self.position + CHUNK_SAMPLES)

    def _hear(self, end: int, now_s: float) -> None:
        """Listen to audio up to a position, at most a chunk of it but in a pause."""
        if self._session.paused:
            with self._lock:
                self._session.skip(end)
                self.position = end
            return
        session, begin = self._session, self.position
        if begin >= end:
            return  # the session was opened again behind it
        try:
            samples = self.ring.read(begin, end)
        except Overrun as overrun:
            with self._lock:
                self.position = min(max(overrun.oldest, self.position), self.ring.head)
                self._publish(self._session.lose(self.position, "overrun"))
            self._detector_behind = True
            return
        if self._detector_behind:
            # One that has failed is replaced.
            self._detector = self._new_detector() if self._outage.listening else self._detector
            self._detector.reset()
            self._detector_behind = self._detector_cold = False
        if self._detector_cold:
            self._warm_detector(begin)
        (probability,) = self._detector.process(np.pad(samples, (0, CHUNK_SAMPLES - len(samples))))
        with self._lock:
            if self.over or self._session is not session:
                return
            events = self._session.advance(end, probability, now_s)
            self._note_success(listening=True)
            self.position = end
            self._publish(events)
            speech = self._session.waiting_from is not None
        self._activity.hear(CHUNK_SAMPLES / SAMPLE_RATE, now_s, speech=speech)

    def _warm_detector(self, position: int) -> None:
        """Let the detector hear what came before a position, as the one had that heard it elsewhere."""
        n_chunks = min(WARMING_CHUNKS, (position - self.ring.oldest) // CHUNK_SAMPLES)
        for i in range(n_chunks, 0, -1):
            begin = position - i * CHUNK_SAMPLES
            self._detector.process(self.ring.read(begin, begin + CHUNK_SAMPLES))
        self._detector_cold = False

    def _mark(self, number: int, events: Iterable[Event]) -> Iterable[Event]:
        self._session.mark = number
        return events

    def _end(self) -> Iterable[Event]:
        if self._session.ended:
            return []
        self.end_position = self.position
        self._outage.wait_no_longer()
        return self._session.finish(self.position)

    def _miss(self, end: int, reason: GapReason) -> Iterable[Event]:
        self.position = max(self.position, end)
        self._detector_behind = True
        return self._session.miss(self.position, reason)

    def _resume(self) -> Iterable[Event]:
        self._detector_behind = True
        return self._session.resume()

    def _change(self, settings: SessionSettings) -> Iterable[Event]:
        self.settings = settings
        self._session.change(settings)
        return []

    def _lost(self, now_s: float) -> tuple[int, GapReason] | None:
        """Return up to where speech has to be given up, and why; None where it need not be."""
        oldest = self.ring.oldest
        overdue = self._overdue(now_s)
        if self._session.needed_from < oldest:
            return min(max(oldest + OVERRUN_MARGIN_SAMPLES, overdue or 0), self.position), "overrun"
        return (overdue, "overload") if overdue is not None else None

    def _overdue(self, now_s: float) -> int | None:
        """Return the position before which speech has waited for too long, or None where none has."""
        waiting = self._session.waiting_from
        if waiting is None or self.recorded or self._session.ended or not math.isfinite(self._max_delay_s):
            return None
        limit = self._arrivals.position_at(now_s - self._max_delay_s)
        return min(max(limit, waiting + MIN_SHED_SAMPLES), self.position) if limit > waiting else None

    def _note_change(self, now_s: float) -> None:
        """Note what audio is still needed, whether a window is due, and whether everything is final."""
        self.ring.release(min(self.position, self._session.needed_from))
        waits = self._outage.waits(now_s)
        self.trying = waits or self._session.waiting_from is not None
        until_due = self._session.until_due
        self.quiet_s = math.inf if until_due is None else until_due / SAMPLE_RATE
        if waits or not self._session.next_window_due():
            self._due_since_s, self.deadline_s = None, math.inf
        else:
            if self._due_since_s is None:
                self._due_since_s = now_s
            self.deadline_s = deadline(
                self._due_since_s,
                recorded=self.recorded,
                final_awaited=self._session.final_awaited,
                pace_s=self.settings.pace_s,
            )
        if self._session.finished:
            self._finish()

    def _note_success(self, *, listening: bool) -> None:
        reason = self._outage.reason
        if self._outage.succeed(listening=listening):
            self.logger.info("%s: it works again", reason)
            self._publish(self._session.recovered())

    def _note_failure(self, error: Exception, *, listening: bool) -> bool:
        """Tell of a failure, once until it is over. Returns whether the session ends with it."""
        self._stats.failures += 1
        if isinstance(error, StreamerError):
            self.logger.error("%s", error)
        else:
            self.logger.error("a session failed", exc_info=error)
            error = StreamerError(f"a session failed ({type(error).__name__}): the log has more; it is opened again")
        first = not self._outage.reason
        self._outage.fail(str(error), self._clock(), listening=listening)
        final_failure = self.kind is AudioKind.RECORDED and self._outage.lasting
        if first or final_failure:
            self._publish([Error(code=error.code, message=str(error), fatal=final_failure)])
        if final_failure:
            self._give_up("device")
            self._finish()
        return final_failure

    def _give_up(self, reason: GapReason) -> None:
        """End with what is known; the rest of the audio is lost."""
        try:
            head = self.ring.head
            events = [*self._session.lose(head, reason), *self._session.finish(head)]
        except Exception:
            self.logger.exception("what was known of a session that failed is lost")
            events = []
        self._publish(events)

    def _finish(self) -> None:
        self.over = True
        self._on_finished()
        self._leave()

    def _leave(self) -> None:
        self.ring.on_write = None
        self._inbox.clear()
        self.deadline_s = math.inf
        self.ring.wake()
        self._on_over(self)

    def _publish(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Gap):
                self._stats.gap_s[event.reason] += event.end - event.start
            if isinstance(event, Partial | Final) and event.words:
                self._note_delay(event)
            try:
                event = self._label(event)
                if isinstance(event, Partial | Final) and not self.settings.words:
                    event = msgspec.structs.replace(event, words=())
                self._on_event(event)
            except Exception:
                self.logger.exception("a session's listener failed")

    def _note_delay(self, event: Partial | Final) -> None:
        """Note how long ago the audio came of which this is the text; of a partial only where it shows more."""
        end_s = event.words[-1].end
        if isinstance(event, Partial) and end_s <= self._shown_s:
            return
        self._shown_s = max(self._shown_s, end_s)
        came_s = None if self.recorded else self._arrivals.time_at(round(end_s * SAMPLE_RATE))
        if came_s is not None:
            self._stats.on_delay(event.type, self._clock() - came_s)
