"""What `streamer compare` prints and writes, and what it says of slips."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from streamer.bench.compare import Run, Runs
from streamer.constants import SAMPLE_RATE
from streamer.errors import PeerError
from streamer.plugins.compare import command
from streamer.plugins.compare.command import Measurement, measure, measure_apart
from streamer.settings.table import ModelSettings, Settings
from streamer.setup import loading
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, Outcome, recording

pytestmark = pytest.mark.slow

Cli = Callable[..., Outcome]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The beginning of the sample: the first four words of its text."""
    path = tmp_path_factory.mktemp("compare") / "clip.wav"
    soundfile.write(path, recording(SAMPLE, 0.0, 3.0), SAMPLE_RATE, subtype="PCM_16")
    path.with_suffix(".txt").write_text("The Commission regards such", encoding="utf-8")
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Measurement]:
    """Jobs that were not measured in earnest."""
    jobs: list[Measurement] = []

    def pretend(job: Measurement) -> Runs:
        jobs.append(job)
        return Runs(name=job.name, runs=[Run(segments=[(0.0, "the commission")], audio_s=3.0) for _ in job.paths])

    monkeypatch.setattr(command, "measure_apart", pretend)
    return jobs


def test_models_are_measured_apart_and_one_that_fails_spoils_nothing(run_here: Cli, clip: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    flags = ("--device", "CPU", "--reference", clip.with_suffix(".txt"), "--format", "json")
    outcome = run_here("compare", clip, "--models", f"nano.en,{broken}", *flags)
    assert outcome.exit_code == 1
    told = json.loads(outcome.stdout)
    good, bad = told["models"]
    assert (good["error"], good["language"], good["audio_s"]) == ("", "en", 3.0)
    assert good["wer"] is not None
    assert 0 < good["first_text_s"] <= good["wall_s"]
    assert min(good["cpu_per_audio"], good["real_time_factor"], good["load_s"]) > 0
    assert good["peak_rss_mb"] > 50
    assert "broken" in bad["error"]
    assert bad["wer"] is None
    assert told["recordings"][0]["texts"] == ["reference", "nano.en"]


def test_live_captions_have_delays(clip: Path, model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load", lambda *_, **__: model)
    told: list[Runs] = []
    settings = Settings(model=ModelSettings(name="nano.en", device="CPU"))
    measure(Measurement("nano.en", settings, [str(clip)], streaming=True), told.append)
    (found,) = told
    assert found.runs[0].segments
    assert found.runs[0].error == ""
    assert found.runs[0].delays_s["stable"]


def test_a_process_that_dies_is_told(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "apart", lambda _: [sys.executable, "-c", "import os; os._exit(9)"])
    settings = Settings(model=ModelSettings(name="nano.en"))
    found = measure_apart(Measurement("m", settings, [str(clip), str(clip)], streaming=False))
    assert [run.error.partition(":")[0] for run in found.runs] == ["its process ended with exit code 9"] * 2


def test_each_model_has_its_settings_and_those_of_all(run_here: Cli, clip: Path, measured: list[Measurement]) -> None:
    models = ("--models", "nano.en,nano.en@decoding.beam_size=5", "--models", "nano.en@decoding.temperature=0.5")
    assert run_here("compare", clip, *models, "--initial-prompt", "Hm.").exit_code == 0
    assert [job.settings.decoding.beam_size for job in measured] == [None, 5, None]
    assert {job.settings.decoding.initial_prompt for job in measured} == {"Hm."}


def test_table_and_json_are_written_where_they_are_wanted(
    run_here: Cli, clip: Path, measured: list[Measurement], tmp_path: Path
) -> None:
    flags = ("--models", "nano.en", "--reference", clip.with_suffix(".txt"))
    outcome = run_here("compare", clip, *flags)
    assert "WER" in outcome.stdout
    assert "differ in 2 of 4 words" in outcome.stdout
    outcome = run_here("compare", clip, *flags, "--format", "json", "-o", tmp_path / "told.json")
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))["models"]
    assert run_here("compare", clip, *flags, "-o", tmp_path / "table.txt").exit_code == 0
    assert "nano.en" in (tmp_path / "table.txt").read_text(encoding="utf-8")


def test_a_model_that_cannot_be_fetched_has_a_row(
    run_here: Cli, clip: Path, measured: list[Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, on_progress: object) -> Path:
        if name == "base.en":
            raise PeerError("the Hub is away")
        return Path()

    monkeypatch.setattr(command, "find_or_pull", fetch)
    outcome = run_here("compare", clip, "--models", "nano.en,base.en")
    assert outcome.exit_code == 1
    assert "base.en: the Hub is away" in outcome.stdout
    assert [job.name for job in measured] == ["nano.en"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CLIP", "--models", "nano.en,nano.en"), "is there twice"),
        (("CLIP", "--models", "nothing-like-it"), "there is no model 'nothing-like-it'"),
        (("CLIP", "--models", "nano.en@decoding.beams=5"), "there is no setting 'decoding.beams'"),
        (("CLIP", "--models", "nano.en@decoding.beam_size=many"), "nano.en@decoding.beam_size=many: "),
        (("CLIP", "--models", "nano.en,tiny", "--language", "de"), "nano.en: language is de"),
        (("CLIP", "--models", "nano.en@decoding.task=both"), "nano.en knows English only"),
        (("CLIP", "--models", "tiny@decoding.task=both"), "task is both"),
        (("-", "--models", "nano.en"), "standard input"),
        (("missing.wav", "--models", "nano.en"), "missing.wav"),
        (("CLIP", "--models", "nano.en", "--reference", "missing.txt"), "missing.txt cannot be read"),
        (("CLIP", "--models", "nano.en", "--reference", "EMPTY"), "has no words"),
        (("CLIP", "CLIP", "--models", "nano.en", "--reference", "EMPTY"), "1 references for 2 recordings"),
        (("CLIP", "--models", "nano.en", "-o", "."), "choose another place with --output"),
    ],
)
def test_slips_are_told_before_anything_is_measured(
    run_here: Cli, clip: Path, measured: list[Measurement], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty.txt").write_text(" ...\n", encoding="utf-8")
    names = {"CLIP": clip, "EMPTY": tmp_path / "empty.txt"}
    outcome = run_here("compare", *(names.get(argument, argument) for argument in arguments))
    assert outcome.exit_code == 2
    assert message in outcome.error()
    assert not measured
