"""`streamer speakers`: people are enrolled from recordings; `transcribe --speakers` names who says what."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.after.speakers import live as speakers
from streamer.after.speakers.diarization import Diarization
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.packed_models import PackedModel
from tests.daemon import SAMPLE, Outcome, recording

Run = Callable[..., Outcome]


def voice(person: int) -> Float32Array:
    """Return the vector of a window in which one person speaks; all people's are equally far apart."""
    vector: Float32Array = np.eye(192, dtype=np.float32)[person]
    return vector


@pytest.fixture(autouse=True)
def _one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the model: person 1 speaks in every window."""
    monkeypatch.setattr(speakers, "load_vectors", lambda: lambda samples: voice(1))


@pytest.fixture
def run(run_here: Run, tmp_path: Path) -> Run:
    return lambda *arguments: run_here("speakers", *arguments, "--enrolled", tmp_path / "voices")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Float32Array], None]:
    """Let a recording have these windows, shape (n, 192), whatever is said in it."""
    monkeypatch.setattr("streamer.audio.sources.file.read_audio", lambda file: iter(()))

    def let(vectors: Float32Array) -> None:
        monkeypatch.setattr(Diarization, "vectors", property(lambda self: vectors))

    return let


def test_people_are_enrolled_listed_and_forgotten(run: Run, windows: Callable[[Float32Array], None]) -> None:
    windows(np.stack([voice(1)] * 4))  # of 3 s
    assert run("list") == Outcome(0, "", "")
    assert run("enrol", "Zoë", SAMPLE).stdout.startswith("Zoë is enrolled, from 3 s")
    assert run("enrol", "Anna [Smith]", SAMPLE).exit_code == 0
    assert run("list").stdout == "Anna [Smith]\nZoë\n"
    assert run("forget", "Zoë").exit_code == 0
    assert run("list").stdout == "Anna [Smith]\n"


@pytest.mark.parametrize("people", [[1, 1, 1], [1, 2, 3, 4]], ids=["too little speech", "several people"])
def test_what_is_not_the_voice_of_one_person_is_refused(
    run: Run, windows: Callable[[Float32Array], None], people: list[int]
) -> None:
    windows(np.stack([voice(person) for person in people]))
    assert run("enrol", "Anna", SAMPLE).exit_code == 2
    assert run("list").stdout == ""


def test_words_of_a_file_have_a_speaker(run_here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PackedModel, "find", lambda model: tmp_path)
    monkeypatch.setenv("STREAMER_SPEAKERS_ENROLLED", str(tmp_path))
    soundfile.write(tmp_path / "talk.wav", recording(SAMPLE, 0.0, 3.0), SAMPLE_RATE)
    done = run_here("transcribe", "--speakers", "--format", "json", tmp_path / "talk.wav")
    words = [word for segment in json.loads(done.stdout)["segments"] for word in segment["words"]]
    assert {word.get("speaker") for word in words} == {"S1"}
