"""Hugging Face's directories: those of transformers, of PyTorch, and in shards."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import huggingface, safetensors
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from tests.unit.whisper.support import Untyped, write_huggingface
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.models import TINY, change_arrays, change_config, write_table


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_huggingface(tmp_path / "tiny", TINY)


def checkpoint_of(model: Untyped) -> Checkpoint:
    """Return the weights of transformers' `WhisperModel` as they have to be read."""
    state = {
        name: value.float() if value.dtype is torch.bfloat16 else value for name, value in model.state_dict().items()
    }
    dims = ModelDimensions.from_huggingface(model.config.to_dict(), Path("config.json"))
    return Checkpoint(dims, {name: value.numpy() for name, value in state.items()})


@pytest.mark.parametrize(("max_shard_size", "dtype"), [("100KB", "float16"), ("1MB", "bfloat16"), ("1GB", "float32")])
def test_a_model_as_transformers_saves_it(tmp_path: Path, reference: Untyped, max_shard_size: str, dtype: str) -> None:
    model = copy.deepcopy(reference).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    expected = checkpoint_of(model.model)
    checks.assert_tensors_equal(huggingface.load(tmp_path), expected)
    # As before version 5 with `safe_serialization=False`.
    for path in [*tmp_path.glob("model*")]:
        new = path.with_name(path.name.replace("model", "pytorch_model").replace(".safetensors", ".bin"))
        if path.suffix == ".json":
            index = path.read_text(encoding="utf-8").replace('"model-', '"pytorch_model-')
            new.write_text(index.replace(".safetensors", ".bin"), encoding="utf-8")
        else:
            torch.save(load_tensors(path), new)
        path.unlink()
    checks.assert_tensors_equal(huggingface.load(tmp_path), expected)


def test_of_other_tensors_only_an_output_projection_that_is_not_tied_is_loaded(tiny: Path) -> None:
    own = TINY.tensors["decoder.embed_tokens.weight"] + 1
    change_arrays(tiny / "model.safetensors", {"proj_out.weight": own, "ema": "int64 9"})
    found = huggingface.load(tiny)
    assert set(found.tensors) == set(expected_shapes(found.dims))
    change_config(tiny / "model.safetensors", {"tie_word_embeddings": False})
    np.testing.assert_array_equal(huggingface.load(tiny).tensors["proj_out.weight"], own)


SHARDS = [
    "../tiny/model.safetensors", "/etc/passwd", "sub/model.safetensors", "sub\\model.safetensors", "..", ".", "",
    "C:model.safetensors", "C:\\model.safetensors", "\\\\host\\share", "a\0b", "a\nb", "model.safetensors\n",
    "x" * 10_000, "\ud800", None, 3, ["model.safetensors"],
]  # fmt: skip


def test_a_shard_is_a_plain_name_beside_its_index(tiny: Path) -> None:
    index = (tiny / "model.safetensors").rename(tiny / "shard.safetensors").with_name("model.safetensors.index.json")
    whole = dict.fromkeys(load_file(tiny / "shard.safetensors"), "shard.safetensors")
    index.write_text(json.dumps({"weight_map": whole}), encoding="utf-8")
    assert huggingface.load(tiny).tensors
    for shard in SHARDS:
        index.write_text(json.dumps({"weight_map": {**whole, "model.encoder.conv1.bias": shard}}), encoding="utf-8")
        checks.refuse(huggingface.load, tiny)


@pytest.mark.parametrize("value", [10**4000, -1, True, 4.0, None, [4], float("nan"), "x" * 10_000])
@pytest.mark.parametrize("key", ["d_model", "vocab_size", "model_type", "activation_function", "tie_word_embeddings"])
def test_whatever_a_config_says_is_refused_in_one_line(tiny: Path, key: str, value: object) -> None:
    if (key, value) != ("tie_word_embeddings", True):
        change_config(tiny / "model.safetensors", {key: value})
        checks.refuse(huggingface.load, tiny)


ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "I64"]),
        "shape": st.lists(st.sampled_from([0, 1, 1, 2, 2, 3, -1, 2**32, True, 2.0, "2", None]), max_size=3),
        "data_offsets": st.lists(st.sampled_from([0, 0, 4, 8, 12, 16, -8, 2**62, None]), min_size=1, max_size=3),
    }
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(table=st.dictionaries(st.sampled_from("abc"), ENTRY, max_size=3), n_bytes=st.sampled_from([0, 4, 8, 12, 16]))
@example(table={"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, n_bytes=8)
@example(table={"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, n_bytes=12)
@example(table={"a": {"dtype": "F32", "shape": [2**32, 2**32, 0], "data_offsets": [0, 8]}}, n_bytes=8)
@example(table={name: {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]} for name in "ab"}, n_bytes=8)
def test_a_table_is_read_as_the_safetensors_library_reads_it(
    tmp_path: Path, table: dict[str, dict[str, object]], n_bytes: int
) -> None:
    write_table(path := tmp_path / "x.safetensors", table, n_bytes)
    try:
        with safe_open(path, "numpy") as theirs:
            expected = {name: theirs.get_slice(name).get_shape() for name in theirs.keys()}  # noqa: SIM118
    except SafetensorError:
        checks.refuse(safetensors.read_header, path)
    else:
        assert {name: list(tensor.shape) for name, tensor in safetensors.read_header(path).items()} == expected
