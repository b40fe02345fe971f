"""Model directories, whole and broken, and the choice of the device."""

import json
import logging
import shutil
from pathlib import Path

import openvino as ov
import pytest
from safetensors.numpy import load_file, save_file

from streamer.errors import ConfigError, InferenceError, ModelError
from streamer.whisper import model as model_module
from streamer.whisper import runtime as runtime_module
from streamer.whisper.contract import check_masking
from streamer.whisper.model import WhisperModel, find_model, load_model
from streamer.whisper.runtime import DecoderRuntime
from tests.whisper.support import NANO


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The embedded model, to be broken."""
    directory = tmp_path / "broken"
    shutil.copytree(NANO, directory, ignore=shutil.ignore_patterns("sample.*"))
    return directory


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with a directory is found before anything is compiled."""

    def compile_(*arguments: object, **keywords: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(model_module, "Runtime", compile_)


def edit(path: Path, **changes: object) -> None:
    """Change keys of a JSON file; `...` takes one out."""
    data = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}), encoding="utf-8")


def refuse(directory: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(str(directory), device="CPU")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for part in (str(directory), *parts):
        assert part in message


def test_a_model_is_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model("nano.en").samefile(NANO)
    assert find_model(str(NANO)) == NANO
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("mine").samefile(tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert find_model("~/mine") == tmp_path / "mine"


@pytest.mark.parametrize(
    "name",
    ["huge", "nano.en/model.safetensors", "no/such/dir", "x" * 5000, "a\0b", "~nobody-of-that-name/x", "../nano"],
)
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    with pytest.raises(
        ModelError, match=r"there is no model .*: expected a directory with .*, or one of .*nano\.en"
    ) as e:
        find_model(name)
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 500


def test_the_embedded_model_is_whole(model: WhisperModel) -> None:
    assert model.name == "nano.en"
    assert model.origin == "streamer/nano.en"
    assert model.dims.n_vocab == model.tokenizer.n_vocab
    # Those that tools/train_nano found to place words best, not all there are.
    assert 0 < len(model.generation.alignment_heads) < model.dims.n_text_layer * model.dims.n_text_head
    assert model.generation.multilingual
    assert model.generation.max_initial_timestamp_index == 50
    # The long prompts of a stream confuse it.
    assert not model.generation.prompted


@pytest.mark.usefixtures("uncompiled")
class TestBrokenDirectories:
    @pytest.mark.parametrize(
        "file",
        ["config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors"],
    )
    def test_a_missing_file(self, copy: Path, file: str) -> None:
        (copy / file).unlink()
        refuse(copy, f"{file} is missing: ", "fetch it again")

    @pytest.mark.parametrize("file", ["generation_config.json", "preprocessor_config.json"])
    def test_a_file_that_is_not_json(self, copy: Path, file: str) -> None:
        (copy / file).write_text("{", encoding="utf-8")
        refuse(copy, f"{file} is not JSON")

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        refuse(tmp_path, "config.json is missing")

    @pytest.mark.parametrize(
        ("key", "value"), [("feature_size", 128), ("sampling_rate", 8000), ("hop_length", ...), ("n_fft", "400" * 999)]
    )
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

    def test_a_number_beyond_the_vocabulary_counts_though_there_are_gaps(self, copy: Path) -> None:
        path = copy / "tokenizer.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        data["model"]["vocab"]["far away"] = 5021
        path.write_text(json.dumps(data), encoding="utf-8")
        refuse(copy, "tokenizer.json has 5022 tokens, the model 2022")

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

    @pytest.mark.parametrize(
        "heads", [[[3, 0]], [[0, 3]], [[-1, 0]], [[0, 0], [0]], [[0, 0, 0]], ["00"], [[True, 0]], [None], [[0, 1.0]]]
    )
    def test_alignment_heads_that_are_not_there(self, copy: Path, heads: object) -> None:
        edit(copy / "generation_config.json", alignment_heads=heads)
        refuse(copy, "generation_config.json has the alignment head ", "expected [layer, head] below [3, 3]")

    def test_alignment_heads_that_are_no_list(self, copy: Path) -> None:
        edit(copy / "generation_config.json", alignment_heads={"0": 1})
        refuse(copy, "generation_config.json has alignment_heads {'0': 1}")

    @pytest.mark.parametrize("key", ["suppress_tokens", "begin_suppress_tokens"])
    @pytest.mark.parametrize("tokens", [[2022], [-1], ["1"], [True], 5, "none", [1.0]])
    def test_suppressed_tokens_that_are_none(self, copy: Path, key: str, tokens: object) -> None:
        edit(copy / "generation_config.json", **{key: tokens})
        refuse(copy, f"generation_config.json has {key} ", "expected token numbers below 2022")

    @pytest.mark.parametrize("value", [-1, 1501, "50", True, 2**60])
    def test_a_latest_first_time_that_is_none(self, copy: Path, value: object) -> None:
        edit(copy / "generation_config.json", max_initial_timestamp_index=value)
        refuse(copy, "generation_config.json has max_initial_timestamp_index ", "from 0 to 1500")

    @pytest.mark.parametrize("key", ["is_multilingual", "condition_on_prev_tokens"])
    @pytest.mark.parametrize("value", ["false", 0, []])
    def test_a_switch_that_is_none(self, copy: Path, key: str, value: object) -> None:
        edit(copy / "generation_config.json", **{key: value})
        refuse(copy, f"generation_config.json has {key} ", "expected true or false")


def test_what_generation_settings_may_leave_out(copy: Path, cache_dir: Path) -> None:
    (copy / "generation_config.json").write_text(
        '{"is_multilingual": false, "suppress_tokens": null}', encoding="utf-8"
    )
    generation = load_model(str(copy), device="CPU", cache_dir=str(cache_dir)).generation
    assert generation.suppress_tokens == generation.begin_suppress_tokens == ()
    assert generation.max_initial_timestamp_index is None
    upper = tuple((layer, head) for layer in (1, 2) for head in range(3))
    assert generation.alignment_heads == upper  # of the layers, the upper half
    assert not generation.multilingual
    # Whisper's own models continue what came before.
    assert generation.prompted


def test_a_device_that_is_not_there(cache_dir: Path) -> None:
    if "NPU" in ov.Core().available_devices:
        pytest.skip("there is an NPU here")
    with pytest.raises(ConfigError, match=r"device NPU is not there, OpenVINO finds .*CPU"):
        load_model(str(NANO), device="NPU", cache_dir=str(cache_dir))


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NPU is announced, but none is there that could compile."""
    if "NPU" in ov.Core().available_devices:
        pytest.skip("there is an NPU here")
    for module in (model_module, runtime_module):
        monkeypatch.setattr(module, "available_devices", lambda: ["CPU", "NPU"])


@pytest.mark.usefixtures("announced")
def test_auto_goes_on_to_the_next_device_and_says_so(cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = load_model(str(NANO), device="AUTO", cache_dir=str(cache_dir))
    assert model.runtime.device == "CPU"
    assert model.runtime.devices == {"encoder": "CPU", "cross_kv": "CPU", "decoder": "CPU"}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("NPU cannot compile the ")
    assert warnings[0].endswith("; trying CPU")
    assert any("nano.en on CPU (AUTO: NPU does not work, no GPU here)" in r.getMessage() for r in caplog.records)
    assert "compiling the model for NPU" in caplog.text


@pytest.mark.usefixtures("announced")
def test_a_device_that_was_asked_for_is_not_replaced(cache_dir: Path) -> None:
    with pytest.raises(InferenceError, match=r"NPU cannot compile the .*--device CPU"):
        load_model(str(NANO), device="NPU", cache_dir=str(cache_dir))


def test_auto_passes_over_a_device_that_computes_nonsense(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([InferenceError("the compiled decoder gives nonsense"), None])

    def check(decoder: DecoderRuntime, token: int) -> None:
        check_masking(decoder, token)
        if error := next(answers):
            raise error

    monkeypatch.setattr(model_module, "check_masking", check)
    monkeypatch.setattr(model_module, "choose_devices", lambda wanted, available: ["CPU", "CPU"])
    load_model(str(NANO), cache_dir=str(cache_dir))
    assert "the compiled decoder gives nonsense; trying CPU" in caplog.text


def test_compiled_graphs_are_kept_where_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "environment"))
    load_model(str(NANO), device="CPU")
    assert len(list((tmp_path / "environment").iterdir())) == 4
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "unused"))
    load_model(str(NANO), device="CPU", cache_dir=str(tmp_path / "setting"))
    assert len(list((tmp_path / "setting").iterdir())) == 4
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("name", ["file/below", "a\0b"])
def test_a_cache_directory_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"cache directory .* cannot be made \(.*\): choose one"):
        load_model(str(NANO), device="CPU", cache_dir=str(tmp_path / name))
