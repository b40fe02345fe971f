"""When what was said is a question, by a hand-moved clock."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from streamer.events import Event
from streamer.plugins.chat.turn import MAX_QUESTION_CHARS, SpokenQuestion
from tests.builders import final
from tests.unit.outputs.finals import read_events

PATH = Path(__file__).parents[2] / "golden" / "questions.toml"
ROWS = tomllib.loads(PATH.read_text(encoding="utf-8"))["question"]


def question_after(*events: Event) -> tuple[SpokenQuestion, list[bool]]:
    """Return a question after events at seconds 1, 2, 3 and so on, and which of these were speech."""
    question = SpokenQuestion(pause_s=1.5)
    return question, [question.handle(event, float(now_s)) for now_s, event in enumerate(events, 1)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_questions_are_due_as_they_were_read(row: dict[str, Any]) -> None:
    question, _ = question_after(*read_events(row["events"]))
    assert question.due_s == row.get("due_s")
    if "text" in row:
        assert question.take() == row["text"]
        assert question.due_s is None


def test_words_that_stay_are_speech_and_a_noise_is_not() -> None:
    events: list[dict[str, Any]] = [
        {"speech": "start"},
        {"partial": " Uh"},
        {"partial": " Stop it", "stable": 5},
        {"final": ""},
    ]
    _, were_speech = question_after(*read_events([*events, {"final": " Stop."}]))
    assert were_speech == [False, False, True, False, True]


def test_a_question_without_an_answer_begins_the_next() -> None:
    question, _ = question_after(final(" Who", end=1.0))
    question.put_back(question.take())
    question.handle(final(" are you?", end=2.0), 5.0)
    assert (question.due_s, question.take()) == (5.0, "Who are you?")


def test_of_endless_words_the_last_are_kept() -> None:
    endless = final(" x" * MAX_QUESTION_CHARS, words=())
    assert question_after(endless, final(" Why?"))[0].take().endswith("x x Why?")
    assert len(question_after(endless)[0].take()) == MAX_QUESTION_CHARS
