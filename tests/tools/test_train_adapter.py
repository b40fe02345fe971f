"""Adapters for short windows, trained for a few steps."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from streamer.whisper import adapters
from streamer.whisper.source import load_checkpoint
from tests.unit.whisper.support import NANO, SAMPLE
from tools import adapter_examples, train_adapter


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Have six steps of two short examples each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BATCH": 2, "N_VALIDATION": 2, "WARM_UP_STEPS": 1}.items():
            patch.setattr(train_adapter, name, value)
        patch.setattr(adapter_examples, "PIECE_S", (2.0, 3.0))
        patch.setattr(adapter_examples, "NO_SPEECH", 0.0)
        yield patch


def train(patch: pytest.MonkeyPatch, out: Path) -> None:
    """Train on the shipped sample."""
    arguments = [str(NANO), "--recordings", str(SAMPLE), "--out", str(out), "--pieces", "8", "--rank", "2"]
    patch.setattr(sys, "argv", ["train_adapter", *arguments, "--steps", "6"])
    assert train_adapter.main() == 0


@pytest.fixture(scope="module")
def trained(patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    train(patch, out)
    return out


def test_the_states_of_short_windows_come_nearer_to_those_of_30_s_and_the_adapter_is_found(trained: Path) -> None:
    before, *_, after = json.loads((trained / "training.json").read_text(encoding="utf-8"))["curve"]
    assert after["states"] < before["states"]
    found = adapters.find(load_checkpoint(NANO)[1], str(trained))
    assert found is not None
    assert found.windows_s == train_adapter.WINDOWS_S


def test_what_is_stopped_goes_on_where_it_was(trained: Path, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(trained / "work" / "pieces", tmp_path / "work" / "pieces")
    patch.setattr(train_adapter, "EVERY_STEPS", 2)
    losses = train_adapter.Student.losses
    n_calls = 0

    def interrupted(self: train_adapter.Student, *arguments: object, **keywords: object) -> object:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 10:  # after the state of the second step was saved
            raise KeyboardInterrupt
        return losses(self, *arguments, **keywords)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as interrupting:
        interrupting.setattr(train_adapter.Student, "losses", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(patch, tmp_path)
    assert (tmp_path / "work" / "state.pt").exists()
    assert not (tmp_path / "adapter_model.safetensors").exists()
    train(patch, tmp_path)
    for name, values in load_file(trained / "adapter_model.safetensors").items():
        np.testing.assert_array_equal(load_file(tmp_path / "adapter_model.safetensors")[name], values)
