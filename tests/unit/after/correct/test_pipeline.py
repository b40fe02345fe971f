"""Finals through the correctors: in which order, what each is given, and what is published of it."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import msgspec
import pytest

from streamer.after.correct import pipeline
from streamer.after.correct.corrector import Draft
from streamer.after.correct.pipeline import N_BEFORE, CorrectionFollower, Corrections, edits
from streamer.after.passages import Passage
from streamer.after.queues import LATE
from streamer.after.speakers.diarization import Diarization
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.events import Edit, Final, Gap, Revision, Speech, Word
from tests.builders import final, words
from tests.fakes import Clock
from tests.unit.after.live import Hanging, Live, check_freed, patience
from tests.waiting import WAIT_S, wait_until


def said(text: str, segment: int = 1) -> Final:
    return final(text, segment=segment, words=words(text, step=1.0))


@dataclass
class Replacing:
    """Replaces words by others, and notes what it is given."""

    words: dict[str, str]
    name: str = "glossary"
    slow: bool = False
    drafts: list[Draft] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None  # called before it answers

    def correct(self, draft: Draft, left_s: float) -> Sequence[Word]:
        self.drafts.append(draft)
        self.meanwhile()
        texts = [self.words.get(word.word.strip(), word.word.strip()) for word in draft.words]
        return [msgspec.structs.replace(word, word=f" {text}") for word, text in zip(draft.words, texts, strict=True)]


@dataclass
class Reader:
    """A second pass that reads some text."""

    text: str = "the sea of green As we speak."
    meanwhile: Callable[[], object] = lambda: None
    passages: list[tuple[Passage, int, float]] = field(default_factory=list)

    def read(self, passage: Passage, samples: Float32Array, session: object, until_s: float) -> Sequence[Word]:
        self.passages.append((passage, len(samples), until_s))
        self.meanwhile()
        return words(self.text, 7.0, step=0.5)


def fails(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def corrections_of(*correctors: Replacing, reader: Reader | None = None) -> Corrections:
    return Corrections(correctors, deadline_s=WAIT_S, reader=reader)  # type: ignore[arg-type]


def session_of(corrections: Corrections, diarization: Diarization | None = None) -> Live:
    live = Live(20.0)
    live.follow(CorrectionFollower(corrections, live.session, live.log, diarization))
    return live


def corrected(corrections: Corrections, *events: Final | Speech | Gap) -> Live:
    """Return a session in which events were published, at its end."""
    live = session_of(corrections)
    live.publish(*events)
    live.finish()
    return live


def revisions(live: Live) -> list[tuple[int, str, str]]:
    return [(event.of, event.by, event.text) for event in live.revisions]


def test_a_final_that_reads_better_is_published_before_the_end_and_names_what_changed() -> None:
    quick = Replacing({"shivon": "Siobhan"})
    live = corrected(corrections_of(quick), said("nothing here", 1), said("good morning shivon", 2))
    assert [event.type for event in live.events] == ["final", "final", "revision", "end"]
    assert revisions(live) == [(2, "glossary", "good morning Siobhan")]
    assert live.revisions[0].edits == (Edit(start=12, end=19, text=" Siobhan"),)


def test_slow_correctors_follow_and_what_they_find_goes_through_the_quick_ones() -> None:
    slow = Replacing({"morning": "mourning"}, "second_pass", slow=True)
    quick = Replacing({"shivon": "Siobhan", "mourning": "morning"})
    again = Replacing({"good": "Good"}, "language_model", slow=True)
    assert revisions(corrected(corrections_of(slow, quick, again), said("good morning shivon"))) == [
        (1, "glossary", "good morning Siobhan"),
        (1, "second_pass,language_model", "Good morning Siobhan"),
    ]


def test_a_corrector_gets_the_texts_before_as_they_were_corrected() -> None:
    quick = Replacing({"a": "b"})
    live = session_of(corrections_of(quick))
    for n in range(1, N_BEFORE + 3):
        live.publish(said("a" if n == 1 else f"c{n}", n))
        wait_until(lambda n=n: len(quick.drafts) == n and (n > 1 or live.revisions != []))  # type: ignore[misc]
    before = [draft.before for draft in quick.drafts]
    assert before[:3] == [(), ("b",), ("b", "c2")]
    assert before[-1] == tuple(f"c{n}" for n in range(2, N_BEFORE + 2))


def test_translations_and_finals_without_words_are_not_corrected() -> None:
    events = final("a", words=()), final("a", task="translate")
    assert corrected(corrections_of(Replacing({"a": "b"})), *events).revisions == []


@pytest.mark.parametrize(("task", "language"), [("transcribe", "de"), ("translate", "en")])
@pytest.mark.parametrize("slow", [False, True])
def test_a_corrector_knows_the_language_of_the_text(task: str, language: str, slow: bool) -> None:
    corrector = Replacing({}, slow=slow)
    live = session_of(corrections_of(corrector, reader=Reader() if slow else None))
    live.settings.task = task
    live.publish(final("so", start=7.0, end=9.0, language="de"))
    live.finish()
    assert [draft.language for draft in corrector.drafts] == [language]


def test_what_a_slow_one_brings_at_the_last_moment_goes_through_the_quick_ones_all_the_same(clock: Clock) -> None:
    slow = Replacing({"heck": "hell"}, "second_pass", slow=True, meanwhile=lambda: clock.advance(WAIT_S))
    unused = Replacing({"hell": "heaven"}, "language_model", slow=True)
    live = corrected(corrections_of(slow, unused, Replacing({"hell": "****"})), said("what the heck"))
    assert revisions(live) == [(1, "second_pass", "what the ****")]
    assert unused.drafts == [], "no time was left"


def test_a_corrector_that_fails_leaves_the_others_their_work() -> None:
    broken = Replacing({}, "language_model", meanwhile=fails(StreamerError("the endpoint is away")))
    late = Replacing({}, "late", meanwhile=fails(TimeoutError()))
    corrections = corrections_of(broken, late, Replacing({"a": "b"}))
    assert revisions(corrected(corrections, said("a"))) == [(1, "glossary", "b")]
    assert corrections.health.why == {"language_model": "the endpoint is away"}


class Labels(Diarization):
    """Who says what is known from some moment on."""

    known_by_now = False

    def speaker(self, start_s: float, end_s: float) -> str | None:
        return ("S1" if start_s < 1.0 else "S2") if self.known_by_now else None


def test_a_final_whose_speakers_are_known_later_is_published_once_more_and_keeps_what_was_corrected() -> None:
    labels = Labels({})
    live = session_of(corrections_of(Replacing({"shivon": "Siobhan"})), labels)
    (follower,) = live.followers
    assert isinstance(follower, CorrectionFollower)
    live.publish(said("good morning shivon"), said("not yet", 2))
    first = live.events[0]
    assert isinstance(first, Final)
    follower.relabel([first])
    wait_until(lambda: bool(live.revisions))
    labels.known_by_now = True
    follower.relabel([first, first])
    live.finish()
    assert revisions(live) == [(1, "glossary", "good morning Siobhan"), (1, "speakers", "good morning Siobhan")]
    assert [word.speaker for word in live.revisions[-1].words] == ["S1", "S2", "S2"]
    assert live.revisions[-1].edits == (Edit(start=12, end=19, text=" Siobhan"),)


# With a second pass.

FINALS = (
    final("the see of green", start=7.0, end=9.0, words=words("the see of green", 7.0, step=0.5)),
    final("as we speak", start=9.0, end=10.5, segment=1, words=words("as we speak", 9.0, step=0.5)),
)
SPEAKING = Speech(state="start", time=0.0)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Timer]:
    """The timers that wait for a pause, oldest first; the test calls their functions."""
    made: list[threading.Timer] = []

    class FakeTimer(threading.Timer):
        def start(self) -> None:
            made.append(self)

    monkeypatch.setattr(pipeline, "threading", SimpleNamespace(Timer=FakeTimer, Lock=threading.Lock))
    return made


def test_finals_that_read_otherwise_are_revised_and_the_others_are_not(clock: Clock) -> None:
    reader = Reader()
    live = corrected(corrections_of(reader=reader), SPEAKING, *FINALS)
    assert revisions(live) == [(2, "second_pass", "the sea of green")]
    ((passage, n_samples, until_s),) = reader.passages
    assert [each.text for each in passage.finals] == ["the see of green", "as we speak"]
    assert (n_samples, until_s) == (3.5 * SAMPLE_RATE, WAIT_S)


def test_a_final_that_is_context_is_not_revised(timers: list[threading.Timer]) -> None:
    reader = Reader("that of the sea")
    live = session_of(corrections_of(reader=reader))
    live.publish(FINALS[0])
    timers[0].function(*timers[0].args)
    wait_until(lambda: len(live.revisions) == 1)
    reader.text = "this way or that way"
    live.publish(SPEAKING, FINALS[1])
    live.finish()
    assert [passage.n_known for passage, *_ in reader.passages] == [0, 1]
    assert [each.of for each in live.revisions] == [1, 4]


@pytest.mark.parametrize("reads", [True, False])
def test_a_model_that_hangs_keeps_no_session_from_its_end(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    waited_s, hanging = patience(monkeypatch), Hanging()
    corrections = (
        corrections_of(reader=Reader(meanwhile=hanging))
        if reads
        else corrections_of(Replacing({"so": "no"}, "language_model", slow=True, meanwhile=hanging))
    )
    live = session_of(corrections)
    live.publish(*FINALS, Gap(start=11.0, end=12.0, reason="overload"))
    with hanging.session(live) as events:
        assert not any(isinstance(event, Revision) for event in events)
        assert corrections.health.why == {"slow correction": str(LATE)}
    assert waited_s == [WAIT_S]


@pytest.mark.parametrize(("error", "why"), [(TimeoutError(), {}), (StreamerError("lost"), {"second_pass": "lost"})])
def test_finals_that_cannot_be_read_again_are_corrected_as_they_are(error: Exception, why: dict[str, str]) -> None:
    slow = Replacing({"speak": "spoke"}, "language_model", slow=True)
    corrections = corrections_of(slow, reader=Reader(meanwhile=fails(error)))
    assert revisions(corrected(corrections, *FINALS)) == [(2, "language_model", "as we spoke")]
    assert corrections.health.why == why


def test_slow_correctors_get_the_words_of_the_second_pass_and_the_texts_before() -> None:
    slow = Replacing({"As": "as"}, "language_model", slow=True)
    live = corrected(corrections_of(slow, reader=Reader("the sea of green. As they speak")), *FINALS)
    assert revisions(live) == [
        (1, "second_pass", "the sea of green."),
        (2, "second_pass,language_model", "as they speak"),
    ]
    assert [draft.before for draft in slow.drafts] == [(), ("the sea of green.",)]


@pytest.mark.parametrize(
    ("events", "n_waiting", "n_read"),
    [
        ([FINALS[0]], 1, 0),
        ([SPEAKING, FINALS[0]], 0, 0),
        ([FINALS[0], Speech(state="start", time=11.0)], 0, 0),
        ([FINALS[0], Gap(start=11.0, end=12.0, reason="overload")], 0, 1),
    ],
)
def test_a_pause_is_waited_for_unless_speech_goes_on_or_the_passage_has_ended(
    timers: list[threading.Timer], events: list[Final | Speech | Gap], n_waiting: int, n_read: int
) -> None:
    reader = Reader()
    live = session_of(corrections_of(reader=reader))
    live.publish(*events)
    assert [timer.finished.is_set() for timer in timers].count(False) == n_waiting
    wait_until(lambda: len(reader.passages) == n_read)


def test_a_session_that_is_over_is_freed_though_a_pause_is_waited_for(timers: list[threading.Timer]) -> None:
    quick = Replacing({})

    def make() -> Live:
        live = session_of(corrections_of(quick, reader=Reader()))
        live.publish(FINALS[0])
        return live

    check_freed(make, lambda: bool(quick.drafts))
    timers[0].function(*timers[0].args)


def test_edits_are_whole_words_or_the_characters_of_scripts_without_spaces() -> None:
    assert edits("a b c", "a x c") == (Edit(start=1, end=3, text=" x"),)
    assert edits("我們去台北", "我們去臺北") == (Edit(start=3, end=4, text="臺"),)
    assert edits("same", "same") == ()
