"""Timelines are played into a folder, and become figures and tables."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from streamer.errors import UsageError
from tests.tools.benchmarks.played import Shows, write_corpus
from tools.benchmarks.recordings import Recording, find
from tools.benchmarks.results import Folder, compute, show, to_json
from tools.benchmarks.stream import play

pytestmark = pytest.mark.slow


@pytest.fixture
def recordings(tmp_path: Path) -> list[Recording]:
    write_corpus(tmp_path / "corpus")
    return find(tmp_path / "corpus")


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def printed(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_systems_are_played_stopped_and_measured(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    ours, other = Shows("streamer", 0.5), Shows("other", 2.0)
    assert play([ours, other], recordings, folder, console()) == {}
    assert ours.stopped
    assert other.stopped
    folder.save_offline("spoken", "good morning all all")

    results = compute(folder, recordings)
    assert list(results.figures) == ["streamer", "other"]
    speech = results.pooled(lambda recording: bool(recording.text))["streamer"].summary()
    assert speech["first_seen_p50_s"] == pytest.approx(0.5)
    assert speech["stable_p50_s"] == pytest.approx(1.0)
    assert speech["wer_streamed"] == 0
    assert speech["wer_offline"] == pytest.approx(1 / 3)
    sounds = results.pooled(lambda recording: not recording.text)["other"].summary()
    assert sounds["hallucinated_per_min"] == 0


def test_the_table_has_all_systems_and_the_ratio_to_the_best_other(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer", 0.5), Shows("slow", 4.0), Shows("other", 2.0)], recordings, folder, console())
    to = console()
    show(compute(folder, recordings), to)
    row = next(line for line in printed(to).splitlines() if "first seen p50" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][1:] == ["0.50", "2.00", "4.00", "0.25"]
    assert "sounds without speech" in printed(to)


def test_what_cannot_be_had_is_told_and_the_others_are_measured(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    systems = [Shows("streamer"), Shows("gone", fails_to_start=True), Shows("weak", fails_at="silence")]
    failures = play(systems, recordings, folder, console())
    assert failures == {"gone": "gone cannot be had here", "weak, silence": "weak went away"}
    assert all(system.stopped for system in systems)
    results = compute(folder, recordings)
    assert sorted(results.figures) == ["streamer", "weak"]
    to = console()
    show(results, to)
    assert "gone: gone cannot be had here" in printed(to)
    assert "weak lacks silence: left out for all" in printed(to)


def test_systems_are_compared_on_recordings_that_all_have(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer"), Shows("weak", fails_at="silence")], recordings, folder, console())
    results = compute(folder, recordings)
    assert results.pooled(lambda _: True)["streamer"].recordings == ["spoken"]
    assert results.pooled(lambda recording: not recording.text)["streamer"].recordings == ["silence"]


def test_the_json_has_everything(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer", 0.5)], recordings, folder, console())
    data = json.loads(to_json(compute(folder, recordings)))
    assert data["figures"]["streamer"]["recordings"] == 1
    assert data["sounds"]["streamer"]["hallucinated_per_min"] == 0
    assert sorted(data["recordings"]["streamer"]) == ["silence", "spoken"]
    assert data["failures"] == {}


def test_a_folder_without_timelines_is_told(tmp_path: Path, recordings: list[Recording]) -> None:
    with pytest.raises(UsageError, match="has no timelines"):
        compute(Folder(tmp_path / "nothing"), recordings)
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer")], recordings[:1], folder, console())
    with pytest.raises(UsageError, match="no timeline of these recordings"):
        compute(folder, recordings[1:])


def test_a_file_that_is_broken_is_named(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer")], recordings, folder, console())
    (folder.path / "failures.json").write_text("[3", encoding="utf-8")
    with pytest.raises(UsageError, match=r"failures\.json cannot be read"):
        compute(folder, recordings)
    (folder.path / "failures.json").unlink()
    (folder.path / "timelines" / "streamer" / "spoken.json").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"spoken\.json: "):
        compute(folder, recordings)
