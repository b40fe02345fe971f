"""Directories as optimum-intel writes them: what our reader looks at, under the names that its graphs have.

The operations stand in the order of the model and are called after their layers; caches and masks are left out.
"""

import json
from collections.abc import Callable
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
    dims = checkpoint.dims
    (directory / "config.json").write_text(json.dumps(config_of(dims)), encoding="utf-8")

    encoder = _Layers(checkpoint, store, scale, transposed, "encoder.", "encoder." if "encoder." in wrapped else "")
    x = encoder.input("input_features", [1, dims.n_mels, 3000])
    for name, stride in (("conv1", 1), ("conv2", 2)):
        x = encoder.convolution(x, name, stride)
    x = ops.add(ops.transpose(x, [0, 2, 1]), encoder.weight("embed_positions.weight", (1, dims.n_audio_ctx, -1)))
    for i in range(dims.n_audio_layer):
        x = encoder.block(x, f"layers.{i}", dims.n_audio_head, None)
    encoder.save(directory / "openvino_encoder_model.xml", "last_hidden_state", encoder.norm(x, "layer_norm"))

    decoder = _Layers(checkpoint, store, scale, transposed, "", wrapped.removeprefix("encoder."))
    ids = decoder.input("input_ids", [1, -1], np.int64)
    hidden = decoder.input("encoder_hidden_states", [1, -1, dims.n_audio_state])
    tokens = decoder.weight("decoder.embed_tokens.weight")
    x = ops.add(
        decoder.named(ops.gather(tokens, ids, np.int64(0)), "decoder.embed_tokens", "aten::embedding/Gather"),
        decoder.named(
            ops.gather(decoder.weight("decoder.embed_positions.weight"), ids, np.int64(0)),
            "decoder.embed_positions",
            "aten::index/Gather",
        ),
    )
    for i in range(dims.n_text_layer):
        x = decoder.block(x, f"decoder.layers.{i}", dims.n_text_head, hidden)
    x = decoder.norm(x, "decoder.layer_norm")
    tokens = tokens if tied else decoder.weight("proj_out.weight")
    logits = named(ops.matmul(x, tokens, False, True), "__module.proj_out/aten::linear/MatMul")
    decoder.save(directory / "openvino_decoder_model.xml", "logits", logits)
    return directory


def named(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    return node


class _Layers:
    def __init__(
        self, checkpoint: Checkpoint, store: Store, scale: str, transposed: bool, prefix: str, wrapped: str
    ) -> None:
        self._tensors, self._store, self._scale, self._transposed = checkpoint.tensors, store, scale, transposed
        self._prefix, self._wrapped = prefix, wrapped
        self._head_size = checkpoint.dims.text_head_size
        self._inputs: list[ov.Node] = []

    def input(self, name: str, shape: list[int], dtype: type[np.generic] = np.float32) -> ov.Node:
        node = ops.parameter(shape, dtype, name)
        node.output(0).set_names({name})
        self._inputs.append(node)
        return node

    def save(self, path: Path, name: str, node: ov.Node) -> None:
        node.output(0).set_names({name})
        ov.save_model(ov.Model([ops.result(node)], self._inputs), path, compress_to_fp16=False)

    def named(self, node: ov.Node, layer: str, operation: str) -> ov.Node:
        return named(node, f"__module.{self._wrapped}{layer}/{operation}")

    def weight(self, name: str, shape: tuple[int, ...] | None = None, times: float = 1.0) -> ov.Node:
        values = self._tensors[self._prefix + name] * np.float16(times)
        return self._store(values.reshape(shape) if shape else values, f"self.{self._wrapped}{name}")

    def convolution(self, x: ov.Node, layer: str, stride: int) -> ov.Node:
        y = ops.convolution(x, self.weight(f"{layer}.weight"), [stride], [1], [1], [1])
        y = self.named(y, layer, "aten::_convolution/Convolution")
        return ops.gelu(ops.add(y, self.weight(f"{layer}.bias", (1, -1, 1))), "erf")

    def linear(self, x: ov.Node, layer: str, times: float = 1.0, later: float = 1.0) -> ov.Node:
        """Weights are multiplied by `times`; by `later` what comes of them, before the bias is added."""
        values = self._tensors[f"{self._prefix}{layer}.weight"] * np.float16(times)
        weight = self._store(
            np.ascontiguousarray(values.T) if self._transposed else values, f"self.{self._wrapped}{layer}.weight"
        )
        y = self.named(ops.matmul(x, weight, False, not self._transposed), layer, "aten::linear/MatMul")
        if later != 1.0:
            y = ops.multiply(y, ops.constant(np.full((1, 1, 1), later, np.float32)))
        if f"{self._prefix}{layer}.bias" not in self._tensors:
            return y
        return ops.add(y, self.weight(f"{layer}.bias", (1, 1, -1), times * later))

    def norm(self, x: ov.Node, layer: str) -> ov.Node:
        y = self.named(ops.mvn(x, ops.constant([-1]), True, 1e-5, "inside_sqrt"), layer, "aten::layer_norm/MVN")
        y = ops.multiply(y, self.weight(f"{layer}.weight", (1, 1, -1)))
        return ops.add(y, self.weight(f"{layer}.bias", (1, 1, -1)))

    def block(self, x: ov.Node, layer: str, n_head: int, hidden: ov.Node | None) -> ov.Node:
        x = ops.add(x, self.attend(self.norm(x, f"{layer}.self_attn_layer_norm"), None, f"{layer}.self_attn", n_head))
        if hidden is not None:
            normed = self.norm(x, f"{layer}.encoder_attn_layer_norm")
            x = ops.add(x, self.attend(normed, hidden, f"{layer}.encoder_attn", n_head))
        y = ops.gelu(self.linear(self.norm(x, f"{layer}.final_layer_norm"), f"{layer}.fc1"), "erf")
        return ops.add(x, self.linear(y, f"{layer}.fc2"))

    def attend(self, x: ov.Node, hidden: ov.Node | None, layer: str, n_head: int) -> ov.Node:
        scale = self._head_size**-0.5
        times, later = (scale if self._scale == place else 1.0 for place in ("weights", "operation"))
        source = x if hidden is None else hidden
        query, key, value = (
            ops.transpose(ops.reshape(y, [0, 0, n_head, self._head_size], True), [0, 2, 1, 3])
            for y in (
                self.linear(x, f"{layer}.q_proj", times, later),
                self.linear(source, f"{layer}.k_proj"),
                self.linear(source, f"{layer}.v_proj"),
            )
        )
        inside = np.float32(scale if self._scale == "attention" else 1.0)
        y = ops.scaled_dot_product_attention(query, key, value, np.float32(0), inside, causal=False)
        y = ops.reshape(ops.transpose(y, [0, 2, 1, 3]), [0, 0, n_head * self._head_size], True)
        return self.linear(y, f"{layer}.out_proj")
