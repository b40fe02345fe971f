"""Directories as optimum-intel writes them: what our reader looks at, under the names that its graphs have.

The operations are called after their layers; here each layer has an input of its own.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.arrays import FloatArray
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import config_of

# Makes a constant of a weight.
Store = Callable[[FloatArray, str], ov.Node]

# Where queries are multiplied by the scale of attention.
SCALES = ("weights", "operation", "attention")


def as_float(values: FloatArray, name: str) -> ov.Node:
    return named(ops.constant(values.astype(np.float32)), name)


def as_half(values: FloatArray, name: str) -> ov.Node:
    """As `compress_to_fp16` writes it; the name is no more than a hint then."""
    return ops.convert(named(ops.constant(values.astype(np.float16)), f"{name}_compressed"), "f32")


def as_int8(values: FloatArray, name: str) -> ov.Node:
    """As NNCF writes a matrix: whole numbers less a zero point, times the scale of the row."""
    if values.ndim < 2:
        return as_float(values, name)
    rows = values.reshape(len(values), -1).astype(np.float32)
    scale = ((rows.max(axis=1) - rows.min(axis=1)) / 255).reshape(-1, *[1] * (values.ndim - 1)).astype(np.float16)
    zero = np.rint(-rows.min(axis=1).reshape(scale.shape) / scale).clip(0, 255).astype(np.uint8)
    numbers = np.rint(values / scale + zero).clip(0, 255).astype(np.uint8)
    moved = ops.subtract(ops.convert(named(ops.constant(numbers), name), "f16"), ops.convert(ops.constant(zero), "f16"))
    return ops.convert(ops.multiply(moved, ops.constant(scale)), "f32")


def as_int4(values: FloatArray, name: str) -> ov.Node:
    """As NNCF writes a matrix in symmetric groups of 16."""
    if values.ndim != 2:
        return as_float(values, name)
    groups = values.reshape(len(values), -1, 16).astype(np.float32)
    scale = (np.abs(groups).max(axis=2, keepdims=True) / 7).astype(np.float16)
    numbers = np.rint(groups / scale).clip(-8, 7).astype(np.int8)
    tensor = ov.Tensor(ov.Type.i4, ov.Shape(groups.shape))
    flat = numbers.reshape(-1)
    tensor.data[:] = (flat[::2] & 15) | (flat[1::2] << 4)
    scaled = ops.multiply(ops.convert(named(ops.constant(tensor), name), "f16"), ops.constant(scale))
    return ops.convert(ops.reshape(scaled, list(values.shape), False), "f32")


def write_optimum(
    directory: Path,
    checkpoint: Checkpoint,
    *,
    store: Store = as_float,
    scale: str = "weights",
    wrapped: str = "model.",
    transposed: bool = False,
    tied: bool = True,
) -> Path:
    """Write the graphs and config.json.

    wrapped : what the decoder's layers are called after, as its wrappers nest; of the encoder's its `encoder.` alone
    transposed : whether matrices lie column by column
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(checkpoint.dims)), encoding="utf-8")
    halves = {"encoder": "encoder." if "encoder." in wrapped else "", "decoder": wrapped.removeprefix("encoder.")}
    for half, before in halves.items():
        layers = _Layers(checkpoint, half, store, scale, transposed, before, tied)
        results = [ops.result(node) for node in layers.built()]
        path = directory / f"openvino_{half}_model.xml"
        ov.save_model(ov.Model(results, layers.inputs), path, compress_to_fp16=False)
    return directory


