"""The course of a session: what it knows, and how its utterances begin, become final and are lost."""

from msgspec.structs import replace

from streamer.constants import SAMPLE_RATE
from streamer.events import Event, GapReason, Partial, Speech, seconds
from streamer.session.gate import PAUSE_SAMPLES, SpeechEnd, SpeechStart
from streamer.session.losses import Loss
from streamer.session.settings import SessionSettings
from streamer.session.state import SessionState
from streamer.session.task import up_to_frame
from streamer.session.transcript import Transcript
from streamer.session.windows import MAX_SILENCE_SAMPLES, Pace, Utterance, Windows

# Speech detected this soon after audio begins, or resumes after a gap, begins with it: the detector misses the first
# sounds while its state is cold.
BEGIN_SAMPLES = SAMPLE_RATE // 2


class Course:
    """The only owner of what a session knows."""

    def __init__(self, settings: SessionSettings, state: SessionState) -> None:
        self.settings = settings
        # Replaced as a whole.
        self.now = state
        # Whether windows fail: their loss is published when one succeeds.
        self.outage = False

    def set(self, **changes: object) -> None:
        self.now = replace(self.now, **changes)

    @property
    def pace(self) -> Pace:
        return Pace.of(self.settings, self.now.speech.cost)

    # Text.

    @property
    def windows(self) -> Windows:
        now = self.now
        return Windows(now.speech, self.pace, now.gate.last_speech, now.text.begins.position)

    @property
    def needed_from(self) -> int:
        """Position of the oldest sample that may still be part of a window."""
        text = self.now.text
        begins = text.begins.position
        if self.now.speech.current is not None:
            return begins if text.earlier is None else min(begins, text.earlier.position)
        # Speech may have begun this long ago, and its window may reach back to earlier words.
        gate = self.settings.gate
        lookback = round((gate.pad_s + gate.min_speech_s) * SAMPLE_RATE) + SAMPLE_RATE
        start = max(0, self.now.received - lookback)
        if start - self.now.gate.last_speech > MAX_SILENCE_SAMPLES:
            return start
        return max(min(start, begins), start - self.pace.reach)

    def transcript(self) -> Transcript:
        return Transcript(self.now.text, self.settings, self.now.speech.detected, self.pace)

    def write(self, transcript: Transcript) -> list[Event]:
        """Keep what became of the text; return what to publish of it."""
        self.set(text=transcript.text)
        if any(not isinstance(event, Partial) for event in transcript.events):
            until, speech = transcript.text.start, self.now.speech
            self.set(
                losses=replace(self.now.losses, published_until=until),
                speech=replace(speech, detected=speech.detected.since(until)),
            )
        return transcript.events

    def begin_text(self, start: int, *, reach: int = 0) -> None:
        """Begin the text of an utterance; see `Transcript.begin`."""
        transcript = self.transcript()
        transcript.begin(start, reach=reach)
        self.write(transcript)

    def close(self, transcript: Transcript, end: int) -> list[Event]:
        """Make the oldest utterance final, which has ended."""
        transcript.close(end)
        events = self.write(transcript)
        self.remove()
        return [*events, *self.publish_losses()]

    def abandon(self) -> tuple[int, list[Event]]:
        """Make known text of the oldest utterance final; return the position from which on the rest is lost."""
        utterance, transcript = self.now.speech.current, self.transcript()
        if utterance is None:
            return self.now.received, []
        end = max(utterance.speech_until(utterance.decoded_end), transcript.text.start)
        transcript.abandon(end)
        return end, self.write(transcript)

    def remove(self) -> None:
        """Remove the oldest utterance, which is final or given up, and begin with the next."""
        self.set(speech=self.now.speech.with_first())
        if (utterance := self.now.speech.current) is not None:
            self.begin_text(utterance.start, reach=0 if utterance.after_gap else self.pace.reach)

    def remove_all(self) -> None:
        while self.now.speech.current is not None:
            self.remove()

    # Speech begins and ends.

    def cross(self, boundary: SpeechStart | SpeechEnd | None) -> list[Event]:
        match boundary:
            case SpeechStart(position):
                speech, floor = self.now.speech, self.now.gate.floor
                if speech.newest is None or not speech.newest.open:
                    position = self._begin_utterance(position)
                else:
                    self.set(speech=replace(speech, pauses=(*speech.pauses, (floor + position) // 2)))
                return [Speech(state="start", time=seconds(position))]
            case SpeechEnd(position):
                return [Speech(state="end", time=seconds(position))]
        return []

    def _begin_utterance(self, position: int) -> int:
        """Begin an utterance where speech was detected, or somewhat before; return where."""
        now = self.now
        if now.after_gap and now.gate.floor >= position - BEGIN_SAMPLES:
            position = now.gate.floor
        # A final may cover more audio than the gate detected as speech.
        position = max(position, now.losses.published_until)
        self.set(speech=now.speech.begin(position, after_gap=now.after_gap), after_gap=False)
        if now.speech.current is None:
            self.begin_text(position, reach=0 if now.after_gap else self.pace.reach)
        return position

    def is_final(self, silence: int) -> bool:
        """Return whether the newest utterance is over after this many samples of silence."""
        now = self.now
        newest = now.speech.newest
        if newest is None or not newest.open:
            return False
        decoded = newest is now.speech.current and newest.decoded_end >= now.gate.last_speech + PAUSE_SAMPLES
        return silence >= round(self.settings.final_silence_s * SAMPLE_RATE) or (decoded and now.text.complete)

    def end_utterance(self) -> list[Event]:
        """End the newest utterance; publish its final if its windows have been transcribed."""
        gate, speech = self.now.gate, self.now.speech
        assert speech.newest is not None, "speech ends that never began"
        begin = self.now.text.start if speech.newest is speech.current else speech.newest.start
        end = max(gate.floor, begin)
        speech = speech.ended(end, words_end=min(gate.last_speech + PAUSE_SAMPLES, end))
        newest = speech.utterances[-1]
        self.set(speech=speech)
        if not newest.complete_at(newest.decoded_end):
            return []
        transcript = self.transcript()
        doubtful = not transcript.text.tail.reliable and self.may_retry(newest)
        lacks_words = transcript.first_hole(end) is not None
        if (doubtful or lacks_words) and (again := newest.again()) is not None:
            self.set(speech=speech.with_first(again))
            return []
        return self.close(transcript, end)

    def may_retry(self, utterance: Utterance) -> bool:
        """Return whether there is time to decode the last window of an utterance once more."""
        return self.now.retry_s > 0 and not utterance.n_again

    def end_speech(self) -> list[Event]:
        events = self.close_gate()
        newest = self.now.speech.newest
        if newest is not None and newest.open:
            events += self.end_utterance()
        return [*events, *self.publish_losses()]

    def close_gate(self) -> list[Event]:
        gate, boundary = self.now.gate.close(self.settings.gate, self.now.received)
        self.set(gate=gate)
        return self.cross(boundary)

    # What is lost.

    def lose_from(self, start: int, reason: GapReason) -> list[Event]:
        """Lose the audio from a position to the newest; speech has ended."""
        # Later windows begin at a mel frame after the gap.
        self.set(gate=self.now.gate.skip_to(up_to_frame(self.now.received)), after_gap=True)
        # A pause is a gap of its own.
        self.add_loss(start, self.now.received if self.now.paused_from is None else self.now.paused_from, reason)
        return self.publish_losses()

    def add_loss(self, start: int, end: int, reason: GapReason) -> None:
        losses = self.now.losses.add(Loss(start, end, reason), self.now.speech.first_start, outage=self.outage)
        self.set(losses=losses)

    def publish_losses(self) -> list[Event]:
        """Publish losses that are over, once all speech before them is final, and then flushes."""
        held = not self.now.finished
        losses, events = self.now.losses.publish(
            self.now.speech.first_start, growing=self.now.received if held else None, outage=self.outage and held
        )
        self.set(losses=losses)
        return events

    def receive(self, end: int) -> None:
        speech = self.now.speech
        self.set(speech=replace(speech, received=max(speech.received, end)))
