"""One session of streaming transcription: what to transcribe next, and what to publish.

Sans-I/O: it takes speech probabilities, hypotheses, commands and the time, and returns windows to transcribe and events
to publish. The speech gate finds utterances, `WindowSchedule` decides when a window of them is due, `SessionTranscript`
turns hypotheses into text and sets where windows begin. Positions are absolute samples of the session's audio.

An utterance is published in *segments*, one final each: the last ends with it, earlier ones where long speech is cut.
"""

from streamer.constants import SAMPLE_RATE
from streamer.events import Event, Flushed, Gap, GapReason, Speech, Turn, seconds
from streamer.session.gate import PAUSE_SAMPLES, GateState, SpeechEnd, SpeechGate, SpeechStart
from streamer.session.schedule import ScheduleState, WindowSchedule
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, Loss, SessionState
from streamer.session.task import MAX_SILENCE_SAMPLES, Span, Task, Utterance, down_to_frame, up_to_frame
from streamer.session.transcript import INVENTED_SAMPLES, SessionTranscript, Verdict
from streamer.whisper.result import Hypothesis

# Speech ends if no audio comes for this long: the client has stopped sending. Networks stall for less.
STALL_S = 2.0

# Flushes that wait for one answer each; those behind them have one.
MAX_FLUSHES = 100

# Speech detected this soon after audio begins, or resumes after a gap, begins with it: the detector misses the first
# sounds while its state is cold.
BEGIN_SAMPLES = SAMPLE_RATE // 2


