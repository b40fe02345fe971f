"""What `streamer bench` measures and prints."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from streamer.commands import bench
from streamer.commands.energy import EnergyMeter
from streamer.commands.files import check_recordings
from streamer.constants import SAMPLE_RATE
from streamer.errors import UsageError
from streamer.settings.table import ModelSettings, Settings
from tests.daemon import SAMPLE, recording
from tests.unit.commands.support import Paper

CPU = Settings(model=ModelSettings(name="nano.en", device="CPU"))

# Words of the first sentence of the sample are in it.
LENGTH_S = 1.8


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sentence and with silence, each beside its text."""
    folder = tmp_path_factory.mktemp("bench")
    soundfile.write(folder / "a.wav", recording(SAMPLE, 0.0, LENGTH_S), SAMPLE_RATE, subtype="PCM_16")
    soundfile.write(folder / "b.wav", np.zeros(SAMPLE_RATE // 5, dtype=np.float32), SAMPLE_RATE)
    (folder / "a.txt").write_text("The Commission regards such impromptu stops", encoding="utf-8")
    (folder / "b.txt").write_text("", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def played(talks: Path) -> tuple[dict[str, Any], str]:
    """The figures of these recordings through the engine, and what was printed."""
    paper, figures = Paper(), talks / "figures.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnergyMeter, "joules", lambda _: 7.0)
        patch.setattr(bench, "make_console", lambda: paper)
        assert bench.bench([str(talks)], json=figures, settings=CPU) == 0
    return json.loads(figures.read_text(encoding="utf-8")), paper.text


def test_delays_cost_and_memory_of_all_recordings_are_printed(played: tuple[dict[str, Any], str]) -> None:
    data, printed = played
    assert data["audio_s"] == pytest.approx(LENGTH_S + 0.2)
    assert data["energy_j_per_audio_s"] == pytest.approx(2 * 7.0 / data["audio_s"])
    assert data["peak_rss_mb"] > 50
    for name in ("first_seen_p50_s", "stable_p50_s", "real_time_factor", "cpu_per_audio", "load_s"):
        assert 0 < data[name] < 60
    for figure in ("RTF", "CPU time / audio", "Stable p50, s", "Memory"):
        assert figure in printed
    assert (data["model"], data["devices"]["encoder"], data["language"]) == ("nano.en", "CPU", "en")
    # A machine that is busy keeps none.
    assert ("This machine would keep at most" in printed) == (data["sessions"] is not None)
    assert ("one session" in printed) == (data["sessions"] == 1)


def test_errors_are_counted_if_the_text_of_each_recording_lies_beside_it(played: tuple[dict[str, Any], str]) -> None:
    data, printed = played
    talk, silence = data["recordings"]
    # The same model writes the recordings offline, too.
    assert (talk["name"], bool(talk["offline"]), bool(talk["delays_s"]["stable"])) == ("a.wav", True, True)
    assert (silence["segments"], silence["offline"]) == ([], [])
    assert data["delta"] == pytest.approx(data["wer"] - data["wer_offline"])
    assert "WER - offline, points" in printed


def test_without_the_package_no_errors_are_counted_and_a_line_says_so(
    talks: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [talks / "a.wav", talks / "b.wav"]
    assert bench._texts_beside(paths) == ["The Commission regards such impromptu stops", ""]
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    assert bench._texts_beside(paths) == []
    assert capfd.readouterr().err.count("\n") == 1


def test_without_files_the_sample_of_the_program_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def check(paths: list[Path]) -> None:
        asked.extend(paths)
        check_recordings([Path("-")])

    monkeypatch.setattr(bench, "check_recordings", check)
    with pytest.raises(UsageError):
        bench.bench(settings=CPU)
    assert asked == [SAMPLE]
