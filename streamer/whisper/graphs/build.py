"""Whisper's three OpenVINO graphs, built from named weights with the opset API.

An NPU needs fixed shapes, so every graph that runs has them, on every device: what is tested on a CPU is what runs on
an NPU. The decoder is built once for any number of tokens, and fixed to each number that is used, so that its weights
are held once. Each graph is built for 30 s of audio, and can be fixed to less.
Architecture: Radford et al. (2022), section 2.2; the pre-norm transformer of openai-whisper's `model.py`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.arrays import FloatArray
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.graphs.compress import INTEGERS, constant
from streamer.whisper.graphs.ports import EMBEDDED, HIDDEN, LOOKED_UP, Ports, Shape, dtype_of, ports
from streamer.whisper.weights.checkpoint import Checkpoint

LAYER_NORM_EPSILON = 1e-5  # torch.nn.LayerNorm's default, which Whisper was trained with

# Added to the attention score of a hidden slot. exp(-30000) is 0 in every float type, and it fits float16.
HIDDEN_SCORE = -30_000.0

# Among which NPUs of the generations 4000 and 5010 divide the heads.
NPU_TILES = 4

Weights = Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class ModelGraphs:
    """The graphs of one model, each built when it is asked for."""

    dims: ModelDimensions

    # Layer and head of each row of the decoder's cross-attention.
    alignment_heads: Heads

    # By stage; they may raise ModelError. The decoder is for any number of tokens and slots.
    build: Mapping[str, Callable[[], ov.Model]]

    # By stage, those for windows of less than 30 s, if they are others.
    build_short: Mapping[str, Callable[[], ov.Model]] = field(default_factory=dict)

    # Whether matrices become whole numbers.
    has_integers: bool = False

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, alignment_heads: Heads, precision: str = "f32", short: Checkpoint | None = None
    ) -> "ModelGraphs":
        """Return the graphs of a checkpoint, with weights in a precision (see `compress`).

        short : the checkpoint whose encoder and cross-KV are for windows of less than 30 s, if it is another
        """
        dims, tensors = checkpoint.dims, checkpoint.tensors

        def encoding(weights: Weights) -> dict[str, Callable[[], ov.Model]]:
            return {
                "encoder": lambda: build_encoder(dims, weights, precision),
                "cross_kv": lambda: build_cross_kv(dims, weights, precision),
            }

        build = encoding(tensors) | {"decoder": lambda: build_decoder(dims, tensors, alignment_heads, precision)}
        build_short = {} if short is None else encoding(short.tensors)
        return cls(dims, alignment_heads, build, build_short, precision in INTEGERS)


def build_encoder(dims: ModelDimensions, weights: Weights, precision: str = "f32") -> ov.Model:
    """Build the encoder, from a spectrogram to hidden states, for 30 s; `fix_sizes` makes one for less audio of it."""
    build = _Builder(weights, ports("encoder", dims), precision)
    x = ops.gelu(build.convolution(build.inputs["input_features"], "encoder.conv1", stride=1), "erf")
    x = ops.gelu(build.convolution(x, "encoder.conv2", stride=2), "erf")
    x = ops.transpose(x, build.integers([0, 2, 1]))
    # As many positions as there are: all, unless the graph is fixed to a shorter window.
    length = ops.gather(ops.shape_of(x), build.integers([1]), ops.constant(np.int64(0)))
    positions = build.plain("encoder.embed_positions.weight")
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


def build_cross_kv(dims: ModelDimensions, weights: Weights, precision: str = "f32") -> ov.Model:
    """Build what makes keys and values for the decoder's cross-attention of the hidden states, for 30 s."""
    build = _Builder(weights, ports("cross_kv", dims), precision)
    hidden = build.inputs["encoder_hidden_states"]
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


