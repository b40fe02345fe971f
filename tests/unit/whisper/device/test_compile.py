"""Graphs compiled for devices: in which types, on which device next, and how often."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openvino as ov
import pytest

from streamer.errors import InferenceError
from streamer.whisper.device.compile import Compilation, Sizes, has_integer_weights, keep_in_bfloat16, mark_half_weights
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.stage import Stage, as_type
from streamer.whisper.device.windows import EncodedWindow, WindowBuffers
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs, build_decoder, fix_sizes
from streamer.whisper.graphs.ports import key_values, ports
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.device.conftest import HEADS, Planned
from tests.waiting import WAIT_S


@pytest.mark.parametrize("precision", ["f16", "int8", "int8-sym"])
def test_only_what_is_compressed_has_integer_weights(checkpoint: Checkpoint, precision: str) -> None:
    model = build_decoder(checkpoint.dims, checkpoint.tensors, HEADS, precision)
    assert has_integer_weights(model) == (precision != "f16")


def key_types(compilation: Compilation) -> set[str]:
    """Return the element types of all ports that are keys or values."""
    found = (port for graph in compilation.compiled.values() for port in (*graph.inputs, *graph.outputs))
    return {port.element_type.get_type_name() for port in found if "key_values." in port.any_name}


@pytest.mark.slow
@pytest.mark.parametrize("properties", [(), ("INFERENCE_PRECISION_HINT=f32",)])
@pytest.mark.parametrize("precision", ["f16", "int8"])
def test_keys_and_values_are_kept_as_the_decoder_computes(
    checkpoint: Checkpoint, planned: Planned, precision: str, properties: tuple[str, ...]
) -> None:
    compilation = planned(graphs=ModelGraphs.of(checkpoint, HEADS, precision), properties=properties)
    compilation.compile()
    able = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    halved = able and precision == "int8" and not properties
    assert key_types(compilation) == {"bf16" if halved else "f32"}
    hints = {str(name): graph.get_property("INFERENCE_PRECISION_HINT") for name, graph in compilation.compiled.items()}
    assert hints["decoder"] == ov.Type.f32
    assert hints["encoder"] == hints["cross_kv"] == (ov.Type.bf16 if halved else ov.Type.f32)


@pytest.mark.slow
def test_with_keys_in_bfloat16_a_block_still_equals_single_steps(checkpoint: Checkpoint) -> None:
    whole = build_decoder(checkpoint.dims, checkpoint.tensors, HEADS)
    exact, halved = decoder_of(whole, checkpoint.dims), decoder_of(whole, checkpoint.dims, keep_in_bfloat16)
    tokens = [5, 300, 17, 4]
    expected, alone = (np.concatenate([decoder.feed([t])[0][0] for t in tokens]) for decoder in (exact, halved))
    halved.begin()
    (block,), _ = halved.feed(tokens)
    scale = np.abs(expected).max()
    assert 1e-5 * scale < np.abs(alone - expected).max() < 0.02 * scale
    np.testing.assert_allclose(block, alone, rtol=0, atol=1.5e-2 * scale)


def decoder_of(whole: ov.Model, dims: ModelDimensions, keep: Callable[[ov.Model], None] | None = None) -> Decoder:
    """Return a decoder that attends to noise; `keep` changes its graph."""
    smallest, largest = (ports("decoder", dims, len(HEADS), n_tokens=n, n_slots=16 * n) for n in (1, 4))
    model = fix_sizes(whole, smallest.inputs, largest.inputs)
    if keep is not None:
        keep(model)
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    types = {name: compiled.input(f"past_{name}").element_type for name in key_values(dims.n_text_layer, "encoder")}
    assert keep is None or set(types.values()) == {ov.Type.bf16}
    window = EncodedWindow(WindowBuffers(dims, types, 1), 0, dims.n_audio_ctx)
    random = np.random.default_rng(0)
    for tensor in window.tensors.values():
        tensor.data[:] = as_type(random.standard_normal(tensor.shape, dtype=np.float32), tensor.element_type)
    decoder = Decoder([Stage(Sizes("decoder", None), compiled, "CPU")], dims)
    decoder.use(window)
    return decoder


def test_an_interrupt_does_not_wait_for_a_compiler(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    compilation = planned(on_progress=interrupt)
    monkeypatch.setattr(compilation, "_compile", lambda *_: go_on.wait(3 * WAIT_S))
    with ThreadPoolExecutor(1) as thread:
        compiling = thread.submit(compilation.compile)
        try:
            assert isinstance(compiling.exception(WAIT_S), KeyboardInterrupt)
        finally:
            go_on.set()


def test_a_decoder_is_compiled_once_on_a_cpu(planned: Planned) -> None:
    compilation = planned()
    compilation.compile()
    assert set(compilation.compiled) == {Sizes("encoder"), Sizes("cross_kv"), Sizes("decoder", None)}
    before = dict(compilation.compiled)
    compilation.compile()  # what is compiled is not compiled again
    assert compilation.compiled == before
    assert set(compilation.compile_s) == set(before)


@pytest.mark.parametrize(
    ("hopeless", "properties", "expected"),
    [
        (False, (), ["GPU", "GPU", "CPU"]),
        (True, (), ["GPU", "CPU"]),
        (False, ("INFERENCE_PRECISION_HINT=f16",), ["GPU", "CPU"]),
    ],
)
def test_a_gpu_gives_up_half_precision_before_it_is_given_up_unless_that_is_hopeless(
    planned: Planned, hopeless: bool, properties: tuple[str, ...], expected: list[str]
) -> None:
    compilation = planned("AUTO", ["CPU", "GPU"], properties=properties)
    error = InferenceError("it fails the checks", "decoder")
    error.hopeless = hopeless
    devices = [compilation.devices["decoder"]]
    while devices[-1] != "CPU":
        compilation.reject({"decoder": error})
        devices.append(compilation.devices["decoder"])
    assert devices == expected
    assert compilation.devices["encoder"] == compilation.devices["cross_kv"] == "GPU"
    with pytest.raises(InferenceError):
        compilation.reject({"decoder": error})


def marked(model: ov.Model) -> list[ov.Node]:
    mark_half_weights(model)
    return [node for node in model.get_ops() if "decompression_0" in node.get_rt_info()]


def test_every_half_weight_is_marked(checkpoint: Checkpoint) -> None:
    found = marked(build_decoder(checkpoint.dims, checkpoint.tensors, HEADS))
    matrices = [name for name, tensor in checkpoint.tensors.items() if "decoder" in name and tensor.ndim == 2]
    assert len(found) >= len(matrices) - 2 * checkpoint.dims.n_text_layer  # cross-KV has its own graph
    assert all(node.get_type_name() == "Convert" for node in found)


def test_the_times_of_a_device_that_was_given_up_are_forgotten(planned: Planned) -> None:
    compilation = planned("AUTO", ["CPU", "NPU"])
    of_npu, of_encoder = Sizes("decoder", n_tokens=64, n_slots=447), Sizes("encoder")
    compilation.compile_s = {of_npu: 60.0, of_encoder: 30.0}
    compilation.reject({"decoder": InferenceError("it fails the checks", "decoder")})
    assert compilation.compile_s == {of_encoder: 30.0}
