"""Turns of sessions: who judges them, and what becomes of them without the model."""

from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from streamer import events
from streamer.after.postprocessing import PostProcessing
from streamer.after.turn_model import TurnModel
from streamer.after.turns import Turns, TurnsOfSession
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import make_engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.events import Error, Event, Speech, Turn
from streamer.health import FIRST_PAUSE_S, Health
from streamer.packed_models import PackedModel
from streamer.settings.table import CorrectionSettings, DecodingSettings, ModelSettings, Settings, SpeechSettings
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, WAIT_S, pause_after, recording
from tests.fakes import Clock
from tests.promises import check_promises
from tests.turn_model import write_turn_model

Answer = tuple[int, float | None]


class Session:
    """What a session's turns need of it."""

    def __init__(self, turns: Turns) -> None:
        self.read: list[tuple[float, float]] = []
        self.published: list[Event] = []
        self.log = EventLog("abc", 100)
        self.log.subscribe(self.published.append)
        self.answered: Future[Answer] = Future()
        self.turns = TurnsOfSession(turns, self.log, self.audio, lambda *answer: self.answered.set_result(answer))

    def audio(self, start_s: float, end_s: float) -> Float32Array | None:
        self.read.append((start_s, end_s))
        return np.ones(round((end_s - start_s) * SAMPLE_RATE), dtype=np.float32) if end_s < 100 else None

    def judge(self, start_s: float, end_s: float) -> float | None:
        """Return the answer about a turn."""
        self.answered = Future()
        end = round(end_s * SAMPLE_RATE)
        assert self.turns.ask(round(start_s * SAMPLE_RATE), end)
        found, probability = self.answered.result(WAIT_S)
        assert found == end
        return probability


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Expect the stand-in for the model, which is still to come, in the returned folder."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "absent"))
    found = PackedModel.find
    monkeypatch.setattr(
        PackedModel, "find", lambda model: path if (path := tmp_path / "turns.xml").is_file() else found(model)
    )
    return tmp_path


def test_the_newest_seconds_of_a_turn_are_judged(home: Path) -> None:
    write_turn_model(home)
    session = Session(Turns(Health()))
    probability = session.judge(5.0, 20.0)
    assert probability is not None
    assert 0.0 < probability < 1.0
    session.judge(25.0, 28.0)
    assert session.read == [(12.0, 20.0), (25.0, 28.0)]
    assert session.judge(98.0, 101.0) is None  # that audio is overwritten
    assert session.published == []


def test_without_the_model_it_is_said_once_and_silence_decides_until_it_was_fetched(home: Path) -> None:
    clock = Clock()
    health = Health(clock)
    sessions = [Session(Turns(health))]
    sessions.append(Session(sessions[0].turns._turns))
    assert sessions[0].judge(1.0, 2.0) is None
    for session in sessions:
        assert not session.turns.ask(0, SAMPLE_RATE)
        assert not session.turns.ask(0, 2 * SAMPLE_RATE)
        (error,) = session.published
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == ("turns", False)
        assert "`streamer models pull turns` (12 MB, once)" in error.message
    assert "--turns is missing" in str(health)
    write_turn_model(home)
    clock.advance(FIRST_PAUSE_S)
    assert sessions[0].judge(1.0, 2.0) is not None
    assert str(health) == ""


def test_nothing_is_judged_for_a_client_that_has_left(home: Path) -> None:
    write_turn_model(home)
    session = Session(Turns(Health()))
    session.log.close()
    assert session.turns.ask(0, SAMPLE_RATE)
    session.turns._turns.worker.close(WAIT_S)
    assert session.read == []


def test_a_damaged_model_is_one_line(home: Path) -> None:
    (home / "turns.xml").write_text("<net", encoding="utf-8")
    session = Session(Turns(Health()))
    assert session.judge(1.0, 2.0) is None
    assert not session.turns.ask(0, SAMPLE_RATE)
    (error,) = session.published
    assert isinstance(error, Error)
    assert "is not a turn model" in error.message
    assert "\n" not in error.message


def test_a_model_that_fails_at_work_is_one_line_and_no_end_of_captions(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_turn_model(home)

    def fail(model: TurnModel, samples: Float32Array) -> float:
        raise RuntimeError("no memory\nfor this")

    monkeypatch.setattr(TurnModel, "probability", fail)
    session = Session(Turns(Health()))
    assert session.judge(1.0, 2.0) is None
    assert not session.turns.ask(0, SAMPLE_RATE)
    (error,) = session.published
    assert isinstance(error, Error)
    assert error.message == "unexpected RuntimeError: no memory for this"


@pytest.mark.slow
def test_the_speech_of_a_recording_ends_with_its_turns(home: Path, model: WhisperModel) -> None:
    write_turn_model(home)
    told: list[events.Event] = []

    def transcribe(*, threshold: float) -> int:
        speech = SpeechSettings(turns=True, turn_threshold=threshold, turn_silence_s=10.0)
        settings = Settings(model=ModelSettings(name="nano.en"), correction=CorrectionSettings(model=""), speech=speech)
        engine = make_engine(model, DecodingSettings())
        log, over = EventLog("abc", 10_000), Future[None]()
        told.clear()
        log.subscribe(told.append)

        def end(event: events.Event) -> None:
            if isinstance(event, events.End):
                over.set_result(None)

        log.subscribe(end)
        live = open_session(
            settings,
            model,
            log,
            SessionSource(kind=AudioKind.RECORDED),
            enrichment=PostProcessing(settings, model, engine),
        )
        engine.start()
        try:
            engine.add(live)
            live.write(recording(SAMPLE, 0.0, pause_after(2)))
            live.end()
            over.result(WAIT_S)
        finally:
            engine.stop()
        check_promises(told)
        turns = [event for event in told if isinstance(event, Turn)]
        assert turns
        assert all(turn.finished == (turn.probability >= threshold) for turn in turns)
        return sum(isinstance(event, Speech) and event.state == "end" for event in told)

    assert transcribe(threshold=0.01) > transcribe(threshold=0.99) == 1
