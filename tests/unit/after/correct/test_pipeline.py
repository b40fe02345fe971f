import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from streamer.after.correct import pipeline
from streamer.after.correct.corrector import Draft
from streamer.after.correct.pipeline import LATE, MAX_WAITING, Corrections, FinalsOfSession, edits
from streamer.engine.eventlog import EventLog
from streamer.errors import StreamerError
from streamer.events import Edit, Event, Final, Gap, Revision, Word
from tests.builders import final, words
from tests.fakes import Clock
from tests.waiting import WAIT_S


def final_of(text: str, segment: int = 1) -> Final:
    """Return a final with words of a second each."""
    return final(text, segment=segment, words=words(text, step=1.0))


@dataclass
class Replacing:
    """Replaces words by others."""

    words: dict[str, str]
    name: str = "glossary"
    slow: bool = False
    before: list[tuple[str, ...]] = field(default_factory=list)
    # Called before it answers.
    meanwhile: Callable[[], object] = lambda: None

    def correct(self, draft: Draft, left_s: float) -> Sequence[Word]:
        self.before.append(draft.before)
        self.meanwhile()
        return [
            Word(word=" " + self.words.get(word.word.strip(), word.word.strip()), start=word.start, end=word.end,
                 probability=word.probability, stable=True)
            for word in draft.words
        ]  # fmt: skip


def corrected(correctors: Sequence[Replacing], *texts: str, deadline_s: float = WAIT_S) -> list[Event]:
    """Return the events of a session in which texts become final, up to its end."""
    log = EventLog("abc", 100)
    events: list[Event] = []
    log.subscribe(events.append)
    finals = Corrections(correctors, deadline_s=deadline_s).follow(log, lambda start, end: None)
    for n, text in enumerate(texts, start=1):
        log.append(final_of(text, n))
    over = threading.Event()

    def end() -> None:
        log.close()
        over.set()

    finals.finish(end)
    assert over.wait(WAIT_S)
    return events


def test_the_finals_of_a_session_that_is_over_are_freed_without_a_garbage_collection() -> None:
    corrections = Corrections([], deadline_s=WAIT_S, read_again=lambda passage, samples: ())
    log = EventLog("abc", 100)
    gc.disable()
    try:
        left = weakref.ref(corrections.follow(log, lambda start, end: None))
        log.append(final_of("one"))
        corrections.correcting.close(WAIT_S)
        log.close()
        assert left() is None
    finally:
        gc.enable()


def settle(finals: FinalsOfSession) -> None:
    """Wait until all finals so far are corrected."""
    over = threading.Event()
    finals.finish(over.set)
    assert over.wait(WAIT_S)


def test_a_final_whose_speakers_are_known_later_is_told_once_more_and_keeps_what_was_corrected() -> None:
    log = EventLog("abc", 100)
    events: list[Event] = []
    log.subscribe(events.append)
    finals = Corrections([Replacing({"shivon": "Siobhan"})], deadline_s=WAIT_S).follow(log, lambda start, end: None)
    corrected = threading.Event()
    log.subscribe(lambda event: corrected.set() if isinstance(event, Revision) else None)
    log.append(final_of("good morning shivon"))
    assert corrected.wait(WAIT_S)
    finals.relabel([1])
    settle(finals)
    assert revisions(events) == [(1, "glossary", "good morning Siobhan")]
    finals.label = lambda word: msgspec.structs.replace(word, speaker="S1" if word.start < 1 else "S2")
    finals.relabel([1, 1, 7])
    settle(finals)
    assert revisions(events)[1:] == [(1, "speakers", "good morning Siobhan")]
    told = events[-1]
    assert isinstance(told, Revision)
    assert [word.speaker for word in told.words] == ["S1", "S2", "S2"]
    assert told.edits == (Edit(start=12, end=19, text=" Siobhan"),)


def revisions(events: Sequence[Event]) -> list[tuple[int, str, str]]:
    return [(event.of, event.by, event.text) for event in events if isinstance(event, Revision)]


def test_a_final_that_reads_better_is_told_before_the_end_and_names_what_changed() -> None:
    events = corrected([Replacing({"shivon": "Siobhan"})], "nothing here", "good morning shivon")
    assert [event.type for event in events] == ["final", "final", "revision", "end"]
    assert isinstance(events[2], Revision)
    assert events[2].edits == (Edit(start=12, end=19, text=" Siobhan"),)
    assert revisions(events) == [(2, "glossary", "good morning Siobhan")]


