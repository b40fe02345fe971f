"""Finals through the correctors: in which order, what each is given, and what is published of it."""

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from streamer.after import queues
from streamer.after.correct import pipeline
from streamer.after.correct.corrector import Draft
from streamer.after.correct.pipeline import N_BEFORE, N_KEPT, CorrectionFollower, Corrections, edits
from streamer.after.passages import Passage
from streamer.after.speakers.clusters import KnownVoices, VoiceWindow
from streamer.after.speakers.diarization import Diarization
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from streamer.events import Edit, Final, Gap, Speech, Word
from tests.builders import final, words
from tests.fakes import Clock
from tests.unit.after.live import Live
from tests.unit.after.speakers.voices import voice
from tests.waiting import WAIT_S, wait_until


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


def session_of(corrections: Corrections, audio_s: float = 0.0) -> Live:
    live = Live(audio_s)
    live.follow(CorrectionFollower(corrections, live.session, live.log))
    return live


def corrected(correctors: Sequence[Replacing], *texts: str) -> Live:
    """Return a session in which texts become final, at its end."""
    live = session_of(Corrections(correctors, deadline_s=WAIT_S))
    live.publish(*(final_of(text, n) for n, text in enumerate(texts, start=1)))
    live.finish()
    return live


def revisions(live: Live) -> list[tuple[int, str, str]]:
    return [(event.of, event.by, event.text) for event in live.revisions]


def test_a_final_that_reads_better_is_told_before_the_end_and_names_what_changed() -> None:
    live = corrected([Replacing({"shivon": "Siobhan"})], "nothing here", "good morning shivon")
    assert [event.type for event in live.events] == ["final", "final", "revision", "end"]
    assert revisions(live) == [(2, "glossary", "good morning Siobhan")]
    assert live.revisions[0].edits == (Edit(start=12, end=19, text=" Siobhan"),)


def test_slow_correctors_follow_and_what_they_find_goes_through_the_quick_ones() -> None:
    slow = Replacing({"morning": "mourning"}, name="second_pass", slow=True)
    quick = Replacing({"shivon": "Siobhan", "mourning": "morning"})
    again = Replacing({"good": "Good"}, name="language_model", slow=True)
    assert revisions(corrected([slow, quick, again], "good morning shivon")) == [
        (1, "glossary", "good morning Siobhan"),
        (1, "second_pass,language_model", "Good morning Siobhan"),
    ]


def test_a_corrector_sees_the_texts_before_as_they_were_corrected() -> None:
    first = Replacing({"a": "b"})
    live = session_of(Corrections([first], deadline_s=WAIT_S))
    for n in range(1, N_BEFORE + 3):
        live.publish(final_of("a" if n == 1 else f"c{n}", n))
        wait_until(lambda n=n: len(first.before) == n and (n > 1 or live.revisions != []))  # type: ignore[misc]
    assert first.before[:3] == [(), ("b",), ("b", "c2")]
    assert first.before[-1] == tuple(f"c{n}" for n in range(2, N_BEFORE + 2))


def test_translations_and_finals_without_words_are_not_corrected() -> None:
    live = session_of(Corrections([Replacing({"a": "b"})], deadline_s=WAIT_S))
    live.publish(final("a", words=()), final("a", task="translate"))
    live.finish()
    assert live.revisions == []


@pytest.mark.parametrize(("task", "language"), [("transcribe", "de"), ("translate", "en")])
def test_a_corrector_knows_the_language_of_the_text(task: str, language: str) -> None:
    known: list[str] = []

    class Listening(Replacing):
        def correct(self, draft: Draft, left_s: float) -> Sequence[Word]:
            known.append(draft.language)
            return draft.words

    live = session_of(Corrections([Listening({})], deadline_s=WAIT_S))
    live.settings.task = task
    live.publish(final("so", language="de"))
    live.finish()
    assert known == [language]


