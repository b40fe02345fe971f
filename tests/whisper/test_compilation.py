"""Graphs compiled for devices, and what is said of their weights."""

import openvino as ov
import pytest

from streamer.errors import InferenceError
from streamer.whisper import graphs
from streamer.whisper.compilation import (
    BLOCK_TOKENS,
    Compilation,
    ModelGraphs,
    hand_on,
    has_integer_weights,
    mark_half_weights,
)
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


def compressed(checkpoint: Checkpoint, precision: str) -> ModelGraphs:
    whole = ModelGraphs.of(checkpoint, HEADS)
    return ModelGraphs(
        whole.dims,
        whole.alignment_heads,
        encoder=lambda: compress(whole.encoder(), precision),
        cross_kv=lambda: compress(whole.cross_kv(), precision),
        decoder=lambda: compress(whole.decoder(), precision),
    )


def key_types(compilation: Compilation) -> set[str]:
    """Return the element types of all ports that are keys or values."""
    ports = (port for graph in compilation.compiled.values() for port in (*graph.inputs, *graph.outputs))
    return {port.element_type.get_type_name() for port in ports if "key_values." in port.any_name}


@pytest.mark.parametrize("precision", ["f16", "int8", "int4"])
def test_only_what_nncf_compresses_has_integer_weights(checkpoint: Checkpoint, precision: str) -> None:
    model = compress(build_decoder(checkpoint.dims, checkpoint.tensors, HEADS), precision)
    assert has_integer_weights(model) == (precision != "f16")


@pytest.mark.parametrize("properties", [(), ("INFERENCE_PRECISION_HINT=f32",)])
def test_keys_and_values_are_kept_as_the_decoder_computes(checkpoint: Checkpoint, properties: tuple[str, ...]) -> None:
    able = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for precision in ("f16", "int8"):
        plans = plan_stages(DeviceSettings("CPU", properties=properties), ["CPU"])
        compilation = Compilation(compressed(checkpoint, precision), plans)
        compilation.compile()
        assert key_types(compilation) == {"bf16" if able and precision == "int8" and not properties else "f32"}
        hints = {graph.get_property("INFERENCE_PRECISION_HINT") for graph in compilation.compiled.values()}
        assert hints == {ov.Type.bf16 if able and precision == "int8" and not properties else ov.Type.f32}


def test_keys_and_values_stay_as_they_are_where_another_device_may_come(checkpoint: Checkpoint) -> None:
    plans = plan_stages(DeviceSettings("AUTO"), ["CPU", "GPU"])
    compilation = Compilation(compressed(checkpoint, "int8"), plans)
    compilation.reject({"decoder": InferenceError("no GPU", "decoder")})
    compilation.reject({"cross_kv": InferenceError("no GPU", "cross_kv")})
    compilation.reject({"encoder": InferenceError("no GPU", "encoder")})
    compilation.compile()
    assert key_types(compilation) == {"f32"}


def test_keys_and_values_are_handed_on_in_another_type(checkpoint: Checkpoint) -> None:
    decoder = graphs.fix_sizes(build_decoder(checkpoint.dims, checkpoint.tensors, HEADS), 1, checkpoint.dims.cache_size)
    hand_on(decoder, ov.Type.bf16)
    for port in (*decoder.inputs, *decoder.outputs):
        assert (port.element_type == ov.Type.bf16) == ("key_values." in port.any_name), port.any_name


def test_the_decoder_is_compiled_for_one_token_and_for_a_block(checkpoint: Checkpoint) -> None:
    compilation = Compilation(ModelGraphs.of(checkpoint, HEADS), plan_stages(DeviceSettings("CPU"), ["CPU"]))
    compilation.compile()
    tokens = {name: graph.input("input_ids").shape[1] for name, graph in compilation.compiled.items() if "dec" in name}
    assert tokens == {"decoder": 1, "block_decoder": BLOCK_TOKENS}
    before = dict(compilation.compiled)
    compilation.compile()  # what is compiled is not compiled again
    assert compilation.compiled == before