def test_slow_correctors_follow_and_what_they_find_goes_through_the_quick_ones() -> None:
    slow = Replacing({"morning": "mourning"}, name="second_pass", slow=True)
    quick = Replacing({"shivon": "Siobhan", "mourning": "morning"})
    again = Replacing({"good": "Good"}, name="language_model", slow=True)
    assert revisions(corrected([slow, quick, again], "good morning shivon")) == [
        (1, "glossary", "good morning Siobhan"),
        (1, "second_pass,language_model", "Good morning Siobhan"),
    ]


def test_a_corrector_sees_the_texts_before_as_they_were_corrected() -> None:
    waiting = threading.Event()
    first = Replacing({"a": "b"}, meanwhile=waiting.set)
    log = EventLog("abc", 100)
    Corrections([first], deadline_s=WAIT_S).follow(log, lambda start, end: None)
    told = threading.Event()
    log.subscribe(lambda event: told.set() if isinstance(event, Revision) else None)
    log.append(final_of("a"))
    assert told.wait(WAIT_S)
    log.append(final_of("c", 2))
    assert waiting.wait(WAIT_S)
    while len(first.before) < 2:
        threading.Event().wait(0.01)
    assert first.before == [(), ("b",)]


def test_what_is_not_done_by_its_deadline_stays_as_it_was_and_keeps_nobody() -> None:
    forever = threading.Event()
    stuck = Replacing({"a": "b"}, name="language_model", slow=True, meanwhile=lambda: forever.wait(WAIT_S))
    events = corrected([stuck], "a", deadline_s=0.05)
    forever.set()
    assert [event.type for event in events] == ["final", "end"]


def test_what_a_slow_one_brings_at_the_last_moment_goes_through_the_quick_ones_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, revised = Clock(), threading.Event()
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=clock))
    slow = Replacing({"heck": "hell"}, "second_pass", slow=True, meanwhile=lambda: clock.advance(WAIT_S))
    log = EventLog("abc", 100)
    told: list[Event] = []
    log.subscribe(told.append)
    log.subscribe(lambda event: revised.set() if isinstance(event, Revision) else None)
    Corrections([slow, Replacing({"hell": "****"})], deadline_s=WAIT_S).follow(log, lambda start, end: None)
    log.append(final_of("what the heck"))
    assert revised.wait(WAIT_S)
    assert revisions(told) == [(1, "second_pass", "what the ****")]


def test_a_corrector_that_fails_is_told_once_and_leaves_the_others_their_work() -> None:
    def fail() -> None:
        raise StreamerError("the endpoint is away: start it")

    log = EventLog("abc", 100)
    broken = Replacing({}, name="language_model", meanwhile=fail)
    corrections = Corrections([broken, Replacing({"a": "b"})], deadline_s=WAIT_S)
    finals = corrections.follow(log, lambda start, end: None)
    events: list[Event] = []
    log.subscribe(events.append)
    log.append(final_of("a"))
    settle(finals)
    assert revisions(events) == [(1, "glossary", "b")]
    assert corrections.health.why == {"language_model": "the endpoint is away: start it"}


class Crowd:
    """Sessions that share one slow corrector, which waits at the first final until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()
        # Texts in the order in which they went through it.
        self.done: list[str] = []
        self._quick = threading.Semaphore(0)
        counting = Replacing({}, meanwhile=self._quick.release)
        self.corrections = Corrections([self, counting], deadline_s=WAIT_S)
        self._ends = threading.Semaphore(0)

    name, slow = "language_model", True

    def correct(self, draft: Draft, left_s: float) -> Sequence[Word]:
        self.begun.set()
        assert self.let_go.wait(WAIT_S)
        self.done.append(draft.text)
        return draft.words

    def say(self, *texts: str) -> None:
        """Open a session in which these texts become final, and wait until they are in the slow corrector's queue."""
        log = EventLog("abc", 1000)
        finals = self.corrections.follow(log, lambda start, end: None)
        for n, text in enumerate(texts, start=1):
            log.append(final_of(text, n))
            assert self._quick.acquire(timeout=WAIT_S)
        finals.finish(self._ends.release)

    def finish(self, n_sessions: int) -> None:
        self.let_go.set()
        for _ in range(n_sessions):
            assert self._ends.acquire(timeout=WAIT_S)