def test_what_a_slow_one_brings_at_the_last_moment_goes_through_the_quick_ones_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(queues, "time", SimpleNamespace(monotonic=clock))
    slow = Replacing({"heck": "hell"}, "second_pass", slow=True, meanwhile=lambda: clock.advance(WAIT_S))
    unused = Replacing({"hell": "heaven"}, "language_model", slow=True)
    live = session_of(Corrections([slow, unused, Replacing({"hell": "****"})], deadline_s=WAIT_S))
    live.publish(final_of("what the heck"))
    live.finish()
    assert revisions(live) == [(1, "second_pass", "what the ****")]
    assert unused.before == [], "no time was left"


def test_a_corrector_that_fails_leaves_the_others_their_work() -> None:
    def fail() -> None:
        raise StreamerError("the endpoint is away: start it")

    def give_up() -> None:
        raise TimeoutError

    broken = Replacing({}, name="language_model", meanwhile=fail)
    slow = Replacing({}, name="slow", meanwhile=give_up)
    corrections = Corrections([broken, slow, Replacing({"a": "b"})], deadline_s=WAIT_S)
    live = session_of(corrections)
    live.publish(final_of("a"))
    live.finish()
    assert revisions(live) == [(1, "glossary", "b")]
    assert corrections.health.why == {"language_model": "the endpoint is away: start it"}


class Labels(Diarization):
    """Who says what is known at some moment."""

    def know(self, *voices: tuple[str, float, float]) -> None:
        windows = [VoiceWindow(start, end, voice(n)) for n, (_, start, end) in enumerate(voices)]
        labels = [label for label, *_ in voices]
        self._known = KnownVoices(windows, labels, np.stack([window.vector for window in windows]))


def test_a_final_whose_speakers_are_known_later_is_told_once_more_and_keeps_what_was_corrected() -> None:
    live, labels = Live(), Labels({})
    corrections = Corrections([Replacing({"shivon": "Siobhan"})], deadline_s=WAIT_S)
    follower = CorrectionFollower(corrections, live.session, live.log, labels)
    live.follow(follower)
    said = [final_of("good morning shivon"), final_of("not yet", 2)]
    live.publish(*said)
    published = [event for event in live.events if isinstance(event, Final)]
    follower.relabel(published[:1])
    wait_until(lambda: bool(live.revisions))
    labels.know(("S1", 0.0, 1.0), ("S2", 1.0, 3.0))
    follower.relabel(published[:1] * 2)
    live.finish()
    assert revisions(live) == [(1, "glossary", "good morning Siobhan"), (1, "speakers", "good morning Siobhan")]
    told = live.revisions[-1]
    assert [word.speaker for word in told.words] == ["S1", "S2", "S2"]
    assert told.edits == (Edit(start=12, end=19, text=" Siobhan"),)


def test_of_a_session_that_is_long_the_newest_finals_are_known() -> None:
    live = session_of(Corrections([], deadline_s=WAIT_S))
    live.publish(*(final_of("a", n) for n in range(N_KEPT + 5)))
    live.finish()
    (follower,) = live.followers
    assert isinstance(follower, CorrectionFollower)
    assert list(follower._published) == list(range(6, N_KEPT + 6))


# With a second pass.

FINALS = (
    final("the see of green", start=7.0, end=9.0, words=words("the see of green", 7.0, step=0.5)),
    final("as we speak", start=9.0, end=10.5, segment=1, words=words("as we speak", 9.0, step=0.5)),
)
SPEAKING = Speech(state="start", time=0.0)


@dataclass
class Reader:
    """A second pass that reads some text."""

    text: str = "the sea of green As we speak."
    meanwhile: Callable[[], object] = lambda: None
    read_so_far: list[tuple[Passage, int, float]] = field(default_factory=list)

    def read(self, passage: Passage, samples: Float32Array, session: object, until_s: float) -> Sequence[Word]:
        self.read_so_far.append((passage, len(samples), until_s))
        self.meanwhile()
        return words(self.text, 7.0, step=0.5)


def with_second_pass(reader: Reader, *correctors: Replacing) -> Corrections:
    return Corrections(correctors, deadline_s=WAIT_S, reader=reader)  # type: ignore[arg-type]


