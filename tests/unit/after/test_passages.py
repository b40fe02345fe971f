"""Which finals are put together: for the second pass, and for a translation."""

import msgspec
import pytest

from streamer.after.passages import MAX_SILENCE_S, Passages
from streamer.events import Event, Final, Gap, Speech
from tests import builders

LONGEST_S = 28.0
SPEAKING = Speech(state="start", time=0.0)


def final(text: str, start: float, end: float, language: str = "en") -> Final:
    return builders.final(text, start=start, end=end, language=language)


def silence(time_s: float) -> Speech:
    return Speech(state="end", time=time_s)


def passages_of(*events: Event, by_sentence: bool = False) -> list[tuple[list[str], int]]:
    """Return the texts of each passage that these events make up to the end, and how many are context."""
    passages = Passages(LONGEST_S, by_sentence=by_sentence)
    found = [passage for event in events for passage in passages.take(event)] + passages.close()
    assert passages.close() == []
    return [([each.text for each in passage.finals], passage.n_known) for passage in found]


def test_finals_are_put_together_while_they_fit_and_are_context_then() -> None:
    assert passages_of(
        SPEAKING,
        final("one", 0.0, 10.0),
        final("two", 10.0, 20.0),
        final("three.", 20.0, 30.0),
        final("four", 30.0, 36.0),
    ) == [(["one", "two"], 0), (["two", "three.", "four"], 1)]


@pytest.mark.parametrize(("end", "n_passages"), [(LONGEST_S, 1), (LONGEST_S + 0.1, 2)])
def test_a_passage_is_as_long_as_it_may_be(end: float, n_passages: int) -> None:
    assert len(passages_of(SPEAKING, final("one", 0.0, 1.0), final("two", 1.0, end))) == n_passages


def test_a_final_that_is_longer_is_a_passage_of_its_own() -> None:
    assert passages_of(SPEAKING, final("long", 0.0, LONGEST_S + 1)) == [(["long"], 0)]


@pytest.mark.parametrize("by_sentence", [False, True])
@pytest.mark.parametrize(
    ("between", "second"),
    [
        ((), final("two", 2.0 + MAX_SILENCE_S + 0.1, 9.0)),
        ((), final("two", 2.0, 4.0, language="de")),
        ((Gap(start=2.0, end=2.5, reason="overload"),), final("two", 2.5, 4.0)),
    ],
)
def test_no_passage_reaches_over_long_silence_another_language_or_lost_audio(
    between: tuple[Event, ...], second: Final, by_sentence: bool
) -> None:
    events = SPEAKING, final("one", 0.0, 2.0), *between, second
    assert passages_of(*events, by_sentence=by_sentence) == [(["one"], 0), (["two"], 0)]


def test_lost_audio_is_no_context() -> None:
    lost = Gap(start=2.0, end=2.5, reason="overload")
    assert passages_of(final("one", 0.0, 2.0), lost, final("two", 2.5, 3.0), final("three", 3.0, 4.0)) == [
        (["one"], 0),
        (["two", "three"], 0),
    ]


@pytest.mark.parametrize(
    ("by_sentence", "found"), [(False, [(["one", "two"], 0)]), (True, [(["one"], 0), (["two"], 0)])]
)
def test_with_context_more_may_be_understood_of_speech_in_which_no_word_was_found(
    by_sentence: bool, found: list[tuple[list[str], int]]
) -> None:
    unclear = Gap(start=2.0, end=5.0, reason="unclear")
    assert passages_of(final("one", 0.0, 2.0), unclear, final("two", 5.0, 7.0), by_sentence=by_sentence) == found


def test_finals_of_one_sentence_are_one_passage() -> None:
    spoken = (final("Good", 0.0, 2.0), final("day.", 2.0, 3.0), final("See", 3.0, 4.0), final("you!", 4.0, 8.0))
    assert passages_of(*spoken, by_sentence=True) == [(["Good", "day."], 0), (["See", "you!"], 0)]


@pytest.mark.parametrize(
    ("time_s", "n_passages"),
    [
        pytest.param(2.0, 2, id="it is published before its final"),
        pytest.param(2.1, 1, id="of speech of which more will be final"),
    ],
)
def test_a_sentence_that_breaks_off_is_a_passage_as_far_as_it_goes(time_s: float, n_passages: int) -> None:
    events = silence(time_s), Speech(state="start", time=2.5), final("Good", 0.0, 2.0), final("day", 2.5, 4.0)
    assert len(passages_of(*events, by_sentence=True)) == n_passages


def test_finals_without_text_are_part_of_none() -> None:
    events = final("Good", 0.0, 2.0), final("", 2.0, 2.0), final("day", 2.0, 4.0)
    assert passages_of(*events, by_sentence=True) == [(["Good", "day"], 0)]


def test_a_silence_ends_one_passage_only() -> None:
    events = silence(2.0), final("Good", 0.0, 2.0), final("day", 2.5, 3.0), final("and", 3.0, 4.0)
    assert passages_of(*events, by_sentence=True) == [(["Good"], 0), (["day", "and"], 0)]
    gone = silence(2.0), Gap(start=0.0, end=2.0, reason="overload"), final("day", 2.5, 3.0), final("and", 3.0, 4.0)
    assert passages_of(*gone, by_sentence=True) == [(["day", "and"], 0)]


def test_it_is_known_whether_speech_goes_on() -> None:
    passages = Passages(LONGEST_S)
    passages.take(SPEAKING)
    assert passages.speaking
    passages.take(msgspec.structs.replace(SPEAKING, state="end"))
    assert not passages.speaking
