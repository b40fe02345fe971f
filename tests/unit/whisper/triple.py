"""Pre-exported triples with the names and shapes that people have.

The decoder is built here and not by `streamer.whisper.graphs`: names, layout and masks are those of others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.whisper.device.masks import MaskConvention
from streamer.whisper.graphs.build import build_cross_kv, build_encoder
from streamer.whisper.graphs.ports import key_values
from streamer.whisper.weights.checkpoint import Checkpoint

LARGE = 65504.0  # the largest number of float16, which exports use for "hidden"


def write_triple(
    directory: Path,
    checkpoint: Checkpoint,
    convention: MaskConvention,
    *,
    size_name: str = "medium",
    capacity: int = 224,
    **options: Any,  # noqa: ANN401 - the decoder's
) -> Path:
    """Write the three graphs; the decoder takes `capacity` tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    name = f"whisper_{size_name}"
    encoder = build_encoder(checkpoint.dims, checkpoint.tensors)
    ov.save_model(encoder, directory / f"{name}_encoder.xml", compress_to_fp16=True)
    halved = ov.preprocess.PrePostProcessor(build_cross_kv(checkpoint.dims, checkpoint.tensors))
    for output in key_values(checkpoint.dims.n_text_layer, "encoder"):
        halved.output(f"present_{output}").tensor().set_element_type(ov.Type.f16)
    ov.save_model(halved.build(), directory / f"{name}_encoder_decoder_cross_kv.xml", compress_to_fp16=True)
    decoder = build_decoder(checkpoint, convention, capacity=capacity, **options)
    ov.save_model(decoder, directory / decoder_name(capacity, size_name), compress_to_fp16=True)
    return directory


def decoder_name(capacity: int = 224, size_name: str = "medium") -> str:
    return f"whisper_{size_name}_decoder_static_kvcache_{capacity}_lm_QKs.xml"


def build_decoder(
    checkpoint: Checkpoint,
    convention: MaskConvention,
    *,
    capacity: int = 224,
    mask_type: type[np.generic] = np.float32,
    position_shape: Sequence[int] = (1,),
    cache_type: type[np.generic] = np.float32,
    cross_type: type[np.generic] = np.float16,
    cross_names: bool = True,
) -> ov.Model:
    """Return a decoder; `cross_names` gives its attention telling names."""
    dims, graph = checkpoint.dims, _Graph(checkpoint.tensors)
    n_slots, n_head, size = capacity - 1, dims.n_text_head, dims.text_head_size
    ids = graph.input("input_ids", (1, 1), np.int64)
    mask = graph.input("attention_mask", (1, capacity), mask_type)
    positions = ops.reshape(graph.input("position_ids", position_shape, np.int64), [1], False)
    x = ops.add(
        ops.gather(graph.weight("decoder.embed_tokens.weight"), ids, np.int64(0)),
        ops.gather(graph.weight("decoder.embed_positions.weight"), positions, np.int64(0)),
    )
    # What is added to the scores.
    bias = ops.convert(ops.reshape(mask, [1, 1, 1, capacity], False), "f32")
    if convention.shown == 1:
        bias = ops.multiply(ops.subtract(ops.constant(np.float32(1)), bias), ops.constant(np.float32(-LARGE)))
    outputs: dict[str, ov.Node] = {}
    attentions: dict[str, ov.Node] = {}
    for i in range(dims.n_text_layer):
        prefix = f"decoder.layers.{i}"
        normed = graph.norm(x, f"{prefix}.self_attn_layer_norm")
        q, k, v = (graph.heads(normed, f"{prefix}.self_attn.{p}_proj", n_head) for p in "qkv")
        buffers = []
        for kind, value in (("key", k), ("value", v)):
            past = graph.input(f"past_key_values.{i}.decoder.{kind}", (1, n_head, n_slots, size), cache_type)
            buffers.append(ops.concat([ops.convert(past, "f32"), value], 2))
            outputs[f"present_key_values.{i}.decoder.{kind}"] = ops.convert(value, cache_type)
        keys, values = buffers
        attended, _ = graph.attend(q, keys, values, bias)
        x = ops.add(x, graph.merge(attended, f"{prefix}.self_attn.out_proj"))

        q = graph.heads(graph.norm(x, f"{prefix}.encoder_attn_layer_norm"), f"{prefix}.encoder_attn.q_proj", n_head)
        keys, values = (
            ops.convert(
                graph.input(f"past_key_values.{i}.encoder.{kind}", (1, n_head, dims.n_audio_ctx, size), cross_type),
                "f32",
            )
            for kind in ("key", "value")
        )
        attended, weights = graph.attend(q, keys, values)
        attentions[f"/decoder/layers.{i}/encoder_attn/Softmax_output_0" if cross_names else f"{900 + i}"] = ops.reshape(
            weights, [n_head, 1, dims.n_audio_ctx], False
        )
        x = ops.add(x, graph.merge(attended, f"{prefix}.encoder_attn.out_proj"))
        x = graph.feed_forward(x, prefix)
    logits = ops.matmul(graph.norm(x, "decoder.layer_norm"), graph.weight("decoder.embed_tokens.weight"), False, True)
    return graph.model({"logits": logits, **outputs, **attentions})


