"""Which finals are put together: for the second pass, and for a translation."""

import pytest

from streamer.after.passages import MAX_SILENCE_S, Passages
from streamer.events import Event, Gap, Speech
from tests.builders import final
from tests.unit.after.live import finals_of

LONGEST_S = 28.0
SPEAKING = Speech(state="start", time=0.0)


def silence(time_s: float) -> Speech:
    return Speech(state="end", time=time_s)


def lost(end: float, start: float = 2.0) -> Gap:
    return Gap(start=start, end=end, reason="overload")


def passages_of(*events: Event, by_sentence: bool = False) -> list[tuple[str, int]]:
    """Return the text of each passage that these events make up to the end, and how many finals are context."""
    passages = Passages(LONGEST_S, by_sentence=by_sentence)
    found = [passage for event in events for passage in passages.take(event)] + passages.close()
    assert passages.close() == []
    return [(" ".join(each.text for each in passage.finals), passage.n_known) for passage in found]


def texts_of(*events: Event) -> list[str]:
    return [text for text, _ in passages_of(*events, by_sentence=True)]


def test_finals_are_put_together_while_they_fit_and_are_context_then() -> None:
    spoken = finals_of("one 0 10, two 10 20, three. 20 30, four 30 36")
    assert passages_of(SPEAKING, *spoken) == [("one two", 0), ("two three. four", 1)]


@pytest.mark.parametrize(("end", "found"), [("28", [("one two", 0)]), ("28.1", [("one", 0), ("two", 0)])])
def test_a_passage_is_as_long_as_it_may_be(end: str, found: list[tuple[str, int]]) -> None:
    assert passages_of(SPEAKING, *finals_of(f"one 0 1, two 1 {end}")) == found
    assert passages_of(SPEAKING, *finals_of("long 0 29")) == [("long", 0)]


@pytest.mark.parametrize("by_sentence", [False, True])
@pytest.mark.parametrize(
    "second",
    [
        finals_of(f"two {2.0 + MAX_SILENCE_S + 0.1} 9"),
        finals_of("two 2 4 de"),
        [lost(2.5), *finals_of("two 2.5 4")],
    ],
)
def test_no_passage_reaches_over_what_divides_speech(second: list[Event], by_sentence: bool) -> None:
    spoken = *finals_of("one 0 2"), *second
    assert passages_of(SPEAKING, *spoken, by_sentence=by_sentence) == [("one", 0), ("two", 0)]


def test_lost_audio_is_no_context() -> None:
    spoken = *finals_of("one 0 2"), lost(2.5), *finals_of("two 2.5 3, three 3 4")
    assert passages_of(*spoken) == [("one", 0), ("two three", 0)]


def test_with_context_more_may_be_understood_of_speech_in_which_no_word_was_found() -> None:
    spoken = *finals_of("one 0 2"), Gap(start=2.0, end=5.0, reason="unclear"), *finals_of("two 5 7")
    assert passages_of(*spoken) == [("one two", 0)]
    assert texts_of(*spoken) == ["one", "two"]


def test_finals_of_one_sentence_are_one_passage_and_those_without_text_part_of_none() -> None:
    good, *others = finals_of("Good 0 2, day. 2 3, See 3 4, you! 4 8")
    assert texts_of(good, final(start=2.0), *others) == ["Good day.", "See you!"]


@pytest.mark.parametrize(("time_s", "found"), [(2.0, ["Good", "day and"]), (2.1, ["Good day", "and"])])
def test_a_silence_ends_a_sentence_with_the_final_up_to_it_and_no_other(time_s: float, found: list[str]) -> None:
    spoken = finals_of("Good 0 2, day 2.5 4, and 4 5")
    assert texts_of(silence(time_s), Speech(state="start", time=2.5), *spoken) == found


def test_a_silence_behind_lost_speech_ends_nothing() -> None:
    assert texts_of(silence(2), lost(2, 0), *finals_of("day 2.5 3, and 3 4")) == ["day and"]
