"""Model directories, whole and broken, and the choice of the device."""

import copy as copying
import dataclasses
import json
import logging
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import openvino as ov
import pytest
from safetensors.numpy import load_file, save_file

from streamer.errors import ConfigError, InferenceError, ModelError
from streamer.setup import fit
from streamer.whisper import model as model_module
from streamer.whisper.check import Check
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.model import LoadOptions, WhisperModel, load_model, verify_model
from streamer.whisper.source import read_model
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import NANO, load_on_cpu
from tests.unit.whisper.weights import checks


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The embedded model, to be broken."""
    directory = tmp_path / "broken"
    shutil.copytree(NANO, directory, ignore=shutil.ignore_patterns("sample.*", "vocab.json", "merges.txt"))
    return directory


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a directory is found before anything is compiled."""

    def compile_(*arguments: object, **keywords: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(Compilation, "compile", compile_)


def edit(path: Path, **changes: object) -> None:
    """Change keys of a JSON file; `...` takes one out."""
    data = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}), encoding="utf-8")


refuse = partial(checks.refuse, load_on_cpu)


@pytest.mark.parametrize(
    ("n_layers", "task", "warned"),
    [((32, 4), "translate", True), ((32, 4), "transcribe", False), ((4, 4), "translate", False)],
)
def test_a_model_like_turbo_warns_that_it_was_not_trained_to_translate(
    model: WhisperModel, caplog: pytest.LogCaptureFixture, n_layers: tuple[int, int], task: str, warned: bool
) -> None:
    dims = dataclasses.replace(model.dims, n_audio_layer=n_layers[0], n_text_layer=n_layers[1])
    turbo = copying.copy(model)
    turbo.name = "turbo"
    turbo.runtime = cast(Runtime, SimpleNamespace(dims=dims))
    turbo.tokenizer = cast(Tokenizer, SimpleNamespace(choose_language=lambda wanted, task: wanted))
    model_module.warn_of_translation.cache_clear()
    for _ in range(2):  # a session, and a recording
        assert turbo.choose_language("de", task) == "de"
    assert caplog.text.count("turbo has 4 layers in its decoder, 32 in its encoder") == warned


@pytest.mark.usefixtures("uncompiled")
class TestBrokenDirectories:
    @pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
    def test_a_missing_file(self, copy: Path, file: str) -> None:
        (copy / file).unlink()
        refuse(copy, f"{file} is missing: ", "fetch it again")

    def test_a_missing_tokenizer(self, copy: Path) -> None:
        (copy / "tokenizer.json").unlink()
        refuse(copy, "has no tokenizer beside it", "--tokenizer FILE")

    @pytest.mark.parametrize("file", ["generation_config.json", "preprocessor_config.json"])
    def test_a_file_that_is_not_json(self, copy: Path, file: str) -> None:
        (copy / file).write_text("{", encoding="utf-8")
        refuse(copy, f"{file} is not JSON")

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        refuse(tmp_path, "config.json is missing")

    @pytest.mark.parametrize(("key", "value"), [("feature_size", 128), ("sampling_rate", 8000), ("n_fft", "400" * 999)])
    def test_a_preprocessor_of_another_model(self, copy: Path, key: str, value: object) -> None:
        edit(copy / "preprocessor_config.json", **{key: value})
        refuse(copy, f"preprocessor_config.json has {key} ", "the model needs ", "different models")

    def test_a_tokenizer_with_more_tokens_than_the_model(self, copy: Path) -> None:
        edit(copy / "config.json", vocab_size=2000)
        path = copy / "model.safetensors"
        tensors = load_file(path)
        name = "model.decoder.embed_tokens.weight"
        save_file({**tensors, name: tensors[name][:2000].copy()}, path)
        refuse(copy, "tokenizer.json has 2022 tokens, the model 2000", "different models")

    @pytest.mark.parametrize(
        ("file", "key"),
        [
            ("config.json", "eos_token_id"),
            ("config.json", "decoder_start_token_id"),
            ("generation_config.json", "no_timestamps_token_id"),
        ],
    )
    def test_a_tokenizer_of_another_model(self, copy: Path, file: str, key: str) -> None:
        found = json.loads((copy / file).read_text(encoding="utf-8"))[key]
        edit(copy / file, **{key: found + 1})
        refuse(copy, f"{file} has {key} {found + 1}", f"tokenizer.json has {found}", "different models")
        if file == "config.json":
            edit(copy / file, **{key: [found + 1, found + 2]})
            refuse(copy, f"{file} has {key} [{found + 1}, {found + 2}]")

    def test_settings_that_are_lists_or_absent(self, copy: Path) -> None:
        edit(copy / "config.json", eos_token_id=[512, 600], decoder_start_token_id=[513, 514, 516])
        edit(copy / "preprocessor_config.json", hop_length=..., n_fft=...)
        assert all(check.passed for check in read_model(copy, "nano").checks)


