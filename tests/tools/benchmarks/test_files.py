"""Word errors and words without speech, of systems that are scripted here."""

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.unit.whisper.support import NANO
from tools.benchmarks import files
from tools.benchmarks.files import measure_files, normaliser
from tools.benchmarks.peers.environment import PeerUnavailable
from tools.benchmarks.recordings import Recording, find

# Writes to each text of a folder what a system is said to write.
WRITES = "import sys, pathlib; [pathlib.Path(p).write_text(sys.argv[1], encoding='utf-8') for p in sys.argv[2:]]"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Write a recording in English, one in German, one of noise and one without a text."""
    for name, text in (
        ("speeches/lincoln", "Four score—and seven years ago"),
        ("fleurs/fleurs-de-01", "Guten Tag"),
        ("nonspeech-noise/rain", ""),
        ("rttm/dev", None),
    ):
        path = tmp_path / "corpus" / f"{name}.flac"
        path.parent.mkdir(parents=True)
        soundfile.write(path, np.zeros(16_000 * 30, dtype=np.float32), 16_000)
        if text is not None:
            path.with_suffix(".txt").write_text(text, encoding="utf-8")
    return tmp_path / "corpus"


def script(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str | None]) -> list[tuple[str, str]]:
    """Have each system write its text of every recording, or be missing; return which ran, and for what."""
    ran: list[tuple[str, str]] = []

    def command(
        system: str, model: object, recordings: list[Recording], language: str, folder: Path, *_: object
    ) -> tuple[list[str], dict[str, str]]:
        ran.extend((system, recording.name) for recording in recordings)
        text = texts[system]
        if text is None:
            raise PeerUnavailable(f"{system}: pip could not install it")
        outputs = [str(folder / f"{recording.name}.txt") for recording in recordings]
        return [sys.executable, "-c", WRITES, text, *outputs], {}

    monkeypatch.setattr(files, "_command", command)
    return ran


def test_characters_are_compared_in_languages_without_spaces() -> None:
    assert normaliser("ja")("幽霊、だ。").split() == list("幽霊だ")
    assert normaliser("en")("different—a colour").split() == ["different", "a", "color"]


def test_systems_stand_beside_each_other_in_tables(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"streamer": "four score and eleven years", "streamer --stream": "", "openai-whisper": "hello you"}
    ran = script(monkeypatch, {**texts, "faster-whisper": None})
    told: list[str] = []

    def measure() -> list[files.Row]:
        peers = ["faster-whisper", "openai-whisper"]
        return measure_files([str(NANO)], find(corpus), peers, tmp_path, tmp_path / "texts", (), told.append)

    rows = measure()
    # nano.en knows English only, and what is spoken is no matter of live captions here.
    assert ran == [
        ("streamer", "rain"),
        ("streamer", "lincoln"),
        ("streamer --stream", "rain"),
        ("faster-whisper", "rain"),
        ("faster-whisper", "lincoln"),
        ("openai-whisper", "rain"),
        ("openai-whisper", "lincoln"),
    ]
    printed = "\n".join(told)
    assert "faster-whisper: pip could not install it" in printed
    assert "| speeches | 0.5 | 33.3 (1, 1, 0) | 100.0 (2, 4, 0) |" in printed
    assert "| all English | 0.5 | 33.3 (1, 1, 0) | 100.0 (2, 4, 0) |" in printed
    assert "| nano.en: words a minute | minutes | streamer | streamer --stream | openai-whisper |" in printed
    assert "| nonspeech-noise | 0.5 | 10.0 | 0.0 | 4.0 |" in printed
    # Texts that are there are not made again.
    assert (tmp_path / "texts" / "nano.en" / "streamer" / "lincoln.txt").is_file()
    ran.clear()
    assert measure() == rows
    assert set(ran) == {("faster-whisper", "rain"), ("faster-whisper", "lincoln")}


def test_our_command_and_the_peers_get_the_same_recordings(corpus: Path, tmp_path: Path) -> None:
    class Model:
        path = tmp_path / "model"

        def of_peer(self, system: str) -> tuple[Path, Path]:
            return Path("python"), tmp_path / system

    recordings = find(corpus, ["lincoln"])
    arguments = (Model(), recordings, "en", tmp_path / "texts", ["--beam-size", "1"], tmp_path)
    ours, _ = files._command("streamer --stream", *arguments)  # type: ignore[arg-type]
    assert ours[3:5] == ["transcribe", str(recordings[0].path)]
    assert ours[-3:] == ["--stream", "--beam-size", "1"]
    theirs, variables = files._command("faster-whisper", *arguments)  # type: ignore[arg-type]
    assert theirs[3] == "faster-whisper"
    assert f'"model": "{tmp_path / "faster-whisper"}"' in theirs[4]
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert soundfile.info(tmp_path / "lincoln.wav").duration == pytest.approx(30)
