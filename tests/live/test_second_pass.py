"""The model behind the second pass: what it gives away, whom it lets go first, and the whole thing."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamer.correct.corrector import Heard
from streamer.correct.second_pass import Region, SecondPass
from streamer.events import Event, Final, Revision
from streamer.live import second_pass as live
from streamer.live.decoder import make_engine
from streamer.live.enrich import Enrichment
from streamer.live.second_pass import beams_beside
from streamer.live.sessions import open_session
from streamer.settings.table import CorrectionSettings, DecodingSettings, ModelSettings, Settings
from streamer.stream.eventlog import EventLog
from streamer.stream.runner import AudioKind
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import load_model
from streamer.whisper.result import Hypothesis, TimedWord
from tests.daemon import SAMPLE, pause_after, recording
from tests.promises import check_promises
from tests.whisper.support import NANO

WAIT_S = 60.0
TRUSTED = Hypothesis((TimedWord(" so", (1,), 0, 800, 0.9),), "en", 0.0, -0.1)


class Reading:
    """Stands for encoder and decoder, and says what it is told."""

    says = TRUSTED

    def __init__(self, *_: object) -> None: ...

    def encode(self, *_: object) -> object:
        return object()

    def decode(self, *_: object) -> Hypothesis:
        return self.says


def reader(monkeypatch: pytest.MonkeyPatch, says: Hypothesis, before: list[Callable[[], None]]) -> Any:  # noqa: ANN401
    monkeypatch.setattr(Reading, "says", says)
    monkeypatch.setattr(live, "WhisperEncoder", Reading)
    monkeypatch.setattr(live, "WhisperDecoder", Reading)
    model: Any = SimpleNamespace(
        n_beams=5,
        tokenizer=SimpleNamespace(known_languages=["en"]),
        dims=SimpleNamespace(n_mels=80),
        generation=SimpleNamespace(prompted=False),
        call_before=before.append,
    )
    return live._Reader(model, Settings(), lambda duration_s: False)


def region(language: str = "en", left_s: float = WAIT_S) -> Region:
    final = Final(
        segment=1, start=0.0, end=1.0, text="so", words=(), language=language, no_speech_prob=0.0, avg_logprob=-0.1
    )
    samples = np.zeros(16_000, np.float32)
    return Region(Heard(final, (), (), lambda: samples), samples, time.monotonic() + left_s)


@pytest.mark.parametrize(
    ("changes", "n_words"),
    [
        ({}, 1),
        ({"looped": True}, 0),
        ({"failed": True}, 0),
    ],
)
def test_loops_and_unlikely_texts_are_not_given_away(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, bool], n_words: int
) -> None:
    says = Hypothesis(TRUSTED.words, "en", 0.0, -0.1, **changes)
    assert len(reader(monkeypatch, says, []).read(region())) == n_words


def test_a_language_that_the_model_does_not_know_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader(monkeypatch, TRUSTED, []).read(region("de")) == ()


def test_live_sessions_go_first_up_to_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[Callable[[], None]] = []
    reader(monkeypatch, TRUSTED, before).read(region(left_s=0.05))
    with pytest.raises(TimeoutError):  # the live sessions are busy for ever
        before[0]()


@pytest.mark.parametrize(
    ("model", "device", "n_beams"),
    [("", "", 5), ("nano.en", "", 8), (str(NANO), "AUTO", 8), ("nano.en", "GPU", 5), ("base.en", "", 5)],
)
def test_the_daemons_own_model_is_loaded_for_the_beams_where_it_reads_again(
    model: str, device: str, n_beams: int
) -> None:
    correction = CorrectionSettings(model=model, device=device, beam_size=8)
    assert beams_beside(Settings(model=ModelSettings(name="nano.en"), correction=correction)) == n_beams


@pytest.mark.slow
def test_a_final_is_read_again_before_the_end_and_no_promise_breaks(cache_dir: Path) -> None:
    model = load_model(str(NANO), DeviceSettings("CPU"), cache_dir=str(cache_dir), most_beams=5)
    # What captions compute stays as it was.
    assert (model.n_beams, model.twin(most_beams=True).n_beams) == (1, 5)
    correction = CorrectionSettings(model="nano.en", beam_size=5, deadline_s=WAIT_S)
    settings = Settings(model=ModelSettings(name="nano.en"), correction=correction)
    # Captions cannot write this word: so there is something to mend.
    (the,) = model.tokenizer.encode(" the")
    engine = make_engine(model, DecodingSettings(suppress_tokens=f"-1,{the}"))
    enrichment = Enrichment(settings, model, engine)
    log = EventLog("abc", 10_000)
    events: list[Event] = []
    log.subscribe(events.append)
    over: Future[None] = Future()

    def end() -> None:
        log.close()
        over.set_result(None)

    runner = open_session(settings, model, log, kind=AudioKind.RECORDED, on_finished=end, enrichment=enrichment)
    engine.start()
    try:
        assert enrichment.corrections is not None
        (corrector,) = enrichment.corrections.slow
        assert isinstance(corrector, SecondPass)
        corrector.readers.result(WAIT_S)
        engine.add(runner)
        samples = recording(SAMPLE, pause_after(1), pause_after(2))
        runner.write(samples)
        runner.end()
        over.result(WAIT_S)
    finally:
        engine.stop()
    check_promises(events, duration_s=len(samples) / 16_000)
    revisions: Sequence[Revision] = [event for event in events if isinstance(event, Revision)]
    finals = " ".join(event.text for event in events if isinstance(event, Final))
    assert " the " not in finals
    assert any(" the " in revision.text and revision.by == "second_pass" for revision in revisions)
    assert str(enrichment.failing) == ""
