"""One session of streaming transcription: what to transcribe next, and what to say of it.

Sans-I/O: told of speech probabilities, hypotheses, commands and the time, it answers with windows to transcribe and
events to publish. The speech gate finds stretches of speech, the passes say which window of them is due, the transcript
makes text of what the decoder says. Positions are absolute samples of the session's audio.

A stretch is told in *segments*, one final each: the last ends with the stretch, earlier ones where long speech is cut.
"""

import itertools
from collections.abc import Iterator
from typing import Self

from streamer.audio.constants import HOP_LENGTH, SAMPLE_RATE
from streamer.events import Event, Final, Flushed, Gap, GapReason, Speech, seconds
from streamer.stream.gate import SpeechEnd, SpeechGate, SpeechStart
from streamer.stream.passes import PAUSE_SAMPLES, Passes, Stretch
from streamer.stream.settings import SessionSettings
from streamer.stream.state import Loss, SessionState
from streamer.stream.transcript import INVENTED_SAMPLES, Transcript
from streamer.stream.window import MAX_SILENCE_SAMPLES, Request, Window
from streamer.whisper.result import Hypothesis

# Where no audio has come for as long, speech has ended: whoever sent it has stopped. Networks hesitate for less.
STALL_S = 2.0

# Speech detected this soon after the audio starts, or resumes after a loss, starts with it: the detector misses first
# sounds while its state is cold.
BEGIN_SAMPLES = SAMPLE_RATE // 2


