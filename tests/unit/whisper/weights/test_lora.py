"""LoRA adapters: what PEFT's layers compute, and which adapters are more than that."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from streamer.errors import ModelError
from streamer.whisper.source import load_checkpoint, read_model
from streamer.whisper.weights import huggingface, lora
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, Untyped, load_on_cpu, tensor
from tests.unit.whisper.weights.models import CONV, FC1, QUERY, TINY, matrices, write_adapter

LAYERS = (QUERY, FC1, CONV)


def pair(found: dict[str, Any], layer: str) -> list[NDArray[np.float32]]:
    """Return A and B of a layer."""
    return [found[f"base_model.model.model.{layer}.lora_{part}.weight"].astype(np.float32) for part in "AB"]


def apart(layer: str, x: Untyped, found: dict[str, Any], scale: float) -> Untyped:
    """Compute a layer as PEFT does in training: beside its weights, which stay as they are."""
    a, b = map(tensor, pair(found, layer))
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
    tensors = lora.merged(TINY, write_adapter(tmp_path, found, **config)).tensors
    for layer, scale in zip(LAYERS, scales, strict=True):
        weight = tensor(tensors[f"{layer}.weight"])
        x = torch.randn(*((1, 64, 7) if layer == CONV else (7, 64)), generator=torch.Generator().manual_seed(0))
        ours = torch.conv1d(x, weight) if layer == CONV else x @ weight.T
        torch.testing.assert_close(ours, apart(layer, x, found, scale), rtol=1e-4, atol=1e-4)
    assert set(tensors) == set(TINY.tensors)
    for name in set(TINY.tensors) - {f"{layer}.weight" for layer in LAYERS}:
        np.testing.assert_array_equal(tensors[name], TINY.tensors[name])


def test_a_tensor_keeps_its_type_and_is_summed_in_float32(tmp_path: Path) -> None:
    halves = Checkpoint(TINY.dims, {name: values.astype(np.float16) for name, values in TINY.tensors.items()})
    found, name = matrices(dtype="float16"), f"{FC1}.weight"
    values = lora.merged(halves, write_adapter(tmp_path, found)).tensors[name]
    a, b = pair(found, FC1)
    expected = halves.tensors[name].astype(np.float32) + np.float32(4) * (b @ a)
    assert values.dtype == np.float16
    np.testing.assert_array_equal(values, expected.astype(np.float16))


@pytest.mark.filterwarnings("error")
def test_a_sum_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    found = matrices()
    for part in "AB":
        found[f"base_model.model.model.{FC1}.lora_{part}.weight"][:] = 1e30
    checkpoint = lora.merged(TINY, write_adapter(tmp_path, found))
    with pytest.raises(ModelError):
        _ = checkpoint.tensors[f"{FC1}.weight"]


def test_a_model_is_read_with_its_adapter(tmp_path: Path) -> None:
    nano, name = huggingface.load(NANO), f"{QUERY}.weight"
    adapter = write_adapter(tmp_path / "mine", matrices(nano))
    source = read_model(NANO, "nano.en", lora_path=adapter)
    assert source.format == "Hugging Face, with the adapter mine"
    assert not np.array_equal(source.checkpoint.tensors[name], nano.tensors[name])
    _, checkpoint = load_checkpoint(NANO, adapter)
    np.testing.assert_array_equal(checkpoint.tensors[name], source.checkpoint.tensors[name])


@pytest.mark.slow
def test_compiled_graphs_of_two_adapters_are_not_mixed(tmp_path: Path) -> None:
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
