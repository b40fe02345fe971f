"""The commands of tools/benchmark.py on a corpus of one recording of speech and one of silence."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from tests.daemon import recording
from tools import benchmark
from tools.benchmarks import processes, sessions, systems
from tools.benchmarks.peers.environment import PeerUnavailable
from tools.benchmarks.processes import ServerFailure
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.systems import System
from tools.benchmarks.timeline import Timeline

SPOKEN = (("Good", 0.2, 0.5), ("morning,", 0.5, 1.0), ("all.", 1.1, 1.5))


class Shows(System):
    """Displays each word some time after it was said, and promises it as long after that."""

    def __init__(self, name: str = "streamer", delay_s: float = 0.5, most: int = 99) -> None:
        """Refuse clients beyond `most`."""
        super().__init__(name, {})
        self._delay_s, self._most = delay_s, most

    def command(self, port: int) -> list[str]:
        raise NotImplementedError

    def conversation(self, port: int) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def start(self) -> None:
        if self._most == 0:
            raise PeerUnavailable("pip could not install it")

    def stream(self, recording: str, samples: Float32Array) -> Timeline:
        if "client" in recording and int(recording.rpartition(" ")[2]) >= self._most:
            raise ServerFailure("no room")
        timeline = Timeline(self.name, recording, len(samples) / SAMPLE_RATE, cpu_s=0.5, encoder_calls=4)
        ends = [end for _, _, end in SPOKEN] if "spoken" in recording else []
        for now_s in sorted(end + k * self._delay_s for end in ends for k in (1, 2)):
            stable, shown = ([word for word, _, end in SPOKEN if end + k * self._delay_s <= now_s] for k in (2, 1))
            timeline.show(stable, shown[len(stable) :], now_s)
        return timeline


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the arguments that name the corpus, and where the figures go; streamer is scripted."""
    for name, words in (("spoken", SPOKEN), ("silence", ())):
        path = tmp_path / "corpus" / f"group-{name}" / f"{name}.flac"
        path.parent.mkdir(parents=True)
        soundfile.write(path, np.zeros(2 * SAMPLE_RATE, dtype=np.float32), SAMPLE_RATE)
        path.with_suffix(".txt").write_text(" ".join(word for word, _, _ in words), encoding="utf-8")
        times = [dict(zip(("word", "start", "end"), word, strict=True)) for word in words]
        path.with_suffix(".json").write_text(json.dumps({"words": times}), encoding="utf-8")
    monkeypatch.setattr(benchmark, "Streamer", lambda flags: Shows())
    return ["--corpus", str(tmp_path / "corpus"), "--json", str(tmp_path / "figures.json")]


def figures_in(tmp_path: Path) -> Any:  # noqa: ANN401 - JSON
    return json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))


def test_stream_prints_ours_beside_the_best_of_the_others(
    corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(benchmark.PEERS, "whisper-live", lambda model: Shows("whisper-live", 2.0))
    monkeypatch.setitem(benchmark.PEERS, "whisperlivekit-alignatt", lambda model: Shows("gone", most=0))
    command = [
        "stream",
        *corpus,
        "--no-offline",
        "--model",
        "base",
        "--peers",
        "whisper-live",
        "whisperlivekit-alignatt",
    ]
    assert benchmark.main(command) == 0
    figures = figures_in(tmp_path)
    assert figures["figures"]["streamer"]["stable_p50_s"] == pytest.approx(1.0)
    assert figures["sounds"]["whisper-live"]["hallucinated_per_min"] == 0
    assert sorted(figures["recordings"]["streamer"]) == ["silence", "spoken"]
    assert figures["failures"] == {"gone": "pip could not install it"}
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "first seen p50" in line)
    assert row.strip("│").split("│")[1:] == ["     0.50 ", "         2.00 ", "                  0.25 "]
    assert "sounds without speech" in printed
    # The figures are there even if a picture of them cannot be drawn: nothing was transcribed offline.
    assert benchmark.main(["stream", *corpus, "--no-offline", "--curve", str(tmp_path / "curve.svg")]) == 2
    assert list(figures_in(tmp_path)["figures"]) == ["streamer"]