class _Graph:
    """Layers of Whisper in the simplest nodes, with attention spelled out."""

    def __init__(self, weights: Mapping[str, FloatArray]) -> None:
        self._weights = weights
        self._inputs: list[ov.Node] = []

    def input(self, name: str, shape: Sequence[int], dtype: type[np.generic] = np.float32) -> ov.Node:
        node = ops.parameter(list(shape), dtype, name)
        node.output(0).set_names({name})
        self._inputs.append(node)
        return node

    def weight(self, name: str) -> ov.Node:
        return ops.constant(np.ascontiguousarray(self._weights[name], dtype=np.float32))

    def linear(self, x: ov.Node, name: str) -> ov.Node:
        y = ops.matmul(x, self.weight(f"{name}.weight"), False, True)
        return ops.add(y, self.weight(f"{name}.bias")) if f"{name}.bias" in self._weights else y

    def norm(self, x: ov.Node, name: str) -> ov.Node:
        normed = ops.mvn(x, [-1], True, 1e-5, "inside_sqrt")
        return ops.add(ops.multiply(normed, self.weight(f"{name}.weight")), self.weight(f"{name}.bias"))

    def heads(self, x: ov.Node, name: str, n_head: int) -> ov.Node:
        width = self._weights[f"{name}.weight"].shape[0]
        return ops.transpose(ops.reshape(self.linear(x, name), [1, -1, n_head, width // n_head], False), [0, 2, 1, 3])

    def attend(self, q: ov.Node, k: ov.Node, v: ov.Node, bias: ov.Node | None = None) -> tuple[ov.Node, ov.Node]:
        """Return what is attended to, and the weights."""
        scale = np.float32(q.get_output_shape(0)[-1] ** -0.5)
        scores = ops.matmul(ops.multiply(q, ops.constant(scale)), k, False, True)
        if bias is not None:
            scores = ops.add(scores, bias)
        weights = ops.softmax(scores, -1)
        return ops.matmul(weights, v, False, False), weights

    def merge(self, x: ov.Node, name: str) -> ov.Node:
        width = self._weights[f"{name}.weight"].shape[1]
        return self.linear(ops.reshape(ops.transpose(x, [0, 2, 1, 3]), [1, -1, width], False), name)

    def feed_forward(self, x: ov.Node, prefix: str) -> ov.Node:
        hidden = ops.gelu(self.linear(self.norm(x, f"{prefix}.final_layer_norm"), f"{prefix}.fc1"), "erf")
        return ops.add(x, self.linear(hidden, f"{prefix}.fc2"))

    def model(self, outputs: Mapping[str, ov.Node]) -> ov.Model:
        results = []
        for name, node in outputs.items():
            node.output(0).set_names({name})
            results.append(ops.result(node))
        return ov.Model(results, self._inputs, "main_graph")


class TripleDecoder:
    """A `MaskedDecoder` over a request that knows nothing of the runtime."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._tensors: dict[str, ov.Tensor] = {}
        for port in compiled.inputs:
            self._tensors[port.any_name] = ov.Tensor(port.element_type, port.shape)
            self._tensors[port.any_name].data[...] = 0
            self._request.set_tensor(port, self._tensors[port.any_name])
        names = [name for name in self._tensors if ".decoder." in name]
        self.mask: NDArray[Any] = self._tensors["attention_mask"].data[0]
        self.cache: list[FloatArray] = [self._tensors[name].data for name in names]
        self._present = [name.replace("past", "present") for name in names]

    @property
    def present(self) -> list[FloatArray]:
        return [self._request.get_tensor(name).data for name in self._present]

    def output(self, name: str) -> FloatArray:
        """Return an output of the last `compute`."""
        values: FloatArray = self._request.get_tensor(name).data
        return values

    def compute(self, token: int, position: int) -> FloatArray:
        self._tensors["input_ids"].data[...] = token
        self._tensors["position_ids"].data[...] = position
        self._request.infer()
        logits: FloatArray = self._request.get_tensor("logits").data[0, 0].copy()
        return logits

    def use(self, cross: Mapping[str, FloatArray]) -> None:
        """Decode a window from now on; `cross` is by the names of the cross-KV's outputs."""
        for name, values in cross.items():
            self._tensors[name.replace("present", "past")].data[...] = values

    def decode(self, convention: MaskConvention, tokens: Sequence[int]) -> FloatArray:
        """Feed tokens from an empty cache on; return their logits, shape (n, n_vocab)."""
        rows = []
        n_slots = len(self.mask) - 1
        for n, token in enumerate(tokens):
            convention.write(self.mask, n)
            rows.append(self.compute(token, n))
            if n < n_slots:
                for slots, present in zip(self.cache, self.present, strict=True):
                    slots[:, :, n] = present[:, :, 0]
        return np.array(rows)
