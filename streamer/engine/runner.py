"""Runs a session: its audio, its decisions, and the events that it publishes.

Any thread may add audio, losses and commands to the ring buffer and the inbox. The thread `listen` takes them from
there in order, the thread `encode` takes windows, and the thread `decode` returns their text. One lock guards decisions
and publishing; no slow computing and no copying of audio happens while it is held.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import TypeVar

import numpy as np

from streamer.arrays import Float32Array
from streamer.audio.mel import LogMelStream
from streamer.audio.ring import Overrun, RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE
from streamer.engine.arrivals import Arrivals
from streamer.engine.detection import Detection
from streamer.engine.eventlog import KeepAudio, no_audio
from streamer.engine.host import Host
from streamer.engine.inbox import Apply, Inbox
from streamer.engine.load import Activity
from streamer.engine.outage import Outage
from streamer.engine.publisher import Publisher, SessionOutput
from streamer.errors import StreamerError
from streamer.events import Error, Event, GapReason
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, SessionState
from streamer.session.task import Span, Task
from streamer.whisper.result import Hypothesis

logger = logging.getLogger(__name__)

Taken = TypeVar("Taken")

MIN_SHED_SAMPLES = 2 * SAMPLE_RATE  # least audio given up at a time because it waited too long: each ends a segment
MAX_CHUNKS_A_TURN = 64  # 2 s of audio: then the other sessions have their turns
HELD_BACK_SAMPLES = 5 * SAMPLE_RATE  # with less room than this in the buffer a client has to wait
OVERRUN_MARGIN_SAMPLES = SAMPLE_RATE  # least distance kept from where the buffer is being overwritten
SILENCE_SAMPLES = SAMPLE_RATE  # written at a time in place of audio that was lost
ARRIVALS_KEPT_S = 60.0  # how long it is known when audio came, if no audio waits for too long
RECORDED_PATIENCE_S = 2.0  # longest time that a recording's window waits for windows of live sessions
TICK_S = 0.5  # how often a session checks the clock while no audio comes


class AudioKind(Enum):
    """Whether audio waits until it is transcribed."""

    # Live audio does not: some is lost on a machine that is too slow for it.
    LIVE = auto()

    # Recorded audio does: it is processed only while no window is due or being transcribed, and nothing is lost.
    RECORDED = auto()

    # The sender can wait. Audio that comes faster than it can be spoken counts as recorded, the rest as live.
    EITHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What a session's audio is like."""

    kind: AudioKind
    capacity_samples: int  # kept in the buffer
    max_delay_s: float = math.inf  # live audio that has waited for this long when its turn comes is given up
    reserved: bool = False  # whether it counts as unbroken speech when room for another session is computed
    live_from: int = 0  # audio before this is sent again, as fast as possible
    keep: KeepAudio = no_audio  # called with all audio but that of pauses and behind the end


@dataclass(slots=True)
class Due:
    """When a session has work for the engine, as of its last decision."""

    # Since when the next window is due, and by when it should be encoded; infinity while none is due.
    since_s: float = math.inf
    deadline_s: float = math.inf
    quiet_s: float = math.inf  # for how long none will be, if audio comes at the pace of speech
    retrying: bool = False  # whether what failed is tried again without new speech