def build_decoder(dims: ModelDimensions, weights: Weights, alignment_heads: Heads, precision: str = "f32") -> ov.Model:
    """Build the decoder for any number of tokens (T) a call, after any number of cached slots (P), of any windows (B).

    Each token has a row of the mask, with 1 for the cached slots and the tokens of its own call that it sees. So a call
    may continue one sequence by several tokens, or several sequences by one each. `cross_attention` is the softmax
    weights of the alignment heads. Before the graph is compiled, `fix_sizes` gives it its T, P and B.
    """
    build = _Builder(weights, ports("decoder", dims, len(alignment_heads), n_windows=-1), precision)
    ids, positions, mask = (build.inputs[name] for name in ("input_ids", "position_ids", "attention_mask"))

    zero = ops.constant(np.int64(0))
    # Positions and rows of the mask come one behind the other, whatever window they are of.
    sizes = ops.shape_of(ids)
    placed = ops.gather(build.table("decoder.embed_positions.weight"), ops.reshape(positions, sizes, False), zero)
    x = ops.add(ops.gather(build.table("decoder.embed_tokens.weight"), ids, zero), placed)
    x.set_friendly_name(EMBEDDED)
    visible = ops.reshape(mask, ops.concat([sizes, build.integers([-1])], 0), False)
    visible = ops.unsqueeze(visible, build.integers([1]))
    bias = ops.multiply(ops.subtract(build.floats(1.0), visible), build.floats(HIDDEN_SCORE))

    outputs: dict[str, ov.Output] = {}
    shares_of: dict[int, ov.Node] = {}
    for i in range(dims.n_text_layer):
        prefix = f"decoder.layers.{i}"
        normed = build.layer_norm(x, f"{prefix}.self_attn_layer_norm")
        # In one go: at a token a call, small multiplications cost more than their weights take to read.
        projected = build.linears(normed, [f"{prefix}.self_attn.{p}_proj" for p in ("q", "k", "v")])
        heads = build.heads(projected, 3 * dims.n_text_head, dims.text_head_size)
        query, key, value = build.thirds(heads, dims.n_text_head)
        outputs[f"present_key_values.{i}.decoder.key"] = key
        outputs[f"present_key_values.{i}.decoder.value"] = value
        keys = [build.inputs[f"past_key_values.{i}.decoder.key"], key]
        values = [build.inputs[f"past_key_values.{i}.decoder.value"], value]
        attended, _ = build.attention(query, keys, values, bias)
        x = ops.add(x, build.linear(build.merge_heads(attended, dims.n_text_state), f"{prefix}.self_attn.out_proj"))

        normed = build.layer_norm(x, f"{prefix}.encoder_attn_layer_norm")
        query = build.heads(
            build.linear(normed, f"{prefix}.encoder_attn.q_proj"), dims.n_text_head, dims.text_head_size
        )
        key, value = (build.inputs[f"past_key_values.{i}.encoder.{kind}"] for kind in ("key", "value"))
        attended, shares_of[i] = build.attention(query, [key], [value])
        x = ops.add(x, build.linear(build.merge_heads(attended, dims.n_text_state), f"{prefix}.encoder_attn.out_proj"))
        x = build.feed_forward(x, prefix)

    x = build.layer_norm(x, "decoder.layer_norm")
    outputs["logits"] = ops.matmul(x, build.table("proj_out.weight", "decoder.embed_tokens.weight"), False, True)
    if alignment_heads:
        outputs["cross_attention"] = build.chosen_heads(shares_of, alignment_heads, dims.n_text_head)
    return build.model(outputs, "whisper_decoder")


def fix_sizes(graph: ov.Model, *inputs: Mapping[str, Shape]) -> ov.Model:
    """Return a copy of a graph whose inputs have these shapes; of several, also all between them.

    The weights are not copied: all graphs that are made of one look at the same memory.
    """
    fixed = graph.clone()
    shapes = {
        name: [ov.Dimension(min(sizes), max(sizes)) for sizes in zip(*(shapes[name] for shapes in inputs), strict=True)]
        for name in inputs[0]
    }
    fixed.reshape({name: ov.PartialShape(shape) for name, shape in shapes.items()})
    # The NPU's plugin, where the CPU computes for it, mixes up what it would have to find out from a shape.
    for node in fixed.get_ops():
        if node.get_type_name() == "ShapeOf" and node.get_input_partial_shape(0).is_static:
            size = ops.constant(np.asarray(node.get_input_shape(0), dtype=np.int64))
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(size.output(0))
    return fixed