class Session:
    """The decisions of one session."""

    def __init__(self, settings: SessionSettings, state: SessionState = NEW) -> None:
        """Continue a session with audio from `state.received` on; windows may need audio from `state.needed_from` on.

        Raises SessionStateError if the state is invalid.
        """
        state.check()
        self.settings = settings
        self._gate = SpeechGate(settings.gate, state.gate)
        self._schedule = WindowSchedule(settings, state.schedule)
        self._transcript = SessionTranscript(settings, state.transcript, self._schedule)
        # Losses that are not published yet, in order: speech before them is not final, or they are not over.
        self._losses = list(state.losses)
        # Positions that `flushed` is to be published for.
        self._flushes = list(state.flushes)
        # Whether windows fail: their loss is published when one succeeds.
        self._outage = False
        # Whether the newest audio is missing: more may be, and that is one loss.
        self._missing = state.missing
        # Whether no speech began since the last gap, or the beginning of the audio.
        self._after_gap = state.after_gap
        # Positions of the silences in the newest utterance.
        self._pauses: list[int] = []
        # End of the newest final or gap: later ones begin there at the earliest.
        self._published_until = state.published_until
        # Position at which the client paused; None if not paused.
        self._paused_from = state.paused_from
        # Seconds that the newest request left for a better text of a final.
        self._retry_s = state.retry_s
        # End of the audio that a turn model judges; None if it judges none.
        self.judged_until: int | None = None
        # When audio was last received, in seconds of the caller's clock; None if unknown.
        self._received_s: float | None = None
        # Whether the audio has ended.
        self.ended = state.ended
        # The caller's number of the last command, kept in the state.
        self.mark = state.mark

    @property
    def state(self) -> SessionState:
        """What another session needs to continue from here."""
        return SessionState(
            needed_from=min(self.needed_from, self._schedule.received),
            mark=self.mark,
            gate=self._gate.state,
            schedule=self._schedule.state,
            transcript=self._transcript.state,
            losses=tuple(self._losses),
            flushes=tuple(self._flushes),
            missing=self._missing,
            after_gap=self._after_gap,
            published_until=self._published_until,
            paused_from=self._paused_from,
            retry_s=self._retry_s,
            ended=self.ended,
        )

    def change(self, settings: SessionSettings) -> None:
        self.settings = settings
        self._gate.settings, self._schedule.settings = settings.gate, settings
        self._transcript.change(settings)
        if self._schedule.current is not None:
            self._transcript.begin_window(self._schedule.window_start)

    @property
    def finished(self) -> bool:
        """Whether the audio has ended and all speech is final."""
        return self.ended and self._schedule.current is None

    @property
    def paused(self) -> bool:
        return self._paused_from is not None

    @property
    def needed_from(self) -> int:
        """Position of the oldest sample that may still be part of a window."""
        if self._schedule.current is not None:
            earlier = self._transcript.earlier
            return self._schedule.window_start if earlier is None else min(self._schedule.window_start, earlier[1])
        # Speech may have begun this long ago, and its window may reach back to earlier words.
        gate = self.settings.gate
        lookback = round((gate.pad_s + gate.min_speech_s) * SAMPLE_RATE) + SAMPLE_RATE
        start = max(0, self._schedule.received - lookback)
        if start - self._schedule.last_speech > MAX_SILENCE_SAMPLES:
            return start
        return max(min(start, self._schedule.window_start), start - self._schedule.reach)

    @property
    def position(self) -> int:
        """End of the audio that was processed."""
        return self._schedule.received

    @property
    def waiting_from(self) -> int | None:
        """Position of the oldest speech without text; None if all speech has text."""
        return self._schedule.waiting_from

    @property
    def final_awaited(self) -> bool:
        """Whether speech has ended and is not final yet."""
        utterance = self._schedule.current
        return utterance is not None and not utterance.open

    def hear(self, end: int, probability: float, now_s: float) -> list[Event]:
        """Take the probability that there is speech in the audio from the end of the last call to `end`."""
        self._received_s = now_s
        self._missing = False
        boundary = self._gate.feed(self._schedule.received, end, probability)
        detected = probability >= self.settings.gate.threshold
        self._schedule.advance(end, self._gate.last_speech, detected=detected)
        events = [*self._publish_losses(), *self._cross(boundary)]
        if not self._gate.open and self._is_final(end - self._gate.last_speech):
            events += self._end_utterance()
        return events

    def turn_to_judge(self) -> tuple[int, int] | None:
        """Return the audio of a turn, if it may be over: start and end. `judge` is to be called with what is found."""
        if not self._gate.ask(self.position):
            return None
        assert self._schedule.newest is not None, "speech has begun"
        self.judged_until = self.position
        return self._schedule.newest.start, self.position

    def judge(self, end: int, probability: float | None) -> list[Event]:
        """Take the probability that the speaker has finished at `end`; None: it is unknown, as without a model."""
        if end != self.judged_until:
            return []
        self.judged_until = None
        finished = probability is None or probability >= self.settings.gate.turn_threshold
        if not self._gate.answer(finished=finished) or probability is None:
            return []
        return [Turn(time=seconds(end), probability=probability, finished=finished)]

    def tick(self, now_s: float) -> list[Event]:
        """Let time pass without audio: if none comes for long, speech has ended."""
        if self._received_s is None:
            self._received_s = now_s
        stall_s = max(STALL_S, self.settings.gate.min_silence_s)
        return self._end_speech() if self._gate.open and now_s - self._received_s >= stall_s else []

    def finish(self, end: int) -> list[Event]:
        """End the audio at a position."""
        self._schedule.received = max(self._schedule.received, end)
        self.ended, self._missing = True, False
        return self.resume() if self.paused else self._end_speech()

    def flush(self) -> list[Event]:
        """End speech here: all of it becomes final, and then `flushed` is published."""
        del self._flushes[MAX_FLUSHES:]
        self._flushes.append(self._schedule.received)
        return self._end_speech()

    def pause(self) -> list[Event]:
        """End speech here and ignore audio until `resume`."""
        events = self._end_speech()
        if self._paused_from is None:
            self._paused_from = self._schedule.received
        return events

    def skip(self, end: int) -> None:
        """Ignore audio up to `end`, in a pause."""
        assert self.paused, "audio is skipped only in a pause"
        self._schedule.received = max(self._schedule.received, end)

    def resume(self) -> list[Event]:
        """Go on after a pause, which is a gap."""
        start, self._paused_from = self._paused_from, None
        return [] if start is None else self._lose_from(start, "paused")

    def clear(self) -> list[Event]:
        """Forget what is not final: it is a gap."""
        events = self._close_gate()
        if self._schedule.current is None:
            return events
        self._transcript.clear()
        start = self._transcript.segment_start
        self._remove_all()
        return [*events, *self._lose_from(start, "cleared")]

    def miss(self, end: int, reason: GapReason) -> list[Event]:
        """Audio from the end of the last call to `end` never came: speech before it becomes final."""
        events = self._end_speech()
        self._missing = True
        start, self._schedule.received = self._schedule.received, max(self._schedule.received, end)
        return [*events, *self._lose_from(start, reason)]

    def lose(self, end: int, reason: GapReason) -> list[Event]:
        """Audio that was needed, up to `end`, is gone: make known text final and go on after it."""
        events: list[Event] = []
        start = self._schedule.received
        if self._schedule.current is not None:
            # Later utterances have no text yet.
            start = min(start, self._abandon(self._schedule.current, events))
            self._remove_all()
        events += self._close_gate()
        self._schedule.received = max(self._schedule.received, end)
        return [*events, *self._lose_from(start, reason)]

    def cut_short(self, end: int, reason: GapReason) -> list[Event]:
        """Make known text final, lose the rest up to `end`, and end the audio there."""
        return [*self.lose(end, reason), *self.finish(end)]

    def give_up(self, end: int) -> list[Event]:
        """This session cannot go on: make known text final, lose the rest up to `end`; see `restart`."""
        self._outage = True
        return self.lose(end, "device")

    def restart(self, start: int, known: SessionState | None = None) -> list[Event]:
        """Go on from a position after this session failed. What it has not published is lost, until `recovered`.

        known : the state before audio was given up, if that failed: nothing of it was published
        """
        self._gate = SpeechGate(self.settings.gate, GateState(last_speech=start, floor=start))
        self._schedule = self._transcript.schedule = WindowSchedule(self.settings, ScheduleState.at(start))
        self._transcript.clear()
        self._transcript.begin(0)
        self._missing, self._after_gap, self._pauses = False, True, []
        self._retry_s, self._received_s = 0.0, None
        self._outage = True
        if known is None:
            return []
        for first in known.schedule.utterances[:1]:
            self._add_loss(max(known.published_until, first.start), start, "device")
        end = SpeechGate(self.settings.gate, known.gate).close(known.received)
        return [] if end is None else [Speech(state="end", time=seconds(end.position))]

    def recovered(self) -> list[Event]:
        """Publish what was lost while windows failed: one has succeeded."""
        self._outage = False
        return self._publish_losses()

    def drop_before(self, until: int, reason: GapReason) -> list[Event]:
        """Give up speech before a position: make its known text final and go on from there.

        No window may be on its way: its text would be lost, too.
        """
        until = down_to_frame(min(until, self._schedule.received))
        events: list[Event] = []
        lost: list[int] = []
        while (utterance := self._schedule.current) is not None and utterance.start < until:
            known = self._abandon(utterance, events)
            resume = max(until, known)
            lost += [known, resume]
            if utterance.open or utterance.end > resume:
                self._schedule.resume_at(resume)
                self._transcript.begin(resume)
                break
            lost[-1] = utterance.end
            self._remove_first()
        if lost:
            self._add_loss(lost[0], lost[-1], reason)
        return [*events, *self._publish_losses()]

    def fail(self, window: Span) -> list[Event]:
        """A window cannot be transcribed: give up its utterance, unless a newer window has been transcribed.

        Until a window succeeds, all that is lost is one loss.
        """
        self._outage = True
        utterance = self._schedule.find(window)
        if utterance is None:
            return []
        if utterance.open:
            return self.lose(self._schedule.received, "device")
        events: list[Event] = []
        known = self._abandon(utterance, events)
        self._remove_first()
        self._add_loss(known, utterance.end, "device")
        return [*events, *self._publish_losses()]

    @property
    def due(self) -> bool:
        """Whether `next_span` would return one."""
        return self._schedule.due()

    @property
    def until_due(self) -> int | None:
        """Samples of audio that have to come before a window can be due; None without speech."""
        return self._schedule.until_due

    def next_span(self, now_s: float) -> Span | None:
        """Return the audio to encode next; None if none is due."""
        return self._schedule.next_window(self._transcript.first_word, now_s)

    def task(self, span: Span, *, retry_s: float = 0.0) -> Task | None:
        """Return how to decode a span; None if it is no longer wanted.

        retry_s : seconds for further attempts if its text becomes final and fails its thresholds

        The answer holds until the next `take`: spans are decoded one after the other.
        """
        utterance = self._schedule.find(span)
        if utterance is None:
            return None
        self._retry_s = retry_s
        request = self._transcript.request(span, retry_s=retry_s if utterance.complete_at(span.end) else 0.0)
        if request is None:
            utterance.issued_end = 0  # a later window is decoded instead
            return None
        return Task(span, request, max(0, span.end - max(span.start, utterance.start, utterance.decoded_end)))

    def take(self, task: Task, hypothesis: Hypothesis, now_s: float) -> list[Event]:
        """Take what the decoder found; return what to publish."""
        window, request = task.span, task.request
        utterance = self._schedule.find(window)
        if utterance is None:
            return self.recovered()
        schedule, transcript = self._schedule, self._transcript
        schedule.cost = round(max(0.0, now_s - window.issued_s) * SAMPLE_RATE)
        complete = utterance.complete_at(window.end)
        first_cut_short = hypothesis.cut_short and not utterance.cut_short
        utterance.cut_short |= hypothesis.cut_short
        verdict = transcript.apply_hypothesis(
            window,
            request,
            hypothesis,
            complete=complete,
            may_repeat=complete and (first_cut_short or (not request.retry_s and self._may_repeat(utterance))),
        )
        events = self.recovered()  # not if the hypothesis could not be applied
        again = verdict is Verdict.REPEAT
        match verdict:
            case Verdict.DROP_CONTEXT:
                transcript.drop_context()
                again = complete or window.pause  # no later window would mend it
            case Verdict.RESUME:
                events += self._resume_after_stable(utterance, window)
                again = schedule.window_start < (utterance.words_end if complete else window.end) - INVENTED_SAMPLES
        if again and utterance.again(schedule.window_start if verdict is Verdict.RESUME else None):
            return events
        utterance.decoded_end = max(utterance.decoded_end, window.end)
        trusted = verdict in (Verdict.TRUST, Verdict.RESUME)
        decided = trusted and not transcript.undecided
        reaches_back = (complete or decided) and transcript.reach_back()
        if complete:
            if reaches_back and utterance.again():  # it was too short for its language to be sure
                return events
            return [*events, *self._conclude(utterance)]
        if decided and not reaches_back:
            transcript.commit(window)
        if not schedule.ends_in_next(utterance):
            events += self._move_on(utterance, window)
        elif transcript.stuck:
            events += self._resume_after_stable(utterance, window)
        partial = transcript.partial(window, trusted=trusted)
        return events if partial is None else [*events, partial]

    def _move_on(self, utterance: Utterance, window: Span) -> list[Event]:
        """Make the beginning of long speech final, and keep the next window short enough."""
        events = self._published(self._transcript.cut(window, self._pauses))
        full = self._schedule.is_full(window.end)  # it is not decoded once more by itself
        if not events and (self._transcript.stuck or (full and self._transcript.n_stuck)):
            start = self._schedule.window_start
            events = self._resume_after_stable(utterance, window)
            if not full or self._schedule.window_start > start or utterance.again(start):
                return events
        self._transcript.move_on(window)
        return events

    def _resume_after_stable(self, utterance: Utterance, window: Span) -> list[Event]:
        end = window.end if utterance.open else min(window.end, utterance.end)
        return self._published(self._transcript.skip_hole(end) or self._transcript.resume_after_stable(end))

    def _conclude(self, utterance: Utterance) -> list[Event]:
        """Make an utterance final, all windows of which were decoded, or have speech without words decoded again."""
        again = self._transcript.look_again(utterance.end)
        if again is None:
            return self._close()
        events = self._published(again)
        if utterance.again(self._schedule.window_start):
            return events
        return [*events, *self._close()]

    def _cross(self, boundary: SpeechStart | SpeechEnd | None) -> list[Event]:
        match boundary:
            case SpeechStart(position):
                if self._schedule.newest is None or not self._schedule.newest.open:
                    if self._after_gap and self._gate.floor >= position - BEGIN_SAMPLES:
                        position = self._gate.floor
                    # A final may cover more audio than the gate detected as speech.
                    position = max(position, self._published_until)
                    utterance = self._schedule.begin(position, after_gap=self._after_gap)
                    self._after_gap, self._pauses = False, []
                    if utterance is self._schedule.current:
                        self._begin(utterance)
                else:
                    self._pauses.append((self._gate.floor + position) // 2)
                return [Speech(state="start", time=seconds(position))]
            case SpeechEnd(position):
                return [Speech(state="end", time=seconds(position))]
        return []

    def _begin(self, utterance: Utterance) -> None:
        """Begin to transcribe an utterance."""
        self._transcript.begin(utterance.start, reach=0 if utterance.after_gap else self._schedule.reach)

    def _is_final(self, silence: int) -> bool:
        """Return whether the newest utterance is over after this many samples of silence."""
        newest = self._schedule.newest
        if newest is None or not newest.open:
            return False
        decoded = newest is self._schedule.current and newest.decoded_end >= self._schedule.last_speech + PAUSE_SAMPLES
        return silence >= round(self.settings.final_silence_s * SAMPLE_RATE) or (decoded and self._transcript.complete)

    def _end_utterance(self) -> list[Event]:
        """End the newest utterance; publish its final if its windows have been transcribed."""
        newest = self._schedule.newest
        assert newest is not None, "speech ends that never began"
        current = newest is self._schedule.current
        newest = self._schedule.end(max(self._gate.floor, self._transcript.segment_start if current else newest.start))
        if newest.complete_at(newest.decoded_end):
            doubtful = not self._transcript.tail.reliable and self._may_repeat(newest)
            lacks_words = self._transcript.first_hole(newest.end) is not None
            if not ((doubtful or lacks_words) and newest.again()):
                return self._close()
        return []

    def _may_repeat(self, utterance: Utterance) -> bool:
        """Return whether there is time to decode the last window of an utterance once more."""
        return self._retry_s > 0 and not utterance.n_again

    def _end_speech(self) -> list[Event]:
        events = self._close_gate()
        if self._schedule.newest is not None and self._schedule.newest.open:
            events += self._end_utterance()
        return [*events, *self._publish_losses()]

    def _close_gate(self) -> list[Event]:
        boundary = self._gate.close(self._schedule.received)
        return [] if boundary is None else [Speech(state="end", time=seconds(boundary.position))]

    def _close(self) -> list[Event]:
        """Make the oldest utterance final, which has ended."""
        utterance = self._schedule.current
        assert utterance is not None, "there is nothing to close"
        assert not utterance.open, "the utterance has not ended"
        events = self._published(self._transcript.close(utterance.end))
        self._remove_first()
        return [*events, *self._publish_losses()]

    def _abandon(self, utterance: Utterance, events: list[Event]) -> int:
        """Make known text of the oldest utterance final; return the position from which on the rest is lost."""
        decoded = utterance.decoded_end if utterance.open else min(utterance.decoded_end, utterance.end)
        end = max(decoded, self._transcript.segment_start)
        events += self._published(self._transcript.abandon(end))
        return end

    def _published(self, events: list[Event]) -> list[Event]:
        if events:
            self._published_until = self._transcript.segment_start
            self._schedule.speech.drop_before(self._published_until)
        return events

    def _remove_all(self) -> None:
        while self._schedule.current is not None:
            self._remove_first()

    def _remove_first(self) -> None:
        self._schedule.remove_first()
        following = self._schedule.current
        if following is not None:
            self._begin(following)

    def _lose_from(self, start: int, reason: GapReason) -> list[Event]:
        """Lose the audio from a position to the newest; speech has ended."""
        # Later windows begin at a mel frame after the gap.
        self._gate.skip_to(up_to_frame(self._schedule.received))
        self._schedule.last_speech = self._gate.last_speech
        self._after_gap = True
        # A pause is a gap of its own.
        self._add_loss(start, self._schedule.received if self._paused_from is None else self._paused_from, reason)
        return self._publish_losses()

    def _add_loss(self, start: int, end: int, reason: GapReason) -> None:
        """Note a loss; it absorbs those within it, and extends one of the same reason that it adjoins."""
        if start >= end:
            return
        if self._outage and reason in ("overload", "overrun"):
            reason = "device"
        self._losses = [loss for loss in self._losses if not start <= loss.start <= loss.end <= end]
        before = next((loss for loss in reversed(self._losses) if loss.start <= start), None)
        first = self._schedule.current
        goes_on = self._outage and before in self._losses[-1:] and (first is None or first.start >= start)
        adjoins = before is not None and (before.end >= start or goes_on)
        if before is not None and before.reason == reason and adjoins:
            self._losses.remove(before)
            start = before.start
        self._losses = sorted([*self._losses, Loss(start, end, reason)], key=lambda loss: loss.start)

    def _publish_losses(self) -> list[Event]:
        """Publish losses that are over, once all speech before them is final, and then flushes."""
        events: list[Event] = []
        first = self._schedule.current
        while self._losses and (first is None or first.start >= self._losses[0].start):
            loss = self._losses[0]
            growing = self._missing and loss.end == self._schedule.received
            if (growing or (self._outage and loss.reason == "device")) and not self.finished:
                break
            del self._losses[0]
            gap = Gap(start=seconds(loss.start), end=seconds(loss.end), reason=loss.reason)
            if gap.start < gap.end:  # not rounded to nothing
                events.append(gap)
            self._published_until = max(self._published_until, loss.end)
        awaited = [first.start] if first is not None else []
        awaited += [loss.start for loss in self._losses]
        while self._flushes and all(start >= self._flushes[0] for start in awaited):
            events.append(Flushed(time=seconds(self._flushes.pop(0))))
        return events
