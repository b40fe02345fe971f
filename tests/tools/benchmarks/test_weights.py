"""What weights of 16 and 8 bits cost on recordings, measured with nano.en."""

import json
import shutil
from pathlib import Path

import pytest
import soundfile

from streamer.audio.constants import SAMPLE_RATE
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.model import load_model
from tests.whisper.support import NANO, SAMPLE, read
from tools import benchmark
from tools.benchmarks.text import Errors
from tools.benchmarks.weights import Difference, Row, Run, as_markdown, difference, windows_of, words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recording of two sentences and what they say, one in a folder of its own."""
    told = json.loads((NANO / "sample.json").read_text(encoding="utf-8"))[:2]
    samples = read(SAMPLE)
    for name, line in zip(("one", "more/two"), told, strict=True):
        path = tmp_path / "people" / f"{name}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(
            path, samples[round(line["start"] * SAMPLE_RATE) : round(line["end"] * SAMPLE_RATE)], SAMPLE_RATE
        )
        path.with_suffix(".txt").write_text(line["text"], encoding="utf-8")
    return tmp_path / "people"


def test_each_precision_is_a_row_of_words_logits_and_costs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    command = ["weights", "--model", str(NANO), "--corpus", str(folder / "one.flac"), str(folder / "more")]
    assert benchmark.main([*command, "--weights", "f16,int8", "--beams", "1", "--json", str(file)]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    whole, rounded = json.loads(file.read_text(encoding="utf-8"))
    n_words = whole["alone"]["n_reference"]
    assert printed[0] == f"nano.en: {n_words} words in {whole['audio_s'] / 60:.1f} minutes"
    assert [line.split("|")[1].strip() for line in printed[1:]] == ["Weights", "---", "f16", "int8"]
    assert n_words == sum(len(path.read_text(encoding="utf-8").split()) for path in folder.rglob("*.txt"))
    for wrong in (whole["alone"], whole["runs"]["1"]["wrong"]):
        assert wrong["n_reference"] == n_words
        assert wrong["substitutions"] + wrong["deletions"] < n_words / 2
    assert whole["logits"] == {"mean": 0.0, "largest": 0.0, "other_tokens": 0.0}
    assert 0 < rounded["logits"]["mean"] < rounded["logits"]["largest"]
    assert rounded["disk_mb"] < whole["disk_mb"] * 0.7
    assert all(row["runs"]["1"]["cpu_s"] > 0 and row["runs"]["1"]["peak_rss_mb"] > 50 for row in (whole, rounded))


def test_logits_are_compared_on_the_first_models_text() -> None:
    first, int8 = (load_model(str(NANO), DeviceSettings("CPU"), weights=w) for w in ("f32", "int8"))
    windows = windows_of(first, read(SAMPLE)[: 31 * SAMPLE_RATE], "en")
    assert [len(window.tokens) > 40 for window in windows] == [True, False]
    assert 0 < difference(first, int8, windows, "en").mean < 1
    assert difference(first, first, windows, "en") == Difference()


def test_dashes_separate_words() -> None:
    assert words("Different\u2014a well-known one", str.lower) == ["different", "a", "well", "known", "one"]


def test_the_table_shows_shares_in_percent() -> None:
    runs = {1: Run(Errors(1, 1, 0, 200), 30.0, 400.0), 5: Run(Errors(1, 0, 0, 200), 90.0, 500.0)}
    table = as_markdown([Row("base", "int8", 60.0, Errors(3, 0, 0, 200), Difference(0.1234, 1.5, 0.002), runs, 74.4)])
    assert "WER, % (30 s alone) | WER, % (greedy) | WER, % (5 beams)" in table
    assert table.splitlines()[-1] == "| int8 | 1.50 | 1.00 | 0.50 | 0.123 | 1.50 | 0.20 | 0.500 | 1.500 | 500 | 74 |"


@pytest.mark.parametrize(("text", "message"), [(None, "cannot be read"), (" ", "no word is said")])
def test_recordings_without_a_text_are_refused(
    tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(SAMPLE, tmp_path / "sample.flac")
    if text is not None:
        (tmp_path / "sample.txt").write_text(text, encoding="utf-8")
    assert benchmark.main(["weights", "--model", str(NANO), "--corpus", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
