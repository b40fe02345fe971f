"""Graphs compiled for devices, and what is said of their weights."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest

from streamer.arrays import FloatArray
from streamer.errors import InferenceError
from streamer.whisper.device.compile import Compilation, has_integer_weights, keep_in_bfloat16, mark_half_weights
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.runtime import as_type
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import build as graphs
from streamer.whisper.graphs.build import ModelGraphs, build_decoder
from streamer.whisper.graphs.ports import BLOCK_TOKENS, STAGES, GraphId
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint
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
    model = build_decoder(checkpoint.dims, checkpoint.tensors, HEADS, "int8")
    for node in marked(model):
        consumers = {target.get_node().get_type_name() for target in node.output(0).get_target_inputs()}
        assert not consumers & {"Multiply", "Subtract"}


def compressed(checkpoint: Checkpoint, precision: str) -> ModelGraphs:
    return ModelGraphs.of(checkpoint, HEADS, dict.fromkeys(STAGES, precision))


def key_types(compilation: Compilation) -> set[str]:
    """Return the element types of all ports that are keys or values."""
    ports = (port for graph in compilation.compiled.values() for port in (*graph.inputs, *graph.outputs))
    return {port.element_type.get_type_name() for port in ports if "key_values." in port.any_name}


@pytest.mark.parametrize("precision", ["f16", "int8", "int8-sym"])
def test_only_what_is_compressed_has_integer_weights(checkpoint: Checkpoint, precision: str) -> None:
    model = build_decoder(checkpoint.dims, checkpoint.tensors, HEADS, precision)
    assert has_integer_weights(model) == (precision != "f16")


@pytest.mark.parametrize("properties", [(), ("INFERENCE_PRECISION_HINT=f32",)])
def test_keys_and_values_are_kept_as_the_decoder_computes(checkpoint: Checkpoint, properties: tuple[str, ...]) -> None:
    able = "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for precision in ("f16", "int8"):
        plans = plan_stages(DeviceSettings("CPU", properties=properties), ["CPU"])
        compilation = Compilation(compressed(checkpoint, precision), plans)
        compilation.compile()
        halved = able and precision == "int8" and not properties
        assert key_types(compilation) == {"bf16" if halved else "f32"}
        hints = {
            str(name): graph.get_property("INFERENCE_PRECISION_HINT") for name, graph in compilation.compiled.items()
        }
        assert hints["decoder"] == hints["block_decoder"] == ov.Type.f32
        assert hints["encoder"] == hints["cross_kv"] == (ov.Type.bf16 if halved else ov.Type.f32)


def test_a_gpu_gives_up_half_precision_before_it_is_given_up(checkpoint: Checkpoint) -> None:
    for properties, expected in (((), ["GPU", "GPU", "CPU"]), (("INFERENCE_PRECISION_HINT=f16",), ["GPU", "CPU"])):
        plans = plan_stages(DeviceSettings("AUTO", properties=properties), ["CPU", "GPU"])
        compilation = Compilation(ModelGraphs.of(checkpoint, HEADS), plans)
        devices = [compilation.devices["decoder"]]
        while devices[-1] != "CPU":
            compilation.reject({"decoder": InferenceError("it fails the checks", "decoder")})
            devices.append(compilation.devices["decoder"])
        assert devices == expected
        assert compilation.devices["encoder"] == "GPU"


def test_keys_and_values_stay_as_they_are_where_another_device_may_come(checkpoint: Checkpoint) -> None:
    plans = plan_stages(DeviceSettings("AUTO"), ["CPU", "GPU"])
    compilation = Compilation(compressed(checkpoint, "int8"), plans)
    compilation.reject({"decoder": InferenceError("no GPU", "decoder")})
    compilation.reject({"cross_kv": InferenceError("no GPU", "cross_kv")})
    compilation.reject({"encoder": InferenceError("no GPU", "encoder")})
    compilation.compile()
    assert key_types(compilation) == {"f32"}


def test_with_keys_in_bfloat16_a_block_still_equals_single_steps(checkpoint: Checkpoint) -> None:
    dims = checkpoint.dims
    whole = build_decoder(dims, checkpoint.tensors, HEADS)
    exact, halved = (_Stepped(whole, dims, keep=keep) for keep in (lambda model: None, keep_in_bfloat16))
    tokens = [5, 300, 17, 4]
    expected, alone = exact.feed([[token] for token in tokens]), halved.feed([[token] for token in tokens])
    block = halved.feed([tokens])
    scale = np.abs(expected).max()
    assert 1e-5 * scale < np.abs(alone - expected).max() < 0.02 * scale
    np.testing.assert_allclose(block, alone, rtol=0, atol=1.5e-2 * scale)


class _Stepped:
    """A decoder with cross-attention to noise, fed in calls of one or of four tokens."""

    def __init__(self, whole: ov.Model, dims: ModelDimensions, keep: Callable[[ov.Model], None]) -> None:
        core = ov.Core()
        self._n_slots = dims.cache_size
        self._requests = {}
        for n_tokens in (1, 4):
            model = graphs.fix_sizes(whole, GraphId("decoder", n_tokens=n_tokens).ports(dims, len(HEADS)).inputs)
            keep(model)
            for port in (*model.inputs, *model.outputs):
                expected = ov.Type.bf16 if keep is keep_in_bfloat16 and "key_values." in port.any_name else None
                assert expected in (None, port.element_type), port.any_name
            compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            self._requests[n_tokens] = (compiled, compiled.create_infer_request())
        noise = np.random.default_rng(0)
        self._cross: dict[str, ov.Tensor] = {}
        for port in self._requests[1][0].inputs:
            if "key_values." in port.any_name:
                tensor = self._cross[port.any_name] = ov.Tensor(port.element_type, port.shape)
                values = noise.standard_normal(tuple(port.shape), dtype=np.float32)
                tensor.data[:] = as_type(values * np.float32(".encoder." in port.any_name), port.element_type)

    def feed(self, calls: list[list[int]]) -> FloatArray:
        rows = []
        n_fed = 0
        for tokens in calls:
            _, request = self._requests[len(tokens)]
            mask = np.zeros((len(tokens), self._n_slots + len(tokens)), dtype=np.float32)
            mask[:, :n_fed] = 1
            mask[:, self._n_slots :] = np.tri(len(tokens))
            request.set_tensor("input_ids", ov.Tensor(np.array([tokens], dtype=np.int64)))
            request.set_tensor("position_ids", ov.Tensor(np.arange(n_fed, n_fed + len(tokens), dtype=np.int64)))
            request.set_tensor("attention_mask", ov.Tensor(mask))
            for name, tensor in self._cross.items():
                request.set_tensor(name, tensor)
            request.infer(share_outputs=True)
            for name, tensor in self._cross.items():
                if ".decoder." in name:
                    present = request.get_tensor(name.replace("past_", "present_", 1)).data
                    tensor.data[:, :, n_fed : n_fed + len(tokens)] = present
            rows.append(request.get_tensor("logits").data[0].copy())
            n_fed += len(tokens)
        return np.concatenate(rows)


# In a process of its own: OpenVINO counts cores once, and the test's process may have been given one alone.
PRINT_THREADS = """
import json, os, pathlib, sys
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count()))
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.weights import huggingface
graphs = ModelGraphs.of(huggingface.load(pathlib.Path(sys.argv[1])), [(1, 0)])
compilation = Compilation(graphs, plan_stages(DeviceSettings("CPU", properties=tuple(sys.argv[2:])), ["CPU"]))
compilation.compile()
print(json.dumps({str(name): g.get_property("INFERENCE_NUM_THREADS") for name, g in compilation.compiled.items()}))
"""


@pytest.mark.parametrize(("properties", "expected"), [((), 1), (("INFERENCE_NUM_THREADS=2",), 2)])
def test_a_narrow_decoder_computes_alone(properties: tuple[str, ...], expected: int) -> None:
    command = [sys.executable, "-c", PRINT_THREADS, str(NANO), *properties]
    threads = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    n_cores = os.cpu_count() or 1
    assert threads["decoder"] == threads["block_decoder"] == min(expected, n_cores)
    assert threads["encoder"] > 1 or n_cores == 1


def test_the_decoder_is_compiled_for_one_token_and_for_a_block(checkpoint: Checkpoint) -> None:
    compilation = Compilation(ModelGraphs.of(checkpoint, HEADS), plan_stages(DeviceSettings("CPU"), ["CPU"]))
    compilation.compile()
    decoders = {graph: compiled for graph, compiled in compilation.compiled.items() if graph.stage == "decoder"}
    tokens = {str(graph): compiled.input("input_ids").shape[1] for graph, compiled in decoders.items()}
    assert tokens == {"decoder": 1, "block_decoder": BLOCK_TOKENS}
    before = dict(compilation.compiled)
    compilation.compile()  # what is compiled is not compiled again
    assert compilation.compiled == before
