"""LoRA adapters: what PEFT's layers compute, and one line for whatever is no such adapter or does not fit."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from streamer.errors import ModelError
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.source import load_checkpoint, read_model
from streamer.whisper.weights import huggingface, lora
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors
from tests.unit.whisper.support import NANO, Untyped, load_on_cpu, random_checkpoint, tensor
from tests.unit.whisper.weights import checks
from tests.unit.whisper.weights.checks import at_most, check_message

DIMS = ModelDimensions(2, 1500, 32, 2, 1, 40, 32, 32, 2, 1)
TINY = random_checkpoint(DIMS)

QUERY, FC1, CONV = "encoder.layers.0.self_attn.q_proj", "decoder.layers.0.fc1", "encoder.conv2"
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "openai/whisper-tiny",
    "r": 4,
    "lora_alpha": 16,
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "target_modules": ["q_proj", "fc1", "conv2"],
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def matrices(checkpoint: Checkpoint = TINY, dtype: str = "float32", ranks: Mapping[str, int] = {}) -> dict[str, Any]:
    """Return A and B of three layers, one of them a convolution; `ranks` are those of some of them."""
    random = np.random.default_rng(1)
    found = {}
    for layer in (QUERY, FC1, CONV):
        r = ranks.get(layer.rpartition(".")[2], 4)
        n_out, *n_in = checkpoint.tensors[f"{layer}.weight"].shape
        for part, shape in (("A", (r, *n_in)), ("B", (n_out, r, *(1,) * (len(n_in) - 1)))):
            values = random.standard_normal(shape, dtype=np.float32).astype(dtype)
            found[f"base_model.model.model.{layer}.lora_{part}.weight"] = values
    return found


def write_adapter(directory: Path, tensors: dict[str, Any] | None = None, /, **config: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    save_file(matrices() if tensors is None else tensors, directory / "adapter_model.safetensors")
    return directory


refuse = partial(checks.refuse, partial(lora.merged, TINY))


def apart(layer: str, x: Untyped, found: dict[str, Any], scale: float) -> Untyped:
    """Compute a layer as PEFT does in training: beside its weights, which stay as they are."""
    a, b = (tensor(found[f"base_model.model.model.{layer}.lora_{part}.weight"].astype(np.float32)) for part in "AB")
    weight = tensor(TINY.tensors[f"{layer}.weight"])
    if weight.ndim == 3:
        return torch.conv1d(x, weight) + scale * torch.conv1d(torch.conv1d(x, a), b)
    return x @ weight.T + scale * (x @ a.T @ b.T)


@pytest.mark.parametrize(
    ("config", "ranks", "dtype", "scales"),
    [
        ({}, {}, "float32", (4, 4, 4)),
        ({"lora_alpha": 2.5}, {}, "float16", (0.625, 0.625, 0.625)),
        ({"use_rslora": True}, {}, "float32", (8, 8, 8)),
        ({"rank_pattern": {"fc1": 8}}, {"fc1": 8}, "float32", (4, 2, 4)),
        ({"alpha_pattern": {"encoder.conv2": 1, "conv2": 7, "self_attn.q_proj": -4}}, {}, "float32", (-1, 4, 0.25)),
    ],
)
def test_a_layer_computes_what_it_did_with_the_adapter_beside_it(
    tmp_path: Path, config: dict[str, object], ranks: dict[str, int], dtype: str, scales: tuple[float, ...]
) -> None:
    found = matrices(dtype=dtype, ranks=ranks)
    checkpoint = lora.merged(TINY, write_adapter(tmp_path, found, **config))
    for layer, scale in zip((QUERY, FC1, CONV), scales, strict=True):
        weight = tensor(checkpoint.tensors[f"{layer}.weight"])
        x = torch.randn(*((1, 32, 7) if layer == CONV else (7, 32)), generator=torch.Generator().manual_seed(0))
        ours = torch.conv1d(x, weight) if layer == CONV else x @ weight.T
        torch.testing.assert_close(ours, apart(layer, x, found, scale), rtol=1e-4, atol=1e-4)
    changed = {f"{layer}.weight" for layer in (QUERY, FC1, CONV)}
    assert set(checkpoint.tensors) == set(TINY.tensors)
    for name in set(TINY.tensors) - changed:
        np.testing.assert_array_equal(checkpoint.tensors[name], TINY.tensors[name])


def test_a_tensor_keeps_its_type_and_is_summed_in_float32(tmp_path: Path) -> None:
    halves = Checkpoint(DIMS, {name: values.astype(np.float16) for name, values in TINY.tensors.items()})
    name = f"{FC1}.weight"
    values = lora.merged(halves, write_adapter(tmp_path, matrices(dtype="float16"))).tensors[name]
    a, b = (matrices(dtype="float16")[f"base_model.model.model.{FC1}.lora_{part}.weight"] for part in "AB")
    expected = halves.tensors[name].astype(np.float32) + np.float32(4) * (b.astype(np.float32) @ a.astype(np.float32))
    assert values.dtype == np.float16
    np.testing.assert_array_equal(values, expected.astype(np.float16))


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    read: list[str] = []

    def reader(name: str) -> Callable[[], Any]:
        return lambda: read.append(name) or TINY.tensors[name]  # type: ignore[func-returns-value]

    lazy = Checkpoint(DIMS, LazyTensors({name: reader(name) for name in TINY.tensors}))
    checkpoint = lora.merged(lazy, write_adapter(tmp_path))
    assert not read
    _ = checkpoint.tensors[f"{QUERY}.weight"]
    assert read == [f"{QUERY}.weight"]


def test_an_older_file_of_pytorch(tmp_path: Path) -> None:
    expected = lora.merged(TINY, write_adapter(tmp_path / "new"))
    old = write_adapter(tmp_path / "old")
    (old / "adapter_model.safetensors").unlink()
    torch.save({name: tensor(values) for name, values in matrices().items()}, old / "adapter_model.bin")
    name = f"{QUERY}.weight"
    np.testing.assert_array_equal(lora.merged(TINY, old).tensors[name], expected.tensors[name])


class TestRefusals:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("peft_type", "ADALORA"),
            ("peft_type", None),
            ("bias", "all"),
            ("bias", "lora_only"),
            ("use_dora", True),
            ("use_qalora", True),
            ("lora_bias", True),
            ("modules_to_save", ["proj_out"]),
            ("target_parameters", ["fc1.weight"]),
            ("trainable_token_indices", [1]),
            ("layer_replication", [[0, 1]]),
            ("init_lora_weights", "pissa"),
            ("init_lora_weights", "loftq"),
            ("alpha_pattern", [1]),
        ],
    )
    def test_what_is_more_than_lora_is_named(self, tmp_path: Path, key: str, value: object) -> None:
        refuse(write_adapter(tmp_path, **{key: value}), f"has {key} ", "merge_and_unload")

    def test_layers_that_are_named_by_a_regular_expression(self, tmp_path: Path) -> None:
        refuse(write_adapter(tmp_path, alpha_pattern={r"fc\d+": 4}), "alpha_pattern", "merge_and_unload")

    @pytest.mark.parametrize("value", [None, "x", float("inf"), 10**400, [1]])
    def test_a_number_that_is_none(self, tmp_path: Path, value: object) -> None:
        refuse(write_adapter(tmp_path, lora_alpha=value), "has lora_alpha ", "merge_and_unload")
        refuse(write_adapter(tmp_path, alpha_pattern={"q_proj": value}), "has alpha_pattern ", "merge_and_unload")

    def test_another_rank_shape_or_model(self, tmp_path: Path) -> None:
        found = matrices()
        found[f"base_model.model.model.{FC1}.lora_B.weight"] = np.zeros((128, 8), np.float32)
        refuse(
            write_adapter(tmp_path, found),
            f"A [4, 32] and B [128, 8] for '{FC1}', the model A [4, 32] and B [128, 4] of rank 4",
        )
        wide = random_checkpoint(ModelDimensions(2, 1500, 64, 2, 1, 40, 32, 64, 2, 1))
        refuse(write_adapter(tmp_path, matrices(wide)), "expected an adapter of this model", "openai/whisper-tiny")
        found = {name.replace("layers.0", "layers.7"): values for name, values in matrices().items()}
        refuse(write_adapter(tmp_path, found), "no such layer", "openai/whisper-tiny")
        found = matrices()
        del found[f"base_model.model.model.{FC1}.lora_B.weight"]
        refuse(write_adapter(tmp_path, found), f"A [4, 32] for '{FC1}'")

    @pytest.mark.parametrize(
        "name", ["x", f"{FC1}.lora_A.bias", f"{FC1}.lora_magnitude_vector", "decoder.embed_tokens.lora_embedding_A"]
    )
    def test_a_tensor_that_is_no_matrix_of_lora(self, tmp_path: Path, name: str) -> None:
        refuse(write_adapter(tmp_path, {**matrices(), name: np.zeros((4, 4), np.float32)}), repr(name))

    def test_other_types_and_no_matrices_at_all(self, tmp_path: Path) -> None:
        refuse(write_adapter(tmp_path, matrices(dtype="int32")), "as F16, BF16 or F32")
        refuse(write_adapter(tmp_path, {}), "holds no matrices")
        (tmp_path / "adapter_model.safetensors").unlink()
        refuse(tmp_path, "is missing", "as PEFT saves it")
        (tmp_path / "adapter_config.json").unlink()
        refuse(tmp_path, "is missing", "as PEFT saves it")

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
    def test_a_sum_that_is_not_finite(self, tmp_path: Path, value: float) -> None:
        found = matrices()
        found[f"base_model.model.model.{FC1}.lora_A.weight"][:] = value
        found[f"base_model.model.model.{FC1}.lora_B.weight"][:] = value
        checkpoint = lora.merged(TINY, write_adapter(tmp_path, found))
        with pytest.raises(ModelError, match=rf"has a number in {FC1}\.weight that is not finite"):
            _ = checkpoint.tensors[f"{FC1}.weight"]

    def test_an_adapter_alone_says_what_it_is_of(self, tmp_path: Path) -> None:
        write_adapter(tmp_path, base_model_name_or_path="me/x\x1b[2J\ny")
        with pytest.raises(ModelError, match="holds an adapter alone") as caught:
            huggingface.load(tmp_path)
        assert f"use --model with me/x [2J y, and --lora {tmp_path}" in check_message(caught.value)


class TestDamage:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(place=st.integers(0, 1 << 20), byte=st.integers(0, 255), cut=st.booleans(), config=st.booleans())
    def test_a_damaged_file_is_one_line_or_a_good_model(
        self, tmp_path: Path, place: int, byte: int, cut: bool, config: bool
    ) -> None:
        directory = write_adapter(tmp_path / "adapter")
        path = directory / ("adapter_config.json" if config else "adapter_model.safetensors")
        data = bytearray(path.read_bytes())
        data[place % min(len(data), 1200)] = byte
        path.write_bytes(data[: place % len(data)] if cut else data)
        try:
            with at_most(8 << 20):
                checkpoint = lora.merged(TINY, directory)
                for name, values in TINY.tensors.items():
                    assert checkpoint.tensors[name].shape == values.shape
        except ModelError as error:
            check_message(error)


class TestModels:
    def test_the_model_of_a_directory_with_its_adapter(self, tmp_path: Path) -> None:
        nano = huggingface.load(NANO)
        adapter = write_adapter(tmp_path / "mine", matrices(nano))
        source = read_model(NANO, "nano.en", lora_path=adapter)
        assert source.format == "Hugging Face, with the adapter mine"
        assert source.checkpoint is not None
        name = f"{QUERY}.weight"
        assert not np.array_equal(source.checkpoint.tensors[name], nano.tensors[name])
        _, checkpoint = load_checkpoint(NANO, adapter)
        np.testing.assert_array_equal(checkpoint.tensors[name], source.checkpoint.tensors[name])

    def test_compiled_graphs_of_two_adapters_are_not_mixed(self, tmp_path: Path) -> None:
        """Neither those of two directories, nor those of one whose adapter was trained on."""
        found = matrices(huggingface.load(NANO))
        silence = np.zeros((80, 3000), np.float32)

        def encoded(name: str, alpha: float) -> NDArray[np.float32]:
            adapter = str(write_adapter(tmp_path / name, found, lora_alpha=alpha))
            runtime = load_on_cpu(NANO, tmp_path / "c", lora=adapter).runtime
            runtime.encode(silence, 0)
            return np.array(runtime.last_hidden_state)

        states = [encoded("a", 0.2), encoded("a", 0.1), encoded("b", 0.2)]
        np.testing.assert_array_equal(states[2], states[0])
        assert np.abs(states[1] - states[0]).max() > 1e-3

    def test_graphs_take_none(self, tmp_path: Path) -> None:
        (tmp_path / "whisper_encoder.xml").write_bytes(b"")
        with pytest.raises(ModelError, match="holds graphs: expected a checkpoint"):
            read_model(tmp_path, "exported", lora_path=Path("adapter"))
