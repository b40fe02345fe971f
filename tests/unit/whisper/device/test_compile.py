"""Graphs compiled for devices: in which types, on which device next, and how often."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from streamer.whisper.device import compile as compile_module
from streamer.whisper.device.compile import Compiled, compile_stages
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.places import choose, places_of
from streamer.whisper.device.sizes import Sizes
from streamer.whisper.device.stage import Stage, as_type
from streamer.whisper.device.types import keep_in_bfloat16, mark_half_weights
from streamer.whisper.device.windows import EncodedWindow, WindowBuffers
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs, build_decoder, fix_sizes
from streamer.whisper.graphs.ports import STAGES, key_values, ports
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.device.conftest import HEADS, Planned, compile_all
from tests.waiting import WAIT_S


@pytest.mark.parametrize("precision", ["f16", "int8", "int8-sym"])
def test_only_what_is_compressed_has_integer_weights(checkpoint: Checkpoint, precision: str) -> None:
    graphs = ModelGraphs.of(checkpoint, HEADS, precision)
    constants = [node for node in graphs.build["decoder"]().get_ops() if node.get_type_name() == "Constant"]
    assert graphs.has_integers == (precision != "f16")
    assert graphs.has_integers == any(node.get_element_type() in (ov.Type.i8, ov.Type.u8) for node in constants)


def key_types(compiled: Compiled) -> set[str]:
    """Return the element types of all ports that are keys or values."""
    found = (port for graph in compiled.graphs.values() for port in (*graph.inputs, *graph.outputs))
    return {port.element_type.get_type_name() for port in found if "key_values." in port.any_name}


@pytest.mark.slow
@pytest.mark.parametrize("properties", [(), ("INFERENCE_PRECISION_HINT=f32",)])
@pytest.mark.parametrize("precision", ["f16", "int8"])
def test_keys_and_values_are_kept_as_the_decoder_computes(
    checkpoint: Checkpoint, planned: Planned, precision: str, properties: tuple[str, ...]
) -> None:
    compiled = compile_all(planned(graphs=ModelGraphs.of(checkpoint, HEADS, precision), properties=properties))
    able = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    halved = able and precision == "int8" and not properties
    assert key_types(compiled) == {"bf16" if halved else "f32"}
    hints = {str(name): graph.get_property("INFERENCE_PRECISION_HINT") for name, graph in compiled.graphs.items()}
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

    recipe = planned()
    monkeypatch.setattr(compile_module, "compile_graph", lambda *_: go_on.wait(3 * WAIT_S))
    with ThreadPoolExecutor(1) as thread:
        compiling = thread.submit(compile_stages, recipe, choose(recipe.plans, places_of(recipe.plans)), {}, interrupt)
        try:
            assert isinstance(compiling.exception(WAIT_S), KeyboardInterrupt)
        finally:
            go_on.set()


def test_a_decoder_is_compiled_once_on_a_cpu(planned: Planned) -> None:
    recipe = planned()
    compiled = compile_all(recipe)
    assert set(compiled.graphs) == {
        Sizes("encoder"),
        Sizes("cross_kv", by_second=True),
        Sizes("decoder", None),
        Sizes("decoder", None, logits=True),
    }
    # What is compiled is not compiled again.
    again, _ = compile_stages(recipe, choose(recipe.plans, places_of(recipe.plans)), compiled.stages)
    assert again == compiled.stages


def test_a_graph_that_was_just_compiled_is_read_from_the_cache(planned: Planned, tmp_path: Path) -> None:
    """So that the weights that it was compiled of are in memory no longer."""
    recipe = planned(cache_dir=tmp_path, windows_s=(5, 30))
    for known in (False, True):
        compiled = compile_all(recipe)
        assert compiled.from_cache is known
        assert all(graph.get_property("LOADED_FROM_CACHE") for graph in compiled.graphs.values())
    assert len(list(tmp_path.glob("CPU-*/*.blob"))) == len(list(tmp_path.iterdir())) == len(compiled.graphs) == 4


@pytest.mark.skipif("GPU" in ov.Core().available_devices, reason="there is a GPU here: it can compile")
def test_a_device_that_cannot_compile_is_one_line_a_stage(planned: Planned) -> None:
    recipe = planned("GPU", ["GPU"])
    stages, errors = compile_stages(recipe, choose(recipe.plans, places_of(recipe.plans)), {})
    assert stages == {}
    assert [*errors] == [error.stage for error in errors.values()] == [*STAGES]
    assert all("\n" not in str(error) for error in errors.values())


def marked(model: ov.Model) -> list[ov.Node]:
    mark_half_weights(model)
    return [node for node in model.get_ops() if "decompression_0" in node.get_rt_info()]


def test_every_half_weight_is_marked(checkpoint: Checkpoint) -> None:
    found = marked(build_decoder(checkpoint.dims, checkpoint.tensors, HEADS))
    matrices = [name for name, tensor in checkpoint.tensors.items() if "decoder" in name and tensor.ndim == 2]
    assert len(found) >= len(matrices) - 2 * checkpoint.dims.n_text_layer  # cross-KV has its own graph
    assert all(node.get_type_name() == "Convert" for node in found)
