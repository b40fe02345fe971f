"""The sample is spoken from held-out sentences, and what is written beside it is true."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tools.train_nano import sample
from tools.train_nano.flite import FliteVoice
from tools.train_nano.speech import SynthesisError


def flite_is_here() -> bool:
    try:
        FliteVoice("slt")
    except SynthesisError:
        return False
    return True


@pytest.mark.skipif(not flite_is_here(), reason="Flite is not installed")
def test_sentences_are_spoken_where_the_list_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = [f"This is the sentence that has the number {'one ' * n}." for n in range(1, 21)]
    (tmp_path / "heldout.txt").write_text("\n".join(text), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["sample", "--text", str(tmp_path), "--out", str(tmp_path)])
    sample.main()
    audio, rate = soundfile.read(tmp_path / "sample.flac", dtype="float32")
    said = json.loads((tmp_path / "sample.json").read_text(encoding="utf-8"))
    assert rate == 16_000
    assert sample.SECONDS < len(audio) / rate < sample.SECONDS + 12
    assert [entry["text"] for entry in said] == (tmp_path / "sample.txt").read_text(encoding="utf-8").splitlines()
    inside = np.zeros(len(audio), dtype=bool)
    for entry in said:
        inside[round(entry["start"] * rate) : round(entry["end"] * rate)] = True
    power = audio**2
    assert power[inside].mean() > 100 * power[~inside].mean()


def test_without_sentences_the_program_says_which_file_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["sample", "--text", str(tmp_path), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"heldout\.txt is missing"):
        sample.main()


def test_the_sample_that_is_shipped_is_as_long_as_its_list_says() -> None:
    shipped = Path(__file__).parents[3] / "models" / "nano.en"
    said = json.loads((shipped / "sample.json").read_text(encoding="utf-8"))
    info = soundfile.info(shipped / "sample.flac")
    assert said[-1]["end"] < info.duration
    assert all(a["end"] < b["start"] for a, b in itertools.pairwise(said))
    for entry in said:
        starts = entry["words"]
        assert len(starts) == len(entry["text"].split())
        assert starts == sorted(starts)
        assert entry["start"] == starts[0] < starts[-1] < entry["end"]