def test_finals_that_read_otherwise_are_revised_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(queues, "time", SimpleNamespace(monotonic=clock))
    reader = Reader()
    live = session_of(with_second_pass(reader), 20.0)
    live.publish(SPEAKING, *FINALS)
    live.finish()
    assert revisions(live) == [(2, "second_pass", "the sea of green")]
    ((passage, n_samples, until_s),) = reader.read_so_far
    assert [each.text for each in passage.finals] == ["the see of green", "as we speak"]
    assert (n_samples, until_s) == (3.5 * SAMPLE_RATE, WAIT_S)


def test_a_final_that_is_context_is_not_revised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_S", 0.01)
    reader = Reader("that of the sea")
    live = session_of(with_second_pass(reader), 20.0)
    live.publish(FINALS[0])
    wait_until(lambda: len(live.revisions) == 1)
    reader.text = "this way or that way"
    live.publish(SPEAKING, FINALS[1])
    live.finish()
    assert [each.n_known for each, *_ in reader.read_so_far] == [0, 1]
    assert [each.of for each in live.revisions] == [1, 4]


@pytest.mark.parametrize(("error", "why"), [(TimeoutError(), {}), (StreamerError("lost"), {"second_pass": "lost"})])
def test_finals_that_cannot_be_read_again_are_corrected_as_they_are(error: Exception, why: dict[str, str]) -> None:
    def fail() -> None:
        raise error

    corrections = with_second_pass(Reader(meanwhile=fail), Replacing({"speak": "spoke"}, "language_model", slow=True))
    live = session_of(corrections, 20.0)
    live.publish(*FINALS)
    live.finish()
    assert revisions(live) == [(2, "language_model", "as we spoke")]
    assert corrections.health.why == why


def test_slow_correctors_get_the_words_of_the_second_pass_and_the_texts_before() -> None:
    slow = Replacing({"As": "as"}, "language_model", slow=True)
    live = session_of(with_second_pass(Reader("the sea of green. As they speak"), slow), 20.0)
    live.publish(*FINALS)
    live.finish()
    assert revisions(live) == [
        (1, "second_pass", "the sea of green."),
        (2, "second_pass,language_model", "as they speak"),
    ]
    assert slow.before == [(), ("the sea of green.",)]


def test_a_passage_is_transcribed_soon_after_speech_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "IDLE_S", 0.01)
    reader = Reader()
    live = session_of(with_second_pass(reader), 20.0)
    live.publish(SPEAKING, FINALS[0])
    (follower,) = live.followers
    assert isinstance(follower, CorrectionFollower)
    assert follower._pause is None, "speech goes on"
    live.publish(Speech(state="end", time=10.5), FINALS[1])
    wait_until(lambda: bool(reader.read_so_far))
    assert len(reader.read_so_far[0][0].finals) == 2


@pytest.mark.parametrize(
    ("event", "n_read"),
    [(Speech(state="start", time=11.0), 0), (Gap(start=11.0, end=12.0, reason="overload"), 1)],
)
def test_no_pause_is_waited_for_any_more_when_speech_goes_on_or_the_passage_has_ended(
    event: Speech | Gap, n_read: int
) -> None:
    reader = Reader()
    live = session_of(with_second_pass(reader), 20.0)
    live.publish(FINALS[0])
    (follower,) = live.followers
    assert isinstance(follower, CorrectionFollower)
    assert follower._pause is not None
    assert not follower._pause.finished.is_set()
    live.publish(event)
    assert follower._pause.finished.is_set()
    wait_until(lambda: len(reader.read_so_far) == n_read)


def test_a_session_that_is_over_is_freed_though_a_pause_is_waited_for() -> None:
    corrections = with_second_pass(Reader())
    gc.collect()
    gc.disable()
    try:
        live = session_of(corrections, 20.0)
        live.publish(FINALS[0])
        corrections.queue._works.close(WAIT_S)
        left = weakref.ref(live.followers.pop())
        live.log.close()
        assert left() is None
    finally:
        gc.enable()


def test_edits_are_whole_words_or_the_characters_of_scripts_without_spaces() -> None:
    assert edits("a b c", "a x c") == (Edit(start=1, end=3, text=" x"),)
    assert edits("我們去台北", "我們去臺北") == (Edit(start=3, end=4, text="臺"),)
    assert edits("same", "same") == ()
