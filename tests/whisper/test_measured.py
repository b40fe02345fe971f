"""What `models verify` has measured is kept for the very model, and decides what `auto` means."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from streamer.errors import ConfigError
from streamer.whisper import cache
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.measured import Measured, entry_of, keep, recall
from streamer.whisper.model import load_model
from streamer.whisper.source import ModelSource, read_model
from tests.whisper.support import NANO, write_tiny

FOUND = Measured((5, 10), True)


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """nano.en, which says nothing of short windows."""
    folder = tmp_path / "silent"
    shutil.copytree(NANO, folder)
    path = folder / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["stream_windows_s"]
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_what_was_measured_is_known_again_until_something_changes(tmp_path: Path) -> None:
    model, base = write_tiny(tmp_path / "model"), tmp_path / "cache"

    def entry(weights: str = "auto", devices: tuple[str, ...] = ("CPU",)) -> Path | None:
        return entry_of(base, [model], weights, devices)

    assert recall(entry()) == Measured()
    keep(entry(), FOUND)
    assert recall(entry(devices=("CPU", "CPU"))) == FOUND
    assert recall(entry("int4")) == recall(entry(devices=("CPU", "GPU"))) == Measured()
    weights = model / "model.safetensors"
    os.utime(weights, (0, 0))
    assert recall(entry()) == Measured()
    keep(entry(), Measured((5,)))
    assert recall(entry()) == Measured((5,))
    assert entry_of(None, [model], "auto", ["CPU"]) is None
    assert recall(None) == Measured()
    keep(None, FOUND)


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "{}", '{"windows_s": 5, "int8": true}', '{"windows_s": [], "int8": 1}', "[" * 9000]
)
def test_what_is_broken_counts_as_nothing(tmp_path: Path, text: str) -> None:
    entry = tmp_path / "WORDS-0123456789abcdef"
    keep(entry, FOUND)
    (entry / "words.json").write_text(text, encoding="utf-8")
    assert recall(entry) == Measured()


def test_lengths_that_no_window_has_are_left_out(tmp_path: Path) -> None:
    keep(tmp_path, Measured((0, 5, 30, 10**9)))
    assert recall(tmp_path) == Measured((5,))


def test_an_entry_lives_as_long_as_it_is_used(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model")
    entry = entry_of(tmp_path, [model], "auto", ["CPU"])
    assert entry is not None
    keep(entry, FOUND)
    os.utime(entry, (0, 0))
    recall(entry)
    cache.prune(tmp_path)
    assert recall(entry) == FOUND
    os.utime(entry, (0, 0))
    cache.prune(tmp_path)
    assert not entry.exists()


def test_auto_means_what_was_measured(silent: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    on_cpu, base = DeviceSettings("CPU"), tmp_path / "cache"
    model = load_model(str(silent), on_cpu, weights="auto", windows_s=None, cache_dir=str(base))
    assert model.runtime.windows_s == (30,)
    assert model.weights == "as they are"
    assert not model.from_cache
    keep(entry_of(base, [silent], "auto", ["CPU"]), FOUND)
    with caplog.at_level(logging.INFO):
        model = load_model(str(silent), on_cpu, weights="auto", windows_s=None, cache_dir=str(base))
    assert model.runtime.windows_s == (5, 10, 30)
    assert model.weights == "int8 (`models verify` found the same words)"
    # The compiled graphs of other weights are no good for these.
    assert not model.from_cache
    assert "weights int8 (`models verify` found the same words), windows of 5, 10, 30 s" in caplog.text
    # Who wants something else gets that.
    model = load_model(str(silent), on_cpu, weights="f16", windows_s=[30], cache_dir=str(base))
    assert model.runtime.windows_s == (30,)
    assert model.weights == "f16 (as asked for)"
    # A model of which nobody said so far what it becomes stays as it is, for programs and tests.
    assert load_model(str(silent), on_cpu, cache_dir=str(base)).weights == "as they are"


def test_graphs_keep_their_weights(silent: Path) -> None:
    source = read_model(silent, "nano")
    whole = ModelSource(source.path, "", "saved", "", source.graphs, source.tokenizer, source.generation)
    with pytest.raises(ConfigError, match=r"model\.weights is int8, and saved consists of graphs"):
        whole.with_weights("int8")
    assert source.with_weights("int8").weights == "int8"
