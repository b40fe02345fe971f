"""Sessions as `open_session` puts them together: what follows their events, which may fail, and loses none.

The log says once for each language of a session that the model recognizes it badly.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest

from streamer.after.correct.pipeline import CorrectionFollower
from streamer.after.postprocessing import PostProcessing
from streamer.after.translation import TranslationFollower
from streamer.daemon.confidence import LEAST_PROBABILITY, N_WORDS, SPAN_S, Confidence
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.eventlog import EventLog
from streamer.engine.follower import Follower
from streamer.engine.inlet import AudioKind
from streamer.engine.live_session import LiveSession
from streamer.events import End, Event, Final, Gap, Partial
from streamer.settings.table import CorrectionSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.builders import final, partial, words
from tests.promises import Promises
from tests.waiting import wait_until


def fail(*args: object) -> Event:
    raise RuntimeError("can't start new thread")


class Broken(Follower):
    """A follower that fails at each event."""

    def label(self, event: Event) -> Event:
        return fail(event)

    def see(self, event: Event) -> None:
        fail(event)


class Followed:
    """A session whose finals are spelled, and its events."""

    def __init__(self, model: WhisperModel, folder: Path, followers: Sequence[Follower] = ()) -> None:
        path = folder / "terms.yaml"
        path.write_text("- Quorbix", encoding="utf-8")
        settings = Settings(correction=CorrectionSettings(glossary=str(path), model=""))
        self.log = EventLog("abc", 100)
        self.events: list[Event] = []
        self.enrichment = PostProcessing(settings, model, MagicMock())
        self.live: LiveSession = open_session(
            settings,
            model,
            self.log,
            SessionSource(kind=AudioKind.EITHER, followers=followers),
            enrichment=self.enrichment,
        )
        self.log.subscribe(self.events.append)

    def publish(self, *events: Event) -> None:
        """Publish events, which are checked against the promises."""
        self.live._publish(events)
        promises = Promises()
        promises.take(self.events)


QUARBEX = (
    partial("so quarbex", 10, segment=1, words=words("so quarbex", step=1.0)),
    final("so quarbex is here", segment=1, words=words("so quarbex is here", step=1.0)),
)


def texts_of(events: Iterable[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Partial | Final)]


def test_an_event_is_published_without_the_label_that_fails_and_with_the_others(
    model: WhisperModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = Followed(model, tmp_path, [Broken()])
    session.publish(*QUARBEX, Gap(start=5.0, end=6.0, reason="overload"))
    assert texts_of(session.events) == ["so Quorbix", "so Quorbix is here"]
    assert [event.type for event in session.events] == ["partial", "final", "gap"]
    assert "a final event is published without a label" in caplog.text


def test_a_final_begins_with_its_stable_prefix_though_its_terms_cannot_be_found(
    model: WhisperModel, tmp_path: Path
) -> None:
    session = Followed(model, tmp_path)
    session.publish(QUARBEX[0])
    assert session.enrichment.glossary is not None
    session.enrichment.glossary._indexes = {}
    session.publish(QUARBEX[1])
    assert texts_of(session.events) == ["so Quorbix", "so Quorbix is here"]


def test_metrics_that_fail_lose_no_event(model: WhisperModel, tmp_path: Path) -> None:
    session = Followed(model, tmp_path)
    session.live.host.stats.on_delay = fail
    session.live.age_s = lambda time_s: 0.0  # type: ignore[method-assign]
    session.publish(*QUARBEX)
    assert texts_of(session.events) == ["so Quorbix", "so Quorbix is here"]


@pytest.mark.parametrize("part", [TranslationFollower, CorrectionFollower])
def test_a_session_ends_though_a_part_of_its_post_processing_cannot_be_finished(
    model: WhisperModel, tmp_path: Path, part: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "finish", fail)
    session = Followed(model, tmp_path)
    session.live.end()
    session.live.listen(0.0)
    assert session.live.over
    wait_until(lambda: any(isinstance(event, End) for event in session.events))


N_FINALS = 5


def said_with(probability: float, language: str = "tr", *, n_words: int = N_WORDS // N_FINALS) -> Final:
    """Return a final of a fifth of what is judged at a time."""
    step = SPAN_S / N_FINALS / max(1, n_words)
    return final("so", words=words("so " * n_words, step=step, probability=probability), language=language)


def base(*languages: str) -> WhisperModel:
    tokenizer = SimpleNamespace(known_languages=[*languages])
    return cast(WhisperModel, SimpleNamespace(name="base", tokenizer=tokenizer))


def warnings(*events: Event, english_only: bool = False) -> list[str]:
    told: list[str] = []
    confidence = Confidence(base("en") if english_only else base("en", "tr"), told.append)
    for event in events:
        confidence.see(event)
    return told


LOW, HIGH = LEAST_PROBABILITY - 0.05, LEAST_PROBABILITY + 0.05


def test_a_language_that_the_model_recognizes_badly_is_told_once_and_another_one_once_more() -> None:
    badly = [said_with(LOW)] * N_FINALS
    assert warnings(*badly[1:]) == []
    (turkish,) = warnings(*badly, *badly, *badly)
    assert "--model small" in turkish
    both = warnings(*badly, *[said_with(LOW, "hi")] * N_FINALS, *badly)
    assert ["Turkish" in both[0], "Hindi" in both[1], len(both)] == [True, True, 2]


def test_an_english_model_that_is_spoken_to_in_another_language_names_a_multilingual_one() -> None:
    (warning,) = warnings(*[said_with(LOW, "en")] * 10, english_only=True)
    assert "--model base" in warning


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([said_with(HIGH)] * 50, id="a language that it knows"),
        pytest.param([*[said_with(HIGH)] * (N_FINALS - 1), said_with(LOW)] * 10, id="a bad sentence now and then"),
        pytest.param([said_with(LOW, n_words=1)] * (N_WORDS - 1), id="a few words in noise"),
        pytest.param([said_with(LOW, n_words=0)] * 50, id="no words"),
        pytest.param([*[said_with(LOW)] * 2, *[said_with(HIGH)] * N_FINALS], id="a bad beginning"),
        pytest.param([partial("so", words=said_with(LOW).words)] * 50, id="text that may change"),
    ],
)
def test_nothing_is_said_of(events: list[Event]) -> None:
    assert warnings(*events) == []


def test_a_session_says_it_in_the_log(model: WhisperModel, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("abc", 100)
    live = open_session(Settings(), model, log, SessionSource(kind=AudioKind.RECORDED))
    live._publish([said_with(LOW, "en")] * N_FINALS)
    assert [model.name in record.getMessage() for record in caplog.records] == [True]
