"""Passages of a second pass, and what becomes of their words, without a model."""

import time
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec
import numpy as np
import pytest

from streamer.after.correct import second_pass
from streamer.after.correct.corrector import Draft, text_of
from streamer.after.correct.pipeline import Corrections
from streamer.after.correct.second_pass import (
    MAX_PASSAGE_S,
    MAX_SILENCE_S,
    Passage,
    Passages,
    ReadAgain,
    same_but_for_marks,
    share_words,
)
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.engine.eventlog import EventLog
from streamer.errors import StreamerError
from streamer.events import Event, Final, Gap, Revision, Speech, Word
from tests import builders
from tests.waiting import WAIT_S


def words_of(text: str, start: float = 0.0, each_s: float = 0.5, speaker: str | None = None) -> tuple[Word, ...]:
    """Return words that follow each other."""
    return tuple(msgspec.structs.replace(word, speaker=speaker) for word in builders.words(text, start, step=each_s))


def final(text: str, start: float, end: float, *, language: str = "en", speaker: str | None = None) -> Final:
    words = words_of(text, start, (end - start) / max(1, len(text.split())), speaker)
    return builders.final(text, segment=1, start=start, end=end, words=words, language=language)


def passages_of(*events: Event) -> list[tuple[list[str], int]]:
    """Return the texts of each passage that these events make up to the end, and how many are context."""
    found: list[tuple[list[str], int]] = []
    passages = Passages(lambda finals, n_known: found.append(([each.text for each in finals], n_known)))
    for event in events:
        passages.take(event)
    passages.close()
    passages.close()  # nothing is left
    return found


SPEAKING = Speech(state="start", time=0.0)


def test_finals_that_fit_into_a_window_are_transcribed_together_and_are_context_while_they_fit() -> None:
    assert passages_of(
        SPEAKING,
        final("one", 0.0, 10.0),
        final("two", 10.0, 20.0),
        final("three", 20.0, 30.0),
        final("four", 30.0, 36.0),
    ) == [(["one", "two"], 0), (["two", "three", "four"], 1)]


def test_a_final_longer_than_a_window_is_a_passage_of_its_own() -> None:
    assert passages_of(SPEAKING, final("long", 0.0, MAX_PASSAGE_S + 1)) == [(["long"], 0)]


@pytest.mark.parametrize(
    ("between", "second"),
    [
        ((), final("two", 2.0 + MAX_SILENCE_S + 0.1, 9.0)),
        ((), final("two", 2.0, 4.0, language="de")),
        ((Gap(start=2.0, end=2.5, reason="overload"),), final("two", 2.5, 4.0)),
    ],
)
def test_no_passage_reaches_over_long_silence_another_language_or_lost_audio(
    between: tuple[Event, ...], second: Final
) -> None:
    assert passages_of(SPEAKING, final("one", 0.0, 2.0), *between, second) == [(["one"], 0), (["two"], 0)]


def test_a_passage_reaches_over_speech_of_which_no_word_was_found() -> None:
    """More of it may be understood with what was said before and behind it."""
    unclear = Gap(start=2.0, end=5.0, reason="unclear")
    two_and_gap = (final("one", 0.0, 2.0), unclear, final("two", 5.0, 7.0))
    assert passages_of(SPEAKING, *two_and_gap) == [(["one", "two"], 0)]


def test_finals_without_words_and_translations_belong_to_none() -> None:
    translation = msgspec.structs.replace(final("eins", 0.0, 1.0), task="translate")
    assert passages_of(SPEAKING, final("", 0.0, 1.0), translation) == []


def test_a_passage_is_transcribed_soon_after_speech_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_pass, "IDLE_S", 0.01)
    found: Future[int] = Future()
    passages = Passages(lambda finals, n_known: found.set_result(len(finals)))
    for event in (SPEAKING, Speech(state="end", time=1.0), final("one", 0.0, 1.0)):
        passages.take(event)
    assert found.result(WAIT_S) == 1


