"""A session at work: its audio, its decisions, and the events that follow from them.

Any thread may write audio and commands (`Inlet`). The thread `listen` takes them from there in order, the thread
`encode` takes windows, and the thread `decode` returns their text.

A `Session` is touched only here, under the lock; everything else gets frozen values. Nothing slow is computed and no
audio is copied while the lock is held.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec

from streamer.audio.mel import LogMelStream
from streamer.audio.ring import Overrun
from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE
from streamer.engine.ear import Ear
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower, finish, judge, surviving
from streamer.engine.host import Host
from streamer.engine.inlet import AudioKind, Inlet, Input
from streamer.engine.load import Activity
from streamer.engine.recovery import Recovery, Step
from streamer.engine.tally import Tally
from streamer.engine.waiting import Due, next_due, too_late
from streamer.events import Event, Final, GapReason, Partial
from streamer.session.session import Session
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, SessionState
from streamer.session.task import Span, Task
from streamer.whisper.result import Hypothesis

Taken = TypeVar("Taken")

MAX_CHUNKS_A_TURN = 64  # 2 s of audio: then the other sessions have their turns
TICK_S = 0.5  # how often a session checks the clock while no audio comes


class LiveSession(Inlet):
    """Runs a session once it is passed to `Engine.add`. Any thread may call it up to `share`, the engine the rest."""

    def __init__(
        self,
        settings: SessionSettings,
        input: Input,
        log: EventLog,
        *,
        mel: LogMelStream,
        new_detector: Callable[[], SpeechDetector] = SpeechDetector,
        state: SessionState | None = None,
    ) -> None:
        """Publish to `log`, which is closed when everything is final. With `state`, continue another session.

        The caller then writes the audio from `state.needed_from` to `state.received` before `Engine.add` (`restored`).
        Raises SessionStateError if the state is invalid.
        """
        super().__init__(log.session, settings, input, state or NEW)
        self.log = log
        # Set before `Engine.add`.
        self.followers: Sequence[Follower] = ()
        # When the engine has work, as of the last decision.
        self.due = Due()

        # Used by the thread `encode`, and by the thread `listen`.
        self.mel = mel
        self._ear = Ear(self.ring, new_detector, start=0 if state is None else None)

        # Guards everything below.
        self._lock = threading.Lock()
        self._session = Session(settings, state or NEW)
        self._recovery = Recovery(self.logger)
        self._tally = Tally(self.logger)
        # Windows handed out that have not come back.
        self._n_in_flight = 0

    def start(self, host: Host) -> None:
        self._ear.activity = Activity(host.clock())
        super().start(host)

    def end(self, number: int | None = None) -> None:
        self._recovery.hurry()  # without the lock: who sends waits for none
        super().end(number)

    def close(self) -> None:
        """Publish nothing after this has returned; the log stays open."""
        with self._lock:
            self._leave()

    def cut_short(self, reason: GapReason) -> None:
        """Make final what is known, publish the rest of the audio as a gap, and close."""
        with self._lock:
            if not self.over:
                self._publish(self._recovery.cut_short(self._session, self.ring.head, reason))
            self._leave()

    def judge(self, end: int, probability: float | None) -> None:
        """Take how probably the speaker has finished at `end`; None if that cannot be known."""
        with self._recovering(), self._lock:
            if not self.over:
                self._publish(self._session.judge(end, probability))
                self._note_change(self.host.clock())
        self.tick_at_s = -math.inf  # a window may be due
        self.host.news.set()

    def snapshot(self, take: Callable[[], Taken]) -> tuple[Taken, SessionState]:
        """Return what `take` returns and the session's state; between the two nothing is decided or published."""
        with self._lock:
            return take(), self._session.state

    def share(self, now_s: float) -> float:
        """Return the share of its time in which there is something to transcribe, 0 to 1."""
        if self.input.reserved or (self.recorded and self.ring.head > self.position):
            return 1.0
        return self._ear.activity.share(now_s)

    def listen(self, now_s: float) -> bool:
        """Process new audio and commands. Returns whether there may be more to process at once."""
        self.tick_at_s = now_s + TICK_S
        with self._recovering("listen"):
            more = all(self._step(now_s) for _ in range(MAX_CHUNKS_A_TURN))
            with self._lock:
                if self.over:
                    return False
                processed_all = not more and self.ring.head - self.position < CHUNK_SAMPLES and not self.commands
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
            if self.over or (self.recorded and busy and not self._recovery.lasting):
                return False
            begin = session.now.received
            if (command := self.commands.take(begin)) is not None:
                if command.what == "end":
                    self._recovery.hurry()
                self._publish(command.apply(session))
                self.settings, self.position = session.settings, session.now.received
                return True
            end = self.commands.next_position
            if end is None:
                end = self.ring.head if self.ring.head - begin >= CHUNK_SAMPLES else begin
            if end <= begin or (self._recovery.listening and self._recovery.waits(now_s)):
                return False
            if session.now.paused:
                session.skip(end)
                self.position = session.now.received
                return True
        end = min(end, begin + CHUNK_SAMPLES)
        probability: float | None = None
        try:
            probability = self._ear.probability(begin, end)
        except Overrun as overrun:
            end = min(max(overrun.oldest, begin), self.ring.head)
        with self._lock:
            if self.over or session.now.received != begin:  # it has failed meanwhile
                return True
            if probability is None:
                self._publish(session.lose(end, "overrun"))
            else:
                events = session.hear(end, probability, now_s)
                self._publish([*self._recovery.succeed(session, listening=True), *events])
                turn = session.turn_to_judge()
                if turn is not None and not judge(self.followers, *turn, self.logger):
                    self._publish(session.judge(end, None))
                self._ear.activity.note(CHUNK_SAMPLES / SAMPLE_RATE, now_s, speech=session.now.waiting_from is not None)
            self.position = session.now.received
        return True

    def next_span(self, now_s: float) -> Span | None:
        """Return the window that is due, if any, after giving up speech that has waited for too long.

        It is given back by `take`, `fail` or `withdraw`, or by `task` if it is no longer wanted.
        """
        with self._recovering(), self._lock:
            if self.over:
                return None
            lost = too_late(self._session, self, now_s)
            if lost is not None and self._n_in_flight:
                return None  # what is on its way is published before a loss
            if lost is not None:
                self._publish(self._session.drop_before(*lost))
            span = None if self._recovery.waits(now_s) else self._session.next_span(now_s)
            self.due = replace(self.due, since_s=math.inf)
            self._note_change(now_s)
            self._n_in_flight += span is not None
            return span
        return None

    def withdraw(self) -> None:
        """Note that a window is not decoded, since a newer one replaces it."""
        with self._lock:
            self._n_in_flight -= 1

    def task(self, span: Span, *, retry_s: float) -> Task | None:
        """Return how to decode a window; None if it is no longer wanted. See `Session.task` for `retry_s`."""
        task: Task | None = None
        with self._recovering(), self._lock:
            task = None if self.over else self._session.task(span, retry_s=retry_s)
        if task is None:
            with self._recovering(), self._lock:
                self._n_in_flight -= 1
                if not self.over:
                    self._note_change(self.host.clock())
        return task

    def take(self, task: Task, hypothesis: Hypothesis) -> None:
        """Publish the text of a window."""
        now_s = self.host.clock()
        with self._recovering(), self._lock:
            self._n_in_flight -= 1
            if not self.over:
                self._publish(self._session.take(task, hypothesis, now_s))
                self._publish(self._recovery.succeed(self._session, listening=False))
                self._tally.warn_of_language(hypothesis.language_outside, self._session.settings)
                self._note_change(now_s)

    def fail(self, span: Span, error: Exception) -> None:
        """Give up the audio of a window that cannot be transcribed. The next is tried after a while."""
        with self._recovering(), self._lock:
            self._n_in_flight -= 1
            if self.over:
                return
            if isinstance(error, Overrun):
                self._publish(self._session.lose(self._session.now.received, "overrun"))
                self._note_change(self.host.clock())
            else:
                self._fail(error, span)

    @contextmanager
    def _recovering(self, step: Step = "decide") -> Iterator[None]:
        """Recover the session where it fails: a fault in one must not end everybody's captions."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above
            with self._lock:
                if not self.over:
                    self._fail(error, step)

    def _fail(self, error: Exception, where: Span | Step) -> None:
        self.host.stats.failures += 1
        now_s, recorded = self.host.clock(), self.input.kind is AudioKind.RECORDED
        events, over = self._recovery.fail(self._session, error, where, now_s, head=self.ring.head, recorded=recorded)
        self.failing = self._recovery.reason
        self._publish(events)
        if over:
            self._leave(finished=True)
        else:
            self._note_change(now_s)

    def _publish(self, events: Iterable[Event]) -> None:
        """Publish events, whatever fails on their way."""
        settings = self._session.settings
        for event in events:
            for follower in self.followers:
                with surviving(self.logger, "a %s event is published without a label", event.type):
                    event = follower.label(event)
            with surviving(self.logger, "a %s event is not counted", event.type):
                self._tally.count(event, self)
            if isinstance(event, Partial | Final) and not settings.words:
                event = msgspec.structs.replace(event, words=())
            event = self.log.append(event)
            for follower in self.followers if event.seq else ():
                with surviving(self.logger, "a %s event is not followed", event.type):
                    follower.see(event)

    def _note_change(self, now_s: float) -> None:
        """Note after a decision what others may know, and leave if everything is final."""
        session, waits = self._session, self._recovery.waits(now_s)
        self.settings, self.position, self.failing = session.settings, session.now.received, self._recovery.reason
        self.ring.release(min(session.now.received, session.needed_from))
        self.due = next_due(session, self.due.since_s, now_s, waits=waits, recorded=self.recorded)
        if session.now.finished:
            self._leave(finished=True)

    def _leave(self, *, finished: bool = False) -> None:
        """Be over; close the log if everything is final, behind what follows the session."""
        self.stop()
        self.due = Due()
        # They may refer to the session, which is to be freed at once.
        followers, self.followers = self.followers, ()
        if finished:
            self.log.call_behind(partial(finish, followers, self.log.close, self.logger))
