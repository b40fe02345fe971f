"""Recordings are found with what is said in them."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.errors import AudioFileError, UsageError
from tests.tools.benchmarks.played import write_corpus
from tools.benchmarks.recordings import SAMPLE, SpokenWord, find


def write(path: Path, text: str | None = "Hello.", rate: int = 16_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.zeros(rate, dtype=np.float32), rate)
    if text is not None:
        path.with_suffix(".txt").write_text(text, encoding="utf-8")
    return path


def test_recordings_have_their_language_text_and_group(tmp_path: Path) -> None:
    write(tmp_path / "speeches" / "lincoln.flac", "Four score\nand seven")
    write(tmp_path / "fleurs" / "fleurs-de-01.flac", "Guten Tag")
    write(tmp_path / "noise" / "rain.flac", "")
    write(tmp_path / "dev.flac", None)
    found = [(r.name, r.language, r.group, r.text, r.words) for r in find(tmp_path)]
    assert found == [
        ("fleurs-de-01", "de", "fleurs (de)", "Guten Tag", ()),
        ("rain", "en", "noise", "", ()),
        ("lincoln", "en", "speeches", "Four score and seven", ()),
    ]
    assert [r.name for r in find(tmp_path, ["fleurs-*", "lincoln"])] == ["fleurs-de-01", "lincoln"]
    assert {r.language for r in find(tmp_path, language="fr")} == {"de", "fr"}


def test_audio_is_16_khz_whatever_the_file_has(tmp_path: Path) -> None:
    write(tmp_path / "a.flac", rate=8_000)
    (recording,) = find(tmp_path)
    assert recording.audio_s == 1.0
    assert recording.samples().shape == (16_000,)


def test_word_times_are_read(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    _, spoken = find(tmp_path)
    assert spoken.words[0] == SpokenWord("Good", 0.2, 0.5)


def test_without_a_folder_it_is_the_sample() -> None:
    (sample,) = find(None)
    assert sample.path == SAMPLE
    assert sample.text


def test_an_empty_corpus_and_doubled_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no x\* \(\.flac, with a \.txt beside it\)"):
        find(tmp_path, ["x*"])
    write(tmp_path / "a" / "x.flac")
    write(tmp_path / "b" / "x.flac")
    with pytest.raises(UsageError, match="have the same name: rename one of them"):
        find(tmp_path)


@pytest.mark.parametrize("content", ["{", "3", json.dumps({"words": [{"word": "a"}]})])
def test_damaged_word_times_are_refused(content: str, tmp_path: Path) -> None:
    write(tmp_path / "a.flac").with_suffix(".json").write_text(content, encoding="utf-8")
    with pytest.raises(AudioFileError, match=r"a\.json has no word times"):
        find(tmp_path)