class Session:
    """The decisions of one session."""

    def __init__(self, settings: SessionSettings, *, start: int = 0, numbers: Iterator[int] | None = None) -> None:
        """Begin to hear at a position, with numbers for the stretches of speech."""
        self._settings = settings
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._gate = SpeechGate(settings.gate, start=start)
        self._passes = Passes(settings, self._numbers, start=start)
        self._transcript = Transcript(settings)
        # Losses that are not published yet, in order: speech before them is not final, or more is being lost.
        self._losses: list[Loss] = []
        # Places up to which everything is to be told, where that has not happened yet.
        self._flushes: list[int] = []
        # Whether what is lost goes on to be lost, since windows fail: the loss is published when it is over.
        self._outage = False
        # Whether nothing was heard since audio was missed: more may be, and it is one loss.
        self._missing = False
        # Whether audio was lost since the newest stretch of speech.
        self._after_loss = False
        # Positions of the silences in the newest speech.
        self._pauses: list[int] = []
        # Where the audio begins, or came again after the last loss.
        self._audible_from = start
        # Where the newest final or gap ends: nothing that follows reaches back beyond it.
        self._told_until = start
        # Since where what comes is not heard, because somebody asked for that; None while it is heard.
        self._paused_from: int | None = None
        # Seconds that there are for a better text of a final, as was said last.
        self._retry_s = 0.0
        # When audio was heard last, in seconds of the caller's clock; None where it is not known yet.
        self._heard_s: float | None = None
        # Whether the audio has ended.
        self.ended = False
        # What the sender of the audio has said last of how far it is, to be found in the state.
        self.mark = 0

    @property
    def state(self) -> SessionState:
        """What another session needs to go on from here; see `restored`."""
        return SessionState(
            needed_from=min(self.needed_from, self._passes.heard),
            mark=self.mark,
            gate=self._gate.state,
            passes=self._passes.state,
            transcript=self._transcript.state,
            losses=tuple(self._losses),
            flushes=tuple(self._flushes),
            missing=self._missing,
            after_loss=self._after_loss,
            told_until=self._told_until,
            paused_from=self._paused_from,
            retry_s=self._retry_s,
            ended=self.ended,
        )

    @classmethod
    def restored(cls, settings: SessionSettings, state: SessionState) -> Self:
        """Return a session that goes on where another was: it hears audio from `state.heard` on.

        Windows may reach back to `state.needed_from`. Raises SessionStateError where that cannot be.
        """
        state.check()
        numbers = itertools.count(1 + max((stretch.number for stretch in state.passes.stretches), default=0))
        session = cls(settings, numbers=numbers)
        session._gate = SpeechGate.restored(settings.gate, state.gate)
        session._passes = Passes.restored(settings, numbers, state.passes)
        session._transcript = Transcript.restored(settings, state.transcript)
        session._losses, session._flushes = list(state.losses), list(state.flushes)
        session._missing, session._after_loss = state.missing, state.after_loss
        session._told_until, session._paused_from = state.told_until, state.paused_from
        session._retry_s, session.ended, session.mark = state.retry_s, state.ended, state.mark
        return session

    def change(self, settings: SessionSettings) -> None:
        self._settings = settings
        self._gate.change(settings.gate)
        self._passes.change(settings)
        self._transcript.change(settings)

    @property
    def finished(self) -> bool:
        """Whether the audio has ended and everything that was said is final."""
        return self.ended and self._passes.current is None

    @property
    def paused(self) -> bool:
        return self._paused_from is not None

    @property
    def needed_from(self) -> int:
        """Position of the oldest sample that may still be asked for."""
        if self._passes.current is not None:
            return self._passes.window_start
        # A start of speech may reach back as far, and a window to words before it.
        gate = self._settings.gate
        lookback = round((gate.pad_s + gate.min_speech_s) * SAMPLE_RATE) + SAMPLE_RATE
        start = max(0, self._passes.heard - lookback)
        if start - self._passes.last_speech > MAX_SILENCE_SAMPLES:
            return start
        return max(min(start, self._passes.window_start), start - self._reach)

    @property
    def _reach(self) -> int:
        """Most samples of known words that the next window takes in: half of it, less if passes cost much."""
        return min(round(self._settings.window_s * SAMPLE_RATE / 2), self._passes.room)

    @property
    def waiting_from(self) -> int | None:
        """Position of the oldest speech that no text has come of; None where there is none."""
        return self._passes.waiting_from

    @property
    def final_awaited(self) -> bool:
        """Whether speech has ended and is not final yet."""
        stretch = self._passes.current
        return stretch is not None and not stretch.open

    def advance(self, end: int, probability: float, now_s: float) -> list[Event]:
        """Hear audio from where the last call ended to `end`, which is speech as probably as that."""
        self._heard_s = now_s
        self._missing = False
        boundary = self._gate.feed(self._passes.heard, end, probability)
        self._passes.advance(end, self._gate.last_speech)
        events = [*self._tell_losses(), *self._cross(boundary)]
        if not self._gate.open and self._is_final(end - self._gate.last_speech):
            events += self._end_stretch()
        return events

    def _is_final(self, silence: int) -> bool:
        """Return whether so many samples of silence make the newest speech final: fewer do behind a whole sentence."""
        newest = self._passes.newest
        if newest is None or not newest.open:
            return False
        read = newest is self._passes.current and newest.taken_end >= self._passes.last_speech + PAUSE_SAMPLES
        return silence >= round(self._settings.final_silence_s * SAMPLE_RATE) or (read and self._transcript.complete)

    def tick(self, now_s: float) -> list[Event]:
        """Time has passed, and all audio that came was heard: where none comes any more, speech has ended."""
        if self._heard_s is None:
            self._heard_s = now_s
        stall_s = max(STALL_S, self._settings.gate.min_silence_s)
        return self._end_speech() if self._gate.open and now_s - self._heard_s >= stall_s else []

    def finish(self, end: int) -> list[Event]:
        """The audio ends at `end`: what is being said is over."""
        self._passes.heard = max(self._passes.heard, end)
        self.ended, self._missing = True, False
        return self.resume() if self.paused else self._end_speech()

    def flush(self) -> list[Event]:
        """Speech ends here: what was said becomes final, and `flushed` says when all of it has."""
        if self._passes.heard not in self._flushes:
            self._flushes.append(self._passes.heard)
        return self._end_speech()

    def pause(self) -> list[Event]:
        """Hear nothing from here on; what was said becomes final."""
        events = self._end_speech()
        if self._paused_from is None:
            self._paused_from = self._passes.heard
        return events

    def skip(self, end: int) -> None:
        """Let audio up to `end` pass while paused."""
        assert self.paused, "nothing is skipped but in a pause"
        self._passes.heard = max(self._passes.heard, end)

    def resume(self) -> list[Event]:
        """Hear what comes from here on; what was not heard meanwhile is a gap."""
        start, self._paused_from = self._paused_from, None
        return [] if start is None else self._lose_from(start, "paused")

    def clear(self) -> list[Event]:
        """Forget what is not final: it is a gap."""
        events = self._close_gate()
        if self._passes.current is None:
            return events
        self._transcript.clear()
        start = self._transcript.segment_start
        self._remove_all()
        return [*events, *self._lose_from(start, "cleared")]

    def miss(self, end: int, reason: GapReason) -> list[Event]:
        """Audio from where the last call ended to `end` never came: what was said before becomes final."""
        events = self._end_speech()
        self._missing = True
        start, self._passes.heard = self._passes.heard, max(self._passes.heard, end)
        return [*events, *self._lose_from(start, reason)]

    def lose(self, end: int, reason: GapReason) -> list[Event]:
        """Audio that was needed, up to `end`, is gone: make final what is known and go on behind it."""
        events: list[Event] = []
        start = self._passes.heard
        if self._passes.current is not None:
            # It reaches back furthest, and those behind it were never transcribed.
            start = min(start, self._abandon(self._passes.current, events))
            self._remove_all()
        events += self._close_gate()
        self._passes.heard = max(self._passes.heard, end)
        return [*events, *self._lose_from(start, reason)]

    def give_up(self, end: int) -> list[Event]:
        """Something failed for which this session cannot go on: make final what is known, lose the rest up to `end`."""
        self._outage = True
        return self.lose(end, "device")

    def successor(self, start: int) -> "Session":
        """Return a session that goes on from a position on, behind this one, which was given up.

        What this one had not told is lost, and what is being lost goes on to be.
        """
        session = Session(self._settings, start=start, numbers=self._numbers)
        session._transcript = self._transcript.successor()
        session._losses, session._outage = self._losses, True
        session._flushes = self._flushes
        session._told_until, session._paused_from = self._told_until, self._paused_from
        session.ended, session.mark = self.ended, self.mark
        if self._passes.current is not None:
            # Not even what is known could be told.
            session._add_loss(max(self._told_until, self._passes.current.start), start, "device")
        return session

    def recovered(self) -> list[Event]:
        """What had failed works again: publish what was lost meanwhile."""
        self._outage = False
        return self._tell_losses()

    def drop_before(self, until: int, reason: GapReason) -> list[Event]:
        """Give up speech before `until`, which was heard: make final what is known of it and go on from there.

        No window may be on its way: its text would be lost, too.
        """
        until = min(until, self._passes.heard) // HOP_LENGTH * HOP_LENGTH
        events: list[Event] = []
        lost_from: int | None = None
        lost_until = 0
        while (stretch := self._passes.current) is not None and stretch.start < until:
            known = self._abandon(stretch, events)
            self._remove_first()
            lost_from = known if lost_from is None else lost_from
            resume = max(until, known)
            lost_until = resume if stretch.open else min(resume, stretch.end)
            if stretch.open or stretch.end > resume:
                self._passes.resume_at(stretch, resume)
                self._passes.move_on(self._transcript.begin(resume))
                break
        if lost_from is not None:
            self._add_loss(lost_from, lost_until, reason)
        return [*events, *self._tell_losses()]

    def fail(self, window: Window) -> list[Event]:
        """A window cannot be transcribed: give up its speech, unless newer text of it has come since.

        Until a window can be transcribed again, what is lost is one loss, which is published then.
        """
        self._outage = True
        stretch = self._passes.find(window)
        if stretch is None:
            return []
        if stretch.open:
            return self.lose(self._passes.heard, "device")
        events: list[Event] = []
        known = self._abandon(stretch, events)
        self._remove_first()
        self._add_loss(known, stretch.end, "device")
        return [*events, *self._tell_losses()]

    def next_window_due(self) -> bool:
        """Say whether `next_window` would return one."""
        return self._passes.due()

    @property
    def until_due(self) -> int | None:
        """Samples of audio that have to come before a window can be due; None while nobody speaks."""
        return self._passes.until_due

    def next_window(self, now_s: float) -> Window | None:
        """Return the audio to transcribe next, or None where nothing is due."""
        return self._passes.next_window(self._transcript.first_word, now_s)

    def request(self, window: Window, *, retry_s: float = 0.0) -> Request | None:
        """Return how to decode a window, or None where it is not wanted any more.

        retry_s : seconds that further attempts may take where its text becomes final and fails its thresholds

        The answer holds until the next `apply_hypothesis`: windows are decoded one after the other.
        """
        stretch = self._passes.find(window)
        if stretch is None:
            return None
        self._retry_s = retry_s
        closing = self._passes.closes(stretch, window.end)
        request = self._transcript.request(window, retry_s=retry_s if closing else 0.0)
        if request is None:
            self._passes.look_again(stretch)
        return request

    def apply_hypothesis(self, window: Window, request: Request, hypothesis: Hypothesis, now_s: float) -> list[Event]:
        """Take what a window reads. Returns what there is to say."""
        stretch = self._passes.find(window)
        if stretch is None:
            return self.recovered()
        transcript = self._transcript
        self._passes.cost = round(max(0.0, now_s - window.issued_s) * SAMPLE_RATE)
        newest = window.start == self._passes.window_start
        trusted = transcript.apply_hypothesis(window, request, hypothesis, newest=newest)
        events = self.recovered()  # not before it is known that the hypothesis can be taken: what fails says nothing
        led_astray = transcript.loops and (bool(request.prompt) or window.start < transcript.segment_start)
        if led_astray:
            # What was said last may have led the decoder into the loop: it is not shown it again.
            self._passes.move_on(transcript.forget_before_segment())

        closing = self._passes.closes(stretch, window.end)
        if led_astray and (closing or window.pause):
            # Once more, without a prompt: no window may follow that would mend it.
            self._passes.look_again(stretch)
            return events
        if closing and not transcript.reliable and not request.retry_s and self._may_look_again(stretch):
            # Speech ended while it was decoded as a text that may still change.
            self._passes.look_again(stretch)
            return events
        stretch.taken_end = max(stretch.taken_end, window.end)
        goes_on = transcript.went_on_behind_reread and (closing or (window.pause and trusted))
        if goes_on or (closing and transcript.skips):
            # No window may follow: what was said behind that is heard once more, without it.
            events += self._begin_behind_settled(stretch, window)
            if self._passes.window_start < (stretch.heard_from if closing else window.end) - INVENTED_SAMPLES:
                self._passes.hear_rest_again(stretch)
                return events
        if closing:
            return [*events, *self._close()]

        if trusted:
            transcript.settle(window)
        if not self._passes.ends_in_next(stretch):
            events += self._move_on(stretch, window)
        elif transcript.stuck:
            events += self._begin_behind_settled(stretch, window)
        partial = transcript.partial(window, trusted=trusted)
        return events if partial is None else [*events, partial]

    def _move_on(self, stretch: Stretch, window: Window) -> list[Event]:
        """Make the beginning of long speech final, and keep the next window short enough."""
        transcript, passes = self._transcript, self._passes
        final = transcript.publish(window, self._pauses)
        events: list[Event] = [] if final is None else [self._told(final, transcript.segment_start)]
        if final is None and transcript.stuck:
            return self._begin_behind_settled(stretch, window)
        full = passes.is_full(window.end)
        if full or transcript.crowded or passes.too_long(window.end):
            earliest = window.end - self._reach
            if transcript.crowded:
                earliest = max(earliest, (passes.window_start + window.end) // 2)
            position = transcript.move_on(window, earliest, full=full)
            if position is not None:
                passes.move_on(position)
        return events

    def _begin_behind_settled(self, stretch: Stretch, window: Window) -> list[Event]:
        end = window.end if stretch.open else min(window.end, stretch.end)
        final, position = self._transcript.begin_behind_settled(end)
        self._passes.move_on(position)
        return [] if final is None else [self._told(final, self._transcript.segment_start)]

    def _cross(self, boundary: SpeechStart | SpeechEnd | None) -> list[Event]:
        match boundary:
            case SpeechStart(position):
                if self._passes.newest is None or not self._passes.newest.open:
                    if self._gate.floor == self._audible_from >= position - BEGIN_SAMPLES:
                        position = self._audible_from
                    # A final may cover more audio than the gate detected as speech.
                    position = max(position, self._told_until)
                    stretch = self._passes.begin(position, after_loss=self._after_loss)
                    self._after_loss, self._pauses = False, []
                    if stretch is self._passes.current:
                        self._begin(stretch)
                else:
                    self._pauses.append((self._gate.floor + position) // 2)
                return [Speech(state="start", time=seconds(position))]
            case SpeechEnd(position):
                return [Speech(state="end", time=seconds(position))]
        return []

    def _begin(self, stretch: Stretch) -> None:
        """Begin to transcribe speech; its first window takes in earlier words, as far as there is room."""
        reach = 0 if stretch.after_loss else self._reach
        position = self._transcript.begin(stretch.start, window_start=self._passes.window_start, reach=reach)
        self._passes.move_on(position)

    def _end_stretch(self) -> list[Event]:
        """What was said before a long silence becomes final."""
        newest = self._passes.newest
        assert newest is not None, "speech ends that never began"
        current = newest is self._passes.current
        newest = self._passes.end(max(self._gate.floor, self._transcript.segment_start if current else newest.start))
        if self._passes.closes(newest, newest.taken_end):
            # The newest hypothesis says it all; where it can be relied on.
            if self._transcript.reliable or not self._may_look_again(newest):
                return self._close()
            self._passes.look_again(newest)
        return []

    def _may_look_again(self, stretch: Stretch) -> bool:
        """Say whether there is time to decode the last window of a stretch once more, and it was not yet."""
        return self._retry_s > 0 and not stretch.looked_again

    def _end_speech(self) -> list[Event]:
        events = self._close_gate()
        if self._passes.newest is not None and self._passes.newest.open:
            events += self._end_stretch()
        return [*events, *self._tell_losses()]

    def _close(self) -> list[Event]:
        """Make final what is known of the oldest stretch, which has ended."""
        stretch = self._passes.current
        assert stretch is not None, "there is nothing to close"
        assert not stretch.open, "it goes on"
        final = self._told(self._transcript.close(stretch.end), stretch.end)
        self._remove_first()
        return [final, *self._tell_losses()]

    def _close_gate(self) -> list[Event]:
        """Say that speech has ended where it goes on; what becomes of it is decided elsewhere."""
        boundary = self._gate.close(self._passes.heard)
        return [] if boundary is None else [Speech(state="end", time=seconds(boundary.position))]

    def _remove_all(self) -> None:
        while self._passes.current is not None:
            self._remove_first()

    def _remove_first(self) -> None:
        self._passes.remove_first()
        following = self._passes.current
        if following is not None:
            self._begin(following)

    def _abandon(self, stretch: Stretch, events: list[Event]) -> int:
        """Make final what is known of a stretch, the oldest; return where what is lost of it begins."""
        taken = stretch.taken_end if stretch.open else min(stretch.taken_end, stretch.end)
        end = max(taken, self._transcript.segment_start)
        final = self._transcript.abandon(end)
        if final is not None:
            events.append(self._told(final, end))
        return end

    def _told(self, final: Final, end: int) -> Final:
        self._told_until = end
        return final

    def _lose_from(self, start: int, reason: GapReason) -> list[Event]:
        """What was heard from a position on is lost; speech has ended."""
        # Up to the grid of the spectrogram's frames, so that the next window begins behind what is lost.
        self._audible_from = -(-self._passes.heard // HOP_LENGTH) * HOP_LENGTH
        self._gate.skip_to(self._audible_from)
        self._passes.last_speech = self._gate.last_speech
        self._after_loss = True
        # What comes in a pause is a loss of its own.
        self._add_loss(start, self._passes.heard if self._paused_from is None else self._paused_from, reason)
        return self._tell_losses()

    def _add_loss(self, start: int, end: int, reason: GapReason) -> None:
        """Note a loss in its place: it takes in those that it covers, and goes on from one that it adjoins."""
        if start >= end:
            return
        if self._outage and reason in ("overload", "overrun"):
            reason = "device"
        self._losses = [loss for loss in self._losses if not start <= loss.start <= loss.end <= end]
        before = next((loss for loss in reversed(self._losses) if loss.start <= start), None)
        first = self._passes.current
        goes_on = self._outage and before in self._losses[-1:] and (first is None or first.start >= start)
        adjoins = before is not None and (before.end >= start or goes_on)
        if before is not None and before.reason == reason and adjoins:
            self._losses.remove(before)
            start = before.start
        self._losses = sorted([*self._losses, Loss(start, end, reason)], key=lambda loss: loss.start)

    def _tell_losses(self) -> list[Event]:
        """Publish the losses that are over, and before which all that was said is final; and which flushes are done."""
        events: list[Event] = []
        first = self._passes.current
        while self._losses and (first is None or first.start >= self._losses[0].start):
            loss = self._losses[0]
            goes_on = (self._outage and loss.reason == "device") or (self._missing and loss.end == self._passes.heard)
            if goes_on and not self.finished:
                break
            del self._losses[0]
            gap = Gap(start=seconds(loss.start), end=seconds(loss.end), reason=loss.reason)
            if gap.start < gap.end:  # else nobody could tell it from none
                events.append(gap)
            self._told_until = max(self._told_until, loss.end)
        awaited = [first.start] if first is not None else []
        awaited += [loss.start for loss in self._losses]
        while self._flushes and all(start >= self._flushes[0] for start in awaited):
            events.append(Flushed(time=seconds(self._flushes.pop(0))))
        return events
