"""The log says once for each language of a session that the model recognizes it badly."""

from types import SimpleNamespace
from typing import cast

import pytest

from streamer.daemon.confidence import LEAST_PROBABILITY, N_WORDS, SPAN_S, Confidence
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.events import Final
from streamer.settings.table import Settings
from streamer.whisper.model import WhisperModel
from tests.builders import final, partial, words

N_FINALS = 5


def spoken(probability: float, language: str = "tr", *, n_words: int = N_WORDS // N_FINALS) -> Final:
    """Return a final of a fifth of what is judged at a time."""
    step = SPAN_S / N_FINALS / max(1, n_words)
    return final("so", words=words("so " * n_words, step=step, probability=probability), language=language)


def base(*languages: str) -> WhisperModel:
    tokenizer = SimpleNamespace(known_languages=[*languages])
    return cast(WhisperModel, SimpleNamespace(name="base", tokenizer=tokenizer))


def warnings(*finals: Final, english_only: bool = False) -> list[str]:
    told: list[str] = []
    confidence = Confidence(base("en") if english_only else base("en", "tr"), told.append)
    for event in finals:
        confidence.see(event)
    return told


LOW, HIGH = LEAST_PROBABILITY - 0.05, LEAST_PROBABILITY + 0.05


def test_a_language_that_the_model_recognizes_badly_is_told_once_and_another_one_once_more() -> None:
    badly = [spoken(LOW)] * N_FINALS
    assert warnings(*badly[1:]) == []
    (turkish,) = warnings(*badly, *badly, *badly)
    assert "--model small" in turkish
    both = warnings(*badly, *[spoken(LOW, "hi")] * N_FINALS, *badly)
    assert ["Turkish" in both[0], "Hindi" in both[1], len(both)] == [True, True, 2]


def test_an_english_model_that_is_spoken_to_in_another_language_names_a_multilingual_one() -> None:
    (warning,) = warnings(*[spoken(LOW, "en")] * 10, english_only=True)
    assert "--model base" in warning


@pytest.mark.parametrize(
    "finals",
    [
        pytest.param([spoken(HIGH)] * 50, id="a language that it knows"),
        pytest.param([*[spoken(HIGH)] * (N_FINALS - 1), spoken(LOW)] * 10, id="a bad sentence now and then"),
        pytest.param([spoken(LOW, n_words=1)] * (N_WORDS - 1), id="a few words in noise"),
        pytest.param([spoken(LOW, n_words=0)] * 50, id="no words"),
        pytest.param([*[spoken(LOW)] * 2, *[spoken(HIGH)] * N_FINALS], id="a bad beginning"),
    ],
)
def test_nothing_is_said_of(finals: list[Final]) -> None:
    assert warnings(*finals) == []


def test_a_session_says_it_in_the_log(model: WhisperModel, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("abc", 100)
    live = open_session(Settings(), model, log, SessionSource(kind=AudioKind.RECORDED))
    live._publish([spoken(LOW, "en")] * N_FINALS)
    assert [model.name in record.getMessage() for record in caplog.records] == [True]


def test_partials_do_not_count() -> None:
    told: list[str] = []
    confidence = Confidence(base("en", "tr"), told.append)
    for _ in range(50):
        confidence.see(partial("so", words=spoken(LOW).words))
    assert told == []