@pytest.mark.slow
def test_simulate_compares_settings_and_draws_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "talk.flac", recording(end_s=3.0), SAMPLE_RATE)
    (tmp_path / "talk.txt").write_text("The Commission regards such impromptu", encoding="utf-8")
    monkeypatch.setattr(benchmark, "transcribe_offline", lambda found, flags: {"talk": found[0].text})
    command = ["simulate", "--corpus", str(tmp_path), "--set", "model.name=nano.en", "--set", "decoding.beam_size=1"]
    command += ["--point", "early:stream.captions=early", "--point", "late:stream.policy=agreement,stream.agreement=4"]
    curve = tmp_path / "curve.svg"
    assert benchmark.main([*command, "--curve", str(curve), "--json", str(tmp_path / "figures.json")]) == 0
    early, late = (figures_in(tmp_path)["figures"][name] for name in ("early", "late"))
    assert early["stable_p50_s"] < late["stable_p50_s"]
    assert all(f"<title>{name}: " in curve.read_text(encoding="utf-8") for name in ("early", "late"))


def test_sessions_adds_clients_until_one_is_not_served(
    corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "APART_S", 0.0)
    monkeypatch.setattr(benchmark, "Streamer", lambda flags: Shows(most=3))
    assert benchmark.main(["sessions", *corpus]) == 0
    assert "streamer: 3 sessions in real time" in capsys.readouterr().out
    assert sorted(figures_in(tmp_path)[0]["steps"]) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(("bearable", "most"), [(0, 64), (1, 64), (7, 64), (8, 64), (99, 20), (20, 20)])
def test_the_largest_number_is_found_in_few_steps(bearable: int, most: int) -> None:
    tried: list[int] = []

    def keeps(n: int) -> bool:
        tried.append(n)
        return n <= bearable

    assert sessions.largest(keeps, most) == min(bearable, most)
    assert len(tried) == len(set(tried)) <= 10


def test_files_counts_errors_of_each_system_and_makes_no_text_again(
    corpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, ...]] = []

    def transcribe(paths: Sequence[Path], folder: Path, flags: Sequence[str]) -> float:
        ran.append(("streamer", *sorted(path.stem for path in paths), *flags[4:]))
        for path in paths:
            (folder / f"{path.stem}.txt").write_text("good morning to all", encoding="utf-8")
        return 1.0

    def run(name: str, command: Sequence[str], *_: object) -> float:
        ran.append((name, *sorted(path.stem for path in Path(json.loads(command[-1])["audio"]).glob("*.wav"))))
        raise ServerFailure("it ended with 1")

    monkeypatch.setattr(systems, "transcribe", transcribe)
    monkeypatch.setattr(processes, "run", run)
    monkeypatch.setattr(PublishedModel, "of_peer", lambda model, system: (Path("python"), Path("weights")))
    command = ["files", *corpus, "--model", "nano.en", "--peers", "faster-whisper", "--output", str(tmp_path)]
    assert benchmark.main([*command, "--flags", "--beam-size 1"]) == 0
    both, beams = ("silence", "spoken"), ("--beam-size", "1")
    ours = [("streamer", *both, *beams), ("streamer", "silence", "--stream", *beams)]
    assert ran == [*ours, ("faster-whisper", *both)]
    printed = capsys.readouterr().out
    assert "it ended with 1" in printed
    assert "| group-spoken | 0.0 | 33.3 (0, 0, 1) |" in printed
    ran.clear()
    assert benchmark.main(command) == 0
    assert ran == [("faster-whisper", *both)]


@pytest.mark.parametrize(
    "command",
    [
        ["stream", "--corpus", "nowhere"],
        ["stream", "--peers", "whisper-live"],  # needs a model that all can load
        ["stream", "--flags", "'"],
        ["sessions"],  # of the sample no times of words are known
        ["simulate", "--json", "nowhere/figures.json"],
        ["simulate", "--point", ":stream.captions=early"],
        ["simulate", "--point", "a", "--point", "a"],
        ["simulate", "--point", "a", "--point", "b:decoding.beam_size=2"],
    ],
)
def test_a_mistake_is_reported_in_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1
