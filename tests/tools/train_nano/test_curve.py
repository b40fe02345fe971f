"""The curve of the runs, drawn one behind the other."""

import json
import sys
from pathlib import Path

import pytest

from tools.train_nano import curve
from tools.train_nano.voices import VOICES


def test_the_runs_that_were_recorded_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["curve", "--out", str(tmp_path / "curve.png")])
    curve.main()
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_recorded_in_its_order_by_voices_that_there_are() -> None:
    lines = [json.loads(line) for line in curve.RUNS.read_text(encoding="utf-8").splitlines()]
    places = [(line["run"], line["hours"]) for line in lines]
    assert places == sorted(set(places))
    known = {voice.replace(":", "-") for voice in VOICES}
    assert all(0 <= rate <= 100 and voice in known for line in lines for voice, rate in line["wer"].items())
