"""A long recording through several programs, which are scripted here."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.tools.benchmarks.played import write_corpus
from tools.benchmarks import corpus, files
from tools.benchmarks.corpus import Recording
from tools.benchmarks.files import join, measure_files
from tools.benchmarks.model_files import ModelFiles
from tools.benchmarks.peers.environment import Environment, PeerUnavailable
from tools.benchmarks.raw import SYSTEMS, RawSystem

# Hears "good mourning", and how long the recording is.
HEARS = """
import sys, soundfile
open(sys.argv[2], "w").write(f"good mourning all. {soundfile.info(sys.argv[1]).duration:.0f}")
"""


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    write_corpus(tmp_path / "corpus")
    return corpus.read(tmp_path / "corpus" / "held-clean-1.flac")


def test_recordings_are_joined_until_they_are_long_enough(recording: Recording) -> None:
    samples, text = join([recording], 0.1)
    assert len(samples) / 16_000 == pytest.approx(7.5)
    assert text == "Good morning, all. Good morning, all. Good morning, all."


def test_systems_take_turns_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    def commands(model: object, audio: Path, *rest: object) -> dict[str, tuple[list[str], dict[str, str]]]:
        output = audio.with_suffix(".txt")
        well = [sys.executable, "-c", HEARS, str(audio), str(output)]
        broken = [sys.executable, "-c", "raise MemoryError(1)"]
        return {"well": (well, {}), "broken": (broken, {})}

    monkeypatch.setattr(files, "_commands", commands)
    told = io.StringIO()
    console = Console(file=told, width=120)
    figures = measure_files(["tiny"], [recording], 0.01, tmp_path, str.lower, console, n_rounds=2)
    assert [(f["system"], f["audio_s"]) for f in figures] == [("well", 2.5)]
    # Of "good morning, all." one word is wrong, and "2" was never said.
    assert figures[0]["wer"] == pytest.approx(2 / 3)
    assert float(str(figures[0]["seconds"])) > 0
    assert told.getvalue().count("broken ended with 1: MemoryError: 1") == 1
    assert "tiny: 0 minutes of speech, greedily, weights of 8 bits" in told.getvalue()


def test_all_are_asked_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent(Environment):
        def python(self, folder: Path) -> Path:
            raise PeerUnavailable("openvino-genai: pip could not install it")

    class Here(Environment):
        def python(self, folder: Path) -> Path:
            return folder / "python"

    systems = {
        "faster-whisper": RawSystem("", lambda model: tmp_path / "ct2", Here("here", ())),
        "openvino-genai": RawSystem("", lambda model: tmp_path / "ov", Absent("absent", ())),
    }
    assert set(systems) <= set(SYSTEMS)
    monkeypatch.setattr(files, "SYSTEMS", systems)
    monkeypatch.setattr(ModelFiles, "streamer", lambda model: tmp_path / model.name)
    told = io.StringIO()
    model = ModelFiles("tiny", tmp_path)
    commands = files._commands(model, tmp_path / "speech.wav", 2, 5, Console(file=told, width=120))
    assert "openvino-genai: pip could not install it" in told.getvalue()
    ours, variables = commands["streamer"]
    assert ours[ours.index("--model") + 1] == str(tmp_path / "tiny")
    assert ours[ours.index("--beam-size") + 1] == "5"
    assert variables["STREAMER_MODEL_PROPERTIES"] == "INFERENCE_NUM_THREADS=2"
    theirs, variables = commands["faster-whisper"]
    assert variables["OMP_NUM_THREADS"] == "2"
    assert '"n_beams": 5' in theirs[-1]
    assert str(tmp_path / "speech.txt") in theirs[-1]
