"""One session of streaming transcription: what to transcribe next, and what to publish.

Sans-I/O: it takes speech probabilities, hypotheses, commands and the time, and returns spans to encode and events to
publish. All that it knows is one frozen value. `gate` finds utterances, `windows` says which audio of them is due,
`reading` what a hypothesis says, `again` whether that is decoded once more, and `transcript` makes text of it.

An utterance is published in *segments*, one final each: the last ends with it, earlier ones where long speech is cut.
"""

from msgspec.structs import replace

from streamer.constants import SAMPLE_RATE
from streamer.events import Event, GapReason, Speech, Turn, seconds
from streamer.session.again import Again, Pass, go_on, try_again
from streamer.session.course import Course
from streamer.session.gate import PAUSE_SAMPLES, Gate
from streamer.session.reading import read
from streamer.session.settings import SessionSettings
from streamer.session.state import NEW, SessionState
from streamer.session.task import Span, Task, down_to_frame
from streamer.session.text import Beginning
from streamer.session.windows import OpenSpeech
from streamer.whisper.result import Hypothesis

# Speech ends if no audio comes for this long: the client has stopped sending. Networks stall for less.
STALL_S = 2.0


class Session:
    """The decisions of one session."""

    def __init__(self, settings: SessionSettings, state: SessionState = NEW) -> None:
        """Continue a session with audio from `state.received` on; spans may need audio from `state.needed_from` on.

        Raises SessionStateError if the state is invalid.
        """
        state.check()
        # What was asked of a turn model and a decoder elsewhere is asked again.
        now = replace(state, gate=state.gate.unasked(), speech=state.speech.reissued())
        self._course = Course(settings, now)
        # The caller's number of the last command, kept in the state.
        self.mark = state.mark
        # End of the audio that a turn model judges; None if it judges none.
        self.judged_until: int | None = None
        # When audio was last received, in seconds of the caller's clock; None if unknown.
        self._received_s: float | None = None

    @property
    def now(self) -> SessionState:
        """What is known."""
        return self._course.now

    @property
    def state(self) -> SessionState:
        """What another session needs to continue from here."""
        return replace(self.now, needed_from=min(self.needed_from, self.now.received), mark=self.mark)

    @property
    def settings(self) -> SessionSettings:
        return self._course.settings

    @property
    def needed_from(self) -> int:
        """Position of the oldest sample that may still be part of a window."""
        return self._course.needed_from

    @property
    def due(self) -> bool:
        """Whether `next_span` would return one."""
        return self._course.windows.due

    @property
    def until_due(self) -> int | None:
        """Samples of audio that have to come before a span can be due; None without speech."""
        return self._course.windows.until_due

    # Audio and commands.

    def hear(self, end: int, probability: float, now_s: float) -> list[Event]:
        """Take the probability that there is speech in the audio from the end of the last call to `end`."""
        self._received_s = now_s
        now, settings = self.now, self.settings.gate
        gate, boundary = now.gate.feed(settings, self.now.received, end, probability)
        speech = now.speech.more(end, detected=probability >= settings.threshold)
        self._course.set(gate=gate, speech=speech, losses=now.losses.growing(missing=False))
        events = [*self._course.publish_losses(), *self._course.cross(boundary)]
        if not gate.open and self._course.is_final(end - gate.last_speech):
            events += self._course.end_utterance()
        return events

    def turn_to_judge(self) -> tuple[int, int] | None:
        """Return the audio of a turn, if it may be over: start and end. `judge` is to be called with what is found."""
        asking = self.now.gate.ask(self.settings.gate, self.now.received)
        if asking is None:
            return None
        self._course.set(gate=asking)
        self.judged_until = self.now.received
        return self.now.speech.utterances[-1].start, self.now.received

    def judge(self, end: int, probability: float | None) -> list[Event]:
        """Take the probability that the speaker has finished at `end`; None: it is unknown, as without a model."""
        if end != self.judged_until:
            return []
        self.judged_until = None
        finished = probability is None or probability >= self.settings.gate.turn_threshold
        gate, lasts = self.now.gate.answer(finished=finished)
        self._course.set(gate=gate)
        if not lasts or probability is None:
            return []
        return [Turn(time=seconds(end), probability=probability, finished=finished)]

    def tick(self, now_s: float) -> list[Event]:
        """Let time pass without audio: if none comes for long, speech has ended."""
        if self._received_s is None:
            self._received_s = now_s
        stall_s = max(STALL_S, self.settings.gate.min_silence_s)
        return self._course.end_speech() if self.now.gate.open and now_s - self._received_s >= stall_s else []

    def change(self, settings: SessionSettings) -> None:
        """Decide by other settings from now on."""
        self._course.settings = settings
        text = replace(self.now.text, hypotheses=())
        self._course.set(text=text if self.now.speech.current is None else text.without_earlier(settings))

    def finish(self, end: int) -> list[Event]:
        """End the audio at a position."""
        self._course.receive(end)
        self._course.set(ended=True, losses=self.now.losses.growing(missing=False))
        return self.resume() if self.now.paused else self._course.end_speech()

    def flush(self) -> list[Event]:
        """End speech here: all of it becomes final, and then `flushed` is published."""
        self._course.set(losses=self.now.losses.flush(self.now.received))
        return self._course.end_speech()

    def pause(self) -> list[Event]:
        """End speech here and ignore audio until `resume`."""
        events = self._course.end_speech()
        if not self.now.paused:
            self._course.set(paused_from=self.now.received)
        return events

    def skip(self, end: int) -> None:
        """Ignore audio up to `end`, in a pause."""
        assert self.now.paused, "audio is skipped only in a pause"
        self._course.receive(end)

    def resume(self) -> list[Event]:
        """Go on after a pause, which is a gap."""
        start = self.now.paused_from
        self._course.set(paused_from=None)
        return [] if start is None else self._course.lose_from(start, "paused")

    def clear(self) -> list[Event]:
        """Forget what is not final: it is a gap."""
        events = self._course.close_gate()
        if self.now.speech.current is None:
            return events
        start = self.now.text.start
        self._course.set(text=self.now.text.cleared())
        self._course.remove_all()
        return [*events, *self._course.lose_from(start, "cleared")]

    # Losses.

    def miss(self, end: int, reason: GapReason) -> list[Event]:
        """Audio from the end of the last call to `end` never came: speech before it becomes final."""
        events = self._course.end_speech()
        start = self.now.received
        self._course.set(losses=self.now.losses.growing(missing=True))
        self._course.receive(end)
        return [*events, *self._course.lose_from(start, reason)]

    def lose(self, end: int, reason: GapReason) -> list[Event]:
        """Audio that was needed, up to `end`, is gone: make known text final and go on after it."""
        start, events = self._course.abandon()
        self._course.remove_all()  # later utterances have no text yet
        events += self._course.close_gate()
        start = min(start, self.now.received)
        self._course.receive(end)
        return [*events, *self._course.lose_from(start, reason)]

    def cut_short(self, end: int, reason: GapReason) -> list[Event]:
        """Make known text final, lose the rest up to `end`, and end the audio there."""
        return [*self.lose(end, reason), *self.finish(end)]

    def give_up(self, end: int) -> list[Event]:
        """This session cannot go on: make known text final, lose the rest up to `end`; see `restart`."""
        self._course.outage = True
        return self.lose(end, "device")

    def restart(self, start: int, known: SessionState | None = None) -> list[Event]:
        """Go on from a position after this session failed. What it has not published is lost, until `recovered`.

        known : the state before audio was given up, if that failed: nothing of it was published
        """
        now, self._course.outage, self._received_s = self.now, True, None
        text = now.text.cleared()
        self._course.set(
            gate=Gate(last_speech=start, floor=start),
            speech=OpenSpeech(start, n_begun=now.speech.n_begun),
            text=replace(text, begins=Beginning(text.begins.word, down_to_frame(start))),
            losses=now.losses.growing(missing=False),
            after_gap=True,
            retry_s=0.0,
        )
        self._course.begin_text(0)
        if known is None:
            return []
        if (first := known.speech.current) is not None:
            self._course.add_loss(max(known.losses.published_until, first.start), start, "device")
        _, end = known.gate.close(self.settings.gate, known.received)
        return [] if end is None else [Speech(state="end", time=seconds(end.position))]

    def recovered(self) -> list[Event]:
        """Publish what was lost while windows failed: one has succeeded."""
        self._course.outage = False
        return self._course.publish_losses()

    def drop_before(self, until: int, reason: GapReason) -> list[Event]:
        """Give up speech before a position: make its known text final and go on from there.

        No span may be on its way: its text would be lost, too.
        """
        until = down_to_frame(min(until, self.now.received))
        events: list[Event] = []
        lost: list[int] = []
        while (utterance := self.now.speech.current) is not None and utterance.start < until:
            known, finals = self._course.abandon()
            events += finals
            resume = max(until, known)
            lost += [known, resume]
            if utterance.open or utterance.end > resume:
                self._course.set(speech=self.now.speech.resumed_at(resume))
                self._course.begin_text(resume)
                break
            lost[-1] = utterance.end
            self._course.remove()
        if lost:
            self._course.add_loss(lost[0], lost[-1], reason)
        return [*events, *self._course.publish_losses()]

    def fail(self, span: Span) -> list[Event]:
        """A span cannot be transcribed: give up its utterance, unless a newer span has been transcribed.

        Until a span succeeds, all that is lost is one loss.
        """
        self._course.outage = True
        utterance = self.now.speech.find(span)
        if utterance is None:
            return []
        if utterance.open:
            return self.lose(self.now.received, "device")
        known, events = self._course.abandon()
        self._course.remove()
        self._course.add_loss(known, utterance.end, "device")
        return [*events, *self._course.publish_losses()]

    # Transcribing.

    def next_span(self, now_s: float) -> Span | None:
        """Return the audio to encode next; None if none is due."""
        windows = self._course.windows
        if not windows.due:
            return None
        speech = windows.joined()
        first = speech.utterances[0]
        end = windows.end_in(first)
        self._course.set(speech=speech.with_first(replace(first, issued_end=end)))
        return Span(
            utterance=first.number,
            start=windows.start,
            end=end,
            last=not first.open and end == first.end,
            pause=end >= self.now.gate.last_speech + PAUSE_SAMPLES,
            first_word=self.now.text.begins.word,
            issued_s=now_s,
        )

    def task(self, span: Span, *, retry_s: float = 0.0) -> Task | None:
        """Return how to decode a span; None if it is no longer wanted.

        retry_s : seconds for further attempts if its text becomes final and fails its thresholds

        The answer holds until the next `take`: spans are decoded one after the other.
        """
        speech = self.now.speech
        utterance = speech.find(span)
        if utterance is None:
            return None
        left_s = retry_s if utterance.complete_at(span.end) else 0.0
        request = self.now.text.request(span, self.settings, retry_s=left_s)
        if request is None:  # a later window is decoded instead
            speech = speech.with_first(replace(utterance, issued_end=0))
        self._course.set(retry_s=retry_s, speech=speech)
        n_new_samples = max(0, span.end - max(span.start, utterance.start, utterance.decoded_end))
        return None if request is None else Task(span, request, n_new_samples)

    def take(self, task: Task, hypothesis: Hypothesis, now_s: float) -> list[Event]:
        """Take what the decoder found; return what to publish."""
        span, speech = task.span, self.now.speech
        utterance = speech.find(span)
        if utterance is None:
            return self.recovered()
        self._course.set(speech=replace(speech, cost=round(max(0.0, now_s - span.issued_s) * SAMPLE_RATE)))
        transcript, complete = self._course.transcript(), utterance.complete_at(span.end)
        n_detected = speech.detected.between(transcript.text.start, span.end)
        reading = read(transcript.text, task, hypothesis, self.settings, n_detected)
        first_cut_short = hypothesis.cut_short and not utterance.cut_short
        transcript.keep(reading, span, complete=complete)
        done = Pass(
            span=span,
            complete=complete,
            may_retry=first_cut_short or (not task.request.retry_s and self._course.may_retry(utterance)),
            automatic=self.settings.language == "auto",
            sure=reading.trusted and not transcript.text.undecided(self.settings),
            outside=bool(hypothesis.language_outside),
        )
        utterance = replace(utterance, cut_short=utterance.cut_short or hypothesis.cut_short)
        again, tried = try_again(transcript, reading, done, utterance)
        if again is None:
            utterance = replace(utterance, decoded_end=max(utterance.decoded_end, span.end))
        if again is None and not complete:
            trusted = reading.trusted and Again.WITHOUT_CONTEXT not in tried
            if done.sure and trusted and Again.WITH_EARLIER not in tried:
                transcript.commit(span)
            again = go_on(transcript, utterance, span, speech.pauses)
            transcript.show(span, trusted=trusted)
        self._course.set(speech=self.now.speech.with_first(again or utterance))
        events = self.recovered()  # not if the hypothesis could not be applied
        if again is None and complete:
            return [*events, *self._course.close(transcript, utterance.end)]
        return [*events, *self._course.write(transcript)]