@contextmanager
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    try:
        yield crowd
    finally:
        crowd.let_go.set()


def test_a_session_with_many_finals_keeps_no_other_s_waiting() -> None:
    with crowd() as sessions:
        sessions.say(*(f"a{n}" for n in range(20)))
        sessions.say("b0", "b1")
        sessions.say("c0")
        sessions.finish(3)
        assert sorted(sessions.done[:7]) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0"]
        assert [text for text in sessions.done if text[0] == "a"] == [f"a{n}" for n in range(20)], "in order"


def test_if_too_many_wait_the_session_that_has_most_loses_some_and_that_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with crowd() as sessions:
        sessions.say(*(f"a{n}" for n in range(MAX_WAITING + 20)))
        sessions.say("b0", "b1")
        assert sessions.corrections.health.why == {"slow correction": str(LATE)}
        assert [record.getMessage() for record in caplog.records] == [f"slow correction does not work for now: {LATE}"]
        sessions.finish(2)
        assert {"b0", "b1", f"a{MAX_WAITING + 19}"} <= {*sessions.done}
        assert len(sessions.done) == pytest.approx(MAX_WAITING, abs=5)
        assert sessions.corrections.health.why == {}, "it keeps pace again"


def test_a_final_whose_deadline_passes_while_it_waits_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=clock))
    with crowd() as sessions:
        sessions.say("a0", "a1")
        assert sessions.begun.wait(WAIT_S)
        clock.advance(WAIT_S + 1.0)
        sessions.finish(1)
        assert sessions.done == ["a0"]
        assert sessions.corrections.health.why == {"slow correction": str(LATE)}
        sessions.say("b0")
        sessions.finish(1)
        assert sessions.done == ["a0", "b0"]
        assert sessions.corrections.health.why == {}


class Leaving:
    """A session whose final goes through all that corrects, and what was computed for it."""

    def __init__(self, leaves_in: str) -> None:
        """The client leaves while its session is in that step: `quick`, `again` or `slow`."""
        self._leaves_in = leaves_in
        self.done: list[str] = []
        self.log = EventLog("abc", 100)
        quick = Replacing({"a": "b"}, meanwhile=lambda: self._do("quick"))
        slow = Replacing({"b": "c"}, "language_model", slow=True, meanwhile=lambda: self._do("slow"))
        self.corrections = Corrections([quick, slow], deadline_s=WAIT_S, read_again=self._again)
        self.finals = self.corrections.follow(self.log, lambda start, end: np.zeros(1, dtype=np.float32))

    def say(self, *texts: str) -> None:
        """Make texts final, and wait for all that is computed then."""
        for n, text in enumerate(texts, start=1):
            self.log.append(final_of(text, n))
        self.log.append(Gap(start=9.0, end=10.0, reason="overload"))  # ends the passage
        for worker in (self.corrections.correcting, self.corrections.waiting) * 2:
            over = threading.Event()
            worker.put(self.finals, over.set)
            assert over.wait(WAIT_S)

    def _again(self, passage: object, samples: object) -> tuple[Word, ...]:
        self._do("again")
        return words("d", step=1.0)

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what == self._leaves_in:
            self.log.close()


@pytest.mark.parametrize(
    ("leaves_in", "done"),
    [
        ("", ["quick", "quick", "again", "slow", "slow", "quick", "quick"]),
        ("quick", ["quick"]),
        ("again", ["quick", "quick", "again"]),
        ("slow", ["quick", "quick", "again", "slow"]),
    ],
)
def test_nothing_more_is_computed_for_a_client_that_has_left(leaves_in: str, done: list[str]) -> None:
    session = Leaving(leaves_in)
    session.say("a", "a")
    assert sorted(session.done) == sorted(done)
    assert session.corrections.health.why == {}


def test_a_session_that_its_client_has_left_is_finished_all_the_same() -> None:
    session, over = Leaving("quick"), threading.Event()
    session.say("a", "a")
    session.finals.finish(over.set)
    assert over.wait(WAIT_S / 2)


def test_edits_are_whole_words_or_the_characters_of_scripts_without_spaces() -> None:
    assert edits("a b c", "a x c") == (Edit(start=1, end=3, text=" x"),)
    assert edits("我們去台北", "我們去臺北") == (Edit(start=3, end=4, text="臺"),)
    assert edits("same", "same") == ()
