"""Whisper's three OpenVINO graphs, built from named weights with the opset API.

An NPU needs fixed shapes, so every graph that runs has them, on every device: what is tested on a CPU is what runs on
an NPU. The decoder is built once for any number of tokens, and fixed to each number that is used, so that its weights
are held once. Each graph is built for 30 s of audio, and can be fixed to less.
Architecture: Radford et al. (2022), section 2.2; the pre-norm transformer of openai-whisper's `model.py`.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.arrays import FloatArray
from streamer.audio.constants import N_FRAMES
from streamer.errors import ModelError
from streamer.whisper.dims import Heads, ModelDimensions

LAYER_NORM_EPSILON = 1e-5  # torch.nn.LayerNorm's default, which Whisper was trained with

# Added to the attention score of a hidden slot. exp(-30000) is 0 in every float type, and it fits float16.
HIDDEN_SCORE = -30_000.0

Weights = Mapping[str, FloatArray]


def build_encoder(dims: ModelDimensions, weights: Weights) -> ov.Model:
    """Build `input_features (1, n_mels, 3000)` -> `last_hidden_state (1, 1500, n_audio_state)`.

    `fix_window` makes one for less audio of it.
    """
    build = _Builder(weights)
    features = build.parameter("input_features", (1, dims.n_mels, N_FRAMES))
    x = build.gelu(build.convolution(features, "encoder.conv1", stride=1))
    x = build.gelu(build.convolution(x, "encoder.conv2", stride=2))
    x = ops.transpose(x, build.integers([0, 2, 1]))
    # As many positions as there are: all, unless the graph is fixed to a shorter window.
    length = ops.gather(ops.shape_of(x), build.integers([1]), ops.constant(np.int64(0)))
    positions = build.weight("encoder.embed_positions.weight")
    x = ops.add(x, ops.slice(positions, build.integers([0]), length, build.integers([1]), build.integers([0])))
    for i in range(dims.n_audio_layer):
        prefix = f"encoder.layers.{i}"
        normed = build.layer_norm(x, f"{prefix}.self_attn_layer_norm")
        query, key, value = (
            build.heads(build.linear(normed, f"{prefix}.self_attn.{p}_proj"), dims.n_audio_head, dims.audio_head_size)
            for p in ("q", "k", "v")
        )
        attended, _ = build.attention(query, [key], [value])
        x = ops.add(x, build.linear(build.merge_heads(attended, dims.n_audio_state), f"{prefix}.self_attn.out_proj"))
        x = build.feed_forward(x, prefix)
    return build.model({"last_hidden_state": build.layer_norm(x, "encoder.layer_norm")}, "whisper_encoder")


def build_cross_kv(dims: ModelDimensions, weights: Weights) -> ov.Model:
    """Build `encoder_hidden_states` -> `present_key_values.{i}.encoder.{key,value} (1, n_head, 1500, head)`."""
    build = _Builder(weights)
    hidden = build.parameter("encoder_hidden_states", (1, dims.n_audio_ctx, dims.n_audio_state))
    outputs = {
        f"present_key_values.{i}.encoder.{kind}": build.heads(
            build.linear(hidden, f"decoder.layers.{i}.encoder_attn.{kind[0]}_proj"),
            dims.n_text_head,
            dims.text_head_size,
        )
        for i in range(dims.n_text_layer)
        for kind in ("key", "value")
    }
    return build.model(outputs, "whisper_cross_kv")


def build_decoder(dims: ModelDimensions, weights: Weights, alignment_heads: Heads) -> ov.Model:
    """Build the decoder for any number of tokens (T) a call, after any number of cached slots (P).

    Inputs: `input_ids (1, T)` i64, `position_ids (T)` i64, `attention_mask (T, P + T)` f32 with 1 = attend,
    `past_key_values.{i}.decoder.{key,value} (1, n_head, P, head)`, `past_key_values.{i}.encoder.{key,value}
    (1, n_head, 1500, head)`.

    Outputs: `logits (1, T, n_vocab)`, `present_key_values.{i}.decoder.{key,value} (1, n_head, T, head)`, and
    `cross_attention (1, n_alignment_heads, T, 1500)`, the softmax weights of the alignment heads.

    Each token has a row of the mask: the cached slots and the tokens of its own call that it sees. So a call may
    continue one sequence by several tokens, or several sequences by one each. Before the graph is compiled, `fix_sizes`
    gives it its T and P.
    """
    build = _Builder(weights)
    ids = build.parameter("input_ids", (1, -1), np.int64)
    positions = build.parameter("position_ids", (-1,), np.int64)
    mask = build.parameter("attention_mask", (-1, -1))

    zero = ops.constant(np.int64(0))
    x = ops.add(
        ops.gather(build.weight("decoder.embed_tokens.weight"), ids, zero),
        ops.gather(build.weight("decoder.embed_positions.weight"), positions, zero),
    )
    visible = ops.unsqueeze(mask, build.integers([0, 1]))
    bias = ops.multiply(ops.subtract(build.floats(1.0), visible), build.floats(HIDDEN_SCORE))

    outputs: dict[str, ov.Output] = {}
    aligned: dict[tuple[int, int], ov.Node] = {}
    for i in range(dims.n_text_layer):
        prefix = f"decoder.layers.{i}"
        normed = build.layer_norm(x, f"{prefix}.self_attn_layer_norm")
        # In one go: at a token a call, small multiplications cost more than their weights take to read.
        projected = build.linears(normed, [f"{prefix}.self_attn.{p}_proj" for p in ("q", "k", "v")])
        heads = build.heads(projected, 3 * dims.n_text_head, dims.text_head_size)
        query, key, value = build.thirds(heads, dims.n_text_head)
        outputs[f"present_key_values.{i}.decoder.key"] = key
        outputs[f"present_key_values.{i}.decoder.value"] = value
        cache = (1, dims.n_text_head, -1, dims.text_head_size)
        keys = [build.parameter(f"past_key_values.{i}.decoder.key", cache), key]
        values = [build.parameter(f"past_key_values.{i}.decoder.value", cache), value]
        attended, _ = build.attention(query, keys, values, bias)
        x = ops.add(x, build.linear(build.merge_heads(attended, dims.n_text_state), f"{prefix}.self_attn.out_proj"))

        normed = build.layer_norm(x, f"{prefix}.encoder_attn_layer_norm")
        query = build.heads(
            build.linear(normed, f"{prefix}.encoder_attn.q_proj"), dims.n_text_head, dims.text_head_size
        )
        cross = (1, dims.n_text_head, dims.n_audio_ctx, dims.text_head_size)
        keys = [build.parameter(f"past_key_values.{i}.encoder.key", cross)]
        values = [build.parameter(f"past_key_values.{i}.encoder.value", cross)]
        attended, shares = build.attention(query, keys, values)
        for layer, head in alignment_heads:
            if layer == i:
                aligned[i, head] = ops.gather(shares, build.integers([head]), ops.constant(np.int64(1)))
        x = ops.add(x, build.linear(build.merge_heads(attended, dims.n_text_state), f"{prefix}.encoder_attn.out_proj"))
        x = build.feed_forward(x, prefix)

    x = build.layer_norm(x, "decoder.layer_norm")
    outputs["logits"] = ops.matmul(x, build.weight("proj_out.weight", "decoder.embed_tokens.weight"), False, True)
    if alignment_heads:
        outputs["cross_attention"] = ops.concat([aligned[layer, head] for layer, head in alignment_heads], 1)
    return build.model(outputs, "whisper_decoder")


def fix_window(graph: ov.Model, n_audio_ctx: int) -> ov.Model:
    """Return a copy of an encoder or a cross-KV for a shorter window, of `n_audio_ctx` positions of 20 ms.

    The weights are not copied. Raises ModelError where the graph cannot be shortened, as those of others cannot.
    """
    fixed = graph.clone()
    shapes: dict[str, list[int]] = {}
    for port in fixed.inputs:
        n, width, length = port.shape
        features = "input_features" in port.names
        shapes[port.any_name] = [n, width, 2 * n_audio_ctx] if features else [n, n_audio_ctx, length]
    _reshape(fixed, shapes)
    fixed.set_friendly_name(f"{graph.get_friendly_name()}_{n_audio_ctx}")
    return fixed


def fix_sizes(decoder: ov.Model, n_tokens: int, n_slots: int, n_audio_ctx: int | None = None) -> ov.Model:
    """Return a copy of a decoder for exactly `n_tokens` tokens a call and `n_slots` cached slots: all shapes are fixed.

    n_audio_ctx : positions of the window that it looks at; None: those of 30 s

    The weights are not copied: all graphs that are made of one decoder look at the same memory.
    """
    fixed = decoder.clone()
    shapes: dict[str, list[int]] = {
        "input_ids": [1, n_tokens],
        "position_ids": [n_tokens],
        "attention_mask": [n_tokens, n_slots + n_tokens],
    }
    for port in fixed.inputs:
        if ".decoder." in port.any_name:
            _, n_head, _, head_size = port.partial_shape
            shapes[port.any_name] = [1, n_head.get_length(), n_slots, head_size.get_length()]
        elif ".encoder." in port.any_name and n_audio_ctx is not None:
            n, n_head, _, head_size = port.shape
            shapes[port.any_name] = [n, n_head, n_audio_ctx, head_size]
    _reshape(fixed, shapes)
    fixed.set_friendly_name("_".join(map(str, filter(None, [decoder.get_friendly_name(), n_tokens, n_audio_ctx]))))
    return fixed


def _reshape(graph: ov.Model, shapes: dict[str, list[int]]) -> None:
    try:
        graph.reshape(shapes)
    except RuntimeError:
        sizes = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:3])
        raise ModelError(
            f"the graph {graph.get_friendly_name()!r:.80} cannot take {sizes:.200}: it was made for other sizes alone;"
            " leave model.windows_s out, or convert the original checkpoint again with `streamer models convert`"
        ) from None


class _Builder:
    """Layers of Whisper as opset nodes, with the parameters met on the way."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        # Asked of this and not of the mapping, which would read the tensor to answer.
        self._names = frozenset(weights)
        # Inputs of the graph, in the order in which they were made.
        self._parameters: list[ov.Node] = []
        # Nodes of the weights already used, so that a tied weight is held once.
        self._constants: dict[str, ov.Node] = {}

    def parameter(self, name: str, shape: Sequence[int], dtype: type[np.generic] = np.float32) -> ov.Node:
        node = ops.parameter(list(shape), dtype, name)
        node.output(0).set_names({name})
        self._parameters.append(node)
        return node

    def model(self, outputs: Mapping[str, ov.Node], name: str) -> ov.Model:
        results = []
        for port, node in outputs.items():
            result = ops.result(node)
            result.output(0).set_names({port})
            result.set_friendly_name(port)
            results.append(result)
        return ov.Model(results, self._parameters, name)

    def weight(self, *names: str) -> ov.Node:
        """Return the first of these weights that the model has."""
        name = next(name for name in names if name in self._names)
        if name not in self._constants:
            self._constants[name] = self.constant(self._weights[name])
        return self._constants[name]

    def constant(self, array: FloatArray) -> ov.Node:
        # The node looks at the array's own memory and keeps it alive. It asks for one that could be written to.
        array = np.require(array, requirements=["C", "ALIGNED", "WRITEABLE"])
        constant = ops.constant(array, shared_memory=True)
        return constant if array.dtype == np.float32 else ops.convert(constant, "f32")

    def floats(self, values: float | FloatArray) -> ov.Node:
        return ops.constant(np.asarray(values, dtype=np.float32))

    def integers(self, values: Sequence[int]) -> ov.Node:
        return ops.constant(np.asarray(values, dtype=np.int64))

    def linear(self, x: ov.Node, prefix: str) -> ov.Node:
        y = ops.matmul(x, self.weight(f"{prefix}.weight"), False, True)
        return ops.add(y, self.weight(f"{prefix}.bias")) if f"{prefix}.bias" in self._names else y

    def linears(self, x: ov.Node, prefixes: Sequence[str]) -> ov.Node:
        """Return the outputs of several layers with the same input, one behind the other; not all need a bias."""
        weights = [self._weights[f"{prefix}.weight"] for prefix in prefixes]
        biases = [
            self._weights[name] if (name := f"{prefix}.bias") in self._names else np.zeros(len(weight), weight.dtype)
            for prefix, weight in zip(prefixes, weights, strict=True)
        ]
        y = ops.matmul(x, self.constant(np.concatenate(weights)), False, True)
        return ops.add(y, self.constant(np.concatenate(biases)))

    def layer_norm(self, x: ov.Node, prefix: str) -> ov.Node:
        normed = ops.mvn(x, self.integers([-1]), True, LAYER_NORM_EPSILON, "inside_sqrt")
        return ops.add(ops.multiply(normed, self.weight(f"{prefix}.weight")), self.weight(f"{prefix}.bias"))

    def gelu(self, x: ov.Node) -> ov.Node:
        return ops.gelu(x, "erf")

    def convolution(self, x: ov.Node, prefix: str, stride: int) -> ov.Node:
        y = ops.convolution(x, self.weight(f"{prefix}.weight"), [stride], [1], [1], [1])
        bias = self._weights[f"{prefix}.bias"].astype(np.float32)
        return ops.add(y, self.floats(bias[None, :, None]))

    def heads(self, x: ov.Node, n_head: int, head_size: int) -> ov.Node:
        split = ops.reshape(x, self.integers([1, -1, n_head, head_size]), False)
        return ops.transpose(split, self.integers([0, 2, 1, 3]))

    def merge_heads(self, x: ov.Node, width: int) -> ov.Node:
        return ops.reshape(ops.transpose(x, self.integers([0, 2, 1, 3])), self.integers([1, -1, width]), False)

    def attention(
        self, query: ov.Node, keys: Sequence[ov.Node], values: Sequence[ov.Node], bias: ov.Node | None = None
    ) -> tuple[ov.Node, ov.Node]:
        """Return what each query attends to, and how much to each place; keys and values may come in several pieces.

        Spelled out: OpenVINO's fused operation wants one piece, and on a CPU transposes all keys at each call, which
        for a single query takes longer than to attend.
        """
        head_size = keys[0].get_output_partial_shape(0)[3].get_length()
        query = ops.multiply(query, self.floats(head_size**-0.5))
        scores = [ops.matmul(query, key, False, True) for key in keys]
        score = scores[0] if len(scores) == 1 else ops.concat(scores, -1)
        shares = ops.softmax(score if bias is None else ops.add(score, bias), -1)
        if len(values) == 1:
            return ops.matmul(shares, values[0], False, False), shares
        lengths = [ops.gather(ops.shape_of(value), self.integers([2]), self.integers([0])) for value in values]
        pieces = ops.variadic_split(shares, self.integers([-1]), ops.concat(lengths, 0)).outputs()
        attended = [ops.matmul(piece, value, False, False) for piece, value in zip(pieces, values, strict=True)]
        return reduce(ops.add, attended), shares

    def thirds(self, x: ov.Node, length: int) -> list[ov.Node]:
        """Return three pieces of the second axis, of this length each.

        Not by a split as the attention's: the NPU plugin's CPU path takes the two for one and the same.
        """
        step, axis = self.integers([1]), self.integers([1])
        bounds = [self.integers([i * length]) for i in range(4)]
        return [ops.slice(x, begin, end, step, axis) for begin, end in itertools.pairwise(bounds)]

    def feed_forward(self, x: ov.Node, prefix: str) -> ov.Node:
        normed = self.layer_norm(x, f"{prefix}.final_layer_norm")
        return ops.add(x, self.linear(self.gelu(self.linear(normed, f"{prefix}.fc1")), f"{prefix}.fc2"))
