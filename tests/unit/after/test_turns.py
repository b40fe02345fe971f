"""Turns of sessions: who judges them, what the model is given, and what becomes of them without it."""

from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from streamer.after.queues import QueuedFollower
from streamer.after.turn_model import N_MELS, WINDOW_SAMPLES, TurnModel
from streamer.after.turns import TurnFollower, Turns
from streamer.arrays import Float32Array
from streamer.audio.mel import log_mel, log_mel_alone
from streamer.constants import SAMPLE_RATE
from streamer.events import Error
from streamer.health import FIRST_PAUSE_S, Health
from streamer.packed_models import PackedModel
from streamer.whisper.device.devices import the_core
from tests.fakes import Clock
from tests.turn_model import write_turn_model
from tests.unit.after.live import Live, check_freed
from tests.waiting import WAIT_S, wait_until

NOISE = np.random.default_rng(39).standard_normal(WINDOW_SAMPLES).astype(np.float32)


class Session(Live):
    """A session of a hundred seconds whose turns are judged."""

    def __init__(self, turns: Turns, *, gate_turns: bool = False) -> None:
        super().__init__(100.0, buffer_s=60)
        self.settings.gate.turns = gate_turns
        self.turns = TurnFollower(turns, self.session, self.log)

    def ask(self, start_s: float, end_s: float) -> float | None:
        self.judged.clear()
        assert self.turns.judge(round(start_s * SAMPLE_RATE), end := round(end_s * SAMPLE_RATE))
        wait_until(lambda: bool(self.judged))
        assert self.judged[0][0] == end
        return self.judged[0][1]

    def refused(self) -> Error:
        """Ask twice what is not judged; return the one error."""
        assert not self.turns.judge(0, SAMPLE_RATE)
        assert not self.turns.judge(0, 2 * SAMPLE_RATE)
        (error,) = self.events
        assert isinstance(error, Error)
        return error


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Expect the stand-in for the model, which is still to come, in the returned folder."""
    path, find = tmp_path / "turns.xml", PackedModel.find
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "absent"))
    monkeypatch.setattr(PackedModel, "find", lambda model: path if path.is_file() else find(model))
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
    assert 0.0 < (session.ask(55.0, 80.0) or 0.0) < 1.0
    session.ask(85.0, 88.0)
    assert session.ask(30.0, 41.0) is None  # that audio is overwritten
    assert read == [(72.0, 80.0), (85.0, 88.0), (33.0, 41.0)]
    assert session.events == []


@pytest.mark.parametrize("gate_turns", [True, False])
def test_the_model_is_loaded_before_the_first_pause_of_a_session_with_turns(home: Path, gate_turns: bool) -> None:
    turns = Turns(health := Health())
    session = Session(turns, gate_turns=gate_turns)
    turns.queue._works.close(WAIT_S)
    assert (bool(health.why), session.turns.judge(0, SAMPLE_RATE)) == (gate_turns, not gate_turns)


def test_without_the_model_one_error_says_so_and_silence_decides_until_it_was_fetched(home: Path) -> None:
    clock = Clock()
    turns = Turns(health := Health(clock))
    sessions = [Session(turns), Session(turns)]
    assert sessions[0].ask(60.0, 61.0) is None
    for session in sessions:
        error = session.refused()
        assert (error.code, error.fatal) == ("turns", False)
    write_turn_model(home)
    clock.advance(FIRST_PAUSE_S)
    assert sessions[0].ask(60.0, 61.0) is not None
    assert health.why == {}


@pytest.mark.parametrize("damaged", [True, False])
def test_a_failing_model_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    def fail(model: TurnModel, samples: Float32Array) -> float:
        raise RuntimeError("no memory\nfor this")

    write_turn_model(home)
    if damaged:
        (home / "turns.xml").write_text("<net", encoding="utf-8")
    monkeypatch.setattr(TurnModel, "probability", fail)
    session = Session(Turns(Health()))
    assert session.ask(60.0, 61.0) is None
    assert "\n" not in session.refused().message


def test_a_session_that_is_over_is_freed_though_a_turn_is_judged(home: Path) -> None:
    turns, loads = Turns(Health()), list[None]()
    turns.load = lambda: loads.append(None)  # type: ignore[method-assign]

    def make() -> Live:
        session = Session(turns)
        assert session.turns.judge(60 * SAMPLE_RATE, 61 * SAMPLE_RATE)
        session.followers.append(session.turns)
        return session

    check_freed(make, lambda: bool(loads))


def test_it_judges_the_last_eight_seconds_whatever_their_level(tmp_path: Path) -> None:
    model = TurnModel(write_turn_model(tmp_path), the_core())
    expected = model.probability(NOISE)
    assert 0.0 < expected < 1.0
    assert model.probability(np.concatenate([100 * NOISE[:1000], NOISE])) == pytest.approx(expected, abs=1e-6)
    assert model.probability(0.01 * NOISE + np.float32(0.1)) == pytest.approx(expected, abs=1e-3)


def test_what_is_shorter_has_silence_before_it(tmp_path: Path) -> None:
    model = TurnModel(write_turn_model(tmp_path, newest=True), the_core())
    short = NOISE[: SAMPLE_RATE // 2]
    padded = np.concatenate([np.zeros(WINDOW_SAMPLES - len(short), np.float32), short])
    assert model.probability(short) == model.probability(padded)
    # The newest tenth of a second is as loud as the rest in the one, and silent in the other.
    assert model.probability(short) > model.probability(np.concatenate([short, np.zeros(SAMPLE_RATE, np.float32)]))
    assert 0.0 <= model.probability(np.zeros(0, np.float32)) <= 1.0


def test_the_spectrogram_of_samples_alone_is_that_of_a_window_in_which_they_are_reflected_at_their_end() -> None:
    reflected = np.concatenate([NOISE, NOISE[-2:-202:-1]])
    np.testing.assert_allclose(log_mel_alone(NOISE, N_MELS), log_mel(reflected, N_MELS)[:, :800], atol=1e-5)
    assert np.abs(log_mel_alone(NOISE, N_MELS) - log_mel(NOISE, N_MELS)[:, :800]).max() > 1e-4
