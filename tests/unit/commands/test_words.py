"""Words as they compare, and their delays, from events made by hand."""

import pytest

from streamer.commands.words import word_delays, words
from streamer.events import Event, Final
from tests.builders import final, partial, timed_words


def test_words_compare_without_case_and_punctuation_and_are_shown_with_both() -> None:
    found = words([(1.0, "“Don’t,” she said: well-known"), (3.0, "..."), (5.0, "漢字とGPU。")])
    assert [word.compared for word in found] == ["don't", "she", "said", "well", "known", "漢", "字", "と", "gpu"]
    assert [word.shown for word in found[:5]] == ["“Don’t,”", "she", "said:", "well-", "known"]
    assert [word.start_s for word in found] == [1.0, None, None, None, None, 5.0, None, None, None]


def test_a_million_signs_are_no_work() -> None:
    assert words([(0.0, "!" * 1_000_000)]) == []


def final_of(*spoken: tuple[str, float, float]) -> Final:
    words = timed_words(*((f" {word}", start, end) for word, start, end in spoken))
    return final(" ".join(word for word, _, _ in spoken), end=5.0, words=words)


GREETING: list[tuple[float, Event]] = [
    (1.6, partial("God", 0)),
    (2.1, partial("Good moaning", 4)),
    (2.9, partial("Good morning. Bye", 13)),
    (4.0, final_of(("Good", 1.0, 1.4), ("morning.", 1.4, 2.0))),
    (4.9, partial("Bye", 0)),
    (5.6, final_of(("Bye!", 4.0, 4.5))),
]


def test_delays_run_from_the_end_of_each_word() -> None:
    found = word_delays(GREETING)
    assert found["stable"] == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 5.6 - 4.5])
    # What a text shows behind the words of its final stands at its place, too.
    assert found["first_seen"] == pytest.approx([2.1 - 1.4, 2.9 - 2.0, 2.9 - 4.5])
    # Of words before a pause, and of the last.
    assert found["finalisation"] == pytest.approx([2.9 - 2.0, 5.6 - 4.5])


def test_characters_are_the_words_of_scripts_without_spaces() -> None:
    events: list[tuple[float, Event]] = [(1.0, partial("漢", 1)), (2.0, final_of(("漢字", 0.5, 1.0)))]
    assert word_delays(events)["stable"] == pytest.approx([0.0, 1.0])


def test_without_words_there_are_no_delays() -> None:
    found = word_delays([(1.0, partial("Uh", 0)), (2.0, final_of())])
    assert found == {"first_seen": [], "stable": [], "finalisation": []}
