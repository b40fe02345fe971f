"""The layers of a Whisper in a graph of OpenVINO that another program exported.

What operations are called depends on the exporter and its wrappers, so the flow of data says which weight is which:
layer norms and matrices come in the order of a Whisper's layers, and an attention shows which of its matrices make
queries, keys and values. Each weight is found where it is used, whole or compressed.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

_TYPES = ("f32", "f16", "i8", "u8", "i4", "u4")

# How compressed weights become floats, as many as there are numbers.
_FOLDED = ("Convert", "Subtract", "Multiply", "Reshape")
_MAX_STEPS = 8

# What may lie between a matrix and its attention, and how many operations are looked at on the way.
_MOVED = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Convert", "Slice", "StridedSlice", "ReadValue")
_JOINED = ("Concat", "Add", "Multiply", "Divide")
_MAX_NODES = 64

# How exporters compute the scale of attention, of the size of a head; and numbers that are no table.
_COMPUTED = ("Convert", "Slice", "StridedSlice", "Gather", "Squeeze", "Sqrt", "Power", "Divide", "Multiply")
_MAX_NUMBERS = 8

# Operations that take rows of a table, or add all of them.
_LOOKED_UP = {"Gather": 1, "Slice": 1, "StridedSlice": 1, "Add": 2}


class Layer(NamedTuple):
    """Weight and bias of an operation, and what they are multiplied by before they are used."""

    node: ov.Node
    weight: ov.Output
    bias: ov.Output | None = None
    factor: float = 1.0
    bias_factor: float = 1.0


class Attention(NamedTuple):
    """An attention's queries, keys and values."""

    # What makes them: layers with constant weights, or inputs of the graph.
    layers: tuple[Layer, ...]
    head_size: int


def attention_of(node: ov.Node) -> Attention | None:
    """Return the attention that an operation computes, or is the softmax of."""
    if node.get_type_name() == "ScaledDotProductAttention":
        values, inside = node.input_values()[:3], node.input_value(4) if node.get_input_size() > 4 else None
        head_size = _last_length(values[0])
        times = 1.0 if inside is None else _number(inside) * head_size**0.5
    elif node.get_type_name() == "Softmax" and (scores := trace(node.input_value(0))) and (product := _product(node)):
        values = [*scores.node.input_values(), product.input_value(1)]
        head_size = _last_length(values[0])
        times = scores.factor * head_size**0.5
    else:
        return None
    layers = [layer for value in values if (layer := trace(value))]
    if len(layers) != 3 or not times:
        return None
    query, key, value = layers
    # What is left of the scale, wherever the exporter put it, is in the weights.
    times *= key.factor
    query = query._replace(factor=query.factor * times, bias_factor=query.bias_factor * times)
    return Attention((query, key._replace(factor=1.0), value), head_size)


def layer_of(node: ov.Node) -> Layer | None:
    """Return the layer with constant weights that an operation begins: a matrix, a convolution, or a layer norm."""
    kind = node.get_type_name()
    if kind in ("MatMul", "Convolution") and constant_of(node.input_value(1)):
        return Layer(node, node.input_value(1), _added(node))
    if kind == "MVN":
        for target in node.output(0).get_target_inputs():
            scaled = target.get_node()
            if scaled.get_type_name() == "Multiply" and (weight := _constant_input(scaled)):
                return Layer(node, weight, _added(scaled))
    return None


def tables_of(nodes: Sequence[ov.Node], width: int) -> list[ov.Output]:
    """Return the tables with rows of this length, such as embeddings, the longest first."""
    found: dict[str, ov.Output] = {}
    for node in nodes:
        for value in node.input_values()[: _LOOKED_UP.get(node.get_type_name(), 0)]:
            name = constant_of(value)
            if name and len(value.shape) > 1 and value.shape[-1] == width < prod(value.shape):
                found.setdefault(name, value)
    return sorted(found.values(), key=lambda value: -prod(value.shape))


def constant_of(output: ov.Output, n_steps: int = _MAX_STEPS) -> str:
    """Return the name of the constant that a value is made of, by nothing but what unpacks weights; empty: of more."""
    for n_left in reversed(range(n_steps)):
        if output.partial_shape.is_dynamic:
            return ""
        node = output.get_node()
        kind = node.get_type_name()
        if kind == "Constant":
            return str(node.get_friendly_name()) if node.get_element_type().get_type_name() in _TYPES else ""
        if kind not in _FOLDED:
            return ""
        numbers = node.input_value(0)
        # Of two vectors a matrix of any size could be made.
        is_wide = numbers.partial_shape != output.partial_shape
        if kind in ("Subtract", "Multiply") and (is_wide or not constant_of(node.input_value(1), n_left)):
            return ""
        output = numbers
    return ""


