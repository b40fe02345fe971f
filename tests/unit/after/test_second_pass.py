"""The model behind the second pass: what it reads, whom it lets go first, and the whole thing."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from streamer import events
from streamer.after.correct.second_pass import Passage
from streamer.after.postprocessing import PostProcessing
from streamer.after.second_pass import SecondPass
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import make_engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.errors import ModelError, StreamerError
from streamer.events import Final, Revision
from streamer.health import Health
from streamer.settings.table import CorrectionSettings, DecodingSettings, ModelSettings, Settings
from streamer.whisper.model import WhisperModel
from tests.builders import final
from tests.daemon import SAMPLE, pause_after, recording
from tests.promises import check_promises
from tests.unit.whisper.support import NANO, load_on_cpu
from tests.waiting import WAIT_S


@pytest.fixture(scope="module")
def own(cache_dir: Path) -> WhisperModel:
    return load_on_cpu(NANO, cache_dir)


def second_pass(own: WhisperModel, *, free: bool = True, **changes: object) -> SecondPass:
    correction = CorrectionSettings(**{"model": "nano.en", **changes})  # type: ignore[arg-type]
    settings = Settings(model=ModelSettings(name="nano.en"), correction=correction)
    return SecondPass(settings, own, lambda timeout_s, quiet_s: free, Health())


def passage(language: str = "en", left_s: float = WAIT_S) -> Passage:
    """Return a passage from second 7 on."""
    spoken = final("so", start=7.0, end=9.0, words=(), language=language)
    return Passage((spoken,), 0, None, time.monotonic() + left_s)


def test_a_passage_is_transcribed_with_times_of_the_session(own: WhisperModel) -> None:
    reader = second_pass(own)
    reader.model.result(WAIT_S)
    words = reader.read(passage(), recording(SAMPLE))
    assert "The Commission regards such" in "".join(word.word for word in words)
    assert words[0].start >= 7.0


def test_silence_has_no_words_and_an_unknown_language_is_left_alone(own: WhisperModel) -> None:
    reader = second_pass(own)
    reader.model.result(WAIT_S)
    assert list(reader.read(passage(), np.zeros(32_000, np.float32))) == []
    assert reader.read(passage("de"), recording(SAMPLE)) == ()


def test_live_captions_go_first_up_to_the_deadline(own: WhisperModel) -> None:
    reader = second_pass(own, free=False)
    reader.model.result(WAIT_S)
    with pytest.raises(TimeoutError):
        reader.read(passage(left_s=0.05), recording(SAMPLE))


def test_a_model_that_cannot_be_loaded_is_reported_and_one_that_is_not_there_yet_is_not(
    own: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Event()

    def load(self: SecondPass) -> WhisperModel:
        assert there.wait(WAIT_S)
        raise ModelError("no such model: fetch it")

    monkeypatch.setattr(SecondPass, "_load", load)
    reader = second_pass(own)
    assert reader.read(passage(), recording(SAMPLE)) == ()
    there.set()
    assert isinstance(reader.model.exception(WAIT_S), ModelError)
    with pytest.raises(StreamerError, match="no such model"):
        reader.read(passage(), recording(SAMPLE))


@pytest.mark.slow
def test_a_final_is_read_again_before_the_end_and_no_promise_breaks(own: WhisperModel) -> None:
    model = own
    # What captions compute stays as it was.
    assert (model.n_beams, model.fork(n_beams=5).n_beams) == (1, 5)
    correction = CorrectionSettings(model="nano.en", beam_size=5, deadline_s=WAIT_S)
    settings = Settings(model=ModelSettings(name="nano.en"), correction=correction)
    # Captions cannot write this word: so there is something to mend.
    (the,) = model.tokenizer.encode(" the")
    engine = make_engine(model, DecodingSettings(suppress_tokens=f"-1,{the}"))
    enrichment = PostProcessing(settings, model, engine)
    log = EventLog("abc", 10_000)
    told: list[events.Event] = []
    log.subscribe(told.append)
    over: Future[None] = Future()

    def end(event: events.Event) -> None:
        if isinstance(event, events.End):
            over.set_result(None)

    log.subscribe(end)
    live = open_session(settings, model, log, SessionSource(kind=AudioKind.RECORDED), enrichment=enrichment)
    engine.start()
    try:
        assert enrichment.second_pass is not None
        enrichment.second_pass.model.result(WAIT_S)
        engine.add(live)
        samples = recording(SAMPLE, pause_after(1), pause_after(2))
        live.write(samples)
        live.end()
        over.result(WAIT_S)
    finally:
        engine.stop()
    check_promises(told, duration_s=len(samples) / 16_000)
    revisions: Sequence[Revision] = [event for event in told if isinstance(event, Revision)]
    finals = " ".join(event.text for event in told if isinstance(event, Final))
    assert " the " not in finals
    assert any(" the " in revision.text and revision.by == "second_pass" for revision in revisions)
    assert str(enrichment.health) == ""
