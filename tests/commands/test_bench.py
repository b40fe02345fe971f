"""What `streamer bench` prints, and what it says of slips."""

import io
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.console import Console

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.commands import bench as command_of_bench
from streamer.commands.bench import bench
from streamer.errors import AudioFileError, UsageError
from streamer.settings.table import ModelSettings, Settings
from tests.daemon import SAMPLE, Outcome, recording

# The first sentence of the sample begins in it.
LENGTH_S = 3.0


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, object]]:
    """Two files, one with its text, through the engine: exit code, what was printed, and the JSON."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("with", "without"):
        soundfile.write(folder / f"{name}.wav", recording(SAMPLE, 0.0, LENGTH_S), SAMPLE_RATE, subtype="PCM_16")
    (folder / "with.txt").write_text("The Commission regards such impromptu stops", encoding="utf-8")
    (folder / "more").mkdir()
    soundfile.write(folder / "more" / "with.wav", np.zeros(SAMPLE_RATE // 2, dtype=np.float32), SAMPLE_RATE)
    console = Console(file=io.StringIO(), width=200)
    settings = Settings(model=ModelSettings(name="nano.en", device="CPU"))
    files = [str(folder / "with.wav"), str(folder / "without.wav"), str(folder / "more")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_of_bench, "N_CALLS", 1)
        exit_code = bench(settings, files, json_path=folder / "figures.json", console=console)
    assert isinstance(console.file, io.StringIO)
    return exit_code, console.file.getvalue(), json.loads((folder / "figures.json").read_text(encoding="utf-8"))


def test_each_file_has_a_column_and_all_of_them_one(played: tuple[int, str, dict[str, object]]) -> None:
    exit_code, printed, _ = played
    assert exit_code == 0
    (row,) = (line for line in printed.splitlines() if "CPU s for each s of audio" in line)
    assert len(row.strip("│").split("│")) == 5
    (names,) = (line for line in printed.splitlines() if "without.wav" in line)
    assert "with.wav'" in names
    assert "all" in names


def test_words_are_timed_and_where_the_text_is_known_counted(played: tuple[int, str, dict[str, object]]) -> None:
    figures = played[2]["figures"]
    assert isinstance(figures, dict)
    assert figures["without.wav"]["words_measured"] > 0
    assert figures["without.wav"]["stable_p50_s"] > 0
    assert figures["without.wav"]["wer_streamed"] is None
    assert figures["with.wav"]["wer_streamed"] is not None
    # Where the text is known, so are the times of all that is said.
    assert figures["with.wav"]["lost_s"] is not None
    assert figures["without.wav"]["lost_s"] is None
    assert figures["all"]["audio_s"] == pytest.approx(2 * LENGTH_S + 0.5)
    assert figures["all"]["encoder_calls_per_audio_s"] > 0
    assert 0 < figures["all"]["decoder_calls_per_token"] <= figures["all"]["decoder_calls_per_found_token"]


def leaves(data: object) -> Iterator[float]:
    """Yield all numbers of a JSON document."""
    if isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            yield from leaves(item)
    elif isinstance(data, int | float):
        yield data


def test_every_figure_that_is_printed_is_in_the_json(played: tuple[int, str, dict[str, object]]) -> None:
    _, printed, data = played
    known = {f"{n * scale:.{digits}f}" for n in leaves(data) for scale in (1, 100, 1000) for digits in (0, 1, 2)}
    missing = []
    for line in printed.splitlines():
        # The first cell of a row says what the others are.
        said = " ".join(line.strip("│").split("│")[1:]) if "│" in line else line
        missing += [found for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", said) if found not in known]
    assert not missing
    for name in ("model", "weights", "windows_s", "devices", "versions", "start_s", "from_cache", "loaded_rss_mb"):
        assert name in data
    assert data["windows_s"] == [5, 10, 30]


def test_each_call_is_timed_on_its_device(played: tuple[int, str, dict[str, object]]) -> None:
    _, printed, data = played
    assert isinstance(data["calls_s"], dict)
    assert data["calls_s"]["decoder, one token"] > 0
    assert "encoder and cross-KV, 30 s of audio" in printed
    assert isinstance(data["devices"], dict)
    assert data["devices"]["encoder"] == "CPU"


def refused(*files: Path, json_path: Path | None = None) -> None:
    settings = Settings(model=ModelSettings(name="nano.en"))
    bench(settings, list(map(str, files)), json_path=json_path, console=Console(file=io.StringIO()))


def test_slips_are_told_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_of_bench, "load", lambda *_, **__: pytest.fail("the model was loaded"))
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
    monkeypatch.setattr(command_of_bench, "shipped", dict)
    with pytest.raises(UsageError, match="name a file of speech"):
        refused()


def test_a_slip_is_one_line_with_its_exit_code(run_here: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run_here("bench", tmp_path / "nothing.wav")
    assert outcome.exit_code == 2
    assert "nothing.wav" in outcome.error()


def test_an_interruption_ends_it_in_one_line(run_here: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, **keywords: object) -> Iterator[Float32Array]:
        yield recording(path, 0.0, 0.1)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command_of_bench, "N_CALLS", 1)
    monkeypatch.setattr(command_of_bench, "read_audio", interrupted)
    outcome = run_here("bench", "--device", "CPU")
    assert outcome.exit_code == 1
    assert outcome.error() == "streamer: error: interrupted"
    assert outcome.stderr.endswith("interrupted\n")