class SessionRunner:
    """Runs a session once it is passed to `Engine.add`. Any thread may call its public methods."""

    def __init__(
        self,
        settings: SessionSettings,
        input: Input,
        output: SessionOutput,
        *,
        mel: LogMelStream,
        new_detector: Callable[[], SpeechDetector] = SpeechDetector,
        state: SessionState | None = None,
    ) -> None:
        """With `state`, continue another session.

        The caller then writes the audio from `state.needed_from` to `state.received` before `Engine.add` (`restored`).
        Raises SessionStateError if the state is invalid.
        """
        self.logger = logging.LoggerAdapter(logger, {"session": output.name})
        self.input = input
        # The engine that serves the session, and whether it does.
        self._host, self._serving = Host(), False

        # Audio and commands.
        self.ring = RingBuffer(input.capacity_samples, start=0 if state is None else state.needed_from)
        self._inbox = Inbox()
        self._arrivals = Arrivals(input.max_delay_s if math.isfinite(input.max_delay_s) else ARRIVALS_KEPT_S)
        # Whether the client paused last; until when a client that sends nothing is waited for: its audio may be late.
        self.paused = state is not None and state.paused_from is not None
        self.excused_until_s = -math.inf

        # Used by the thread `listen`: the detector, how much speech it finds, and when to check the clock again.
        self._detection = Detection(self.ring, new_detector, start=0 if state is None else None)
        self._activity = Activity(self._host.clock())
        self._tick_at_s = -math.inf
        # Used by the thread `encode`.
        self.mel = mel

        # Guards everything below.
        self._lock = threading.Lock()
        self._session = Session(settings, state or NEW)
        self._publisher = Publisher(output, self.logger)
        # Whether nothing is published any more: the session is finished or closed.
        self.over = False
        # Windows handed out that have not come back.
        self._n_in_flight = 0
        self.due = Due()
        self._outage = Outage()

    def start(self, host: Host) -> None:
        """Be served by an engine from now on."""
        self._host = host
        self._activity = Activity(host.clock())
        self._arrivals.note(self.ring.head, host.clock(), again=True)
        self._serving = True

    # Audio and commands.

    def write(self, samples: Float32Array) -> None:
        """Take audio, 16 kHz mono float32, shape (n,). Only one thread at a time may write."""
        self._host.stats.audio_s["own" if self.input.reserved else "client"] += len(samples) / SAMPLE_RATE
        if not (self.paused or self.over):
            try:
                self.input.keep(self.ring.head, samples)
            except Exception:
                self.logger.exception("audio of the session is no longer kept")
                self.input = replace(self.input, keep=no_audio)
        self._write(samples)

    def write_gap(self, n_samples: int, reason: GapReason) -> None:
        """Note that `n_samples` of audio are lost here. Only the thread that writes may call it."""
        for first in range(0, n_samples, SILENCE_SAMPLES):
            n_silent = min(SILENCE_SAMPLES, n_samples - first)
            self._command("", partial(self._session.miss, self.ring.head + n_silent, reason))
            self._write(np.zeros(n_silent, dtype=np.float32))

    def end(self, number: int | None = None) -> None:
        """The audio is complete: `on_finished` follows when everything is final. Harmless the second time."""
        self._outage.retry_at_s = -math.inf
        self._command("end", self._end, number)

    def flush(self, number: int | None = None) -> None:
        self._command("flush", self._session.flush, number)

    def pause(self, number: int | None = None) -> None:
        self.paused = True
        self._command("pause", self._session.pause, number)

    def resume(self, number: int | None = None) -> None:
        self.paused = False
        self._command("resume", self._session.resume, number)

    def clear(self, number: int | None = None) -> None:
        self._command("clear", self._session.clear, number)

    def change(self, settings: SessionSettings, number: int | None = None) -> None:
        self._command("change", partial(self._session.change, settings), number)

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
                self._cut_short(reason)
            self._leave()

    def judge(self, end: int, probability: float | None) -> None:
        """Take how probably the speaker has finished at `end`; None if that cannot be known."""
        with self._recovering(), self._lock:
            if not self.over:
                self._publish(self._session.judge(end, probability))
                self._note_change(self._host.clock())
        self._tick_at_s = -math.inf  # a window may be due
        self._host.wake()

    # Properties.

    @property
    def settings(self) -> SessionSettings:
        return self._session.settings

    @property
    def position(self) -> int:
        """End of the audio that was processed."""
        return self._session.position

    @property
    def restored(self) -> bool:
        """Whether the audio that another machine had processed has been written again."""
        return self.ring.head >= self.position

    @property
    def failing(self) -> str:
        """The message of the current failure; empty if nothing fails."""
        return self._outage.reason

    @property
    def recorded(self) -> bool:
        """Whether the audio waits to be transcribed, and is not live."""
        if self.input.kind is AudioKind.EITHER:
            return self._arrivals.recorded(self.position)
        return self.input.kind is AudioKind.RECORDED

    def share(self, now_s: float) -> float:
        """Return the share of its time in which there is something to transcribe, 0 to 1."""
        if self.input.reserved or (self.recorded and self.ring.head > self.position):
            return 1.0
        return self._activity.share(now_s)

    # The thread `listen`.

    def has_news(self, now_s: float) -> bool:
        """Return whether there is audio or a command to process, or it is time to check the clock."""
        return not self.over and (
            self.ring.head - self.position >= CHUNK_SAMPLES or len(self._inbox) > 0 or now_s >= self._tick_at_s
        )

    def listen(self, now_s: float) -> bool:
        """Process new audio and commands. Returns whether there may be more to process at once."""
        self._tick_at_s = now_s + TICK_S
        with self._recovering(listening=True):
            more = all(self._step(now_s) for _ in range(MAX_CHUNKS_A_TURN))
            with self._lock:
                if self.over:
                    return False
                processed_all = not more and self.ring.head - self.position < CHUNK_SAMPLES and not self._inbox
                # A file may be read slowly: it has not ended.
                if processed_all and self.input.kind is not AudioKind.RECORDED and now_s >= self.excused_until_s:
                    self._publish(self._session.tick(now_s))
                self._note_change(now_s)
            return more
        return False

    def _step(self, now_s: float) -> bool:
        """Apply the next command, or process the audio before it, a chunk at most. Returns whether there was either."""
        session = self._session
        with self._lock:
            busy = self._n_in_flight > 0 or session.due or session.judged_until is not None
            if self.over or (self.recorded and busy and not self._outage.lasting):
                return False
            begin = session.position
            if (apply := self._inbox.take(begin)) is not None:
                self._publish(apply() or ())
                return True
            end = self._inbox.next_position
            if end is None:
                end = self.ring.head if self.ring.head - begin >= CHUNK_SAMPLES else begin
            if end <= begin or (self._outage.listening and self._outage.waits(now_s)):
                return False
            if session.paused:
                session.skip(end)
                return True
        end = min(end, begin + CHUNK_SAMPLES)
        probability: float | None = None
        try:
            probability = self._detection.probability(begin, end)
        except Overrun as overrun:
            end = min(max(overrun.oldest, begin), self.ring.head)
        with self._lock:
            if self.over or session.position != begin:  # it has failed meanwhile
                return True
            if probability is None:
                self._publish(session.lose(end, "overrun"))
                return True
            events = session.hear(end, probability, now_s)
            self._note_success(listening=True)
            self._publish(events)
            turn = session.turn_to_judge()
            if turn is not None and not self._publisher.asks(*turn):
                self._publish(session.judge(end, None))
            speech = session.waiting_from is not None
        self._activity.note(CHUNK_SAMPLES / SAMPLE_RATE, now_s, speech=speech)
        return True

    # The threads `encode` and `decode`.

    def issue(self, now_s: float) -> tuple[Span, Float32Array] | None:
        """Hand out the window that is due, if it still is, and its audio, shape (n,).

        It is given to `decode`, `fail` or `withdraw`.
        """
        window: Span | None = None
        with self._recovering(), self._lock:
            window = None if self.over else self._next_window(now_s)
            self._n_in_flight += window is not None
        if window is None:
            return None
        samples: Float32Array | None = None
        with self._recovering():
            try:
                samples = self.ring.read(window.start, window.end)
            except Overrun:
                with self._lock:
                    if not self.over:
                        self._publish(self._session.lose(self.position, "overrun"))
                        self._note_change(now_s)
        if samples is None:
            self.withdraw()
            return None
        return window, samples

    def withdraw(self) -> None:
        """Note that a window is not decoded, since a newer one replaces it."""
        with self._lock:
            self._n_in_flight -= 1

    def decode(self, window: Span, decode: Callable[[Task], Hypothesis], *, retry_s: float) -> None:
        """Have a window decoded, if it is still wanted, and publish its text."""
        task: Task | None = None
        with self._recovering(), self._lock:
            task = None if self.over else self._session.task(window, retry_s=retry_s)
        try:
            hypothesis = decode(task) if task is not None else None
        except Exception as error:  # noqa: BLE001 - a fault in one session must not end everybody's captions
            self.fail(window, error)
            return
        now_s = self._host.clock()
        with self._recovering(), self._lock:
            self._n_in_flight -= 1
            if self.over:
                return
            if task is not None and hypothesis is not None:
                self._publish(self._session.take(task, hypothesis, now_s))
                self._note_success(listening=False)
                self._publisher.warn_of_language(hypothesis.language_outside, self.settings)
            self._note_change(now_s)

    def fail(self, window: Span, error: Exception) -> None:
        """Give up the audio of a window that cannot be transcribed. The next is tried after a while."""
        with self._lock:
            self._n_in_flight -= 1
            self._fail(error, window)

    # Commands.

    def _command(self, name: str, apply: Apply, number: int | None = None) -> None:
        """Call `apply` when the audio so far has been processed, and set `number` at the same moment."""

        def apply_numbered() -> Iterable[Event] | None:
            self._session.mark = number if number is not None else self._session.mark
            return apply()

        if not self.over:
            self._inbox.put(name, self.ring.head, apply_numbered)
            self._host.wake()

    def _end(self) -> Iterable[Event]:
        self._outage.retry_at_s = -math.inf
        return [] if self._session.ended else self._session.finish(self.position)

    # The clock.

    def _write(self, samples: Float32Array) -> None:
        """Add audio to the buffer, and note when it came."""
        self.ring.write(samples)
        if not self._serving:
            return
        head, held_back = self.ring.head, self.ring.free < HELD_BACK_SAMPLES
        self._arrivals.note(head, self._host.clock(), held_back=held_back, again=head <= self.input.live_from)
        if head - self.position >= CHUNK_SAMPLES:
            self._host.wake()

    def _age_s(self, time_s: float) -> float | None:
        """Return how long ago the audio at a time of the session came; None if it is recorded or that is unknown."""
        came_s = None if self.recorded else self._arrivals.time_at(round(time_s * SAMPLE_RATE))
        return None if came_s is None else self._host.clock() - came_s

    def _next_window(self, now_s: float) -> Span | None:
        """Return the window that is due, if any, after giving up speech that has waited for too long."""
        if (lost := self._lost(now_s)) is not None:
            if self._n_in_flight:
                return None  # what is on its way is published before a loss
            self._publish(self._session.drop_before(*lost))
        window = None if self._outage.waits(now_s) else self._session.next_span(now_s)
        self.due.since_s = math.inf
        self._note_change(now_s)
        return window

    def _lost(self, now_s: float) -> tuple[int, GapReason] | None:
        """Return the position before which speech has to be given up, and why; None if it need not be."""
        waiting, oldest = self._session.waiting_from, self.ring.oldest
        overdue, max_delay_s = 0, self.input.max_delay_s
        if waiting is not None and not (self.recorded or self._session.ended or math.isinf(max_delay_s)):
            # While a model is being loaded, audio waits for as long as there is room.
            late = now_s - max_delay_s > self._host.prepared_s()
            limit = self._arrivals.position_at(now_s - max_delay_s) if late else 0
            overdue = max(limit, waiting + MIN_SHED_SAMPLES) if limit > waiting else 0
        if self._session.needed_from < oldest:
            return min(max(oldest + OVERRUN_MARGIN_SAMPLES, overdue), self.position), "overrun"
        return (min(overdue, self.position), "overload") if overdue else None

    def _note_change(self, now_s: float) -> None:
        """Note what audio is still needed, whether a window is due, and whether everything is final."""
        session, due, waits = self._session, self.due, self._outage.waits(now_s)
        self.ring.release(min(self.position, session.needed_from))
        due.retrying = waits or session.waiting_from is not None
        due.quiet_s = math.inf if session.until_due is None else session.until_due / SAMPLE_RATE
        due.since_s = min(due.since_s, now_s) if not waits and session.due else math.inf
        # At once for a final, else within the pace.
        patience_s = 0.0 if session.final_awaited else self.settings.pace_s
        due.deadline_s = due.since_s + (RECORDED_PATIENCE_S if self.recorded else patience_s)
        if session.finished:
            self._finish()

    # Failures and the end.

    @contextmanager
    def _recovering(self, *, listening: bool = False) -> Iterator[None]:
        """Restart the session if it fails: a fault in one must not end everybody's captions."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above
            with self._lock:
                self._fail(error, listening=listening)

    def _fail(self, error: Exception, window: Span | None = None, *, listening: bool = False) -> None:
        """Publish a failure, once until it is over; then give up audio and go on, or end.

        window : the only one that cannot be transcribed; None: the session itself has failed
        """
        if self.over:
            return
        self._host.stats.failures += 1
        if isinstance(error, StreamerError):
            self.logger.error("%s", error)
        else:
            self.logger.error("a session failed", exc_info=error)
            error = StreamerError(f"a session failed ({type(error).__name__}): the log has more; it is opened again")
        session, outage, now_s = self._session, self._outage, self._host.clock()
        first, again = not outage.reason, listening and outage.listening
        outage.fail(str(error), now_s, listening=listening)
        is_file = self.input.kind is AudioKind.RECORDED
        fatal = is_file and outage.lasting
        if first or fatal:
            self._publish([Error(code=error.code, message=str(error), fatal=fatal)])
        if fatal:
            self._cut_short("device")
            self._finish()
            return
        # The chunk that may have caused it is lost, too; all audio so far, if that did not help.
        until = self.ring.head if again and not is_file else min(self.position + CHUNK_SAMPLES, self.ring.head)
        if window is None:
            if self._give_up(partial(session.give_up, until), until):
                session.restart(until)
        elif outage.lasting:
            self._give_up(partial(session.give_up, self.position), until)
        else:
            self._give_up(partial(session.fail, window), until)
        if session.finished:
            self._publish(session.recovered())
        self._note_change(now_s)

    def _note_success(self, *, listening: bool) -> None:
        if self._outage.ended_by(listening=listening):
            self.logger.info("%s: it works again", self._outage.reason)
            self._outage = Outage()
            self._publish(self._session.recovered())

    def _cut_short(self, reason: GapReason) -> None:
        """Make final what is known, and publish the rest of the audio as a gap."""
        session, end = self._session, self.ring.head
        self._give_up(partial(session.cut_short, end, reason), end)
        self._publish(session.recovered())

    def _give_up(self, give_up: Callable[[], list[Event]], until: int) -> bool:
        """Give up audio and publish what is known of it. If the session fails at that, restart it at `until`.

        Returns whether it did not fail.
        """
        known = self._session.state
        try:
            events = give_up()
        except Exception:
            self.logger.exception("what was known of a session that failed is lost")
            self._publish(self._session.restart(until, known))
            return False
        self._publish(events)
        return True

    def _finish(self) -> None:
        self.over = True
        self._publisher.finish()
        self._leave()

    def _leave(self) -> None:
        self.over, self._serving = True, False
        self._inbox.clear()
        self.due.deadline_s = math.inf
        self.ring.wake()
        self._host.remove(self)

    def _publish(self, events: Iterable[Event]) -> None:
        self._publisher.publish(events, self.settings, self._host.stats, self._age_s)
