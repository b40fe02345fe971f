"""What `streamer compare` prints and writes, and which models it measures with which settings."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import soundfile

from streamer.commands.figures import Run
from streamer.constants import SAMPLE_RATE
from streamer.errors import PeerError
from streamer.plugins.compare.runs import Runs
from streamer.settings.load import load_settings
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
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Environments of processes that would have measured."""
    environments: list[Mapping[str, str]] = []

    def pretend(paths: Sequence[Path], environ: Mapping[str, str]) -> Runs:
        environments.append(environ)
        run = Run(segments=[(0.0, "the commission")], language="en", audio_s=3.0, wall_s=1.0, cpu_s=1.0)
        return Runs(recordings=[run] * len(paths))

    monkeypatch.setattr("streamer.plugins.compare.runs.transcribed", pretend)
    return environments


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
    assert bad["error"]
    assert bad["wer"] is None
    assert told["recordings"][0]["texts"] == ["reference", "nano.en"]


def test_live_captions_have_delays(run_here: Cli, clip: Path) -> None:
    outcome = run_here("compare", clip, "--models", "nano.en", "--device", "CPU", "--stream", "--format", "json")
    assert outcome.exit_code == 0, outcome.stderr
    (found,) = json.loads(outcome.stdout)["models"]
    assert found["words"] > 0
    assert min(found["real_time_factor"], found["load_s"], found["peak_rss_mb"]) > 0
    assert found["stable_p50_s"] is not None


def test_each_model_has_its_settings_and_those_of_all(
    run_here: Cli, clip: Path, measured: list[Mapping[str, str]], tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("decoding:\n  language: en\n", encoding="utf-8")
    models = ("--models", "nano.en,nano.en@decoding.beam_size=5", "--models", "nano.en@decoding.temperature=0.5")
    flags = ("--initial-prompt", "Hm.", "--no-vad-filter", "--config", config)
    assert run_here("compare", clip, *models, *flags).exit_code == 0
    settings = [load_settings(None, environ, {}).decoding for environ in measured]
    assert [decoding.beam_size for decoding in settings] == [None, 5, None]
    assert [decoding.temperature for decoding in settings] == [0.0, 0.0, 0.5]
    assert {(each.initial_prompt, each.vad_filter, each.language) for each in settings} == {("Hm.", False, "en")}


def test_table_and_json_are_written_where_they_are_wanted(
    run_here: Cli, clip: Path, measured: list[Mapping[str, str]], tmp_path: Path
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
    run_here: Cli, clip: Path, measured: list[Mapping[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, on_progress: object) -> Path:
        if name == "base.en":
            raise PeerError("the Hub is away")
        return Path()

    monkeypatch.setattr("streamer.whisper.locate.find_or_pull", fetch)
    outcome = run_here("compare", clip, "--models", "nano.en,base.en")
    assert outcome.exit_code == 1
    assert "base.en: the Hub is away" in outcome.stdout
    assert [environ["STREAMER_MODEL_NAME"] for environ in measured] == ["nano.en"]
