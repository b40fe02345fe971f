import json
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.after.speakers import live as speakers
from streamer.after.speakers.diarization import Diarization
from streamer.arrays import Float32Array
from streamer.packed_models import PackedModel
from tests.daemon import SAMPLE, Outcome
from tests.unit.after.speakers.voices import heard


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Who is heard in every window, and for which share of it: stands in for the model."""
    shares = {1: 1.0}

    def vector_of(samples: Float32Array) -> Float32Array:
        return heard(shares, seed=int(1e6 * abs(samples[0])))

    monkeypatch.setattr(speakers, "load_vectors", lambda: vector_of)
    return shares


@pytest.fixture
def run(run_here: Callable[..., Outcome], tmp_path: Path) -> Callable[..., Outcome]:
    return lambda *arguments: run_here("speakers", *arguments, "--enrolled", tmp_path / "voices")


def test_people_are_enrolled_listed_and_forgotten(run: Callable[..., Outcome], people: dict[int, float]) -> None:
    assert run("list").stdout == ""
    done = run("enrol", "Zoë", SAMPLE)
    assert (done.exit_code, done.stdout.startswith("Zoë is enrolled, from ")) == (0, True)
    assert run("enrol", "Anna [Smith]", SAMPLE).exit_code == 0
    assert run("list").stdout == "Anna [Smith]\nZoë\n"
    assert run("forget", "Zoë").exit_code == 0
    assert run("list").stdout == "Anna [Smith]\n"
    assert (run("forget", "Zoë").exit_code, run("enrol", "S1", SAMPLE).exit_code) == (2, 2)


def test_several_voices_and_too_little_speech_are_refused(
    run: Callable[..., Outcome], people: dict[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    people.clear()  # nothing but noise: no window is like another
    assert "record one person alone" in run("enrol", "Anna", SAMPLE).error()
    monkeypatch.setattr(Diarization, "vectors", property(lambda self: heard({1: 1.0})[None]))
    assert "less than 3 s of speech" in run("enrol", "Anna", SAMPLE).error()
    assert run("list").stdout == ""


@pytest.mark.slow
def test_words_of_a_file_have_a_speaker(
    run_here: Callable[..., Outcome], people: dict[int, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PackedModel, "find", lambda model: tmp_path)
    monkeypatch.setenv("STREAMER_SPEAKERS_ENROLLED", str(tmp_path))
    assert "leave out --stream" in run_here("transcribe", "--speakers", "--stream", SAMPLE).error()
    done = run_here("transcribe", "--speakers", "--format", "json", SAMPLE)
    words = [word for segment in json.loads(done.stdout)["segments"] for word in segment["words"]]
    assert {word.get("speaker") for word in words} == {"S1"}
