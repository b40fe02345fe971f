"""optimum-intel's exports, as on the Hub under OpenVINO/whisper-*-ov: graphs with dynamic shapes, read as a checkpoint.

Encoder and decoder (`openvino_decoder_model.xml`, stateful or not) name each layer's operations after the layer. From
there its weights are found, whole or compressed; what their type is, and where the scale of attention has been put, is
the exporter's choice. Our own graphs are built of them, with fixed shapes, blocks, beams and word times.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.ir import probe_graphs, read_graph
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint, expected_shapes
from streamer.whisper.weights.tensors import Tensor

NAME = "optimum-intel"

_GRAPHS = ("openvino_encoder_model.xml", "openvino_decoder_model.xml")
FILES = ((*_GRAPHS, "openvino_encoder_model.bin", "openvino_decoder_model.bin"),)

# A layer, with all that an exporter's wrappers put before `layers`.
_LAYER = re.compile(r"__module\.(?:model\.)*(?:(?:en|de)coder\.)?([\w.]+)/")

# How compressed weights become floats. Nothing here makes less of more, so that no step is larger than the last.
_FOLDED = ("Convert", "Subtract", "Multiply", "Reshape")

_TYPES = ("f32", "f16", "i8", "u8", "i4", "u4")

# Between a projection and the product of queries and keys.
_MOVING = ("Reshape", "Transpose", "Unsqueeze")

# Deepest chain of operations between a constant and the layer that it is the weight of.
_MAX_STEPS = 8


def matches(path: Path) -> bool:
    """Return whether a path is a directory of such an export, whole or not, and of no checkpoint besides."""
    found = any((path / name).is_file() for name in _GRAPHS)
    return found and not any(path.glob("*.safetensors")) and not (path / "pytorch_model.bin").exists()


def load(directory: Path) -> Checkpoint:
    """Load the weights of an export, which stay on disk until they are read. Raises ModelError if it is broken."""
    path = directory / "config.json"
    config = read_json(path)
    dims = ModelDimensions.from_huggingface(config, path)
    huggingface.read_tied(config, path)
    probe_graphs([directory / name for name in _GRAPHS])
    found = {
        **dict(_weights(directory / _GRAPHS[0], "encoder", dims)),
        **dict(_weights(directory / _GRAPHS[1], "decoder", dims)),
    }
    sources = {name: _constant(output) for name, (output, _) in found.items()}
    tied = sources.get("proj_out.weight") in (None, sources.get("decoder.embed_tokens.weight"))
    tensors = {name: tensor for name, (_, tensor) in found.items()}
    return replace(as_checkpoint(dims, tensors, str(directory), tied=tied), config=config)


# A weight in a graph: its name, what goes into an operation and is made of constants alone, and the tensor of it.
_Weight = tuple[str, tuple[ov.Output, Tensor]]


def _read(output: ov.Output, shape: tuple[int, ...], transposed: bool, factor: float) -> FloatArray:
    """Compute a weight, times what the exporter has not multiplied it by."""
    values = _fold(output).reshape(shape[::-1] if transposed else shape)
    if factor != 1.0:
        values = values * values.dtype.type(factor)
    return values.T if transposed else values


def _weights(path: Path, half: str, dims: ModelDimensions) -> Iterator[_Weight]:
    """Yield the weights of the encoder's or the decoder's graph, each under its name in a checkpoint."""
    shapes = expected_shapes(dims, tied=False)
    scale = float(dims.audio_head_size if half == "encoder" else dims.text_head_size) ** -0.5

    def weight(name: str, output: ov.Output, *, transposed: bool = False, factor: float = 1.0) -> Iterator[_Weight]:
        # Vectors stand in the shape in which they are added.
        if name in shapes and _constant(output) and prod(output.shape) == prod(shapes[name]):
            read = partial(_read, output, shapes[name], transposed, factor)
            yield name, (output, Tensor(shapes[name], "F32", read))

    for node in read_graph(path).get_ordered_ops():
        kind, match = node.get_type_name(), _LAYER.match(node.get_friendly_name())
        layer = match[1] if match else ""
        if layer and layer != "proj_out":
            layer = f"{half}.{layer}"
        if kind in ("MatMul", "Convolution"):
            factor, bias, bias_factor = _follow(node, scale) if layer.endswith(".q_proj") else (1.0, _added(node), 1.0)
            transposed = kind == "MatMul" and not node.get_attributes()["transpose_b"]
            yield from weight(f"{layer}.weight", node.input_value(1), transposed=transposed, factor=factor)
            if bias is not None:
                yield from weight(f"{layer}.bias", bias, factor=bias_factor)
        elif kind == "MVN":
            scaled = next((target.get_node() for target in node.output(0).get_target_inputs()), node)
            if scaled.get_type_name() == "Multiply" and (bias := _added(scaled)) is not None:
                yield from weight(f"{layer}.weight", _other(scaled))
                yield from weight(f"{layer}.bias", bias)
        elif "embed_" in layer and node.get_input_size():
            yield from weight(f"{layer}.weight", node.input_value(0))
        elif kind == "Add" and half == "encoder":  # perhaps of the positions, whose layer is not called
            name = "encoder.embed_positions.weight"
            added = _other(node)
            if added.partial_shape.is_static and tuple(added.shape)[-2:] == shapes[name]:
                yield from weight(name, added)


def _other(node: ov.Node) -> ov.Output:
    """Return which of two inputs is a constant; the second if neither is."""
    return next((value for value in node.input_values() if _constant(value)), node.input_value(1))


def _added(node: ov.Node) -> ov.Output | None:
    """Return the constant that is added to what an operation gives."""
    for target in node.output(0).get_target_inputs():
        if target.get_node().get_type_name() == "Add" and _constant(other := _other(target.get_node())):
            return other
    return None


def _follow(node: ov.Node, scale: float) -> tuple[float, ov.Output | None, float]:
    """Return the bias of queries, and what weight and bias have to be multiplied by to be those of the checkpoint.

    Queries times keys are multiplied by `scale`. Exporters do so with the weights, in an operation of its own, or
    inside of the attention.
    """
    bias, factor, bias_factor = None, 1.0, 1.0
    for _ in range(_MAX_STEPS):
        targets = list(node.output(0).get_target_inputs())
        if len(targets) != 1:
            break
        node = targets[0].get_node()
        kind = node.get_type_name()
        if kind == "ScaledDotProductAttention":
            given = node.input_value(4) if node.get_input_size() > 4 else None
            inside = float(_fold(given).reshape(-1)[0]) if given is not None and _constant(given) else scale
            factor, bias_factor = factor * inside, bias_factor * inside
            break
        if kind == "Add" and bias is None and _constant(_other(node)):
            bias = _other(node)
        elif kind == "Multiply" and _constant(_other(node)) and prod(_other(node).shape) == 1:
            times = float(_fold(_other(node)).reshape(-1)[0])
            factor, bias_factor = factor * times, bias_factor * (1.0 if bias is None else times)
        elif kind not in _MOVING:
            break
    return factor / scale, bias, bias_factor / scale


def _constant(output: ov.Output | None) -> str:
    """Return the name of the constant that a value is made of, by nothing but what unpacks weights; empty: of more."""
    for _ in range(_MAX_STEPS):
        if output is None or output.partial_shape.is_dynamic:
            return ""
        node = output.get_node()
        if node.get_type_name() == "Constant":
            return str(node.get_friendly_name()) if node.get_element_type().get_type_name() in _TYPES else ""
        if node.get_type_name() not in _FOLDED:
            return ""
        if node.get_type_name() in ("Subtract", "Multiply") and not _constant(node.input_value(1)):
            return ""
        output = node.input_value(0)
    return ""


def _fold(output: ov.Output) -> NDArray[Any]:
    """Compute a value that is made of constants, in the types that the graph has, except a last step to float32."""
    node = output.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        kept = {"f32": np.float32, "f16": np.float16}.get(node.get_element_type().get_type_name())
        found: NDArray[Any] = node.get_data(dtype=kept or np.int16)  # unpacked
        return found
    value = _fold(node.input_value(0))
    if kind == "Convert":
        wanted = output.element_type.to_dtype()
        return value if value.dtype.kind == "f" else value.astype(wanted)
    if kind == "Reshape":
        return value.reshape(tuple(output.shape))
    combine = np.subtract if kind == "Subtract" else np.multiply
    folded: NDArray[Any] = combine(value, _fold(node.input_value(1)))
    return folded
