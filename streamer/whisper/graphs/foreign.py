"""Whisper graphs that others exported for NPUs: encoder, cross-KV and a one-token decoder with a fixed key-value cache.

Every size is read from the graphs' ports, never from a table. What differs from our own graphs is adapted here, but for
the meaning of the mask, which only the running graph shows (see `device.masks`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.audio.constants import N_FRAMES
from streamer.errors import ModelError
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.graphs.ports import key_values
from streamer.whisper.ir import probe_graphs, read_graph

# Names of the files of each stage.
_FILES = {
    "encoder": "*_encoder.xml",
    "cross_kv": "*_cross_kv.xml",
    "decoder": "*_decoder_static_kvcache_*.xml",
}

_FLOATS = ("f16", "f32")
_INTEGERS = ("i32", "i64")
_MASKS = (*_FLOATS, *_INTEGERS, "i8", "u8", "boolean")

_CACHE_INPUT = re.compile(r"past_key_values\.(\d{1,3})\.decoder\.key")
_ATTENTION_OUTPUT = re.compile(r"layers\.(\d{1,3})/encoder_attn/.*softmax", re.IGNORECASE)

# A shape, with None where any size will do.
_Shape = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class ForeignTriple:
    """The three graphs of a directory, checked against each other.

    Each is read when it is asked for, its ports named as those of our own graphs, and raises ModelError where the file
    is not any more what it was.
    """

    encoder_path: Path
    cross_kv_path: Path
    decoder_path: Path

    # `n_text_ctx` is the decoder's cache and the current token. The encoder's layers and heads cannot be seen from its
    # ports: they are config.json's, or else an estimate that nothing is computed from.
    dims: ModelDimensions

    # Whether the decoder gives the cross-attention of each layer, which word times need.
    has_attention: bool

    # Types in which one graph hands over to the next.
    hidden_type: ov.Type
    cross_type: ov.Type

    def encoder(self) -> ov.Model:
        return _Graph(self.encoder_path).model

    def cross_kv(self) -> ov.Model:
        return _retyped(_Graph(self.cross_kv_path).model, ["encoder_hidden_states"], self.hidden_type)

    def decoder(self, alignment_heads: Heads) -> ov.Model:
        """Return the decoder of one token a call, which takes what the cross-KV gives.

        Its ports are those of ours, but for the type of what they hold, and the meaning of the mask (see
        `device.masks`). It has to give its cross-attention.
        """
        graph = _Graph(self.decoder_path)
        _give_attention(graph.model, _attention(graph, self.dims), alignment_heads)
        _take_position(graph.model)
        return _retyped(
            graph.model, [f"past_{name}" for name in key_values(self.dims.n_text_layer, "encoder")], self.cross_type
        )


def is_triple(directory: Path) -> bool:
    """Return whether a directory holds OpenVINO graphs of others, whole or in part."""
    return any(_find(directory, pattern) for pattern in _FILES.values())


def load_triple(directory: Path) -> ForeignTriple:
    """Read what three graphs say of their model. Raises ModelError where they are broken, or do not belong together."""
    paths = _find_graphs(directory)
    probe_graphs(list(paths.values()))
    graphs = {stage: _Graph(path) for stage, path in paths.items()}
    encoder, cross_kv, decoder = graphs["encoder"], graphs["cross_kv"], graphs["decoder"]

    encoder.expect_inputs(["input_features"])
    _, n_mels, _ = encoder.expect(encoder.inputs, "input_features", (1, None, N_FRAMES), _FLOATS)
    hidden = encoder.expect(encoder.outputs, "last_hidden_state", (1, None, None), _FLOATS)

    cross_kv.expect_inputs(["encoder_hidden_states"])
    cross_kv.expect(cross_kv.inputs, "encoder_hidden_states", hidden, _FLOATS, encoder)

    layers = {int(match[1]) for name in decoder.inputs if (match := _CACHE_INPUT.fullmatch(name))}
    n_layer = max(layers, default=0) + 1
    cached, cross = (key_values(n_layer, side) for side in ("decoder", "encoder"))
    past = [f"past_{name}" for name in (*cached, *cross)]
    decoder.expect_inputs(["input_ids", "attention_mask", "position_ids", *past])
    cache = decoder.expect(decoder.inputs, past[0], (1, None, None, None), _FLOATS)
    _, n_head, n_slots, head_size = cache
    decoder.expect(decoder.inputs, "input_ids", (1, 1), _INTEGERS)
    decoder.expect(decoder.inputs, "attention_mask", (1, n_slots + 1), _MASKS)
    positions = (1,) * len(decoder.shape(decoder.inputs, "position_ids"))
    decoder.expect(decoder.inputs, "position_ids", positions[:2] or (1,), _INTEGERS)
    for name in cached:
        decoder.expect(decoder.inputs, f"past_{name}", cache, _FLOATS)
        decoder.expect(decoder.outputs, f"present_{name}", (1, n_head, 1, head_size), _FLOATS)
    _, _, n_vocab = decoder.expect(decoder.outputs, "logits", (1, 1, None), _FLOATS)
    for name in cross:
        shape = (1, n_head, hidden[1], head_size)
        cross_kv.expect(cross_kv.outputs, f"present_{name}", shape, _FLOATS, decoder)
        decoder.expect(decoder.inputs, f"past_{name}", shape, _FLOATS, cross_kv)
    given = [name for name in cross_kv.outputs if name.startswith("present_key_values.")]
    extra = next((name for name in given if name.removeprefix("present_") not in cross), None)
    if extra:
        raise ModelError(
            f"{cross_kv.path} has the output {extra!r:.80}, {decoder.path} has no input for it: they are of different"
            " models; fetch all three again from one place"
        )

    dims = ModelDimensions.from_openai(
        {
            "n_mels": n_mels,
            "n_audio_ctx": hidden[1],
            "n_audio_state": hidden[2],
            # As in all published Whispers.
            "n_audio_head": n_head,
            "n_audio_layer": _count_heads(encoder.model, hidden[1]) // n_head or n_layer,
            "n_vocab": n_vocab,
            "n_text_ctx": n_slots + 1,
            "n_text_state": n_head * head_size,
            "n_text_head": n_head,
            "n_text_layer": n_layer,
        },
        directory,
    )
    config_path = directory / "config.json"
    if config_path.exists():
        dims = _check_config(ModelDimensions.from_huggingface(read_json(config_path), config_path), dims, config_path)
    return ForeignTriple(
        paths["encoder"],
        paths["cross_kv"],
        paths["decoder"],
        dims,
        bool(_attention(decoder, dims)),
        encoder.outputs["last_hidden_state"].element_type,
        cross_kv.outputs[f"present_{cross[0]}"].element_type,
    )


def _find_graphs(directory: Path) -> dict[str, Path]:
    found = {stage: _find(directory, pattern) for stage, pattern in _FILES.items()}
    for stage, paths in found.items():
        if not paths:
            others = ", ".join(sorted(path.name for path in _find(directory, "*.xml")))
            raise ModelError(
                f"{directory} has no {_FILES[stage]}, it has {others:.200}: expected the three graphs encoder, cross-KV"
                " and decoder with a static cache; fetch all of them again"
            )
        if len(paths) > 1:
            names = " and ".join(path.name for path in paths[:2])
            raise ModelError(
                f"{directory} has {names}: expected one graph of a kind; give each model a directory of its own"
            )
    return {stage: paths[0] for stage, paths in found.items()}


def _find(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for path in directory.glob(pattern) if path.is_file())


class _Graph:
    """A graph of a file with its ports by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model = read_graph(path)
        # Apart, since some exports give an input and an output the same name.
        self.inputs = {name: port for port in self.model.inputs for name in port.names}
        self.outputs = {name: port for port in self.model.outputs for name in port.names}

    def expect_inputs(self, names: Sequence[str]) -> None:
        """Raise ModelError unless these are all inputs: one that is never set reads old memory."""
        for name in names:
            self._port(self.inputs, name)
        for port in self.model.inputs:
            if not port.names & set(names):
                name = next(iter(port.names), "without a name")
                raise ModelError(
                    f"{self.path} has the input {name!r:.80}, which a Whisper graph does not need: expected"
                    f" {_some(names)}; export it again, or use the original checkpoint"
                )

    def shape(self, ports: Mapping[str, ov.Output], name: str) -> tuple[int, ...]:
        """Return the shape of a port. Raises ModelError where there is no such port, or no fixed shape."""
        port = self._port(ports, name)
        if port.partial_shape.is_dynamic:
            raise ModelError(
                f"{self.path} has {name} of shape {port.partial_shape!s:.60}: expected fixed sizes, which an NPU needs;"
                " export it with static shapes, or use the original checkpoint"
            )
        return tuple(port.shape)

    def expect(
        self,
        ports: Mapping[str, ov.Output],
        name: str,
        shape: _Shape,
        types: Sequence[str],
        other: "_Graph | None" = None,
    ) -> tuple[int, ...]:
        """Return the shape of a port. Raises ModelError unless it is as expected (by the `other` graph)."""
        found = self.shape(ports, name)
        if len(found) != len(shape) or any(size not in (None, n) for size, n in zip(shape, found, strict=True)):
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            raise ModelError(
                f"{self.path} has {name} of shape {list(found)!s:.60}: expected [{expected}]"
                + (f" as in {other.path}: they are of different models; fetch all" if other else "; fetch all graphs")
                + " again from one place, or use the original checkpoint"
            )
        found_type = ports[name].element_type.get_type_name()
        if found_type not in types:
            raise ModelError(
                f"{self.path} has {name} of type {found_type}: expected {' or '.join(types)}; export it again, or use"
                " the original checkpoint"
            )
        return found

    def _port(self, ports: Mapping[str, ov.Output], name: str) -> ov.Output:
        if name not in ports:
            kind = "input" if ports is self.inputs else "output"
            raise ModelError(
                f"{self.path} has no {kind} {name}, it has {_some(sorted(ports))}: expected a graph of a Whisper"
                " export; fetch it again, or use the original checkpoint"
            )
        return ports[name]


