"""The decoder for any number of tokens and its fixed copies, and what the graphs hold of the weights."""

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
from streamer.whisper.device.compile import compile_on_cpu
from streamer.whisper.device.devices import the_core
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import build as graphs
from streamer.whisper.graphs.ports import LOOKED_UP, ports
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors
from tests.unit.whisper.support import Untyped, config_of, random_checkpoint, tensor

DIMS = ModelDimensions(8, 1500, 16, 2, 1, 40, 32, 16, 2, 2)
HEADS = [(1, 1), (0, 0)]


class Followed(np.ndarray):
    """An array that can be asked whether it is still alive."""


class Reads:
    """Weights that are read when they are asked for, how often each was, and what of them is still alive."""

    def __init__(self, checkpoint: Checkpoint, dtype: str = "float32") -> None:
        self._checkpoint, self._dtype = checkpoint, dtype
        self.counts: Counter[str] = Counter()
        self._read: list[weakref.ref[Followed]] = []

    @property
    def tensors(self) -> LazyTensors:
        return LazyTensors({name: lambda name=name: self._one(name) for name in self._checkpoint.tensors})  # type: ignore[misc]

    @property
    def alive(self) -> list[Followed]:
        gc.collect()
        return [array for ref in self._read if (array := ref()) is not None]

    def _one(self, name: str) -> FloatArray:
        self.counts[name] += 1
        array = self._checkpoint.tensors[name].astype(self._dtype).view(Followed)
        self._read.append(weakref.ref(array))
        return array


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return random_checkpoint(DIMS)


def fix(decoder: ov.Model, n_tokens: int) -> ov.Model:
    return graphs.fix_sizes(decoder, ports("decoder", DIMS, n_tokens=n_tokens, n_slots=DIMS.cache_size).inputs)


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
    shapes = ports("decoder", DIMS, n_tokens=n_tokens, n_slots=slots).inputs
    return {name: inputs.get(name, random.standard_normal(shape, np.float32)) for name, shape in shapes.items()}


def run(model: ov.Model, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, FloatArray]:
    compiled = the_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    request.infer(dict(inputs))
    return {port.any_name: request.get_tensor(port).data.copy() for port in compiled.outputs}


def constants(model: ov.Model) -> list[FloatArray]:
    return [node.data for node in model.get_ops() if node.get_type_name() == "Constant"]


def logits_of(checkpoint: Checkpoint, precision: str, mel: FloatArray, tokens: list[int]) -> FloatArray:
    found = graphs.ModelGraphs.of(checkpoint, [(0, 0)], precision)
    runtime = Runtime(compile_on_cpu(found))
    runtime.decoder.use(runtime.encode(mel, 0))
    logits: FloatArray = runtime.decoder.feed(tokens)[0][0]
    return logits


@torch.no_grad()
@pytest.mark.parametrize(
    ("tied", "scaled", "dtype"), [(True, False, "float32"), (False, True, "float16"), (True, True, "float16")]
)
def test_the_logits_equal_transformers_whatever_they_are_made_with(
    tmp_path: Path, tied: bool, scaled: bool, dtype: str
) -> None:
    """With the embedding or with weights of their own; `scale_embedding` changes nothing there either."""
    widths: dict[str, Any] = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "pad_token_id": 0}
    config = transformers.WhisperConfig(**config_of(DIMS), **widths, tie_word_embeddings=tied, scale_embedding=scaled)
    untyped: Untyped = transformers.WhisperForConditionalGeneration
    torch.manual_seed(0)
    reference = untyped(config).eval().to(getattr(torch, dtype))
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    reference.save_pretrained(tmp_path)
    mel = np.random.default_rng(0).standard_normal((8, 3000), np.float32)
    tokens = [3, 1, 4, 1, 5]
    expected = reference.float()(tensor(mel[None]), decoder_input_ids=torch.tensor([tokens])).logits[0].numpy()

    checkpoint = huggingface.load(tmp_path)
    np.testing.assert_allclose(logits_of(checkpoint, "f32", mel, tokens), expected, rtol=0, atol=1e-4)
    loose = 0.05 * np.abs(expected).max()
    np.testing.assert_allclose(logits_of(checkpoint, "int8", mel, tokens), expected, rtol=0, atol=loose)
    # Tied weights are held once.
    decoder = graphs.build_decoder(DIMS, checkpoint.tensors, [])
    assert sum(values.shape == (40, 16) for values in constants(decoder)) == (1 if tied else 2)


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


def test_the_copies_share_the_weights(checkpoint: Checkpoint) -> None:
    decoder = graphs.build_decoder(DIMS, checkpoint.tensors, HEADS)

    def addresses(model: ov.Model) -> set[int]:
        return {array.ctypes.data for array in constants(model) if array.size >= DIMS.n_text_state}

    shared = addresses(decoder)
    assert len(shared) > 30
    for n_tokens in (1, 16):
        assert not addresses(fix(decoder, n_tokens)) - shared


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_each_tensor_is_read_once_and_held_once(checkpoint: Checkpoint, dtype: str) -> None:
    reads = Reads(checkpoint, dtype)
    tensors = reads.tensors
    models = [
        graphs.build_encoder(DIMS, tensors),
        graphs.build_cross_kv(DIMS, tensors),
        graphs.build_decoder(DIMS, tensors, HEADS),
    ]
    assert reads.counts == dict.fromkeys(checkpoint.tensors, 1)
    held = {array.ctypes.data for model in models for array in constants(model)}
    # All but the biases of the two convolutions, which get another shape and are small, and what is joined: three
    # matrices and two biases of each of the decoder's layers.
    assert len({array.ctypes.data for array in reads.alive} & held) == len(reads.counts) - 2 - 5 * DIMS.n_text_layer


def test_a_graph_keeps_the_weights_that_it_looks_at(checkpoint: Checkpoint) -> None:
    """The nodes share the arrays' memory: it must outlive the arrays' names, and not outlive the graphs."""
    reads, inputs = Reads(checkpoint), some_inputs(1, 2)
    expected = run(fix(graphs.build_decoder(DIMS, checkpoint.tensors, HEADS), 1), inputs)
    fixed = fix(graphs.build_decoder(DIMS, reads.tensors, HEADS), 1)
    gc.collect()
    rubbish = [np.full((400, 16), np.nan, np.float32) for _ in range(200)]  # would land where something was freed
    found = run(fixed, inputs)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    del fixed, rubbish
    assert not reads.alive
