"""OpenVINO graphs that others exported, read as the checkpoint that they were made of; our own graphs are built of it.

Two layouts are read: optimum-intel's encoder and decoder, as on the Hub under OpenVINO/whisper-*-ov, and what was made
for NPUs: encoder, keys and values of cross-attention, and a decoder of one token a call with a fixed cache.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov

from streamer.arrays import FloatArray
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.ir import probe_graphs, read_graph
from streamer.whisper.weights import huggingface
from streamer.whisper.weights.binary import unfit
from streamer.whisper.weights.checkpoint import Checkpoint, as_checkpoint, expected_shapes
from streamer.whisper.weights.openvino_layers import Layer, attention_of, constant_of, fold, layer_of, tables_of, trace
from streamer.whisper.weights.tensors import Tensor

NAME = "OpenVINO"

# Encoder, decoder, and what else belongs to a model.
_OPTIMUM = ("openvino_encoder_model.xml", "openvino_decoder_model.xml")
_LAYOUTS = (_OPTIMUM, ("*_encoder.xml", "*_decoder_static_kvcache_*.xml", "*_cross_kv.xml"))
FILES = ((*_OPTIMUM, "openvino_encoder_model.bin", "openvino_decoder_model.bin"),)

_CROSS_PORT = re.compile(r"present_key_values\.(\d{1,2})\.encoder\.(key|value)")
_REMEDY = "fetch all graphs again from one place, or use the checkpoint that they were made from"

# Of a layer, in this order.
_ATTENTIONS = {"encoder": ("self_attn",), "decoder": ("self_attn", "encoder_attn")}

# What is looked up; the vocabulary is longer than the context.
_TABLES = {"encoder": ("embed_positions",), "decoder": ("embed_tokens", "embed_positions")}


class _Weight(NamedTuple):
    """A weight in a graph, what it is multiplied by there, and whether rows and columns are exchanged."""

    output: ov.Output
    factor: float = 1.0
    transposed: bool = False

    @property
    def size(self) -> int:
        return prod(self.output.shape)

    def tensor(self, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor of a checkpoint; vectors stand in the shape in which they are added."""
        return Tensor(shape if self.size == prod(shape) else tuple(self.output.shape), "F32", partial(self.read, shape))

    def read(self, shape: tuple[int, ...]) -> FloatArray:
        values = fold(self.output).reshape(shape[::-1] if self.transposed else shape)
        if self.factor != 1.0:
            values = values * values.dtype.type(self.factor)
        return values.T if self.transposed else values


def matches(path: Path) -> bool:
    """Return whether a path is a directory of such graphs, whole or not, and of no checkpoint besides."""
    found = any(file.is_file() for names in _LAYOUTS for name in names for file in path.glob(name))
    return found and not any(path.glob("*.safetensors")) and not (path / "pytorch_model.bin").exists()