def lookup_of(decoder: ov.Model) -> ov.Model:
    """Return the part of our decoder that makes vectors of tokens and positions, for any number of them."""
    copy = decoder.clone()
    result = ops.result(_embedded(copy))
    result.output(0).set_names({EMBEDDED})
    return ov.Model([result], [copy.input(name).get_node() for name in LOOKED_UP], "whisper_lookup")


def without_lookup(decoder: ov.Model) -> ov.Model:
    """Return our decoder, of fixed sizes, as one that takes the vectors of `lookup_of`."""
    copy = decoder.clone()
    vectors = _embedded(copy)
    taken = ops.parameter(vectors.get_shape(), vectors.get_element_type(), EMBEDDED)
    taken.output(0).set_names({EMBEDDED})
    for target in vectors.get_target_inputs():
        target.replace_source_output(taken.output(0))
    others = [node for node in copy.get_parameters() if node.output(0).get_names().isdisjoint(LOOKED_UP)]
    return ov.Model(copy.get_results(), [taken, *others], decoder.get_friendly_name())


def logits_of(decoder: ov.Model) -> ov.Model:
    """Return the part of our decoder that makes logits of what its layers give for some tokens, (n_tokens, width)."""
    copy = decoder.clone()
    product = copy.output("logits").get_node().input_value(0).get_node()
    width = product.input(0).get_partial_shape()[-1]
    taken = ops.parameter(ov.PartialShape([-1, width]), np.float32, HIDDEN)
    taken.output(0).set_names({HIDDEN})
    product.input(0).replace_source_output(taken.output(0))
    result = ops.result(product.output(0))
    result.output(0).set_names({"logits"})
    graph = ov.Model([result], [taken], "whisper_logits")
    graph.validate_nodes_and_infer_types()
    return graph


def without_logits(decoder: ov.Model) -> ov.Model:
    """Return our decoder as one that gives what `logits_of` takes, (n_windows, n_tokens, width), in place of logits."""
    copy = decoder.clone()
    result = copy.output("logits").get_node()
    result.input(0).replace_source_output(result.input_value(0).get_node().input_value(0))
    result.output(0).set_names({HIDDEN})
    copy.validate_nodes_and_infer_types()
    return copy


def _embedded(decoder: ov.Model) -> ov.Output:
    """Return what our decoder makes of tokens and positions."""
    return next(node.output(0) for node in decoder.get_ops() if node.get_friendly_name() == EMBEDDED)


