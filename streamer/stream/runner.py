"""A session at work: its audio, its decisions, and the events that it publishes.

Audio, losses and commands come from any thread and wait in the ring buffer and the inbox. The thread `listen` takes
them from there in order; windows go to the thread `encode` and come back from `decode`. All decisions are made and all
events are handed to the event log under one lock, under which nothing slow is computed and no audio is copied.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from streamer.languages import name_of
from streamer.stream.arrivals import Arrivals
from streamer.stream.detection import Detection
from streamer.stream.inbox import Command, Inbox
from streamer.stream.load import Activity
from streamer.stream.outage import Outage
from streamer.stream.session import Session
from streamer.stream.settings import SessionSettings
from streamer.stream.state import NEW, SessionState
from streamer.stream.window import Request, Window
from streamer.whisper.result import Hypothesis

logger = logging.getLogger(__name__)

Taken = TypeVar("Taken")

MIN_SHED_SAMPLES = 2 * SAMPLE_RATE  # least audio given up at a time because it waited too long: each ends a segment
MAX_CHUNKS_A_TURN = 64  # 2 s of audio: then the other sessions have their turns
HELD_BACK_SAMPLES = 5 * SAMPLE_RATE  # with less room than this in the buffer a sender has to wait
OVERRUN_MARGIN_SAMPLES = SAMPLE_RATE  # least distance kept from where the buffer is being overwritten
SILENCE_SAMPLES = SAMPLE_RATE  # written at a time in place of audio that was lost
ARRIVALS_KEPT_S = 60.0  # how long it is known when audio came, if no audio waits for too long
RECORDED_PATIENCE_S = 2.0  # that a recording's window may wait while live sessions have windows that are due
TICK_S = 0.5  # how often a session looks at the clock while nothing comes


class AudioKind(Enum):
    """Whether audio waits until it is transcribed."""

    # Live audio does not: some is lost on a machine that is too slow for it.
    LIVE = auto()

    # Recorded audio does: it is processed only while no window is due or being transcribed, and nothing is lost.
    RECORDED = auto()

    # The sender can wait. Audio that comes faster than it can be spoken counts as recorded, the rest as live.
    EITHER = auto()


@dataclass(slots=True)
class EngineStats:
    """What the engine has done, for the metrics page."""

    encodes: int = 0
    decodes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    # Calls of the decoder; tokens found; tokens given before these, and those of them that are of settled words.
    decoder_calls: int = 0
    decoder_tokens: int = 0
    given_tokens: int = 0
    settled_tokens: int = 0
    windows_replaced: int = 0
    failures: int = 0
    # Seconds of audio published as gaps, by reason; that came in, lost or not, by source.
    gap_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(get_args(GapReason), 0.0))
    audio_s: dict[str, float] = field(default_factory=lambda: {"own": 0.0, "client": 0.0})
    # Called with the seconds that a pass took; with the event that first shows live audio, and its age.
    on_encode: Callable[[float], object] = lambda cost_s: None
    on_decode: Callable[[float], object] = lambda cost_s: None
    on_delay: Callable[[str, float], object] = lambda event_type, delay_s: None


@dataclass(frozen=True, slots=True)
class Host:
    """What an engine offers to the sessions that it serves. The defaults are for a session that none serves yet."""

    stats: EngineStats = field(default_factory=EngineStats)
    clock: Callable[[], float] = time.monotonic
    wake: Callable[[], object] = lambda: None  # there may be something to do
    remove: Callable[["SessionRunner"], object] = lambda runner: None  # the session is over


@dataclass(frozen=True, slots=True)
class Job:
    """A window that was handed out, and its audio, shape (n,)."""

    window: Window
    samples: Float32Array


class SessionRunner:
    """A session at work. `Engine.add` sets it to work; any thread may call what is public."""

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
        speaking when it is asked whether there is room for another. `name` is for the log. `label` returns an event as
        it is to be published; it sees the words of a text even if they are not published. `label`, `on_event` and
        `on_finished` are called under the session's lock, from the engine's threads: they return at once.

        With `state` the session continues another. Audio from `state.needed_from` to `state.heard` is to be written
        before it is set to work (`restored`). Audio before `live_from` is sent again: its pace says nothing. Raises
        SessionStateError if the state is invalid.
        """
        self.logger = logging.LoggerAdapter(logger, {"session": name})
        self.kind, self.reserved, self.settings = kind, reserved, settings
        self._max_delay_s, self._live_from = max_delay_s, live_from
        self._label, self._on_event, self._on_finished = label, on_event, on_finished
        self._host = Host()

        # What came in.
        self.ring = RingBuffer(capacity_samples, start=0 if state is None else state.needed_from)
        self._inbox = Inbox()
        self._arrivals = Arrivals(max_delay_s if math.isfinite(max_delay_s) else ARRIVALS_KEPT_S)
        # Whether the client paused last; until when a silent client is waited for, as its audio may be on its way.
        self.paused = state is not None and state.paused_from is not None
        self.excused_until_s = -math.inf

        # Used by the thread `listen`: how far it has processed the audio, and when it looks at the clock again.
        self.position = 0 if state is None else state.heard
        self._detection = Detection(self.ring, new_detector, start=0 if state is None else None)
        self._activity = Activity(self._host.clock())
        self._tick_at_s = -math.inf
        # Used by the thread `encode`, and by `decode`: end of the windows that were decoded.
        self.mel = LogMelStream(n_mels)
        self._decoded_until = 0

        # Guards everything below.
        self._lock = threading.Lock()
        self._session = Session(settings, state or NEW)
        # Whether nothing is published any more: the session is finished or closed.
        self.over = False
        # Windows handed out that have not come back.
        self._n_in_flight = 0
        # Since when the next window is due, and by when it should be encoded; infinity while none is due.
        self._due_since_s = self.deadline_s = math.inf
        # For how long none will be, if audio comes at the pace of speech.
        self.quiet_s = math.inf
        # Time in the audio up to which partials have shown words.
        self._shown_s = 0.0
        # Of the newest final; languages that are not allowed and that the log has warned of.
        self._language = ""
        self._outside: set[str] = set()
        self._outage = Outage()
        # Whether what failed is going to be tried again, and not left until the next speech.
        self.trying = False

    def start(self, host: Host) -> None:
        """Be served by an engine from now on."""
        self._host = host
        self._activity = Activity(host.clock())
        self._arrivals.note(self.ring.head, host.clock(), again=True)
        self.ring.on_write = self._note_arrival

    # What comes in.

    def write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono float32, shape (n,). Only one thread at a time may write."""
        self._host.stats.audio_s["own" if self.reserved else "client"] += len(samples) / SAMPLE_RATE
        self.ring.write(samples)

    def write_gap(self, n_samples: int, reason: GapReason) -> None:
        """Note that so much audio is lost here. Only the thread that writes may call it."""
        for first in range(0, n_samples, SILENCE_SAMPLES):
            n_silent = min(SILENCE_SAMPLES, n_samples - first)
            self._command("", lambda end=self.ring.head + n_silent: self._miss(end, reason))  # type: ignore[misc]
            self.ring.write(np.zeros(n_silent, dtype=np.float32))

    def end(self, number: int | None = None) -> None:
        """The audio is complete: `on_finished` follows when everything is final. Harmless the second time."""
        self._outage.retry_at_s = -math.inf
        self._command("end", self._end, number)

    def flush(self, number: int | None = None) -> None:
        self._command("flush", lambda: self._session.flush(), number)

    def pause(self, number: int | None = None) -> None:
        self.paused = True
        self._command("pause", lambda: self._session.pause(), number)

    def resume(self, number: int | None = None) -> None:
        self.paused = False
        self._command("resume", lambda: self._session.resume(), number)

    def clear(self, number: int | None = None) -> None:
        self._command("clear", lambda: self._session.clear(), number)

    def change(self, settings: SessionSettings, number: int | None = None) -> None:
        self._command("change", lambda: self._change(settings), number)

    def mark(self, number: int, events: Sequence[Event] = ()) -> None:
        """Publish events, and set `number` in the session's state."""
        self._command("" if events else "mark", lambda: events, number)

    def snapshot(self, take: Callable[[], Taken]) -> tuple[Taken, SessionState]:
        """Return what `take` returns and the session's state; between the two nothing is decided or published."""
        with self._lock:
            return take(), self._session.state

    def close(self) -> None:
        """Publish nothing after this has returned. `on_finished` is not called."""
        with self._lock:
            self._leave()

    def cut_short(self, reason: GapReason) -> None:
        """Make final what is known, publish the rest of the audio as a gap, and close."""
        with self._lock:
            if not self.over:
                self._give_up(reason)
            self._leave()

    # What can be seen.

    @property
    def restored(self) -> bool:
        """Whether the audio that another machine had processed has been written again."""
        return self.ring.head >= self.position

    @property
    def failing(self) -> str:
        """The message of a failure that lasts; empty while all works."""
        return self._outage.reason

    @property
    def recorded(self) -> bool:
        """Whether the audio waits to be transcribed, and is not live."""
        if self.kind is AudioKind.EITHER:
            return self._arrivals.recorded(self.position)
        return self.kind is AudioKind.RECORDED

    def share(self, now_s: float) -> float:
        """Return the share of its time in which there is something to transcribe, 0 to 1."""
        if self.reserved or (self.recorded and self.ring.head > self.position):
            return 1.0
        return self._activity.share(now_s)

    # The thread `listen`.

    def has_news(self, now_s: float) -> bool:
        """Return whether there is audio, a command, or a reason to look at the clock."""
        return not self.over and (
            self.ring.head - self.position >= CHUNK_SAMPLES or len(self._inbox) > 0 or now_s >= self._tick_at_s
        )

    def listen(self, now_s: float) -> bool:
        """Process what has come. Returns whether there may be more to process at once."""
        self._tick_at_s = now_s + TICK_S
        with self._recovering(listening=True):
            more = all(self._step(now_s) for _ in range(MAX_CHUNKS_A_TURN))
            with self._lock:
                if self.over:
                    return False
                processed_all = not more and self.ring.head - self.position < CHUNK_SAMPLES and not self._inbox
                # A file may be read slowly: it has not ended.
                if processed_all and self.kind is not AudioKind.RECORDED and now_s >= self.excused_until_s:
                    self._publish(self._session.tick(now_s))
                self._note_change(now_s)
            return more
        return False

    def _step(self, now_s: float) -> bool:
        """Apply the next command, or process the audio before it, a chunk at most. Returns whether there was either."""
        with self._lock:
            busy = self._n_in_flight > 0 or self._session.next_window_due()
            if self.over or (self.recorded and busy and not self._outage.lasting):
                return False
            command = self._inbox.take(self.position)
            if command is not None:
                if command.number is not None:
                    self._session.mark = command.number
                self._publish(command.apply())
                return True
            begin, end = self.position, self._inbox.next_position
            if end is None:
                end = self.ring.head if self.ring.head - begin >= CHUNK_SAMPLES else begin
            if end <= begin or (self._outage.listening and self._outage.waits(now_s)):
                return False
            if self._session.paused:
                self._session.skip(end)
                self.position = end
                return True
        end = min(end, begin + CHUNK_SAMPLES)
        oldest: int | None = None
        try:
            probability = self._detection.probability(begin, end)
        except Overrun as overrun:
            oldest = overrun.oldest
        with self._lock:
            if self.over or self.position != begin:  # it has failed meanwhile
                return True
            if oldest is not None:
                self.position = min(max(oldest, begin), self.ring.head)
                self._publish(self._session.lose(self.position, "overrun"))
                return True
            events = self._session.advance(end, probability, now_s)
            self._note_success(listening=True)
            self.position = end
            self._publish(events)
            speech = self._session.waiting_from is not None
        self._activity.note(CHUNK_SAMPLES / SAMPLE_RATE, now_s, speech=speech)
        return True

    # The threads `encode` and `decode`.

    def issue(self, now_s: float) -> Job | None:
        """Hand out the window that is due, if it still is. It is given to `decode`, `fail` or `withdraw`."""
        with self._recovering():
            with self._lock:
                lost = None if self.over else self._lost(now_s)
                if self.over or (lost is not None and self._n_in_flight):
                    return None  # what is on its way is published before a loss
                if lost is not None:
                    self._publish(self._session.drop_before(*lost))
                window = None if self._outage.waits(now_s) else self._session.next_window(now_s)
                self._due_since_s = math.inf
                self._note_change(now_s)
                if window is None:
                    return None
                self._n_in_flight += 1
            job: Job | None = None
            try:
                job = Job(window, self.ring.read(window.start, window.end))
            except Overrun:
                with self._lock:
                    if not self.over:
                        self._publish(self._session.lose(self.position, "overrun"))
                        self._note_change(now_s)
            finally:
                if job is None:
                    self.withdraw()
            return job
        return None

    def withdraw(self) -> None:
        """Note that a window is not decoded, since a newer one replaces it."""
        with self._lock:
            self._n_in_flight -= 1

    def decode(self, job: Job, decode: Callable[[Request], Hypothesis], *, retry_s: float) -> None:
        """Have a window decoded, if it is still wanted, and publish its text."""
        try:
            with self._lock:
                request = None if self.over else self._session.request(job.window, retry_s=retry_s)
            hypothesis = decode(request) if request is not None else None
        except Exception as error:  # noqa: BLE001 - a fault in one session must not end everybody's captions
            self.fail(job, error)
            return
        now_s = self._host.clock()
        with self._recovering(), self._lock:
            self._n_in_flight -= 1
            if self.over:
                return
            if request is not None and hypothesis is not None:
                self._publish(self._session.apply_hypothesis(job.window, request, hypothesis, now_s))
                self._note_success(listening=False)
                self._note_outside(hypothesis.language_outside)
            self._note_change(now_s)

    def read_anew(self, job: Job) -> int:
        """Return how many samples of a window that was decoded lay in none before it."""
        begin = max(job.window.start, self._decoded_until)
        self._decoded_until = max(job.window.end, self._decoded_until)
        return max(0, job.window.end - begin)

    def fail(self, job: Job, error: Exception) -> None:
        """Give up the audio of a window that cannot be transcribed. The next is tried after a while."""
        with self._lock:
            self._n_in_flight -= 1
            if self.over or self._note_failure(error, listening=False):
                return
            given_up = self._outage.lasting
            self._publish(self._session.give_up(self.position) if given_up else self._session.fail(job.window))
            self._note_change(self._host.clock())

    # What commands do, under the lock.

    def _command(self, name: str, apply: Callable[[], Iterable[Event]], number: int | None = None) -> None:
        """Do something when the audio so far has been processed. No snapshot has that without `number`."""
        if not self.over:
            self._inbox.put(Command(name, self.ring.head, apply, number))
            self._host.wake()

    def _end(self) -> Iterable[Event]:
        if self._session.ended:
            return []
        self._outage.retry_at_s = -math.inf
        return self._session.finish(self.position)

    def _miss(self, end: int, reason: GapReason) -> Iterable[Event]:
        self.position = max(self.position, end)
        return self._session.miss(self.position, reason)

    def _change(self, settings: SessionSettings) -> Iterable[Event]:
        self.settings = settings
        self._session.change(settings)
        return []

    # The clock.

    def _note_arrival(self) -> None:
        """Note that audio has come, in the thread that wrote it."""
        head, held_back = self.ring.head, self.ring.free < HELD_BACK_SAMPLES
        self._arrivals.note(head, self._host.clock(), held_back=held_back, again=head <= self._live_from)
        if head - self.position >= CHUNK_SAMPLES:
            self._host.wake()

    def _lost(self, now_s: float) -> tuple[int, GapReason] | None:
        """Return the position before which speech has to be given up, and why; None if it need not be."""
        waiting, oldest = self._session.waiting_from, self.ring.oldest
        overdue = 0
        if waiting is not None and not (self.recorded or self._session.ended or math.isinf(self._max_delay_s)):
            limit = self._arrivals.position_at(now_s - self._max_delay_s)
            overdue = max(limit, waiting + MIN_SHED_SAMPLES) if limit > waiting else 0
        if self._session.needed_from < oldest:
            return min(max(oldest + OVERRUN_MARGIN_SAMPLES, overdue), self.position), "overrun"
        return (min(overdue, self.position), "overload") if overdue else None

    def _note_change(self, now_s: float) -> None:
        """Note what audio is still needed, whether a window is due, and whether everything is final."""
        session, waits = self._session, self._outage.waits(now_s)
        self.ring.release(min(self.position, session.needed_from))
        self.trying = waits or session.waiting_from is not None
        self.quiet_s = math.inf if session.until_due is None else session.until_due / SAMPLE_RATE
        due = not waits and session.next_window_due()
        self._due_since_s = min(self._due_since_s, now_s) if due else math.inf
        patience_s = 0.0 if session.final_awaited else self.settings.pace_s
        self.deadline_s = self._due_since_s + (RECORDED_PATIENCE_S if self.recorded else patience_s)
        if session.finished:
            self._finish()

    # Failures and the end.

    @contextmanager
    def _recovering(self, *, listening: bool = False) -> Iterator[None]:
        """Replace the session if it fails: a fault in one must not end everybody's captions."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above
            with self._lock:
                self._recover(error, listening=listening)

    def _recover(self, error: Exception, *, listening: bool) -> None:
        """Make final what is known, and continue with another session behind a gap."""
        again = listening and self._outage.listening and self.kind is not AudioKind.RECORDED
        if self.over or self._note_failure(error, listening=listening):
            return
        # The chunk that may have caused it is lost, too; all audio so far, if that did not help.
        until = self.ring.head if again else min(self.position + CHUNK_SAMPLES, self.ring.head)
        self._publish(self._known(lambda: self._session.give_up(until)))
        self._session.restart(until)
        if self._session.finished:
            self._publish(self._session.recovered())
        self.position = until
        self._note_change(self._host.clock())

    def _note_success(self, *, listening: bool) -> None:
        if self._outage.ended_by(listening=listening):
            self.logger.info("%s: it works again", self._outage.reason)
            self._outage = Outage()
            self._publish(self._session.recovered())

    def _note_failure(self, error: Exception, *, listening: bool) -> bool:
        """Publish a failure, once until it is over. Returns whether the session ends with it."""
        self._host.stats.failures += 1
        if isinstance(error, StreamerError):
            self.logger.error("%s", error)
        else:
            self.logger.error("a session failed", exc_info=error)
            error = StreamerError(f"a session failed ({type(error).__name__}): the log has more; it is opened again")
        first = not self._outage.reason
        self._outage.fail(str(error), self._host.clock(), listening=listening)
        fatal = self.kind is AudioKind.RECORDED and self._outage.lasting
        if first or fatal:
            self._publish([Error(code=error.code, message=str(error), fatal=fatal)])
        if fatal:
            self._give_up("device")
            self._finish()
        return fatal

    def _give_up(self, reason: GapReason) -> None:
        """Publish what is known as final, and the rest of the audio as a gap."""
        head = self.ring.head
        self._publish(self._known(lambda: [*self._session.lose(head, reason), *self._session.finish(head)]))

    def _known(self, give_up: Callable[[], list[Event]]) -> list[Event]:
        """Return the events with which a session is given up; none if it fails at that, too."""
        try:
            return give_up()
        except Exception:
            self.logger.exception("what was known of a session that failed is lost")
            return []

    def _finish(self) -> None:
        self.over = True
        self._on_finished()
        self._leave()

    def _leave(self) -> None:
        self.over = True
        self.ring.on_write = None
        self._inbox.clear()
        self.deadline_s = math.inf
        self.ring.wake()
        self._host.remove(self)

    def _publish(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Gap):
                self._host.stats.gap_s[event.reason] += event.end - event.start
            if isinstance(event, Partial | Final) and event.words:
                self._note_delay(event)
            if isinstance(event, Final) and event.text and event.language != self._language:
                self._language = event.language
                if self.settings.language == "auto":
                    self.logger.info("language: %s", name_of(event.language))
            try:
                event = self._label(event)
                if isinstance(event, Partial | Final) and not self.settings.words:
                    event = msgspec.structs.replace(event, words=())
                self._on_event(event)
            except Exception:
                self.logger.exception("a session's listener failed")

    def _note_outside(self, language: str) -> None:
        """Say once in the log that a language is spoken which the session does not allow: its text will be wrong."""
        if language and language not in self._outside:
            self._outside.add(language)
            self.logger.warning(
                "%s is spoken, which the session does not allow (only %s): its text is wrong; add %s to `languages`",
                name_of(language),
                ", ".join(self.settings.languages),
                language,
            )

    def _note_delay(self, event: Partial | Final) -> None:
        """Note how long ago the audio of a text came; of a partial only if it shows more than those before."""
        end_s = event.words[-1].end
        if isinstance(event, Partial) and end_s <= self._shown_s:
            return
        self._shown_s = max(self._shown_s, end_s)
        came_s = None if self.recorded else self._arrivals.time_at(round(end_s * SAMPLE_RATE))
        if came_s is not None:
            self._host.stats.on_delay(event.type, self._host.clock() - came_s)
