"""What docs/protocol.md promises of a session's events."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamer.events import (
    End,
    Error,
    Event,
    Final,
    Flushed,
    Gap,
    Partial,
    Ready,
    Revision,
    Speech,
    Translation,
    Turn,
    Word,
)
from tools.benchmarks.unsaid import Span, unsaid

# Most detected speech in a row, in seconds, that may be in no word and in no gap.
UNSAID_S = 1.6

# Times are rounded to the millisecond, each by itself.
ROUNDING_S = 0.0015


@dataclass
class Promises:
    """Takes the events of one session in order; AssertionError where one breaks a promise."""

    # Whether events may come without their words: somebody asked for that.
    wordless: bool = False

    finals: list[Final] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    # Numbers of finals that were translated.
    translated: set[int] = field(default_factory=set)

    # Stretches of speech, the last open while its end is None.
    speech: list[tuple[float, float | None]] = field(default_factory=list)
    partials: int = 0

    # Where speech was detected, in seconds, as far as that is known.
    detected: list[Span] = field(default_factory=list)

    # Number of the segment that is open, and the newest partial of it.
    segment: int = 1
    partial: Partial | None = None

    # Where the newest final or gap ended: what follows does not reach back beyond it.
    told_until: float = 0.0

    # Whether a fatal error was published, and whether `end` was.
    failed: bool = False
    ended: bool = False

    def take(self, events: Iterable[Event]) -> None:
        """Take what comes next."""
        for event in events:
            assert not self.ended, f"{event} after `end`"
            match event:
                case Speech():
                    self._take_speech(event)
                case Turn(time=time):
                    since_s, until_s = self.speech[-1]
                    assert until_s is None, f"{event}: speech has ended"
                    assert time > since_s, f"{event}: speech began at {since_s} s"
                case Partial():
                    self._take_partial(event)
                case Final():
                    self._take_final(event)
                case Gap():
                    self._take_gap(event)
                case Flushed():
                    self._take_flushed(event)
                case Revision():
                    self._take_revision(event)
                case Translation():
                    assert event.of in {final.seq for final in self.finals}, f"{event}: no final has this number"
                    assert event.text, f"{event} says nothing"
                    assert event.of not in self.translated, f"{event}: it was translated before"
                    self.translated.add(event.of)
                case Error():
                    assert event.code
                    assert event.message
                    assert "\n" not in event.message
                    assert not self.failed, f"{event} after a fatal error"
                    self.failed = event.fatal
                case End():
                    self.ended = True
                case _:
                    assert isinstance(event, Ready), f"unexpected {event}"

    def check_all_told(self) -> None:
        """Hold that speech has ended, and that every moment of it lies in a final or in a gap."""
        told = sorted([(f.start, f.end) for f in self.finals] + [(gap.start, gap.end) for gap in self.gaps])
        n_passed = 0
        for start_s, end_s in self.speech:
            assert end_s is not None, f"speech that began at {start_s} s never ended"
            while n_passed < len(told) and told[n_passed][1] < start_s - ROUNDING_S:
                n_passed += 1
            reached_s = start_s
            for begin_s, until_s in told[n_passed:]:
                if begin_s > reached_s + ROUNDING_S:
                    break
                reached_s = max(reached_s, until_s)
            assert reached_s >= end_s - ROUNDING_S, (
                f"speech from {start_s} s to {end_s} s: from {reached_s} s on it lies in no final and no gap"
            )
        assert not self.unsaid, f"{self.unsaid}: speech was detected that is in no word and in no gap"

    @property
    def unsaid(self) -> list[tuple[float, float, float]]:
        """Where speech was detected that is in no word and in no gap: start, end, and seconds of speech."""
        words = [(word.start, word.end) for final in self.finals for word in final.words]
        gaps = [(gap.start, gap.end) for gap in self.gaps]
        return [] if self.wordless else unsaid(self.detected, [*words, *gaps], UNSAID_S)

    def _take_speech(self, event: Speech) -> None:
        since_s, until_s = self.speech[-1] if self.speech else (0.0, 0.0)
        if event.state == "start":
            assert until_s is not None, f"{event}: speech has begun already"
            assert event.time >= until_s, f"{event}: speech ended at {until_s} s"
            self.speech.append((event.time, None))
        else:
            assert self.speech, f"{event}: there was no speech"
            assert until_s is None, f"{event}: it has ended at {until_s} s"
            assert event.time >= since_s, f"{event}: speech began at {since_s} s"
            self.speech[-1] = (since_s, event.time)

    def _take_partial(self, event: Partial) -> None:
        self.partials += 1
        assert 0 <= event.stable <= len(event.text), f"{event.stable} of {len(event.text)} characters: {event}"
        self._check_text(event)
        n_stable = sum(word.stable for word in event.words)
        assert all(word.stable for word in event.words[:n_stable]), f"a stable word behind one that is not: {event}"
        if event.words:
            stable = "".join(word.word for word in event.words[:n_stable]).strip()
            assert stable == event.text[: event.stable], f"`stable` and the words' say different things: {event}"
        self.partial = event

    def _take_final(self, event: Final) -> None:
        self._check_text(event)
        assert all(word.stable for word in event.words), f"not all is stable: {event}"
        assert event.language
        assert 0.0 <= event.no_speech_prob <= 1.0
        assert event.avg_logprob <= 0.0
        self.finals.append(event)
        self._leave_segment(event.end)

    def _take_gap(self, event: Gap) -> None:
        assert event.start < event.end, f"{event} is empty"
        assert event.start >= self.told_until, f"{event}: all was told up to {self.told_until} s"
        self.gaps.append(event)
        if event.reason in ("cleared", "device") and self.partial is not None:
            # What was shown is forgotten, or lost by a fault, and its segment's number not used again.
            self._leave_segment(event.end)
        self.told_until = event.end

    def _take_flushed(self, event: Flushed) -> None:
        before = [(start_s, end_s) for start_s, end_s in self.speech if start_s < event.time]
        for _, end_s in before[-1:]:
            # Speech is detected some moments after it began: a flush may come in between.
            until_s = event.time if end_s is None else min(end_s, event.time)
            assert self.told_until >= until_s - ROUNDING_S, f"{event}: all is told only up to {self.told_until} s"

    def _take_revision(self, event: Revision) -> None:
        final = next((final for final in self.finals if final.seq == event.of), None)
        assert final is not None, f"{event}: no final has this number"
        assert event.by
        assert "".join(word.word for word in event.words).strip() == event.text, f"the words say otherwise: {event}"
        assert all(final.start <= word.start <= word.end <= final.end for word in event.words), f"{event}, {final}"
        text = final.text
        for edit in reversed(event.edits):
            text = text[: edit.start] + edit.text + text[edit.end :]
        assert text.strip() == event.text, f"the edits say otherwise: {event}, {final}"

    def _leave_segment(self, end_s: float) -> None:
        self.segment += 1
        self.partial = None
        self.told_until = end_s

    def _check_text(self, event: Partial | Final) -> None:
        assert event.segment == self.segment, f"segment {self.segment} is open: {event}"
        assert self.told_until <= event.start <= event.end, f"{event}: all was told up to {self.told_until} s"
        if self.partial is not None:
            stable = self.partial.text[: self.partial.stable]
            assert event.text.startswith(stable), f"{stable!r} was stable: {event}"
            assert isinstance(event, Final) or event.stable >= self.partial.stable, f"{stable!r} was stable: {event}"
        if event.words or not self.wordless:
            _check_words(event, event.words)


def check_promises(
    events: Sequence[Event], *, duration_s: float | None = None, ended: bool = True, wordless: bool = False
) -> None:
    """Hold the events of one session, from its first on and as a client received them, against every promise.

    `duration_s` is the length of the audio, where known; `ended` says whether the session has come to its end. Raises
    AssertionError for the first promise that is broken.
    """
    assert events, "a session has at least a `ready` event"
    promises = Promises(wordless)
    for i, event in enumerate(events):
        previous = events[i - 1] if i else None
        assert event.session == events[0].session, f"{event} is of another session"
        assert event.session, f"{event} names no session"
        _check_number(previous, event, events[i:])
        assert isinstance(event, Ready) == (i == 0), f"`ready` comes first and once: {event}"
        if isinstance(event, Ready):
            assert event.protocol == 1
            assert event.sample_rate == 16_000
            assert event.model
            assert set(event.device) == {"encoder", "cross_kv", "decoder"}
        promises.take([event])
        if duration_s is not None:
            _check_within(event, duration_s)
    assert promises.ended == ended, f"the last event is {events[-1]}"
    if ended:
        promises.check_all_told()


def transcript(events: Sequence[Event]) -> str:
    """Return the finals, joined."""
    return " ".join(event.text for event in events if isinstance(event, Final) and event.text)


def _check_number(previous: Event | None, event: Event, rest: Sequence[Event]) -> None:
    if previous is None:
        assert event.seq == 1, f"the first number is {event.seq}"
        return
    assert event.seq > previous.seq, f"number {event.seq} after {previous.seq}"
    if event.seq > previous.seq + 1:
        # Only partials leave the queue, and only for a newer text of their segment, or because it is forgotten. (What
        # the other promises say of segments, speech and coverage would fail if anything else were missing.)
        assert any(
            isinstance(later, Partial | Final) or (isinstance(later, Gap) and later.reason == "cleared")
            for later in rest
        ), f"numbers {previous.seq + 1} to {event.seq - 1} are missing, and no later text stands for them"


def _check_words(event: Partial | Final, words: Sequence[Word]) -> None:
    assert event.text == "".join(word.word for word in words).strip(), f"the words do not give the text: {event}"
    earliest_s = event.start
    for word in words:
        assert word.word, f"an empty word: {event}"
        assert 0.0 <= word.probability <= 1.0
        assert earliest_s <= word.start <= word.end <= event.end, (
            f"{word} does not lie behind {earliest_s} s and within its segment: {event}"
        )
        earliest_s = word.end


def _check_within(event: Event, duration_s: float) -> None:
    match event:
        case Speech():
            times = (event.time,)
        case Partial() | Final() | Gap():
            times = (event.start, event.end)  # type: ignore[assignment]
        case _:
            return
    assert all(0.0 <= time <= duration_s + ROUNDING_S for time in times), f"{event}, and the audio has {duration_s} s"
