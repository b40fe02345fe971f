"""When what was said is a question, by a hand-moved clock."""

from typing import Any

from streamer.events import Final, Gap, Partial, Speech, Turn
from streamer.plugins.chat.turn import MAX_QUESTION_CHARS, SpokenQuestion
from tests import builders

PAUSE_S = 1.5


def final(text: str, end: float, segment: int = 0) -> Final:
    return builders.final(text, start=end - 1, end=end, segment=segment)


def partial(text: str, segment: int = 0, stable: int = 0) -> Partial:
    return builders.partial(text, stable, segment=segment)


def start(time: float = 0.0) -> Speech:
    return Speech(state="start", time=time)


def end(time: float) -> Speech:
    return Speech(state="end", time=time)


def turn_after(*events: Any) -> SpokenQuestion:  # noqa: ANN401 - events of all types
    """Return a turn after events at seconds 1, 2, 3 and so on."""
    turn = SpokenQuestion(PAUSE_S)
    for now_s, event in enumerate(events, 1):
        turn.handle(event, float(now_s))
    return turn


def test_a_sentence_is_a_question_when_its_speech_has_ended_and_is_final() -> None:
    assert turn_after(start(), partial("Who are"), end(2.0)).due_s is None
    assert turn_after(start(), end(2.0), final(" Who are you?", 2.0)).due_s == 3.0
    assert turn_after(start(), final(" Who are you?", 2.0), end(2.0)).due_s == 2.0


def test_half_a_sentence_waits_for_the_rest() -> None:
    for text in (" What is the capital", " What is the...", " Well…", " And then,"):
        assert turn_after(start(), end(2.0), final(text, 2.0)).due_s == 3.0 + PAUSE_S
    goes_on = turn_after(start(), end(2.0), final(" What is the capital", 2.0), start(3.0))
    assert goes_on.due_s is None
    goes_on.handle(end(5.0), 5.0)
    assert goes_on.due_s is None
    goes_on.handle(final(" of France?", 5.0), 6.0)
    assert goes_on.due_s == 6.0
    assert goes_on.take() == "What is the capital of France?"
    assert goes_on.due_s is None


def test_half_a_sentence_is_a_question_if_the_speaker_has_finished() -> None:
    finished, unfinished = (Turn(time=2.0, probability=p, finished=p > 0.5) for p in (0.9, 0.1))
    for turn, due_s in ((finished, 4.0), (unfinished, 4.0 + PAUSE_S)):
        asked = turn_after(start(), turn, end(2.0), final(" The capital of", 2.0))
        assert asked.due_s == due_s
    goes_on = turn_after(start(), finished, end(2.0), start(3.0), end(4.0), final(" The capital of", 4.0))
    assert goes_on.due_s == 6.0 + PAUSE_S


def test_finals_of_speech_that_goes_on_are_one_question() -> None:
    turn = turn_after(start(), final(" I went home.", 5.0, 0), partial(" It", 1))
    assert turn.due_s is None
    turn.handle(final(" It rained.", 9.0, 1), 9.0)
    turn.handle(end(9.5), 10.0)
    assert turn.due_s is None  # the end of it is not final
    turn.handle(final(" Why?", 9.5, 2), 11.0)
    assert turn.due_s == 11.0
    assert turn.take() == "I went home. It rained. Why?"


def test_beside_a_noise_that_never_ends_a_sentence_and_a_pause_are_enough() -> None:
    assert turn_after(start(), final(" Who are you?”", 2.0)).due_s == 2.0 + PAUSE_S
    assert turn_after(start(), final(" Who are", 2.0)).due_s is None


def test_quotes_and_other_scripts_end_sentences() -> None:
    for text in (' He said "go."', "你好。", "ما اسمك؟", "क्या हुआ।"):
        assert turn_after(end(2.0), final(text, 2.0)).due_s == 2.0


def test_what_is_lost_is_not_waited_for() -> None:
    lost = Gap(start=1.0, end=2.0, reason="device")
    assert turn_after(final(" Hello.", 1.0), start(1.0), partial(" How"), end(2.0), lost).due_s == 3.0


def test_the_times_of_a_new_session_begin_anew() -> None:
    assert (
        turn_after(final(" Hello.", 900.0), start(901.0), builders.ready(), end(2.0), final(" Hi.", 2.0)).due_s == 5.0
    )


def test_words_that_stay_are_speech_and_a_noise_is_not() -> None:
    turn = SpokenQuestion(PAUSE_S)
    assert not turn.handle(start(), 1.0)
    assert not turn.handle(partial(" Uh"), 1.0)
    assert turn.handle(partial(" Stop it", stable=5), 1.0)
    assert not turn.handle(final("", 2.0), 1.0)
    assert turn.handle(final(" Stop.", 3.0), 1.0)


def test_a_question_without_an_answer_begins_the_next() -> None:
    turn = turn_after(final(" Who", 1.0))
    turn.put_back(turn.take())
    turn.handle(final(" are you?", 2.0), 5.0)
    assert (turn.due_s, turn.take()) == (5.0, "Who are you?")


def test_of_endless_words_the_last_are_kept() -> None:
    assert turn_after(final(" x" * MAX_QUESTION_CHARS, 1.0), final(" Why?", 2.0)).take().endswith("x x Why?")
    assert len(turn_after(final(" x" * MAX_QUESTION_CHARS, 1.0)).take()) == MAX_QUESTION_CHARS
