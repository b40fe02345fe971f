"""The command line of tools/benchmark.py."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools.benchmarks.played import Shows, write_corpus
from tools import benchmark
from tools.benchmarks import corpus, raw, stream

ROOT = Path(benchmark.__file__).parent.parent


@pytest.fixture(autouse=True)
def _played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "Streamer", lambda flags, name: Shows(name))
    write_corpus(tmp_path / "corpus")


def test_to_see_what_there_is_takes_no_more_than_the_program() -> None:
    code = "import sys; from tools.benchmark import main\ntry: main(['--help'])\nfinally:\n"
    code += (
        " more = {'torch', 'whisper', 'safetensors', 'jiwer', 'matplotlib'} & set(sys.modules)\n assert not more, more"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "delay, flicker" in done.stdout


def test_what_is_missing_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tools.benchmarks.results", None)
    assert benchmark.main(["report", "x"]) == 1
    assert capsys.readouterr().err.endswith("is not installed: `make bench` installs what is needed\n")


def test_a_corpus_is_streamed_and_reported_once_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--corpus", str(tmp_path / "corpus"), "--json", str(tmp_path / "figures.json")]
    timelines = str(tmp_path / "timelines")
    assert benchmark.main(["stream", *command, "--timelines", timelines, "--no-offline"]) == 0
    first = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert first["figures"]["streamer"]["stable_p50_s"] == pytest.approx(1.0)
    assert first["sounds"] == {}
    assert "first seen p50" in capsys.readouterr().out
    assert benchmark.main(["report", timelines, *command]) == 0
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8")) == first


def test_hallucination_plays_what_nobody_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["hallucination", "--corpus", str(tmp_path / "corpus")]) == 0
    printed = capsys.readouterr().out
    assert "held-silence" in printed
    assert "held-clean-1" not in printed


def test_a_corpus_is_made_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(corpus, "make", lambda folder, **options: asked.update(options, folder=folder))
    assert benchmark.main(["corpus", str(tmp_path / "new"), "--minutes", "2", "--seed", "7"]) == 0
    del asked["tell"]
    assert asked == {"folder": tmp_path / "new", "minutes": 2.0, "sounds_minutes": 10.0, "seed": 7}


def test_peers_are_measured_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def peer(folder: Path, files: object) -> Shows:
        asked.append(folder)
        return Shows("whisper-live", 2.0)

    monkeypatch.setitem(benchmark.PEERS, "whisper-live", peer)
    command = ["stream", "--corpus", str(tmp_path / "corpus"), "--no-offline", "--peers", "whisper-live"]
    assert benchmark.main([*command, "--peers-folder", str(tmp_path / "peers")]) == 0
    assert asked == [tmp_path / "peers"]
    assert "streamer / best other" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["stream", "--corpus", "nowhere"], "nowhere has no such recording"),
        (["stream", "--peers", "whisper-life"], "no peer is called whisper-life"),
        (["report", "nowhere"], "nowhere has no timelines"),
        (["stream", "--flags", "'"], "No closing quotation"),
        (["sizes", "small.json"], "does not say what size it is"),
        (["sizes", "small=nowhere.json"], "nowhere.json has no figures of a run"),
        (["doubled", "--corpus", "nowhere"], "nowhere has no such recording"),
        (["sessions"], "name a corpus with --corpus"),
        (["beams", "--json", "nowhere/figures.json"], "nowhere is no directory"),
    ],
)
def test_a_slip_is_told_in_one_line(command: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    "command",
    [
        ["soak", "--hours", "0"],
        ["soak", "--hours", "nan"],
        ["simulate", "--pass-s", "-1"],
        ["doubled", "--paces", "1,-1"],
        ["beams", "--beams", "0"],
    ],
)
def test_numbers_out_of_range_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(command)
    assert "expected" in capsys.readouterr().err


def test_what_cannot_be_written_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    command = ["hallucination", "--corpus", str(tmp_path / "corpus"), "--timelines", str(file)]
    assert benchmark.main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line


def test_the_offline_decoder_has_the_model_of_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(stream, "transcribe_offline", lambda recordings, folder, flags: asked.append(flags))
    command = ["stream", "--corpus", str(tmp_path / "corpus"), "--flags"]
    assert benchmark.main([*command, "--device CPU --model=tiny.en --beam-size 2"]) == 0
    assert benchmark.main([*command, "--device CPU"]) == 0
    assert benchmark.main([*command, "", "--model", "base"]) == 0
    nano = [*stream.OFFLINE_FLAGS, "--model", "nano.en", "--language", "en"]
    assert asked == [[*nano, "--model", "tiny.en"], nano, ["--model", "base", "--language", "en"]]


def test_a_system_that_fails_does_not_keep_others_from_being_soaked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(benchmark.PEERS, "whisper-live", lambda *_: Shows("whisper-live", fails_to_start=True))
    figures = tmp_path / "figures.json"
    command = ["soak", "--corpus", str(tmp_path / "corpus"), "--hours", "0.001", "--peers", "whisper-live"]
    assert benchmark.main([*command, "--json", str(figures)]) == 0
    ours, peer = json.loads(figures.read_text(encoding="utf-8"))
    assert ours["audio_s"] == pytest.approx(3.6)
    assert peer == {"system": "whisper-live", "error": "whisper-live cannot be had here"}


def test_raw_speed_is_measured_as_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def measure(
        models: list[str], samples: object, folder: Path, console: object, **options: int
    ) -> list[dict[str, int]]:
        asked.append((models, folder, options))
        return [{"a": 1}]

    monkeypatch.setattr(raw, "measure_raw", measure)
    figures = tmp_path / "figures.json"
    command = ["raw", "--models", "tiny,base", "--rounds", "2", "--peers-folder", str(tmp_path), "--threads", "1"]
    assert benchmark.main([*command, "--json", str(figures)]) == 0
    assert asked == [(["tiny", "base"], tmp_path, {"n_rounds": 2, "n_tokens": 100, "n_threads": 1})]
    assert json.loads(figures.read_text(encoding="utf-8")) == [{"a": 1}]
    assert benchmark.main(["raw", "--size", "tiny,huge"]) == 2
    assert "--size has 'huge': expected some of nano.en,tiny,base,small" in capsys.readouterr().err


def test_systems_are_compared_and_then_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def ours(flags: Sequence[str], name: str) -> Shows:
        asked.append((name, *flags))
        return Shows(name)

    def peer(folder: Path, files: object) -> Shows:
        asked.append(folder)
        return Shows("whisper-live", 2.0)

    monkeypatch.setattr(benchmark, "Streamer", ours)
    monkeypatch.setitem(benchmark.PEERS, "whisper-live", peer)
    figures = tmp_path / "figures.json"
    command = ["stream", "--corpus", str(tmp_path / "corpus"), "--no-offline", "--json", str(figures)]
    command += ["--flags", "--model base", "--windows", "5,10", "--windows", "30"]
    assert benchmark.main([*command, "--peers", "whisper-live", "--peers-folder", str(tmp_path)]) == 0
    nano = ("--model", "nano.en", "--language", "en")
    assert asked == [
        ("streamer", *nano, "--model", "base", "--windows", "5,10"),
        ("streamer 30", *nano, "--model", "base", "--windows", "30"),
        tmp_path,
    ]
    told = json.loads(figures.read_text(encoding="utf-8"))["figures"]
    assert list(told) == ["streamer", "streamer 30", "whisper-live"]
    capsys.readouterr()
    picture = tmp_path / "sizes.svg"
    assert benchmark.main(["sizes", f"tiny={figures}", f"small={figures}", "--plot", str(picture)]) == 0
    assert "whisper-live" in picture.read_text(encoding="utf-8")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "| tiny | streamer | streamer 30 | whisper-live |"
    assert "| stable p50 / p90 | 1.00 / 1.00 s | 1.00 / 1.00 s | 2.50 / 3.70 s |" in printed
    assert "| clean | 0.0 % | 0.0 % | 0.0 % |" in printed


def test_it_runs_as_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "benchmark.py"), "report", "--help"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--plots" in done.stdout