class _Builder:
    """Layers of Whisper as opset nodes, and the inputs of the graph that they are put into."""

    def __init__(self, weights: Weights, ports: Ports, precision: str) -> None:
        self._weights = weights
        # Of matrices.
        self._precision = precision
        # Asked of this and not of the mapping, which would read the tensor to answer.
        self._names = frozenset(weights)
        self._ports = ports
        # By name.
        self.inputs: dict[str, ov.Node] = {}
        for name, shape in ports.inputs.items():
            self.inputs[name] = ops.parameter(list(shape), dtype_of(name), name)
            self.inputs[name].output(0).set_names({name})
        # Nodes of the weights already used, so that a tied weight is held once.
        self._constants: dict[str, ov.Node] = {}

    def model(self, outputs: Mapping[str, ov.Node], name: str) -> ov.Model:
        results = []
        for port in self._ports.outputs:
            result = ops.result(outputs[port])
            result.output(0).set_names({port})
            result.set_friendly_name(port)
            results.append(result)
        return ov.Model(results, list(self.inputs.values()), name)

    def table(self, *names: str) -> ov.Node:
        """Return the first of these weights that the model has, which is no plain matrix."""
        name = next(name for name in names if name in self._names)
        if name not in self._constants:
            self._constants[name] = constant(self._weights[name], self._precision)
        return self._constants[name]

    def plain(self, name: str) -> ov.Node:
        """Return weights that are added or multiplied element by element, and so have no integers."""
        precision = "f32" if self._precision == "f32" else "f16"
        return constant(self._weights[name], precision)

    def floats(self, values: float | FloatArray) -> ov.Node:
        return ops.constant(np.asarray(values, dtype=np.float32))

    def integers(self, values: Sequence[int]) -> ov.Node:
        return ops.constant(np.asarray(values, dtype=np.int64))

    def linear(self, x: ov.Node, prefix: str) -> ov.Node:
        y = ops.matmul(x, constant(self._weights[f"{prefix}.weight"], self._precision), False, True)
        return ops.add(y, self.plain(f"{prefix}.bias")) if f"{prefix}.bias" in self._names else y

    def linears(self, x: ov.Node, prefixes: Sequence[str]) -> ov.Node:
        """Return the outputs of several layers with the same input, one behind the other; not all need a bias."""
        weights = [self._weights[f"{prefix}.weight"] for prefix in prefixes]
        biases = [
            self._weights[name] if (name := f"{prefix}.bias") in self._names else np.zeros(len(weight), weight.dtype)
            for prefix, weight in zip(prefixes, weights, strict=True)
        ]
        y = ops.matmul(x, constant(np.concatenate(weights), self._precision), False, True)
        return ops.add(y, constant(np.concatenate(biases), self._precision))

    def layer_norm(self, x: ov.Node, prefix: str) -> ov.Node:
        normed = ops.mvn(x, self.integers([-1]), True, LAYER_NORM_EPSILON, "inside_sqrt")
        return ops.add(ops.multiply(normed, self.plain(f"{prefix}.weight")), self.plain(f"{prefix}.bias"))

    def convolution(self, x: ov.Node, prefix: str, stride: int) -> ov.Node:
        y = ops.convolution(x, self.table(f"{prefix}.weight"), [stride], [1], [1], [1])
        bias = self._weights[f"{prefix}.bias"].astype(np.float32)
        return ops.add(y, self.floats(bias[None, :, None]))

    def heads(self, x: ov.Node, n_head: int, head_size: int) -> ov.Node:
        split = ops.reshape(x, self.integers([0, -1, n_head, head_size]), True)
        return ops.transpose(split, self.integers([0, 2, 1, 3]))

    def merge_heads(self, x: ov.Node, width: int) -> ov.Node:
        return ops.reshape(ops.transpose(x, self.integers([0, 2, 1, 3])), self.integers([0, -1, width]), True)

    def chosen_heads(self, shares: Mapping[int, ov.Node], heads: Heads, n_head: int) -> ov.Node:
        """Return the attention of some heads, one after the other; shares : that of all heads, by layer"""
        axis = ops.constant(np.int64(1))
        if n_head % NPU_TILES == 0:
            return ops.concat([ops.gather(shares[layer], self.integers([head]), axis) for layer, head in heads], 1)
        # Intel's compiler for these fails to take one head out of heads that are not the same number on each tile, but
        # not out of several layers' heads. That takes up to a fifth more of a block's time.
        layers = sorted({layer for layer, _ in heads})
        numbers = [layers.index(layer) * n_head + head for layer, head in heads]
        return ops.gather(ops.concat([shares[layer] for layer in layers], 1), self.integers(numbers), axis)

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
        """Return thirds of the second axis. Not by `variadic_split`: the NPU plugin's CPU path mixes two of them up."""
        step, axis = self.integers([1]), self.integers([1])
        bounds = [self.integers([i * length]) for i in range(4)]
        return [ops.slice(x, begin, end, step, axis) for begin, end in itertools.pairwise(bounds)]

    def feed_forward(self, x: ov.Node, prefix: str) -> ov.Node:
        normed = self.layer_norm(x, f"{prefix}.final_layer_norm")
        return ops.add(x, self.linear(ops.gelu(self.linear(normed, f"{prefix}.fc1"), "erf"), f"{prefix}.fc2"))
