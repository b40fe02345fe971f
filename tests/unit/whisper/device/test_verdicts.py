"""Verdicts on devices: kept until device, driver or model change."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from streamer.whisper.device.compile import Compilation, Sizes
from streamer.whisper.device.verdicts import Verdicts, kept_verdicts


class Machine:
    """A compilation on an NPU, whose decoder is on the CPU."""

    def __init__(self, folder: Path | None, driver: str = "1.38") -> None:
        devices = {"encoder": "NPU", "cross_kv": "NPU", "decoder": "CPU"}
        compile_s = {Sizes("encoder"): 2.0, Sizes("encoder", 5): 1.04, Sizes("cross_kv"): 1.0}
        self.compilation = SimpleNamespace(
            cache_dir=folder,
            devices=devices,
            compile_s=compile_s,
            entries=dict[Sizes, Path](),
            facts=lambda stage: [devices[stage], driver],
        )
        self.compilation.windows_s = [5, 30]

    def verdicts(self, model: Path) -> Verdicts:
        return Verdicts(cast(Compilation, self.compilation), "openai/whisper-base", [model])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_the_cpu_needs_no_verdict(model: Path) -> None:
    verdicts = Machine(None).verdicts(model)
    assert verdicts.unjudged() == ["encoder", "cross_kv"]
    verdicts.keep({"decoder": "wrong", "encoder": "wrong"})
    assert verdicts.unjudged() == ["cross_kv"]
    assert [*verdicts.refused()] == ["encoder"]


def test_verdicts_are_found_again_by_another_process(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    Machine(cache).verdicts(model).keep({"encoder": "the encoder is wrong", "cross_kv": ""})
    found = Machine(cache).verdicts(model)
    assert found.unjudged() == []
    (error,) = found.refused().values()
    assert "the encoder is wrong" in str(error)
    assert error.stage == "encoder"
    kept = {verdict.stage: verdict for verdict in kept_verdicts(cache)}
    assert kept["encoder"].compile_s == 3.0
    assert kept["cross_kv"].problem == ""
    # Without a cache they last as long as the process.
    assert Machine(None).verdicts(model).unjudged() == ["encoder", "cross_kv"]


def test_a_stage_whose_graphs_are_no_longer_in_the_cache_is_judged_anew(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    machine = Machine(cache)
    machine.compilation.entries = {Sizes(stage): cache / f"NPU-{stage}" for stage in ("encoder", "cross_kv")}
    blobs = [entry / "graph.blob" for entry in machine.compilation.entries.values()]
    for blob in blobs:
        blob.parent.mkdir(parents=True)
        blob.write_bytes(b"compiled")
    machine.verdicts(model).keep({"encoder": "wrong", "cross_kv": ""})
    assert Machine(cache).verdicts(model).unjudged() == []
    for blob in blobs:
        blob.unlink()
    # A device that is wrong is not tried for that reason.
    assert Machine(cache).verdicts(model).unjudged() == ["cross_kv"]


def test_another_driver_or_file_is_judged_anew(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    Machine(cache).verdicts(model).keep({"encoder": "wrong", "cross_kv": ""})
    assert Machine(cache, "1.39").verdicts(model).unjudged() == ["encoder", "cross_kv"]
    (model / "model.safetensors").write_bytes(b"other weights")
    assert Machine(cache).verdicts(model).unjudged() == ["encoder", "cross_kv"]


def test_another_length_of_window_is_judged_if_the_others_passed(tmp_path: Path, model: Path) -> None:
    cache = tmp_path / "cache"
    Machine(cache).verdicts(model).keep({"encoder": "wrong", "cross_kv": ""})
    for windows_s, unjudged in (([30], []), ([5, 15, 30], ["cross_kv"])):
        machine = Machine(cache)
        machine.compilation.windows_s = windows_s
        assert machine.verdicts(model).unjudged() == unjudged
        assert [*machine.verdicts(model).refused()] == ["encoder"]


@pytest.mark.parametrize("damage", [lambda kept: "{", lambda kept: json.dumps(json.loads(kept) | {"windows_s": 30})])
def test_a_damaged_verdict_is_none(tmp_path: Path, model: Path, damage: Callable[[str], str]) -> None:
    cache = tmp_path / "cache"
    Machine(cache).verdicts(model).keep({"encoder": "wrong", "cross_kv": ""})
    for file in cache.glob("*/verdict.json"):
        file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
    assert Machine(cache).verdicts(model).unjudged() == ["encoder", "cross_kv"]
    assert not list(kept_verdicts(cache))
