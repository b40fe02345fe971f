"""Graphs of others get our ports; that they compute as they did is in `tests/reference/test_foreign.py`."""

from pathlib import Path

import numpy as np
import openvino as ov

from streamer.whisper.device.devices import the_core
from streamer.whisper.device.masks import OURS
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.foreign import load_triple
from tests.unit.whisper.support import random_checkpoint
from tests.unit.whisper.triple import write_triple

# Small, with two layers of two heads.
DIMS = ModelDimensions(4, 1500, 8, 2, 2, 40, 32, 8, 2, 2)
HEADS = [(1, 0), (0, 1), (1, 1)]


def test_the_attention_of_the_alignment_heads_takes_the_place_of_all_layers(tmp_path: Path) -> None:
    write_triple(tmp_path, random_checkpoint(DIMS), OURS, capacity=32, position_shape=(1, 1))
    triple = load_triple(tmp_path)
    assert triple.dims == DIMS
    ours, theirs = triple.read("decoder", HEADS), ov.Core().read_model(triple.paths["decoder"])
    random = np.random.default_rng(0)
    given = {port.any_name: random.standard_normal(port.shape).astype(np.float32) for port in theirs.inputs}
    given |= {"input_ids": np.array([[3]]), "position_ids": np.array([[2]])}
    compiled = [the_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}) for model in (theirs, ours)]
    expected = {port.any_name: values for port, values in compiled[0](given).items()}
    found = compiled[1]({**given, "position_ids": np.array([2])})["cross_attention"]
    layers = [expected[f"/decoder/layers.{layer}/encoder_attn/Softmax_output_0"] for layer in range(2)]
    np.testing.assert_allclose(found, [[layers[layer][head] for layer, head in HEADS]], atol=1e-6)