def load(directory: Path) -> Checkpoint:
    """Load the weights of graphs, which stay on disk until they are read. Raises ModelError if they are broken."""
    paths = _find_graphs(directory)
    probe_graphs(paths)
    weights: dict[str, _Weight] = {}
    sizes: dict[str, int] = {}
    for half, part, path in zip(("encoder", "decoder"), ("audio", "text"), paths, strict=False):
        found, n_layer, head_size = _read_half(path, half)
        width = found[f"{half}.layer_norm.weight"].size
        positions = found.get(f"{half}.embed_positions.weight")
        sizes |= {f"n_{part}_ctx": positions.size // width if positions else 0, f"n_{part}_state": width}
        sizes |= {f"n_{part}_head": width // head_size, f"n_{part}_layer": n_layer}
        weights |= found
    for path in paths[2:]:
        weights |= _read_cross(path)
    n_mels, tokens = weights["encoder.conv1.weight"].output.shape[1], weights.get("decoder.embed_tokens.weight")
    sizes |= {"n_mels": n_mels, "n_vocab": tokens.size // width if tokens else 0}
    dims = ModelDimensions.from_openai(sizes, directory)
    config = _read_config(directory / "config.json", dims)
    tensors = {
        name: weights[name].tensor(shape)
        for name, shape in expected_shapes(dims, tied=False).items()
        if name in weights
    }
    tied = _is_tied(weights, tensors)
    return replace(as_checkpoint(dims, tensors, str(directory), "its graphs", tied=tied), config=config)


def _find_graphs(directory: Path) -> list[Path]:
    """Return the graphs of the first layout that there is something of, encoder and decoder first."""
    for names in _LAYOUTS:
        found = [sorted(path for path in directory.glob(name) if path.is_file()) for name in names]
        if any(found):
            break
    for name, paths in zip(names, found, strict=True):
        if len(paths) != 1:
            fact = f"has {'several' if paths else 'no'} {name}"
            raise unfit(directory, fact, f"{', '.join(names)} of one model", _REMEDY)
    return [path for paths in found for path in paths]


def _read_half(path: Path, half: str) -> tuple[dict[str, _Weight], int, int]:
    """Return the weights of an encoder or decoder by their names, how many layers it has, and the size of a head."""
    nodes = read_graph(path).get_ordered_ops()
    attentions, kinds = [found for node in nodes if (found := attention_of(node))], _ATTENTIONS[half]
    n_layer = len(attentions) // len(kinds)
    if not n_layer:
        raise unfit(path, "has no attention", f"the layers of a Whisper's {half}", _REMEDY)
    layers: dict[str, Layer] = {}
    for i, attention in enumerate(attentions):
        prefix = f"{half}.layers.{i // len(kinds)}.{kinds[i % len(kinds)]}"
        projections = zip(("q_proj", "k_proj", "v_proj"), attention.layers, strict=True)
        layers |= {f"{prefix}.{name}": layer for name, layer in projections if constant_of(layer.weight)}
    taken = {layer.node.get_name() for layer in layers.values()}
    others = [layer for node in nodes if node.get_name() not in taken and (layer := layer_of(node))]
    for kind, names in _names(half, n_layer).items():
        of_kind = [layer for layer in others if layer.node.get_type_name() == kind]
        if len(of_kind) != len(names):
            fact = f"has {len(of_kind)} operations {kind} with weights outside of {len(attentions)} attentions"
            raise unfit(path, fact, f"{len(names)}, as in a Whisper's {half}", _REMEDY)
        layers |= zip(names, of_kind, strict=True)
    weights = _weights(layers)
    tables = tables_of(nodes, weights[f"{half}.layer_norm.weight"].size)
    weights |= {f"{half}.{name}.weight": _Weight(table) for name, table in zip(_TABLES[half], tables, strict=False)}
    return weights, n_layer, attentions[0].head_size


def _names(half: str, n_layer: int) -> dict[str, list[str]]:
    """Return the names of layers by the operations that they begin with, in the order of the graph."""
    layers, attentions = [f"{half}.layers.{i}" for i in range(n_layer)], _ATTENTIONS[half]
    norms = [*(f"{attention}_layer_norm" for attention in attentions), "final_layer_norm"]
    matrices = [*(f"{attention}.out_proj" for attention in attentions), "fc1", "fc2"]
    return {
        "Convolution": ["encoder.conv1", "encoder.conv2"] if half == "encoder" else [],
        "MVN": [*(f"{layer}.{norm}" for layer in layers for norm in norms), f"{half}.layer_norm"],
        "MatMul": [f"{layer}.{matrix}" for layer in layers for matrix in matrices] + ["proj_out"] * (half == "decoder"),
    }


def _read_cross(path: Path) -> dict[str, _Weight]:
    """Return the weights of a graph that makes the keys and values of cross-attention."""
    layers = {}
    for port in read_graph(path).outputs:
        match = _CROSS_PORT.search(" ".join(port.names))
        if match and (layer := trace(port.get_node().input_value(0))) and constant_of(layer.weight):
            layers[f"decoder.layers.{match[1]}.encoder_attn.{match[2][0]}_proj"] = layer
    return _weights(layers)


def _weights(layers: Mapping[str, Layer]) -> dict[str, _Weight]:
    found: dict[str, _Weight] = {}
    for name, layer in layers.items():
        transposed = layer.node.get_type_name() == "MatMul" and not layer.node.get_attributes()["transpose_b"]
        found[f"{name}.weight"] = _Weight(layer.weight, layer.factor, transposed)
        if layer.bias is not None:
            found[f"{name}.bias"] = _Weight(layer.bias, layer.bias_factor)
    return found


def _is_tied(weights: Mapping[str, _Weight], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether logits are made with the embedding, of which a file may hold a copy with exchanged rows."""
    names = ("decoder.embed_tokens.weight", "proj_out.weight")
    if len({constant_of(weights[name].output) for name in names}) == 1:
        return True
    table, output = (tensors[name] for name in names)
    return table.shape == output.shape and np.array_equal(table.read(), output.read())


def _read_config(path: Path, dims: ModelDimensions) -> dict[str, Any]:
    """Return the config beside graphs, if it is there. Raises ModelError if it is another model's."""
    if not path.exists():
        return {}
    config = read_json(path)
    huggingface.read_tied(config, path)
    said = asdict(ModelDimensions.from_huggingface(config, path))
    for name, size in asdict(dims).items():
        if size != said[name] and (name != "n_text_ctx" or size > said[name]):
            raise unfit(path, f"says {name} {said[name]}", f"{size}, as in the graphs beside it", _REMEDY)
    return config
