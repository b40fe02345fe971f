"""What `streamer bench` prints, and what it says of slips."""

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from rich.console import Console

from streamer.commands import bench as command_of_bench
from streamer.commands.bench import bench
from streamer.commands.energy import EnergyMeter
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, UsageError
from streamer.settings.table import ModelSettings, Settings
from streamer.setup import loading
from tests.daemon import SAMPLE, recording, started

pytestmark = pytest.mark.slow

# The first sentence of the sample begins in it.
LENGTH_S = 3.0


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """Two files with their texts through the engine: exit code, what was printed, and the JSON."""
    folder = tmp_path_factory.mktemp("bench")
    soundfile.write(folder / "talk.wav", recording(SAMPLE, 0.0, LENGTH_S), SAMPLE_RATE, subtype="PCM_16")
    (folder / "talk.txt").write_text("The Commission regards such impromptu stops", encoding="utf-8")
    (folder / "more").mkdir()
    soundfile.write(folder / "more" / "silence.wav", np.zeros(SAMPLE_RATE // 2, dtype=np.float32), SAMPLE_RATE)
    (folder / "more" / "silence.txt").write_text("", encoding="utf-8")
    console = Console(file=io.StringIO(), width=200)
    settings = Settings(model=ModelSettings(name="nano.en", device="CPU"))
    files = [str(folder / "talk.wav"), str(folder / "more")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnergyMeter, "joules", lambda _: 7.0)
        exit_code = bench(settings, files, json_path=folder / "figures.json", console=console)
    assert isinstance(console.file, io.StringIO)
    return exit_code, console.file.getvalue(), json.loads((folder / "figures.json").read_text(encoding="utf-8"))


def test_delays_cost_and_memory_of_all_recordings_are_printed(played: tuple[int, str, dict[str, Any]]) -> None:
    exit_code, printed, data = played
    assert exit_code == 0
    assert data["audio_s"] == pytest.approx(LENGTH_S + 0.5)
    assert all(data[name] for name in ("first_seen_p50_s", "stable_p50_s", "stable_p90_s", "finalisation_p50_s"))
    assert min(data["real_time_factor"], data["cpu_per_audio"], data["load_s"]) > 0
    assert data["peak_rss_mb"] > 50
    assert data["energy_j_per_audio_s"] == pytest.approx(2 * 7.0 / data["audio_s"])
    for figure in ("RTF", "CPU time / audio", "Stable p50, s", "Memory", "This machine would keep at most"):
        assert figure in printed
    assert data["devices"]["encoder"] == "CPU"
    assert data["sessions"] >= 1


def test_errors_are_counted_if_the_text_of_each_recording_lies_beside_it(
    played: tuple[int, str, dict[str, Any]],
) -> None:
    _, printed, data = played
    assert data["wer"] is not None
    talk, silence = data["recordings"]
    # The same model writes the recordings offline, too.
    assert talk["offline"]
    assert silence["offline"] == []
    assert data["delta"] == pytest.approx(data["wer"] - data["wer_offline"])
    assert "WER - offline, points" in printed
    assert (talk["name"], talk["language"], silence["segments"]) == ("talk.wav", "en", [])
    assert talk["delays_s"]["stable"]


def refused(*files: Path, json_path: Path | None = None) -> None:
    settings = Settings(model=ModelSettings(name="nano.en"))
    bench(settings, list(map(str, files)), json_path=json_path, console=Console(file=io.StringIO()))


def test_without_the_package_no_errors_are_counted_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    talk = tmp_path / "talk.wav"
    talk.with_suffix(".txt").write_text("such impromptu stops", encoding="utf-8")
    assert command_of_bench._texts_beside([talk]) == ["such impromptu stops"]
    monkeypatch.setitem(sys.modules, "rapidfuzz", None)
    assert command_of_bench._texts_beside([talk]) == []
    assert capfd.readouterr().err == (
        "streamer: rapidfuzz is not installed: expected for counting word errors; pip install"
        ' "streamer-captions[compare]"\n'
    )


def test_slips_are_told_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(AudioFileError):
        refused(tmp_path / "nothing.wav")
    with pytest.raises(UsageError, match="holds no recordings"):
        refused(tmp_path)
    with pytest.raises(UsageError, match="standard input"):
        refused(Path("-"))
    clip = tmp_path / "clip.wav"
    soundfile.write(clip, np.zeros(800, dtype=np.float32), SAMPLE_RATE)
    with pytest.raises(UsageError, match="is no file in a directory"):
        refused(clip, json_path=tmp_path / "nowhere" / "figures.json")
    with pytest.raises(UsageError, match="is no file in a directory"):
        refused(clip, json_path=tmp_path)
    clip.with_suffix(".txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="in UTF-8"):
        refused(clip)
    monkeypatch.setattr(command_of_bench, "speech", lambda: None)
    with pytest.raises(UsageError, match="name a file of speech"):
        refused()


@pytest.mark.skipif(sys.platform == "win32", reason="its console has no such signal for one process")
def test_an_interruption_ends_it_in_one_line() -> None:
    with started("bench", "--device", "CPU") as command:
        command.wait_said("at real-time pace")
        command.process.send_signal(signal.SIGINT)
        outcome = command.wait()
    assert (outcome.exit_code, outcome.error()) == (1, "streamer: error: interrupted")
    assert outcome.stderr.endswith("interrupted\n")
