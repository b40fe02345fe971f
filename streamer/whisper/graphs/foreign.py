"""Whisper graphs that others exported for NPUs: encoder, cross-KV and a one-token decoder with a fixed key-value cache.

Every size is read from the graphs' ports, never from a table. What differs from our own graphs is adapted here, except
for the meaning of the mask, which only the running graph shows (see `device.masks`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from streamer.constants import N_FRAMES
from streamer.errors import ModelError
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.files import read_json
from streamer.whisper.graphs.ports import check_ports, key_values, ports
from streamer.whisper.ir import probe_graphs, read_graph

# Names of the files of each stage.
_FILES = {
    "encoder": "*_encoder.xml",
    "cross_kv": "*_cross_kv.xml",
    "decoder": "*_decoder_static_kvcache_*.xml",
}

_LAYER = re.compile(r"layers\.(\d{1,3})")

_AGAIN = "fetch all three graphs again from one place, or use the original checkpoint"


@dataclass(frozen=True, slots=True)
class ForeignTriple:
    """The three graphs of a directory, checked against each other."""

    # By stage.
    paths: Mapping[str, Path]

    # `n_text_ctx` is the decoder's cache and the current token. The encoder's layers and heads are those of
    # config.json, or else the decoder's: its ports do not show them, and no shape derives from them.
    dims: ModelDimensions

    # Types in which one graph passes results to the next, by the names of inputs.
    types: Mapping[str, ov.Type]

    def read(self, stage: str, alignment_heads: Heads) -> ov.Model:
        """Read a stage's graph and give it our ports, except for the types of caches. Raises ModelError."""
        model = read_graph(self.paths[stage])
        if stage == "decoder":
            _give_attention(model, _attention(model, self.dims), alignment_heads)
            _take_position(model)
        prepared = ov.preprocess.PrePostProcessor(model)
        for name in {name for port in model.inputs for name in port.names} & set(self.types):
            prepared.input(name).tensor().set_element_type(self.types[name])
        return prepared.build()


def is_triple(directory: Path) -> bool:
    """Return whether a directory holds OpenVINO graphs of others, whole or in part."""
    return any(_find(directory, pattern) for pattern in _FILES.values())


def load_triple(directory: Path) -> ForeignTriple:
    """Read the sizes of a model from its graphs. Raises ModelError if they are broken or do not belong together."""
    paths = _find_graphs(directory)
    probe_graphs(list(paths.values()))
    models = {stage: read_graph(path) for stage, path in paths.items()}
    dims = _read_dims(directory, paths, models)
    for stage, model in models.items():
        expected = ports(stage, dims, n_tokens=1, n_slots=dims.cache_size)
        if any("position_ids" in port.names and len(port.partial_shape) == 2 for port in model.inputs):
            expected = replace(expected, inputs={**expected.inputs, "position_ids": (1, 1)})
        check_ports(paths[stage], model, expected, _AGAIN)
    if not _attention(models["decoder"], dims):
        raise ModelError(
            f"{paths['decoder']} does not give its cross-attention, which word times are made of: expected an output"
            " of it for each layer; export it again with these, or use the original checkpoint"
        )
    passed = {"encoder_hidden_states": models["encoder"].output("last_hidden_state").element_type}
    for name in key_values(dims.n_text_layer, "encoder"):
        passed[f"past_{name}"] = models["cross_kv"].output(f"present_{name}").element_type
    return ForeignTriple(paths, dims, passed)


def _find_graphs(directory: Path) -> dict[str, Path]:
    found = {stage: _find(directory, pattern) for stage, pattern in _FILES.items()}
    for stage, paths in found.items():
        if len(paths) != 1:
            names = ", ".join(path.name for path in paths or _find(directory, "*.xml"))
            raise ModelError(
                f"{directory} has {'several' if paths else 'no'} {_FILES[stage]} ({names:.200}): expected the three"
                " graphs encoder, cross-KV and decoder with a static cache of one model; fetch all of them again"
            )
    return {stage: paths[0] for stage, paths in found.items()}


def _find(directory: Path, pattern: str) -> list[Path]:
    return sorted(path for path in directory.glob(pattern) if path.is_file())


def _read_dims(directory: Path, paths: Mapping[str, Path], models: Mapping[str, ov.Model]) -> ModelDimensions:
    decoder = models["decoder"]
    n_layer = sum(name.endswith(".decoder.key") for port in decoder.inputs for name in port.names)
    _, n_mels, _ = _shape(paths["encoder"], models["encoder"].inputs, "input_features", 3)
    _, n_head, n_slots, head_size = _shape(paths["decoder"], decoder.inputs, "past_key_values.0.decoder.key", 4)
    _, _, n_vocab = _shape(paths["decoder"], decoder.outputs, "logits", 3)
    sizes = {"n_mels": n_mels, "n_audio_ctx": N_FRAMES // 2, "n_vocab": n_vocab, "n_text_ctx": n_slots + 1}
    for half in ("audio", "text"):
        sizes |= {f"n_{half}_state": n_head * head_size, f"n_{half}_head": n_head, f"n_{half}_layer": n_layer}
    dims = ModelDimensions.from_openai(sizes, directory)
    path = directory / "config.json"
    if not path.exists():
        return dims
    config = ModelDimensions.from_huggingface(read_json(path), path)
    dims = replace(dims, n_audio_layer=config.n_audio_layer, n_audio_head=config.n_audio_head)
    for name, value in asdict(dims).items():
        expected = getattr(config, name)
        if value != expected and (name != "n_text_ctx" or value > expected):
            raise ModelError(
                f"{path} says {name} {expected}, the graphs beside it have {value}: they are of different models; fetch"
                " all of them again from one place"
            )
    return dims


def _shape(path: Path, found: Sequence[ov.Output], name: str, n_axes: int) -> tuple[int, ...]:
    """Return the shape of the port of this name. Raises ModelError if it is missing, dynamic, or of other axes."""
    shape = next((port.partial_shape for port in found if name in port.names), None)
    if shape is None or shape.is_dynamic or len(shape) != n_axes:
        names = ", ".join(sorted(name for port in found for name in port.names))
        problem = f"no {name}, it has {names!r:.300}" if shape is None else f"{name} of shape {shape!s:.60}"
        raise ModelError(
            f"{path} has {problem}: expected {n_axes} fixed sizes, which an NPU needs; export it again with static"
            " shapes, or use the original checkpoint"
        )
    return tuple(shape.to_shape())


def _attention(decoder: ov.Model, dims: ModelDimensions) -> list[ov.Output]:
    """Return the outputs that have the shape of cross-attention, by layer; none unless each layer has one."""
    shape = [dims.n_text_head, 1, dims.n_audio_ctx]
    found = [
        port for port in decoder.outputs if port.partial_shape.is_static and list(port.shape) in (shape, [1, *shape])
    ]
    # If names do not say the layer, the outputs stay in their order.
    found.sort(key=lambda port: int(match[1]) if (match := _LAYER.search(" ".join(port.names))) else 0)
    return found if len(found) == dims.n_text_layer else []


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