def fold(output: ov.Output) -> NDArray[Any]:
    """Compute a value that is made of constants, in the types that the graph has, except a last step to float32."""
    node = output.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        kept = {"f32": np.float32, "f16": np.float16}.get(node.get_element_type().get_type_name())
        found: NDArray[Any] = node.get_data(dtype=kept or np.int16)  # unpacked
        return found
    value = fold(node.input_value(0))
    if kind == "Convert":
        wanted = output.element_type.to_dtype()
        return value if value.dtype.kind == "f" else value.astype(wanted)
    if kind == "Reshape":
        return value.reshape(tuple(output.shape))
    combine = np.subtract if kind == "Subtract" else np.multiply
    folded: NDArray[Any] = combine(value, fold(node.input_value(1)))
    return folded


def trace(output: ov.Output, seen: list[str] | None = None) -> Layer | None:
    """Return what makes a value: a product of matrices, or an input of the graph; None: neither, as far as is seen."""
    node, seen = output.get_node(), [] if seen is None else seen
    kind, name = node.get_type_name(), node.get_name()
    if kind == "MatMul":
        return Layer(node, node.input_value(1))
    if kind == "Parameter":
        return Layer(node, output)
    if kind not in (*_MOVED, *_JOINED) or name in seen or len(seen) == _MAX_NODES:
        return None
    seen.append(name)
    values = node.input_values()[: None if kind in _JOINED else 1]
    found = [(layer, i) for i, value in enumerate(values) if (layer := trace(value, seen))]
    if not found:
        return None
    # What was cached, or a mask, is an input.
    layer, i = min(found, key=lambda pair: pair[0].node.get_type_name() == "Parameter")
    if kind == "Add" and layer.bias is None and constant_of(values[1 - i]):
        return layer._replace(bias=values[1 - i])
    if kind in ("Multiply", "Divide"):
        number = _number(values[1 - i])
        if not number:
            return None
        times = number if kind == "Multiply" else 1 / number
        later = 1.0 if layer.bias is None else times
        return layer._replace(factor=layer.factor * times, bias_factor=layer.bias_factor * later)
    return layer


def _product(softmax: ov.Node) -> ov.Node | None:
    """Return the product of matrices that a softmax goes into."""
    followed = [softmax]
    for node in followed:
        for target in node.output(0).get_target_inputs():
            after = target.get_node()
            if after.get_type_name() == "MatMul":
                return after
            if after.get_type_name() in _MOVED and len(followed) < _MAX_NODES:
                followed.append(after)
    return None


def _constant_input(node: ov.Node) -> ov.Output | None:
    return next((value for value in node.input_values() if constant_of(value)), None)


def _added(node: ov.Node) -> ov.Output | None:
    """Return the constant that is added to what an operation gives."""
    for target in node.output(0).get_target_inputs():
        if target.get_node().get_type_name() == "Add" and (bias := _constant_input(target.get_node())):
            return bias
    return None


def _number(output: ov.Output) -> float:
    """Return the one number that a value is, whatever data flows through the graph; 0 if it is more, or not known."""
    found = _numbers(output, [])
    return float(found.reshape(-1)[0]) if found is not None and found.size == 1 else 0.0


def _numbers(output: ov.Output, seen: list[ov.Node]) -> NDArray[Any] | None:
    node = output.get_node()
    kind = node.get_type_name()
    seen.append(node)
    if output.partial_shape.is_dynamic or prod(output.shape) > _MAX_NUMBERS or len(seen) > _MAX_NODES:
        return None
    if kind == "Constant":
        found: NDArray[Any] = node.get_data()
        return found
    if kind == "ShapeOf" and node.input_value(0).partial_shape.is_static:
        return np.array(node.input_value(0).shape)
    inputs = [(value, _numbers(value, seen)) for value in node.input_values()] if kind in _COMPUTED else []
    if not inputs or any(numbers is None for _, numbers in inputs):
        return None
    result = ov.Tensor(output.element_type, output.shape)
    given = [ov.Tensor(np.array(numbers, value.element_type.to_dtype())) for value, numbers in inputs]
    try:
        return result.data if node.evaluate([result], given) else None
    except RuntimeError:
        return None


def _last_length(output: ov.Output) -> int:
    """Return the length of a value's last axis, 0 if it is open."""
    shape = output.partial_shape
    known = shape.rank.is_static and len(shape) > 0 and shape[-1].is_static
    return int(shape[-1].get_length()) if known else 0
