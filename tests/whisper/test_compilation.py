"""Graphs compiled for devices, and what is said of their weights."""

import openvino as ov
import pytest

from streamer.whisper.compilation import BLOCK_TOKENS, Compilation, ModelGraphs, mark_half_weights
from streamer.whisper.compress import compress
from streamer.whisper.devices import DeviceSettings, plan_stages
from streamer.whisper.graphs import build_decoder
from streamer.whisper.weights import Checkpoint, huggingface
from tests.whisper.support import NANO

HEADS = [(1, 0)]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return huggingface.load(NANO)


def marked(model: ov.Model) -> list[ov.Node]:
    mark_half_weights(model)
    return [node for node in model.get_ops() if "decompression_0" in node.get_rt_info()]


def test_every_half_weight_is_marked(checkpoint: Checkpoint) -> None:
    model = build_decoder(checkpoint.dims, checkpoint.tensors, HEADS)
    matrices = [name for name, tensor in checkpoint.tensors.items() if "decoder" in name and tensor.ndim == 2]
    found = marked(model)
    assert len(found) >= len(matrices) - 2 * checkpoint.dims.n_text_layer  # cross-KV has its own graph
    assert all(node.get_type_name() == "Convert" for node in found)


def test_scales_of_compressed_integers_are_left_alone(checkpoint: Checkpoint) -> None:
    model = compress(build_decoder(checkpoint.dims, checkpoint.tensors, HEADS), "int8")
    for node in marked(model):
        consumers = {target.get_node().get_type_name() for target in node.output(0).get_target_inputs()}
        assert not consumers & {"Multiply", "Subtract"}


def test_the_decoder_is_compiled_for_one_token_and_for_a_block(checkpoint: Checkpoint) -> None:
    compilation = Compilation(ModelGraphs.of(checkpoint, HEADS), plan_stages(DeviceSettings("CPU"), ["CPU"]))
    compilation.compile()
    tokens = {name: graph.input("input_ids").shape[1] for name, graph in compilation.compiled.items() if "dec" in name}
    assert tokens == {"decoder": 1, "block_decoder": BLOCK_TOKENS}
    before = dict(compilation.compiled)
    compilation.compile()  # what is compiled is not compiled again
    assert compilation.compiled == before