def test_a_device_that_is_not_there(cache_dir: Path) -> None:
    if "NPU" in ov.Core().available_devices:
        pytest.skip("there is an NPU here")
    with pytest.raises(ConfigError, match=r"device NPU is not there, OpenVINO finds .*CPU"):
        load_model(str(NANO), LoadOptions(DeviceSettings("NPU"), cache_dir=str(cache_dir)))


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NPU is announced, but none is there that could compile."""
    if "NPU" in ov.Core().available_devices:
        pytest.skip("there is an NPU here")
    monkeypatch.setattr(model_module, "available_devices", lambda: ["CPU", "NPU"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.usefixtures("announced")
def test_auto_goes_on_to_the_next_device_and_says_so_once(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = load_model(str(NANO), LoadOptions(cache_dir=str(cache_dir)))
    assert model.runtime.devices == {"encoder": "CPU", "cross_kv": "CPU", "decoder": "CPU"}
    (warning,) = warnings(caplog)
    assert warning.startswith("NPU cannot compile the encoder graph ")
    assert warning.endswith("; trying CPU for encoder, cross_kv, decoder")
    assert any("nano.en on CPU (AUTO: NPU does not work, no GPU here)" in r.getMessage() for r in caplog.records)
    assert "compiling the model for NPU" in caplog.text


@pytest.mark.usefixtures("announced")
def test_a_device_that_was_asked_for_is_not_replaced(cache_dir: Path) -> None:
    with pytest.raises(InferenceError, match=r"NPU cannot compile the .*--device CPU"):
        load_model(str(NANO), LoadOptions(DeviceSettings("NPU"), cache_dir=str(cache_dir)))


@pytest.mark.usefixtures("announced")
def test_encoder_and_decoder_have_a_device_of_their_own(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    devices = DeviceSettings("CPU", encoder_device="AUTO")
    load_model(str(NANO), LoadOptions(devices, cache_dir=str(cache_dir)))
    (warning,) = warnings(caplog)
    assert warning.endswith("; trying CPU for encoder, cross_kv")
    assert "cross_kv: CPU (AUTO: NPU does not work, no GPU here), decoder: CPU (as asked for)" in caplog.text


def test_auto_passes_over_a_device_that_computes_nonsense(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the stage that is wrong moves on."""
    answers = iter([False, True])
    plans = plan_stages(DeviceSettings("CPU"), ["CPU"])
    two = {stage: dataclasses.replace(plan, candidates=("CPU", "CPU")) for stage, plan in plans.items()}
    monkeypatch.setattr(model_module, "plan_stages", lambda settings, available: two)

    def check(decoder: Decoder, token: int, about: str) -> list[Check]:
        return [Check("decoder: sense", "?", "?", next(answers), "the compiled decoder gives nonsense", "decoder")]

    monkeypatch.setattr(model_module, "check_decoder", check)
    load_model(str(NANO), LoadOptions(cache_dir=str(cache_dir)))
    (warning,) = warnings(caplog)
    assert warning.startswith("the compiled decoder gives nonsense; ")
    assert warning.endswith("; trying CPU for decoder")


def test_auto_is_int8_for_the_sizes_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def weights_of(weights: str) -> str:
        return load_on_cpu(NANO, cache_dir, weights=weights).weights

    assert weights_of("auto") == weights_of("") == "as they are"
    dims = read_model(NANO, "nano.en").graphs.dims
    sizes = {(dims.n_text_state, dims.n_audio_layer, dims.n_text_layer)}
    monkeypatch.setattr(model_module, "INT8_SIZES", sizes)
    with caplog.at_level(logging.INFO):
        assert weights_of("auto") == "int8 (auto)"
    assert "weights int8 (auto), windows of 30 s" in caplog.text
    assert weights_of("") == "as they are"
    assert weights_of("f16") == "f16 (as asked for)"


@pytest.mark.parametrize(
    ("available", "expected"), [(["CPU"], "int8"), (["CPU", "GPU"], "int8"), (["CPU", "NPU"], "int8-sym")]
)
def test_auto_has_no_zero_points_if_an_npu_may_compute(available: list[str], expected: str) -> None:
    base = dataclasses.replace(fit.SIZES["base.en"], n_vocab=51865)
    source = read_model(NANO, "nano.en")
    source = dataclasses.replace(source, graphs=dataclasses.replace(source.graphs, dims=base))
    plans = plan_stages(DeviceSettings(), available)
    assert model_module.choose_weights(source, "auto", plans)[0].weights == expected
    # Graphs keep their weights, whatever size they are of.
    graphs = dataclasses.replace(source, checkpoint=None)
    assert model_module.choose_weights(graphs, "auto", plans)[0].weights == ""
    with pytest.raises(ConfigError, match=r"model\.weights is int8, and nano\.en consists of graphs"):
        model_module.choose_weights(graphs, "int8", plans)


@pytest.mark.usefixtures("uncompiled")
def test_a_model_that_does_not_belong_together_is_verified_no_further(copy: Path) -> None:
    edit(copy / "preprocessor_config.json", feature_size=128)
    *_, last = verify_model(str(copy), LoadOptions(DeviceSettings("CPU")))
    assert last.name.startswith("preprocessor: ")
    with pytest.raises(ModelError, match="has feature_size 128, the model needs 80"):
        load_on_cpu(copy)


def test_how_many_graphs_are_compiled_is_told(cache_dir: Path) -> None:
    told: list[tuple[int, int]] = []
    load_model(
        str(NANO),
        LoadOptions(DeviceSettings("CPU"), cache_dir=str(cache_dir)),
        on_compiled=lambda *progress: told.append(progress),
    )
    assert told == [(done, 3) for done in range(4)]


def test_compiled_graphs_are_kept_where_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "environment"))
    load_on_cpu(NANO)
    assert len(list((tmp_path / "environment").glob("CPU-*/*"))) == 3
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "unused"))
    load_on_cpu(NANO, tmp_path / "setting")
    assert len(list((tmp_path / "setting").glob("CPU-*/*"))) == 3
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("name", ["file/below", "a\0b"])
def test_a_cache_directory_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cache directory .* cannot be made \(.*\): choose one"):
        load_on_cpu(NANO, tmp_path / name)
