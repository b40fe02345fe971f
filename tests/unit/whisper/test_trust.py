"""Verdicts on devices: kept until device, driver or model change."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from streamer.errors import InferenceError
from streamer.whisper.cache import facts_of
from streamer.whisper.device.compile import CompiledGraph, CompiledStage, Recipe
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.places import choose, places_of
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.trust import Verdicts, kept_verdicts
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.stand_in_npu import StandInCore, install

WRONG_AND_RIGHT = {"encoder": "the encoder is wrong", "cross_kv": ""}


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> StandInCore:
    return install(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    return path


class Machine:
    """What another process knows of a model on an NPU, whose decoder is on the CPU."""

    def __init__(self, checkpoint: Checkpoint, model: Path, cache: Path | None, *windows_s: int) -> None:
        plans = plan_stages(DeviceSettings("NPU", decoder_device="CPU"), ["CPU", "NPU"])
        self.recipe = Recipe(
            ModelGraphs.of(checkpoint, ()), plans, (*windows_s, 30), cache_dir=cache, facts=facts_of([model])
        )
        self.chosen = choose(plans, places_of(plans))
        self.verdicts = Verdicts("openai/whisper-base")

    @property
    def unjudged(self) -> list[str]:
        return self.verdicts.unjudged(self.recipe, self.chosen)

    @property
    def refused(self) -> dict[str, InferenceError]:
        return self.verdicts.refused(self.recipe, self.chosen)

    def keep(self, problems: Mapping[str, str] = WRONG_AND_RIGHT, compile_s: float = 1.04) -> "Machine":
        """Keep what was found of stages, whose graphs are in the cache."""
        graph = CompiledGraph(None, from_cache=False, compile_s=compile_s)
        stages = {
            stage: CompiledStage(place, dict.fromkeys(self.recipe.sizes_of(stage, place), graph))
            for stage, place in self.chosen.items()
        }
        for path in self.directories:
            path.mkdir(parents=True, exist_ok=True)
            (path / "graph.blob").write_bytes(b"compiled")
        self.verdicts.keep(self.recipe, stages, problems)
        return self

    @property
    def directories(self) -> list[Path]:
        found = [
            self.recipe.directory(sizes, place)
            for stage, place in self.chosen.items()
            for sizes in self.recipe.sizes_of(stage, place)
        ]
        return [path for path in found if path is not None]


@pytest.fixture
def machine(checkpoint: Checkpoint, model: Path, tmp_path: Path, core: StandInCore) -> Callable[..., Machine]:
    return lambda *windows_s, cache=tmp_path / "cache": Machine(checkpoint, model, cache, *windows_s)


def test_the_cpu_needs_no_verdict(machine: Callable[..., Machine]) -> None:
    found = machine()
    assert found.unjudged == ["encoder", "cross_kv"]
    found.keep({"decoder": "wrong", "encoder": "wrong"})
    assert (found.unjudged, [*found.refused]) == (["cross_kv"], ["encoder"])


def test_verdicts_are_found_again_by_another_process(machine: Callable[..., Machine], tmp_path: Path) -> None:
    machine().keep()
    found = machine()
    assert found.unjudged == []
    (error,) = found.refused.values()
    assert (error.stage, "the encoder is wrong" in str(error)) == ("encoder", True)
    kept = {verdict.graph: verdict for verdict in kept_verdicts(tmp_path / "cache")}
    assert (kept["encoder"].compile_s, kept["cross_kv"].problem) == (1.0, "")
    # Without a cache they last as long as the process.
    without = machine(cache=None).keep()
    assert (without.unjudged, [*without.refused]) == ([], ["encoder"])
    assert machine(cache=None).unjudged == ["encoder", "cross_kv"]


def test_what_is_compiled_anew_is_judged_anew_unless_it_was_wrong(machine: Callable[..., Machine]) -> None:
    for path in machine().keep().directories:
        (path / "graph.blob").unlink()
    assert (machine().unjudged, [*machine().refused]) == (["cross_kv"], ["encoder"])


def test_another_driver_or_file_is_judged_anew(machine: Callable[..., Machine], core: StandInCore, model: Path) -> None:
    machine().keep()
    core.driver = "1.39"
    assert machine().unjudged == ["encoder", "cross_kv"]
    machine().keep()
    (model / "model.safetensors").write_bytes(b"other weights")
    assert machine().unjudged == ["encoder", "cross_kv"]


def test_another_length_of_window_is_judged_if_the_others_passed(machine: Callable[..., Machine]) -> None:
    machine(5).keep()
    for windows_s, unjudged in (((), []), ((5, 15), ["cross_kv"])):
        found = machine(*windows_s)
        assert (found.unjudged, [*found.refused]) == (unjudged, ["encoder"])


def test_what_is_forgotten_is_judged_anew(machine: Callable[..., Machine]) -> None:
    found = machine().keep()
    found.verdicts.forget(found.recipe, {"encoder": found.chosen["encoder"]})
    assert found.unjudged == machine().unjudged == ["encoder"]


@pytest.mark.parametrize("damage", [lambda kept: "{", lambda kept: json.dumps(json.loads(kept) | {"compile_s": "x"})])
def test_a_damaged_verdict_is_none(
    machine: Callable[..., Machine], tmp_path: Path, damage: Callable[[str], str]
) -> None:
    machine().keep()
    for file in tmp_path.glob("cache/*/verdict.json"):
        file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert machine().unjudged == ["encoder", "cross_kv"]
    assert not list(kept_verdicts(tmp_path / "cache"))
