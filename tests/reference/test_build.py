"""The decoder for any number of tokens and its fixed copies, and what the graphs hold of the weights."""

import dataclasses
import gc
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
import transformers
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.whisper.device.devices import the_core
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import build as graphs
from streamer.whisper.graphs.ports import LOOKED_UP, ports
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors
from tests.unit.whisper.support import Untyped, random_checkpoint, tensor

DIMS = ModelDimensions(
    n_mels=8,
    n_audio_ctx=1500,
    n_audio_state=16,
    n_audio_head=2,
    n_audio_layer=1,
    n_vocab=40,
    n_text_ctx=32,
    n_text_state=16,
    n_text_head=2,
    n_text_layer=2,
)
HEADS = [(1, 1), (0, 0)]
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


class Followed(np.ndarray):
    """An array that can be asked whether it is still alive."""


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return random_checkpoint(DIMS)


@pytest.fixture(scope="module")
def decoder(checkpoint: Checkpoint) -> ov.Model:
    return graphs.build_decoder(DIMS, checkpoint.tensors, HEADS)


def fix(decoder: ov.Model, n_tokens: int, n_slots: int = DIMS.cache_size) -> ov.Model:
    return graphs.fix_sizes(decoder, ports("decoder", DIMS, n_tokens=n_tokens, n_slots=n_slots).inputs)


def some_inputs(n_tokens: int, n_cached: int) -> dict[str, NDArray[np.generic]]:
    random = np.random.default_rng(n_tokens)
    slots = DIMS.cache_size
    mask = np.zeros((n_tokens, slots + n_tokens), np.float32)
    mask[:, :n_cached] = 1
    mask[:, slots:] = np.tri(n_tokens)
    inputs: dict[str, NDArray[np.generic]] = {
        "input_ids": random.integers(0, DIMS.n_vocab, (1, n_tokens)),
        "position_ids": np.arange(n_cached, n_cached + n_tokens),
        "attention_mask": mask,
    }
    for i in range(DIMS.n_text_layer):
        for kind in ("key", "value"):
            for part, length in (("decoder", slots), ("encoder", DIMS.n_audio_ctx)):
                shape = (1, DIMS.n_text_head, length, DIMS.text_head_size)
                inputs[f"past_key_values.{i}.{part}.{kind}"] = random.standard_normal(shape, np.float32)
    return inputs


