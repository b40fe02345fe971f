"""Turns of sessions: who judges them, and what becomes of them without the model."""

from concurrent.futures import Future
from pathlib import Path

import pytest
from huggingface_hub import constants

from streamer import events
from streamer.after.postprocessing import PostProcessing
from streamer.after.queues import QueuedFollower
from streamer.after.turn_model import TurnModel
from streamer.after.turns import TurnFollower, Turns
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.daemon.sessions import SessionSource, open_session
from streamer.engine.decoder import make_engine
from streamer.engine.eventlog import EventLog
from streamer.engine.inlet import AudioKind
from streamer.events import Error, Speech, Turn
from streamer.health import FIRST_PAUSE_S, Health
from streamer.packed_models import PackedModel
from streamer.settings.table import CorrectionSettings, DecodingSettings, ModelSettings, Settings, SpeechSettings
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, WAIT_S, pause_after, recording
from tests.fakes import Clock
from tests.promises import check_promises
from tests.turn_model import write_turn_model
from tests.unit.after.live import Live
from tests.waiting import wait_until


class Session(Live):
    """A session of a hundred seconds whose turns are judged."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(100.0, buffer_s=60)
        self.turns = TurnFollower(turns, self.session, self.log)

    def ask(self, start_s: float, end_s: float) -> float | None:
        """Return the answer about a turn."""
        n_judged = len(self.judged)
        end = round(end_s * SAMPLE_RATE)
        assert self.turns.judge(round(start_s * SAMPLE_RATE), end)
        wait_until(lambda: len(self.judged) > n_judged)
        found, probability = self.judged[-1]
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


def test_the_newest_seconds_of_a_turn_are_judged(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_turn_model(home)
    read: list[tuple[float, float]] = []
    audio = QueuedFollower.audio

    def note(follower: QueuedFollower, start_s: float, end_s: float) -> Float32Array | None:
        read.append((start_s, end_s))
        return audio(follower, start_s, end_s)

    monkeypatch.setattr(QueuedFollower, "audio", note)
    session = Session(Turns(Health()))
    probability = session.ask(55.0, 80.0)
    assert probability is not None
    assert 0.0 < probability < 1.0
    session.ask(85.0, 88.0)
    assert session.ask(30.0, 41.0) is None  # that audio is overwritten
    assert read == [(72.0, 80.0), (85.0, 88.0), (33.0, 41.0)]
    assert session.events == []


def test_the_model_is_loaded_before_the_first_pause_of_a_session_with_turns(home: Path) -> None:
    health = Health()
    session = Live()
    TurnFollower(Turns(health), session.session, session.log)
    session.settings.gate.turns = True
    turns = Turns(health)
    TurnFollower(turns, session.session, session.log)
    turns.queue._works.close(WAIT_S)
    assert "--turns is missing" in str(health)


def test_without_the_model_it_is_said_once_and_silence_decides_until_it_was_fetched(home: Path) -> None:
    clock = Clock()
    health = Health(clock)
    turns = Turns(health)
    sessions = [Session(turns), Session(turns)]
    assert sessions[0].ask(60.0, 61.0) is None
    for session in sessions:
        assert not session.turns.judge(0, SAMPLE_RATE)
        assert not session.turns.judge(0, 2 * SAMPLE_RATE)
        (error,) = session.events
        assert isinstance(error, Error)
        assert (error.code, error.fatal) == ("turns", False)
        assert "`streamer models pull turns` (12 MB, once)" in error.message
    assert "--turns is missing" in str(health)
    write_turn_model(home)
    clock.advance(FIRST_PAUSE_S)
    assert sessions[0].ask(60.0, 61.0) is not None
    assert str(health) == ""


def fail(model: TurnModel, samples: Float32Array) -> float:
    raise RuntimeError("no memory\nfor this")


@pytest.mark.parametrize(
    ("damaged", "message"), [(True, "is not a turn model"), (False, "unexpected RuntimeError: no memory for this")]
)
def test_a_model_that_fails_is_one_line_and_no_end_of_captions(
    home: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool, message: str
) -> None:
    write_turn_model(home)
    if damaged:
        (home / "turns.xml").write_text("<net", encoding="utf-8")
    monkeypatch.setattr(TurnModel, "probability", fail)
    session = Session(Turns(Health()))
    assert session.ask(60.0, 61.0) is None
    assert not session.turns.judge(0, SAMPLE_RATE)
    (error,) = session.events
    assert isinstance(error, Error)
    assert message in error.message
    assert "\n" not in error.message


def test_a_turn_is_answered_though_its_audio_cannot_be_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Turns(Health()))
    monkeypatch.setattr(session.turns, "audio", None)
    assert session.ask(60.0, 61.0) is None


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
