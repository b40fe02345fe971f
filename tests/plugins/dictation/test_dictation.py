"""Which text is typed: stable text alone, between the answers to two `flush`, with the spaces that it needs."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.events import Event, Flushed
from streamer.plugins.dictation.dictation import Dictation, typeable
from tests import builders
from tests.builders import final, partial, timed_words

FLUSHED = Flushed(time=0.0)


def typed(*events: Event | bool, finals: bool = False, on: bool = True) -> str:
    """Return what is typed of events; True and False in between begin and end it."""
    dictation = Dictation(finals=finals)
    text = ""
    begin: list[Event | bool] = [True, FLUSHED] if on else []
    for event in (*begin, *events):
        if isinstance(event, bool):
            dictation.expect(on=event)
        else:
            text += dictation.handle(event)
    return text


def chinese(text: str, segment: int) -> Event:
    words = timed_words(*((char, i, i + 1) for i, char in enumerate(text)))
    return final(text, segment=segment, words=words)


def test_stable_text_is_typed_once_and_never_taken_back() -> None:
    said = [
        partial("Hello word", 5, segment=1),
        partial("Hello world and", 11, segment=1),
        final("Hello world, and you.", segment=1),
    ]
    assert typed(*said[:1]) == "Hello"
    assert typed(*said[:2]) == "Hello world"
    # The comma came behind a stable word: what follows is the rest of the final.
    assert typed(*said) == "Hello world, and you."
    assert typed(*said[:2], finals=True) == ""
    assert typed(*said, finals=True) == "Hello world, and you."


def test_segments_have_a_space_between_them_if_their_language_has() -> None:
    assert typed(final("One.", segment=1), partial("Two", 3, segment=2), final("Two.", segment=2)) == "One. Two."
    assert typed(chinese("你好。", 1), chinese("再见。", 2)) == "你好。再见。"
    assert typed(final("One.", segment=1), final("", segment=2), final("Two.", segment=3)) == "One. Two."


def test_what_was_said_before_the_beginning_or_behind_the_end_is_not_typed() -> None:
    before, within = final("Before.", segment=1), final("Within.", segment=2)
    assert typed(before, True, final("Said before, decoded late.", segment=2), FLUSHED, on=False) == ""
    assert typed(before, True, FLUSHED, within, on=False) == "Within."
    # The last words become text behind the end; a space divides them from what is dictated next.
    late: list[Event | bool] = [partial("Within", 3, segment=2), False, within, FLUSHED]
    assert typed(before, True, FLUSHED, *late, final("After.", segment=3), on=False) == "Within. "
    assert typed(before, True, FLUSHED, *late, True, FLUSHED, final("Again.", segment=3), on=False) == "Within. Again."
    assert typed(chinese("你好。", 1), False, FLUSHED) == "你好。"


def test_the_answer_to_another_client_changes_nothing_for_long() -> None:
    assert typed(FLUSHED, final("No.", segment=1), on=False) == ""
    assert typed(FLUSHED, final("Yes.", segment=1)) == "Yes."


def test_in_another_session_typing_goes_on_as_was_asked_for() -> None:
    assert typed(final("One.", segment=1), builders.ready(), final("Two.", segment=1)) == "One. Two."
    # The flush was lost with the session before.
    assert typed(True, builders.ready(), final("One.", segment=1), on=False) == "One."
    assert typed(final("One.", segment=1), False, builders.ready(), final("Two.", segment=1)) == "One. "


def test_what_is_stable_before_it_begins_at_once_is_not_typed() -> None:
    dictation = Dictation(finals=False)
    dictation.handle(partial("Said before", 4, segment=1))
    dictation.expect(on=True)
    dictation.settle()
    assert dictation.handle(final("Said before this.", segment=1)) == "before this."


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("rm -rf ~\nls\r\x1b[A\x03", "rm -rf ~ ls  [A "),
        ("a\u2028b\u0085c\td", "a b c d"),
        ("\u202eabc\u2066", " abc "),
        ("Grüße, naïve – 你好 😀", "Grüße, naïve – 你好 😀"),
        ("می\u200cخواهم 👩\u200d👧", "می\u200cخواهم 👩\u200d👧"),
    ],
)
def test_nothing_that_was_said_is_a_key_other_than_its_characters(text: str, safe: str) -> None:
    assert typeable(text) == safe
    assert typed(final(text)) == safe.lstrip()


@given(st.text())
def test_no_control_character_is_typed(text: str) -> None:
    assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in typeable(text))