def named(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    return node


@dataclass
class _Layers:
    checkpoint: Checkpoint
    half: str
    store: Store
    scale: str
    transposed: bool
    wrapped: str
    tied: bool
    inputs: list[ov.Node] = field(default_factory=list)

    def built(self) -> Iterator[ov.Node]:
        for name, values in self.checkpoint.tensors.items():
            layer, _, kind = name.rpartition(".")
            if kind == "weight" and name.startswith(f"{self.half}."):
                if "layer_norm" in layer:
                    y = ops.mvn(self.input([1, -1, len(values)]), ops.constant([-1]), True, 1e-5, "inside_sqrt")
                    y = ops.multiply(self.named(y, layer, "aten::layer_norm/MVN"), self.weight(name, (1, 1, -1)))
                    yield ops.add(y, self.weight(f"{layer}.bias", (1, 1, -1)))
                elif "embed_" in layer:
                    yield from self.embedded(layer, name, values)
                elif values.ndim == 3:
                    y = ops.convolution(self.input([1, values.shape[1], 3000]), self.weight(name), [1], [1], [1], [1])
                    y = self.named(y, layer, "aten::_convolution/Convolution")
                    yield ops.add(y, self.weight(f"{layer}.bias", (1, -1, 1)))
                else:
                    yield self.query(layer) if layer.endswith("q_proj") else self.linear(layer)

    def input(self, shape: list[int], dtype: type[np.generic] = np.float32) -> ov.Node:
        self.inputs.append(ops.parameter(shape, dtype))
        return self.inputs[-1]

    def name_of(self, name: str) -> str:
        return self.wrapped + (name.removeprefix("encoder.") if self.half == "encoder" else name)

    def named(self, node: ov.Node, layer: str, operation: str) -> ov.Node:
        return named(node, f"__module.{self.name_of(layer)}/{operation}")

    def weight(self, name: str, shape: tuple[int, ...] | None = None, times: float = 1.0) -> ov.Node:
        values = self.checkpoint.tensors[name] * np.float16(times)
        return self.store(values.reshape(shape) if shape else values, f"self.{self.name_of(name)}")

    def embedded(self, layer: str, name: str, values: FloatArray) -> Iterator[ov.Node]:
        if self.half == "encoder":
            yield ops.add(self.input([1, *values.shape]), self.weight(name, (1, *values.shape)))
            return
        table, tokens = self.weight(name), layer.endswith("tokens")
        found = ops.gather(table, self.input([1, -1], np.int64), np.int64(0))
        yield self.named(found, layer, "aten::embedding/Gather" if tokens else "aten::index/Gather")
        if tokens:
            logits = self.input([1, -1, values.shape[1]])
            y = ops.matmul(logits, table if self.tied else self.weight("proj_out.weight"), False, True)
            yield named(y, "__module.proj_out/aten::linear/MatMul")

    def linear(self, layer: str, times: float = 1.0, later: float = 1.0) -> ov.Node:
        """Weights are multiplied by `times`; by `later` what comes of them, before the bias is added."""
        values = self.checkpoint.tensors[f"{layer}.weight"] * np.float16(times)
        stored = np.ascontiguousarray(values.T) if self.transposed else values
        weight = self.store(stored, f"self.{self.name_of(layer)}.weight")
        y = ops.matmul(self.input([1, -1, values.shape[1]]), weight, False, not self.transposed)
        y = self.named(y, layer, "aten::linear/MatMul")
        if later != 1.0:
            y = ops.multiply(y, ops.constant(np.full((1, 1, 1), later, np.float32)))
        if f"{layer}.bias" not in self.checkpoint.tensors:
            return y
        return ops.add(y, self.weight(f"{layer}.bias", (1, 1, -1), times * later))

    def query(self, layer: str) -> ov.Node:
        """Return what is attended to: queries are multiplied by the scale where `scale` says."""
        size = self.checkpoint.dims.text_head_size
        factors = {place: size**-0.5 if place == self.scale else 1.0 for place in SCALES}
        y = self.linear(layer, factors["weights"], factors["operation"])
        query = ops.transpose(ops.reshape(y, [0, 0, -1, size], True), [0, 2, 1, 3])
        others = [self.input([1, -1, -1, size]) for _ in range(2)]
        inside = np.float32(factors["attention"])
        return ops.scaled_dot_product_attention(query, *others, np.float32(0), inside, causal=False)
