"""Where a user's turn begins and ends in a stream's events."""

import pytest

from streamer.events import Event, Flushed, Gap, Speech
from streamer.plugins.agents.live import UserTurns
from tests.builders import final, partial

START, AGAIN = Speech(state="start", time=1.0), Speech(state="start", time=2.5)
END = Speech(state="end", time=2.0)
SAID = final("Good morning.", start=1.2, end=2.0)
LOST = Gap(start=1.0, end=2.0, reason="overload")
LATER = final("And you?", start=2.6, end=4.0)
LAST = Speech(state="end", time=4.0)


def published(*events: Event) -> list[list[Event]]:
    turns = UserTurns()
    return [turns.handle(event) for event in events]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([START, partial("Good"), END, SAID], [[START], [partial("Good")], [], [SAID, END]]),
        # The text is final before speech has ended: at a sentence's end.
        ([START, SAID, END], [[START], [SAID], [END]]),
        # The user goes on before the text is final: it is one turn.
        ([START, END, AGAIN, SAID, LAST, LATER], [[START], [], [], [SAID], [], [LATER, LAST]]),
        # A turn has several finals.
        ([START, SAID, LAST, LATER], [[START], [SAID], [], [LATER, LAST]]),
        # Noise, lost audio, and times that are rounded.
        ([START, END, final("", start=1.0, end=2.0)], [[START], [], [END]]),
        ([START, END, LOST], [[START], [], [LOST, END]]),
        ([START, END, final("Yes.", end=1.995)], [[START], [], [final("Yes.", end=1.995), END]]),
        # Two turns; what has no words is left out, and what is not about turns is passed on.
        ([START, END, SAID, AGAIN, partial(" ")], [[START], [], [SAID, END], [AGAIN], []]),
        ([Flushed(time=2.0)], [[Flushed(time=2.0)]]),
    ],
)
def test_a_turn_ends_when_speech_has_ended_and_its_text_is_final(
    events: list[Event], expected: list[list[Event]]
) -> None:
    assert published(*events) == expected