def _retyped(model: ov.Model, names: Sequence[str], wanted: ov.Type) -> ov.Model:
    """Let inputs take another type, converted in the graph."""
    names = [name for name in names if model.input(name).element_type != wanted]
    if not names:
        return model
    prepared = ov.preprocess.PrePostProcessor(model)
    for name in names:
        prepared.input(name).tensor().set_element_type(wanted)
    return prepared.build()


def _give_attention(model: ov.Model, layers: Sequence[ov.Output], alignment_heads: Heads) -> None:
    """Put the attention of the alignment heads, shape (1, n_heads, 1, n_audio_ctx), in the place of all layers'."""
    heads: list[ov.Output] = []
    for layer, head in alignment_heads:
        # (n_text_head, 1, n_audio_ctx), or with a leading 1
        shares = layers[layer].get_node().input(0).get_source_output()
        flat = ops.reshape(shares, [layers[layer].shape[-3], 1, layers[layer].shape[-1]], False)
        heads.append(ops.gather(flat, [head], np.int64(0)).output(0))
    result = ops.result(ops.unsqueeze(ops.concat(heads, 0), [0]))
    result.output(0).set_names({"cross_attention"})
    for port in layers:
        model.remove_result(port.get_node())
    model.add_results([result])


def _take_position(model: ov.Model) -> None:
    """Let the position come in shape (1,), whatever the graph's own is."""
    old = model.input("position_ids").get_node()
    new = ops.parameter([1], old.get_element_type(), "position_ids")
    old.output(0).replace(ops.reshape(new, list(old.shape), False).output(0))
    model.replace_parameter(model.get_parameter_index(old), new)
    new.output(0).set_names({"position_ids"})
    model.validate_nodes_and_infer_types()


