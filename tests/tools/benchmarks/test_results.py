"""Timelines are played into a folder, and become figures, tables and pictures."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from streamer.errors import UsageError
from tests.tools.benchmarks.played import Shows, write_corpus
from tools.benchmarks import corpus
from tools.benchmarks.corpus import Recording
from tools.benchmarks.results import Folder, compute, draw, show, to_json
from tools.benchmarks.stream import play


@pytest.fixture
def recordings(tmp_path: Path) -> list[Recording]:
    write_corpus(tmp_path / "corpus")
    return [corpus.read(path) for path in corpus.find(tmp_path / "corpus")]


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
    folder.save_offline("held-clean-1", "good morning all all")

    results = compute(folder, recordings)
    assert list(results.figures) == ["streamer", "other"]
    assert results.kinds == {"held-clean-1": "clean", "held-silence": "silence"}
    speech = results.pooled(lambda kind: kind == "clean")["streamer"].summary()
    assert speech["first_seen_p50_s"] == pytest.approx(0.5)
    assert speech["stable_p50_s"] == pytest.approx(1.0)
    assert speech["wer_streamed"] == 0
    assert speech["wer_offline"] == pytest.approx(1 / 3)
    sounds = results.pooled(lambda kind: kind == "silence")["other"].summary()
    assert sounds["hallucinated_per_min"] == 0


def test_the_table_has_all_systems_and_the_ratio_to_the_best_other(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer", 0.5), Shows("slow", 4.0), Shows("other", 2.0)], recordings, folder, console())
    to = console()
    show(compute(folder, recordings), to)
    row = next(line for line in printed(to).splitlines() if "first seen p50" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][1:] == ["0.50", "2.00", "4.00", "0.25"]
    assert "sounds without speech" in printed(to)
    assert "by kind" in printed(to)


def test_what_cannot_be_had_is_told_and_the_others_are_measured(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    systems = [Shows("streamer"), Shows("gone", fails_to_start=True), Shows("weak", fails_at="held-silence")]
    troubles = play(systems, recordings, folder, console())
    assert troubles == {"gone": "gone cannot be had here", "weak, held-silence": "weak went away"}
    assert all(system.stopped for system in systems)
    results = compute(folder, recordings)
    assert sorted(results.figures) == ["streamer", "weak"]
    to = console()
    show(results, to)
    assert "gone: gone cannot be had here" in printed(to)
    assert "weak lacks held-silence: left out for all" in printed(to)


def test_all_are_compared_on_what_all_have_heard(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer"), Shows("weak", fails_at="held-silence")], recordings, folder, console())
    results = compute(folder, recordings)
    assert results.pooled()["streamer"].recordings == ["held-clean-1"]
    assert results.pooled(lambda kind: kind == "silence")["streamer"].recordings == ["held-silence"]


def test_the_json_has_everything(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer", 0.5)], recordings, folder, console())
    data = json.loads(to_json(compute(folder, recordings)))
    assert data["figures"]["streamer"]["recordings"] == 1
    assert data["sounds"]["streamer"]["hallucinated_per_min"] == 0
    assert data["kinds"]["clean"]["streamer"]["stable_p50_s"] == pytest.approx(1.0)
    assert sorted(data["recordings"]["streamer"]) == ["held-clean-1", "held-silence"]
    assert data["troubles"] == {}


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
    (folder.path / "troubles.json").write_text("[3", encoding="utf-8")
    with pytest.raises(UsageError, match=r"troubles\.json cannot be read"):
        compute(folder, recordings)
    (folder.path / "troubles.json").unlink()
    (folder.path / "timelines" / "streamer" / "held-clean-1.json").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"held-clean-1\.json: "):
        compute(folder, recordings)


def test_pictures_are_drawn(tmp_path: Path, recordings: list[Recording]) -> None:
    folder = Folder(tmp_path / "timelines")
    play([Shows("streamer", 0.5), Shows("other", 2.0)], recordings, folder, console())
    draw(compute(folder, recordings), folder, recordings, tmp_path / "plots", "svg")
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == [
        "delays.svg",
        "stability-held-clean-1.svg",
        "stability-held-silence.svg",
        "words-held-clean-1.svg",
    ]
    again = (tmp_path / "plots" / "delays.svg").read_bytes()
    draw(compute(folder, recordings), folder, recordings, tmp_path / "plots", "svg")
    assert (tmp_path / "plots" / "delays.svg").read_bytes() == again
