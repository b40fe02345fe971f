"""The command line of tools/benchmark.py."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import soundfile

from streamer.constants import SAMPLE_RATE
from tests.daemon import recording
from tests.tools.benchmarks.played import Shows, write_corpus
from tests.waiting import WAIT_S
from tools import benchmark
from tools.benchmarks import stream
from tools.benchmarks.published import PublishedModel
from tools.benchmarks.recordings import Recording, find
from tools.benchmarks.results import Folder

pytestmark = pytest.mark.slow

# The first sentence of the sample begins in it.
LENGTH_S = 4.0

ROOT = Path(benchmark.__file__).parent.parent


@pytest.fixture(autouse=True)
def _played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "Streamer", lambda flags, name: Shows(name))
    write_corpus(tmp_path / "corpus")


def test_to_see_what_there_is_takes_no_more_than_the_program() -> None:
    code = "import sys; from tools.benchmark import main\ntry: main(['--help'])\nfinally:\n"
    code += " more = {'torch', 'whisper', 'safetensors', 'jiwer'} & set(sys.modules)\n assert not more, more"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT, timeout=3 * WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "delay, stability" in done.stdout


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
    assert first["sounds"]["streamer"]["hallucinated_per_min"] == 0
    assert "first seen p50" in capsys.readouterr().out
    assert benchmark.main(["report", timelines, *command]) == 0
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8")) == first
    # Figures are written even if a picture of them cannot be drawn: nothing was transcribed offline.
    (tmp_path / "figures.json").unlink()
    assert benchmark.main(["report", timelines, *command, "--curve", str(tmp_path / "curve.svg")]) == 2
    assert "nothing can be drawn" in capsys.readouterr().err
    assert json.loads((tmp_path / "figures.json").read_text(encoding="utf-8")) == first


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["stream", "--corpus", "nowhere"], "nowhere has no *"),
        (["stream", "--peers", "whisper-life"], "no peer is called whisper-life"),
        (["stream", "--peers", "whisper-live"], "name one, such as --model base"),
        (["report", "nowhere"], "nowhere has no timelines"),
        (["stream", "--flags", "'"], "No closing quotation"),
        (["sessions"], "name a --model, which finds them"),
        (["files", "--peers", "whisper-live"], "expected some of faster-whisper, openai-whisper"),
        (["simulate", "--json", "nowhere/figures.json"], "nowhere is no directory"),
        (["stream", "--curve", "nowhere/curve.svg"], "expected one for --curve"),
        (["simulate", "--point", ":stream.captions=early"], "expected a name of its own"),
        (["simulate", "--point", "a", "--point", "a"], "expected a name of its own"),
        (["simulate", "--point", "a", "--point", "b:decoding.beam_size=2"], "has another model or beams"),
    ],
)
def test_a_mistake_is_reported_in_one_line(command: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("command", [["sessions", "--most", "0"], ["simulate", "--inference-s", "-1"]])
def test_numbers_out_of_range_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(command)
    assert "expected" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    command = ["stream", "--corpus", str(tmp_path / "corpus"), "--no-offline", "--timelines", str(file)]
    assert benchmark.main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line


def test_the_offline_decoder_has_the_model_of_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(stream, "transcribe_offline", lambda recordings, folder, flags: asked.append(flags))
    command = ["stream", "--corpus", str(tmp_path / "corpus"), "--flags"]
    assert benchmark.main([*command, "--device CPU --model=tiny.en --beam-size 2"]) == 0
    assert benchmark.main([*command, "--device CPU"]) == 0
    nano = [*stream.OFFLINE_FLAGS, "--model", "nano.en", "--language", "en"]
    assert asked == [[*nano, "--model", "tiny.en"], nano]


def test_ours_is_measured_with_several_windows_and_peers_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[object] = []

    def ours(flags: Sequence[str], name: str) -> Shows:
        asked.append((name, *flags))
        return Shows(name)

    def peer(model: PublishedModel) -> Shows:
        asked.append((model.given, model.peers_folder))
        return Shows("whisper-live", 2.0)

    monkeypatch.setattr(benchmark, "Streamer", ours)
    monkeypatch.setattr(benchmark, "_recordings", lambda args, *_: find(args.corpus))
    monkeypatch.setitem(benchmark.PEERS, "whisper-live", peer)
    figures = tmp_path / "figures.json"
    command = ["stream", "--corpus", str(tmp_path / "corpus"), "--no-offline", "--json", str(figures)]
    command += ["--model", "base", "--windows", "5,10", "--windows", "30"]
    assert benchmark.main([*command, "--peers", "whisper-live", "--peers-folder", str(tmp_path)]) == 0
    base = ("--model", "base", "--language", "en")
    assert asked == [
        ("streamer", *base, "--windows", "5,10"),
        ("streamer 30", *base, "--windows", "30"),
        ("base", tmp_path),
    ]
    written = json.loads(figures.read_text(encoding="utf-8"))["figures"]
    assert list(written) == ["streamer", "streamer 30", "whisper-live"]
    capsys.readouterr()
    assert benchmark.main([*command, "--windows", "5", "--without-ours", "--peers", "whisper-live"]) == 0
    assert "streamer" not in capsys.readouterr().out


def write_sample(path: Path) -> None:
    soundfile.write(path, recording(end_s=LENGTH_S), SAMPLE_RATE)
    path.with_suffix(".txt").write_text("The Commission regards such impromptu stops", encoding="utf-8")


def test_settings_are_compared_in_simulated_time_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Sequence[str]] = []

    def transcribe_offline(found: Sequence[Recording], folder: Folder, flags: Sequence[str]) -> None:
        asked.append(flags)
        folder.save_offline(found[0].name, found[0].text)

    monkeypatch.setattr(stream, "transcribe_offline", transcribe_offline)
    write_sample(tmp_path / "talk.flac")
    corpus = ["--corpus", str(tmp_path), "--only", "talk"]
    command = ["simulate", *corpus, "--set", "model.name=nano.en", "--set", "decoding.beam_size=1"]
    command += ["--point", "early:stream.captions=early", "--point", "late:stream.policy=agreement,stream.agreement=4"]
    curve, timelines = tmp_path / "curve.svg", str(tmp_path / "timelines")
    assert benchmark.main([*command, "--curve", str(curve), "--timelines", timelines]) == 0
    assert asked == [[*stream.OFFLINE_FLAGS, "--model", "nano.en", "--language", "auto"]]
    assert "WER streamed - offline" in capsys.readouterr().out
    drawn = curve.read_text(encoding="utf-8")
    assert "<title>early: " in drawn
    assert "<title>late: " in drawn
    # The times of the words are kept with the timelines.
    curve.unlink()
    assert benchmark.main(["report", timelines, *corpus, "--curve", str(curve)]) == 0
    assert curve.read_text(encoding="utf-8") == drawn


def test_it_runs_as_a_script(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "benchmark.py"), "report", "--help"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--model" in done.stdout