def test_words_go_to_the_finals_whose_words_they_replace_however_their_times_lie() -> None:
    finals = [final("the see of", 0.0, 1.5, speaker="S1"), final("Green what a day", 1.5, 3.5, speaker="S2")]
    # All times are half a second late: the text decides.
    shared = share_words(finals, words_of("The sea of green, what a lovely day.", 0.5))
    assert [text_of(words) for words in shared] == ["The sea of", "green, what a lovely day."]
    assert [word.speaker for word in shared[1]] == ["S2"] * 5
    assert all(
        each.start <= word.start <= word.end <= each.end for each, s in zip(finals, shared, strict=True) for word in s
    )


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [("The sea.", "the sea", True), ("the sea", "the see", False), ("की", "का", False), ("が", "か", False)],
)
def test_texts_are_the_same_but_for_case_and_punctuation(text: str, other: str, same: bool) -> None:
    assert same_but_for_marks(words_of(text), words_of(other)) == same


def test_words_that_resemble_none_go_by_their_times() -> None:
    finals = [final("um", 0.0, 1.0), final("er", 1.0, 2.0), final("ah", 2.0, 3.0)]
    assert [text_of(words) for words in share_words(finals, words_of("quite another text"))] == [
        "quite another",
        "text",
        "",
    ]
    assert share_words(finals, ()) == [(), (), ()]


def revised(read_again: ReadAgain, *finals: Final) -> tuple[list[Revision], Corrections]:
    """Return the revisions of a session with some finals."""
    log = EventLog("abc", 100)
    events: list[Event] = []
    log.subscribe(events.append)
    corrections = Corrections([], deadline_s=WAIT_S, read_again=read_again)
    of_session = corrections.follow(log, lambda start, end: np.zeros(round((end - start) * SAMPLE_RATE), np.float32))
    log.append(SPEAKING)
    for each in finals:
        log.append(each)
    over: Future[None] = Future()
    of_session.finish(lambda: over.set_result(None))
    over.result(WAIT_S)
    return [event for event in events if isinstance(event, Revision)], corrections


FINALS = final("the see of green", 7.0, 9.0), final("as we speak", 9.0, 10.5)


def test_finals_that_read_otherwise_are_revised_and_the_others_are_not() -> None:
    seen: list[tuple[Passage, int]] = []

    def read(passage: Passage, samples: Float32Array) -> Sequence[Word]:
        seen.append((passage, len(samples)))
        return words_of("the sea of green As we speak.", 7.0)

    revisions, _ = revised(read, *FINALS)
    assert [(each.of, each.by, each.text) for each in revisions] == [(2, "second_pass", "the sea of green")]
    ((passage, n_samples),) = seen
    assert [each.text for each in passage.finals] == ["the see of green", "as we speak"]
    assert n_samples == 3.5 * SAMPLE_RATE
    assert 0 < passage.until_s - time.monotonic() <= WAIT_S


def _late(passage: Passage, samples: Float32Array) -> Sequence[Word]:
    raise TimeoutError


def _broken(passage: Passage, samples: Float32Array) -> Sequence[Word]:
    raise StreamerError("the device is lost")


@pytest.mark.parametrize(
    ("read", "why"), [(lambda passage, samples: (), {}), (_late, {}), (_broken, {"second_pass": "the device is lost"})]
)
def test_what_cannot_be_read_again_stays_as_it_is(read: ReadAgain, why: dict[str, str]) -> None:
    revisions, corrections = revised(read, *FINALS)
    assert (revisions, corrections.health.why) == ([], why)


def test_slow_correctors_get_the_words_of_the_second_pass() -> None:
    seen: list[str] = []

    class Endpoint:
        name = "language_model"
        slow = True

        def correct(self, draft: Draft, left_s: float) -> Sequence[Word]:
            seen.append(draft.text)
            return draft.words

    log = EventLog("abc", 100)
    corrections = Corrections(
        [Endpoint()],
        deadline_s=WAIT_S,
        read_again=lambda passage, samples: words_of("the sea of green as we speak", 7.0),
    )
    of_session = corrections.follow(log, lambda start, end: np.zeros(10, np.float32))
    for each in FINALS:
        log.append(each)
    over: Future[None] = Future()
    of_session.finish(lambda: over.set_result(None))
    over.result(WAIT_S)
    assert seen == ["the sea of green", "as we speak"]
