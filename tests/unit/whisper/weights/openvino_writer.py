"""Graphs of OpenVINO as other programs export them: the same computation, with what exporters do in different ways."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.arrays import FloatArray
from streamer.whisper.weights.checkpoint import Checkpoint

# Makes a constant of a weight.
Store = Callable[[FloatArray], ov.Node]


def as_float(values: FloatArray) -> ov.Node:
    return ops.constant(np.ascontiguousarray(values, np.float32))


def as_half(values: FloatArray) -> ov.Node:
    """As `compress_to_fp16` writes it."""
    return ops.convert(ops.constant(np.ascontiguousarray(values, np.float16)), "f32")


def as_int8(values: FloatArray) -> ov.Node:
    """As NNCF writes a matrix: whole numbers less a zero point, times the scale of the row."""
    if values.size == max(values.shape):
        return as_float(values)
    rows = values.reshape(len(values), -1).astype(np.float32)
    scale = ((rows.max(axis=1) - rows.min(axis=1)) / 255).reshape(-1, *[1] * (values.ndim - 1)).astype(np.float16)
    zero = np.rint(-rows.min(axis=1).reshape(scale.shape) / scale).clip(0, 255).astype(np.uint8)
    numbers = np.rint(values / scale + zero).clip(0, 255).astype(np.uint8)
    moved = ops.subtract(ops.convert(ops.constant(numbers), "f16"), ops.convert(ops.constant(zero), "f16"))
    return ops.convert(ops.multiply(moved, ops.constant(scale)), "f32")


def as_int4(values: FloatArray) -> ov.Node:
    """As NNCF writes a matrix in symmetric groups of 16."""
    if values.ndim != 2:
        return as_float(values)
    groups = values.reshape(len(values), -1, 16).astype(np.float32)
    scale = (np.abs(groups).max(axis=2, keepdims=True) / 7).astype(np.float16)
    flat = np.rint(groups / scale).clip(-8, 7).astype(np.int8).reshape(-1)
    tensor = ov.Tensor(ov.Type.i4, ov.Shape(groups.shape))
    tensor.data[:] = (flat[::2] & 15) | (flat[1::2] << 4)
    scaled = ops.multiply(ops.convert(ops.constant(tensor), "f16"), ops.constant(scale))
    return ops.convert(ops.reshape(scaled, list(values.shape), False), "f32")


# Where queries times keys are multiplied by the scale of attention: in the weights of queries and their bias, behind
# the matrix, behind the bias, by half in queries and keys, computed or not, in the product, in an operation of its own.
SCALES = ("weights", "matrix", "queries", "both", "computed", "product", "operation")


@dataclass
class Style:
    """What an exporter does."""

    store: Store = as_half
    scale: str = "queries"
    transposed: bool = False  # rows and columns of matrices
    tied: bool = True  # logits with the constant of the embedding


def write_optimum(directory: Path, checkpoint: Checkpoint, style: Style | None = None) -> Path:
    """Write encoder and decoder as optimum-intel does, for a prompt of four tokens."""
    style = style or Style()
    encoder, decoder = _Graph(checkpoint, style), _Graph(checkpoint, style)
    hidden = decoder.input("encoder_hidden_states", (1, checkpoint.dims.n_audio_ctx, checkpoint.dims.n_audio_state))
    ids = decoder.input("decoder_input_ids", (1, 4), np.int64)
    positions = ops.slice(decoder.weight("decoder.embed_positions.weight"), [0], [4], [1], [0])
    _save(directory / "openvino_encoder_model.xml", encoder, {"last_hidden_state": encoder.encoder()})
    _save(directory / "openvino_decoder_model.xml", decoder, {"logits": decoder.decoder(ids, positions, hidden)})
    return directory


def write_triple(directory: Path, checkpoint: Checkpoint, style: Style | None = None, *, n_slots: int = 31) -> Path:
    """Write encoder, cross-KV and a decoder of one token with a cache, as people have them for NPUs."""
    style = style or Style()
    dims = checkpoint.dims
    encoder, cross, decoder = (_Graph(checkpoint, style) for _ in range(3))
    _save(directory / "whisper_medium_encoder.xml", encoder, {"last_hidden_state": encoder.encoder()})
    hidden = cross.input("encoder_hidden_states", (1, dims.n_audio_ctx, dims.n_audio_state))
    outputs = {
        f"present_key_values.{i}.encoder.{kind}": cross.heads(
            cross.linear(hidden, f"decoder.layers.{i}.encoder_attn.{kind[0]}_proj"), dims.n_text_head
        )
        for i in range(dims.n_text_layer)
        for kind in ("key", "value")
    }
    _save(directory / "whisper_medium_encoder_decoder_cross_kv.xml", cross, outputs)
    ids, place = (
        decoder.input(name, shape, np.int64) for name, shape in (("input_ids", (1, 1)), ("position_ids", (1,)))
    )
    positions = ops.gather(decoder.weight("decoder.embed_positions.weight"), place, np.int64(0))
    logits = decoder.decoder(ids, positions, None, n_slots)
    _save(
        directory / f"whisper_medium_decoder_static_kvcache_{n_slots + 1}_lm_QKs.xml",
        decoder,
        {"logits": logits, **decoder.outputs},
    )
    return directory


def _save(path: Path, graph: "_Graph", outputs: dict[str, ov.Node]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = []
    for name, node in outputs.items():
        node.output(0).set_names({name})
        results.append(ops.result(node))
    ov.save_model(ov.Model(results, graph.inputs, "main_graph"), path, compress_to_fp16=False)


@dataclass
class _Graph:
    """Layers of Whisper in the nodes that exporters write."""

    checkpoint: Checkpoint
    style: Style
    inputs: list[ov.Node] = field(default_factory=list)
    outputs: dict[str, ov.Node] = field(default_factory=dict)

    def input(self, name: str, shape: Sequence[int], dtype: type[np.generic] = np.float32) -> ov.Node:
        node = ops.parameter(list(shape), dtype, name)
        node.output(0).set_names({name})
        self.inputs.append(node)
        return node

    def encoder(self) -> ov.Node:
        dims = self.checkpoint.dims
        x = self.input("input_features", (1, dims.n_mels, 2 * dims.n_audio_ctx))
        for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
            x = ops.convolution(x, self.weight(f"{name}.weight"), [stride], [1], [1], [1])
            x = ops.gelu(ops.add(x, self.weight(f"{name}.bias", (1, -1, 1))), "erf")
        x = ops.add(
            ops.transpose(x, [0, 2, 1]), self.weight("encoder.embed_positions.weight", (1, dims.n_audio_ctx, -1))
        )
        for i in range(dims.n_audio_layer):
            prefix = f"encoder.layers.{i}"
            normed = self.norm(x, f"{prefix}.self_attn_layer_norm")
            keys, values = (
                self.heads(self.linear(normed, f"{prefix}.self_attn.{part}_proj"), dims.n_audio_head) for part in "kv"
            )
            x = ops.add(x, self.attention(normed, keys, values, f"{prefix}.self_attn", dims.n_audio_head))
            x = self.feed_forward(x, prefix)
        return self.norm(x, "encoder.layer_norm")

    def decoder(self, ids: ov.Node, positions: ov.Node, hidden: ov.Node | None, n_slots: int = 0) -> ov.Node:
        """Return the logits; without `hidden` the keys and values of cross-attention are inputs, and so is a cache."""
        dims = self.checkpoint.dims
        shape, n_head = (1, dims.n_text_head, n_slots, dims.text_head_size), dims.n_text_head
        table = self.weight("decoder.embed_tokens.weight")
        x = ops.add(ops.gather(table, ids, np.int64(0)), positions)
        mask = None
        if n_slots:
            mask = ops.reshape(self.input("attention_mask", (1, n_slots + 1)), [1, 1, 1, n_slots + 1], False)
            mask = ops.multiply(ops.subtract(ops.constant(np.float32(1)), mask), ops.constant(np.float32(-65504)))
        for i in range(dims.n_text_layer):
            prefix = f"decoder.layers.{i}"
            normed = self.norm(x, f"{prefix}.self_attn_layer_norm")
            cached = []
            for kind in ("key", "value"):
                new = self.heads(self.linear(normed, f"{prefix}.self_attn.{kind[0]}_proj"), n_head)
                if n_slots:
                    self.outputs[f"present_key_values.{i}.decoder.{kind}"] = new
                    new = ops.concat([self.input(f"past_key_values.{i}.decoder.{kind}", shape), new], 2)
                cached.append(new)
            x = ops.add(x, self.attention(normed, cached[0], cached[1], f"{prefix}.self_attn", n_head, mask))
            name = f"{prefix}.encoder_attn"
            normed = self.norm(x, f"{name}_layer_norm")
            keys, values = (
                self.input(f"past_key_values.{i}.encoder.{kind}", (1, n_head, dims.n_audio_ctx, shape[-1]))
                if hidden is None
                else self.heads(self.linear(hidden, f"{name}.{kind[0]}_proj"), n_head)
                for kind in ("key", "value")
            )
            x = self.feed_forward(ops.add(x, self.attention(normed, keys, values, name, n_head)), prefix)
        table = table if self.style.tied else self.weight("proj_out.weight")
        return ops.matmul(self.norm(x, "decoder.layer_norm"), table, False, True)

    def weight(self, name: str, shape: Sequence[int] | None = None, times: float = 1.0) -> ov.Node:
        values = self.checkpoint.tensors[name]
        values = values * values.dtype.type(times)
        return self.style.store(values.reshape(shape) if shape else values)

    def linear(self, x: ov.Node, name: str, times: float = 1.0, later: float = 1.0) -> ov.Node:
        """Weights are multiplied by `times`; by `later` what comes of them, before the bias is added."""
        values = self.checkpoint.tensors[f"{name}.weight"]
        values = values * values.dtype.type(times)
        stored = self.style.store(values.T.copy() if self.style.transposed else values)
        y = scaled(ops.matmul(x, stored, False, not self.style.transposed), later)
        if f"{name}.bias" not in self.checkpoint.tensors:
            return y
        return ops.add(y, self.weight(f"{name}.bias", (1, 1, -1), times * later))

    def norm(self, x: ov.Node, name: str) -> ov.Node:
        y = ops.multiply(ops.mvn(x, [-1], True, 1e-5, "inside_sqrt"), self.weight(f"{name}.weight", (1, 1, -1)))
        return ops.add(y, self.weight(f"{name}.bias", (1, 1, -1)))

    def heads(self, x: ov.Node, n_head: int) -> ov.Node:
        width = self.checkpoint.dims.n_text_state
        return ops.transpose(ops.reshape(x, [1, -1, n_head, width // n_head], False), [0, 2, 1, 3])

    def attention(
        self, x: ov.Node, keys: ov.Node, values: ov.Node, name: str, n_head: int, mask: ov.Node | None = None
    ) -> ov.Node:
        width = self.checkpoint.dims.n_text_state
        scale, place = (width // n_head) ** -0.5, self.style.scale
        at = {wanted: scale if wanted == place else 1.0 for wanted in SCALES}
        queries = self.linear(x, f"{name}.q_proj", at["weights"], at["matrix"])
        queries = self.heads(scaled(queries, at["queries"]), n_head)
        if place == "operation":
            attended = ops.scaled_dot_product_attention(queries, keys, values, mask or np.float32(0), causal=False)
        else:
            if place == "both":
                queries, keys = (scaled(part, scale**0.5) for part in (queries, keys))
            if place == "computed":
                size = ops.convert(ops.slice(ops.shape_of(queries), [3], [4], [1]), "f32")
                root = ops.sqrt(ops.sqrt(size))
                queries, keys = ops.divide(queries, root), ops.divide(keys, root)
            scores = scaled(ops.matmul(queries, keys, False, True), at["product"])
            attended = ops.matmul(
                ops.softmax(scores if mask is None else ops.add(scores, mask), -1), values, False, False
            )
        merged = ops.reshape(ops.transpose(attended, [0, 2, 1, 3]), [1, -1, width], False)
        return self.linear(merged, f"{name}.out_proj")

    def feed_forward(self, x: ov.Node, prefix: str) -> ov.Node:
        hidden = ops.gelu(self.linear(self.norm(x, f"{prefix}.final_layer_norm"), f"{prefix}.fc1"), "erf")
        return ops.add(x, self.linear(hidden, f"{prefix}.fc2"))


def scaled(x: ov.Node, times: float) -> ov.Node:
    return x if times == 1.0 else ops.multiply(x, ops.constant(np.full((1, 1, 1), times, np.float32)))