def _attention(decoder: _Graph, dims: ModelDimensions) -> list[ov.Output]:
    """Return the output of each layer's cross-attention, found by name or else by shape; none where one is missing."""
    shape = [dims.n_text_head, 1, dims.n_audio_ctx]
    fitting = [
        port
        for port in decoder.model.outputs
        if port.partial_shape.is_static and list(port.shape) in (shape, [1, *shape])
    ]
    named = {
        int(match[1]): port for port in fitting for name in port.names if (match := _ATTENTION_OUTPUT.search(name))
    }
    layers = range(dims.n_text_layer)
    if set(layers) <= set(named):
        return [named[layer] for layer in layers]
    return fitting if not named and len(fitting) == len(layers) else []


def _count_heads(model: ov.Model, n_positions: int) -> int:
    """Return in how many attention heads, of all layers together, all positions attend to all."""
    count = 0
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind in ("Softmax", "ScaledDotProductAttention") and node.get_output_partial_shape(0).is_static:
            shape = list(node.get_output_shape(0))
            if shape[-2:-1] == [n_positions] and (kind != "Softmax" or shape[-1] == n_positions):
                count += prod(shape[:-2])
    return count


def _check_config(config: ModelDimensions, dims: ModelDimensions, path: Path) -> ModelDimensions:
    """Return the dimensions with what only config.json knows. Raises ModelError unless it is of the same model."""
    unknown = {"n_audio_layer": config.n_audio_layer, "n_audio_head": config.n_audio_head}
    for name, value in asdict(dims).items():
        expected = getattr(config, name)
        if value > expected if name == "n_text_ctx" else name not in unknown and value != expected:
            raise ModelError(
                f"{path} says {name} {expected}, the graphs beside it have {value}: they are of different models; fetch"
                " all of them again from one place"
            )
    return replace(dims, **unknown)


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names)!r:.300}" if names else "none"