def run(model: ov.Model, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, FloatArray]:
    compiled = the_core().compile_model(model, "CPU", EXACT)
    request = compiled.create_infer_request()
    request.infer(dict(inputs))
    return {port.any_name: request.get_tensor(port).data.copy() for port in compiled.outputs}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_the_logits_equal_transformers_whatever_they_are_made_with(
    tmp_path: Path, tied: bool, scaled: bool, dtype: str
) -> None:
    """With the embedding or with weights of their own; `scale_embedding` changes nothing there either."""
    names: dict[str, Any] = {
        "d_model": 16,
        "vocab_size": 40,
        "num_mel_bins": 8,
        "max_target_positions": 32,
        "pad_token_id": 0,
    }
    sizes = {"layers": 1, "attention_heads": 2, "ffn_dim": 64}
    names |= {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in sizes.items()}
    config = transformers.WhisperConfig(**names, tie_word_embeddings=tied, scale_embedding=scaled)
    untyped: Untyped = transformers.WhisperForConditionalGeneration
    torch.manual_seed(0)
    reference = untyped(config).eval().to(getattr(torch, dtype))
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    reference.save_pretrained(tmp_path)
    assert (reference.proj_out.weight is reference.model.decoder.embed_tokens.weight) == tied

    checkpoint = huggingface.load(tmp_path)
    assert (checkpoint.dims.n_vocab, checkpoint.dims.n_text_layer) == (40, 1)
    mel = np.random.default_rng(0).standard_normal((1, 8, 3000), np.float32)
    ids = np.array([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        expected = reference.float()(tensor(mel), decoder_input_ids=tensor(ids)).logits.numpy()

    hidden = run(graphs.build_encoder(checkpoint.dims, checkpoint.tensors), {"input_features": mel})
    states = {"encoder_hidden_states": hidden["last_hidden_state"]}
    cross = run(graphs.build_cross_kv(checkpoint.dims, checkpoint.tensors), states)
    decoder = graphs.build_decoder(checkpoint.dims, checkpoint.tensors, [])
    n_tokens, slots = ids.shape[1], checkpoint.dims.cache_size
    mask = np.zeros((n_tokens, slots + n_tokens), np.float32)
    mask[:, slots:] = np.tri(n_tokens)
    cache = np.zeros((1, 2, slots, 8), np.float32)
    inputs = {"input_ids": ids, "position_ids": np.arange(n_tokens), "attention_mask": mask}
    inputs |= {f"past_key_values.0.decoder.{kind}": cache for kind in ("key", "value")}
    inputs |= {name.replace("present", "past"): values for name, values in cross.items()}
    np.testing.assert_allclose(run(decoder, inputs)["logits"], expected, rtol=0, atol=1e-4)
    # Tied weights are held once.
    assert sum(values.shape == (40, 16) for values in constants(decoder)) == (1 if tied else 2)
    compressed = run(graphs.build_decoder(checkpoint.dims, checkpoint.tensors, [], "int8"), inputs)["logits"]
    np.testing.assert_allclose(compressed, expected, rtol=0, atol=0.05 * np.abs(expected).max())


def test_what_looks_tokens_up_can_be_apart_from_the_decoder(checkpoint: Checkpoint, tmp_path: Path) -> None:
    ov.save_model(graphs.build_decoder(DIMS, checkpoint.tensors, HEADS, "int8-sym"), tmp_path / "decoder.xml")
    saved = the_core().read_model(tmp_path / "decoder.xml")
    fixed, inputs = fix(saved, 3), some_inputs(3, 5)
    lookup = graphs.lookup_of(saved)
    vectors = run(lookup, {name: inputs[name] for name in LOOKED_UP})
    rest = graphs.without_lookup(fixed)
    expected = run(fixed, inputs)
    found = run(rest, vectors | {name: value for name, value in inputs.items() if name not in LOOKED_UP})
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-5)
    # The projection to logits is left.
    assert len([values for values in constants(rest) if values.shape == (40, 16)]) == 1


@pytest.mark.parametrize("n_head", [2, 4])
def test_the_attention_of_chosen_heads_is_that_among_all(checkpoint: Checkpoint, n_head: int) -> None:
    dims = dataclasses.replace(DIMS, n_text_head=n_head)
    inputs = some_inputs(3, 5)
    for name in [name for name in inputs if name.startswith("past_")]:
        inputs[name] = np.concatenate([inputs[name]] * (n_head // 2), axis=1)[..., : dims.text_head_size]
    all_heads = [(layer, head) for layer in range(dims.n_text_layer) for head in range(n_head)]
    chosen = [(1, n_head - 1), (0, 0), (1, 0)]
    found, expected = (
        run(graphs.build_decoder(dims, checkpoint.tensors, heads), inputs)["cross_attention"]
        for heads in (chosen, all_heads)
    )
    np.testing.assert_allclose(found, expected[:, [all_heads.index(head) for head in chosen]], rtol=0, atol=1e-6)
    assert np.abs(expected[:, 0] - expected[:, 1]).max() > 1e-4


def constants(model: ov.Model) -> list[FloatArray]:
    return [node.data for node in model.get_ops() if node.get_type_name() == "Constant"]


def test_the_copies_share_the_weights(decoder: ov.Model) -> None:
    def addresses(model: ov.Model) -> set[int]:
        return {array.ctypes.data for array in constants(model) if array.size >= DIMS.n_text_state}

    shared = addresses(decoder)
    assert len(shared) > 30
    for n_tokens in (1, 16):
        own = addresses(fix(decoder, n_tokens)) - shared
        assert not own


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_tensor_is_read_once_and_held_once(checkpoint: Checkpoint, dtype: str) -> None:
    reads: Counter[str] = Counter()
    alive: list[weakref.ref[Followed]] = []

    def reader(name: str) -> FloatArray:
        reads[name] += 1
        array = checkpoint.tensors[name].astype(dtype).view(Followed)
        alive.append(weakref.ref(array))
        return array

    tensors = LazyTensors({name: lambda name=name: reader(name) for name in checkpoint.tensors})  # type: ignore[misc]
    models = [
        graphs.build_encoder(DIMS, tensors),
        graphs.build_cross_kv(DIMS, tensors),
        graphs.build_decoder(DIMS, tensors, HEADS),
    ]
    assert set(reads.values()) == {1}
    assert set(reads) == set(checkpoint.tensors)
    gc.collect()
    held = {array.ctypes.data for model in models for array in constants(model)}
    read = {array.ctypes.data for ref in alive if (array := ref()) is not None}
    # All but the biases of the two convolutions, which get another shape and are small, and what is joined: three
    # matrices and two biases of each of the decoder's layers.
    assert len(read) >= len(reads) - 2 - 5 * DIMS.n_text_layer
    assert len(read & held) == len(reads) - 2 - 5 * DIMS.n_text_layer


def test_a_graph_keeps_the_weights_that_it_looks_at(checkpoint: Checkpoint) -> None:
    """The nodes share the arrays' memory: it must outlive the arrays' names, and not outlive the graphs."""
    alive: list[weakref.ref[Followed]] = []

    def read(name: str) -> FloatArray:
        array = checkpoint.tensors[name].copy().view(Followed)
        alive.append(weakref.ref(array))
        return array

    tensors = LazyTensors({name: lambda name=name: read(name) for name in checkpoint.tensors})  # type: ignore[misc]
    inputs = some_inputs(1, 2)
    expected = run(fix(graphs.build_decoder(DIMS, checkpoint.tensors, HEADS), 1), inputs)
    decoder = graphs.build_decoder(DIMS, tensors, HEADS)
    fixed = fix(decoder, 1)
    del decoder, tensors
    gc.collect()
    rubbish = [np.full((400, 16), np.nan, np.float32) for _ in range(200)]  # would land where something was freed
    found = run(fixed, inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    del fixed, rubbish
    gc.collect()
    assert not any(ref() is not None for ref in alive)
