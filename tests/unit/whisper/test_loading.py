"""From a model's name to graphs: directories whole and broken, devices, and the weights' precision."""

import copy as copying
import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import openvino as ov
import pytest

from streamer.errors import ConfigError, InferenceError, ModelError
from streamer.setup import fit
from streamer.whisper import loading
from streamer.whisper.check import require
from streamer.whisper.choices import choose_weights
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.loading import LoadOptions, verify_model
from streamer.whisper.model import WhisperModel, load_model, warn_of_translation
from streamer.whisper.source import read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.refusals import Refusal, refusals
from tests.unit.whisper.support import NANO, damage, load_on_cpu

STAGES = ("encoder", "cross_kv", "decoder")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The embedded model, to be broken."""
    return Path(shutil.copytree(NANO, tmp_path / "nano", ignore=shutil.ignore_patterns("sample.*", "*.md", "*.png")))


@pytest.fixture
def load(cache_dir: Path) -> Callable[..., WhisperModel]:
    """Load nano.en for a device, `encoder_device` and the like, with graphs that all tests share."""
    return lambda device="AUTO", **more: load_model(
        str(NANO), LoadOptions(DeviceSettings(device, **more), cache_dir=str(cache_dir))
    )


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@refusals("whisper_files")
def test_a_model_with_a_broken_file_is_refused(refusal: Refusal, copy: Path) -> None:
    for name, change in refusal.given.items():
        damage(copy / name, change)
    with refusal.expected(copy):
        require(read_model(copy, "nano").checks)


def test_settings_that_are_lists_or_absent_are_fine(copy: Path) -> None:
    damage(copy / "config.json", {"eos_token_id": [512, 600], "decoder_start_token_id": [513, 514, 516]})
    damage(copy / "preprocessor_config.json", {"hop_length": "...", "n_fft": "..."})
    assert all(check.passed for check in read_model(copy, "nano").checks)


def test_what_does_not_belong_together_is_not_compiled(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(loading, "compile_stages")
    damage(copy / "preprocessor_config.json", {"feature_size": 128})
    checks = list(verify_model(str(copy), LoadOptions(DeviceSettings("CPU"))))
    assert [check.name for check in checks if not check.passed] == ["preprocessor: feature_size"]
    with pytest.raises(ModelError):
        load_on_cpu(copy)


@pytest.mark.parametrize(
    ("n_layers", "task", "expected"),
    [((32, 4), "translate", 1), ((32, 4), "transcribe", 0), ((4, 2), "translate", 0), ((4, 4), "translate", 0)],
)
def test_a_model_like_turbo_warns_once_that_it_was_not_trained_to_translate(
    model: WhisperModel, warned: Callable[[], list[str]], n_layers: tuple[int, int], task: str, expected: int
) -> None:
    turbo = copying.copy(model)
    turbo.dims = dataclasses.replace(model.dims, n_audio_layer=n_layers[0], n_text_layer=n_layers[1])
    turbo.tokenizer = cast(Tokenizer, SimpleNamespace(choose_language=lambda wanted, task: wanted))
    warn_of_translation.cache_clear()
    for _ in range(2):  # a session, and a recording
        assert turbo.choose_language("de", task) == "de"
    assert len(warned()) == expected


class TestAnNpuThatCannotCompile:
    @pytest.fixture(autouse=True)
    def _announced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An NPU is announced, but none is there that could compile."""
        if "NPU" in ov.Core().available_devices:
            pytest.skip("there is an NPU here")
        monkeypatch.setattr(loading, "available_devices", lambda: ["CPU", "NPU"])

    @pytest.mark.parametrize("settings", [{}, {"device": "CPU", "encoder_device": "AUTO"}])
    def test_auto_goes_on_to_the_next_device_and_warns_once(
        self, load: Callable[..., WhisperModel], warned: Callable[[], list[str]], settings: dict[str, str]
    ) -> None:
        assert load(**settings).runtime.devices == dict.fromkeys(STAGES, "CPU")
        (warning,) = warned()
        assert "NPU" in warning
        assert ("decoder" in warning) == (not settings)

    def test_the_one_that_was_asked_for_is_not_replaced(self, load: Callable[..., WhisperModel]) -> None:
        with pytest.raises(InferenceError):
            load("NPU")


@pytest.mark.parametrize(
    ("wanted", "size", "available", "weights", "why"),
    [
        ("", "base.en", ["CPU"], "", "as they are"),
        ("auto", "small.en", ["CPU"], "", "as they are"),
        ("auto", "base.en", ["CPU", "GPU"], "int8", "int8 (auto)"),
        # With zero points an NPU is no faster than with float16.
        ("auto", "base.en", ["CPU", "NPU"], "int8-sym", "int8-sym (auto)"),
        ("f16", "base.en", ["CPU"], "f16", "f16 (as asked for)"),
    ],
)
def test_auto_is_int8_for_the_sizes_that_were_measured(
    wanted: str, size: str, available: list[str], weights: str, why: str
) -> None:
    source = read_model(NANO, "nano.en")
    dims = dataclasses.replace(fit.SIZES[size], n_vocab=51865)
    source = dataclasses.replace(source, graphs=dataclasses.replace(source.graphs, dims=dims))
    found, said = choose_weights(source, wanted, plan_stages(DeviceSettings(), available))
    assert (found.weights, said) == (weights, why)


def test_a_device_that_fails_is_started_again_once(cache_dir: Path, warned: Callable[[], list[str]]) -> None:
    model = load_on_cpu(NANO, cache_dir)
    failed = model.runtime
    for _ in range(2):  # two threads saw it fail
        model.recover(failed, InferenceError("it fell off the bus", "decoder"))
    assert model.runtime is not failed
    assert (model.state, len(warned())) == ("loaded", 2)


def test_progress_counts_the_graphs_that_are_compiled(cache_dir: Path) -> None:
    reported: list[tuple[int, int]] = []
    options = LoadOptions(DeviceSettings("CPU"), cache_dir=str(cache_dir))
    load_model(str(NANO), options, on_compiled=lambda *progress: reported.append(progress))
    assert reported == [(done, 4) for done in range(5)]


@pytest.mark.parametrize("name", ["file/below", "a\0b"])
def test_a_cache_directory_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError):
        load_on_cpu(NANO, tmp_path / name)
