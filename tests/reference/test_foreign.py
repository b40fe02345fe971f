"""Pre-exported triples: whole ones transcribe as transformers does, others are refused."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from streamer.arrays import FloatArray
from streamer.errors import ModelError
from streamer.whisper.device.devices import the_core
from streamer.whisper.device.masks import CONVENTIONS, OURS, MaskConvention, find_convention
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import foreign
from streamer.whisper.graphs.foreign import is_triple, load_triple
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, Untyped, config_of, load_reference, tensor
from tests.unit.whisper.triple import TripleDecoder, build_decoder, decoder_name, write_triple

# Weights, keys and values in half precision.
TOLERANCE = 0.05

PROMPT = [513, 514, 516, 520]
HEADS = [(2, 0), (0, 1), (1, 2)]

ENCODER = "whisper_medium_encoder.xml"
CROSS_KV = "whisper_medium_encoder_decoder_cross_kv.xml"
DECODER = decoder_name()


def compiled(model: ov.Model) -> ov.CompiledModel:
    return the_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    return write_triple(tmp_path_factory.mktemp("whole"), checkpoint, OURS)


@pytest.fixture(scope="module")
def cross(whole: Path, mel: FloatArray) -> dict[str, FloatArray]:
    """The keys and values of the sample, by the triple's own encoder."""
    triple = load_triple(whole)
    hidden = compiled(triple.read("encoder", HEADS))([mel[None]])[0]
    outputs = compiled(triple.read("cross_kv", HEADS))([hidden])
    return {port.any_name: values.copy() for port, values in outputs.items()}


@pytest.fixture(scope="module")
def expected(mel: FloatArray) -> tuple[list[int], FloatArray, list[FloatArray]]:
    """transformers' greedy tokens behind the prompt, their logits, and its attention after the prompt by head."""
    eager: Untyped = load_reference(attn_implementation="eager")
    tokens = list(PROMPT)
    with torch.no_grad():
        hidden = eager.model.encoder(tensor(mel[None])).last_hidden_state
        for _ in range(20):
            output = eager(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([tokens]), output_attentions=True)
            logits = output.logits[0].numpy()
            tokens.append(int(logits[-1].argmax()))
    last = len(PROMPT) - 1
    return tokens, logits, [output.cross_attentions[layer][0, head, last].numpy() for layer, head in HEADS]


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
def test_a_triple_of_each_convention_decodes_as_transformers(
    tmp_path: Path,
    whole: Path,
    checkpoint: Checkpoint,
    convention: MaskConvention,
    cross: Mapping[str, FloatArray],
    expected: tuple[list[int], FloatArray, list[FloatArray]],
) -> None:
    directory = shutil.copytree(whole, tmp_path / "triple")
    model = build_decoder(checkpoint, convention, position_shape=(1, 1), cache_type=np.float16)
    ov.save_model(model, directory / DECODER, compress_to_fp16=True)
    decoder = TripleDecoder(compiled(load_triple(directory).read("decoder", HEADS)))
    found = find_convention(decoder, DECODER, PROMPT[0])
    assert found is convention
    decoder.use(cross)
    tokens, logits, _ = expected
    rows = decoder.decode(found, tokens[:-1])
    np.testing.assert_allclose(rows, logits, rtol=0, atol=TOLERANCE)
    assert rows[len(PROMPT) - 1 :].argmax(1).tolist() == tokens[len(PROMPT) :]


def test_a_triple_says_what_its_model_is(whole: Path, checkpoint: Checkpoint) -> None:
    triple = load_triple(whole)
    assert is_triple(whole)
    assert triple.dims == replace(checkpoint.dims, n_text_ctx=224, n_audio_layer=checkpoint.dims.n_text_layer)
    assert [path.name for path in triple.paths.values()] == [ENCODER, CROSS_KV, DECODER]


@pytest.mark.parametrize("cross_names", [True, False])
def test_cross_attention_is_found_by_name_or_by_shape_in_graphs_that_pass_on_other_types(
    tmp_path: Path,
    checkpoint: Checkpoint,
    cross: Mapping[str, FloatArray],
    expected: tuple[list[int], FloatArray, list[FloatArray]],
    cross_names: bool,
) -> None:
    triple = load_triple(write_triple(tmp_path, checkpoint, OURS, cross_names=cross_names, cross_type=np.float32))
    model = triple.read("decoder", HEADS)
    types = {port.any_name: port.element_type.get_type_name() for port in model.inputs}
    assert {kind for name, kind in types.items() if ".encoder." in name} == {"f16"}
    decoder = TripleDecoder(compiled(model))
    decoder.use(cross)
    _, logits, attention = expected
    np.testing.assert_allclose(decoder.decode(OURS, PROMPT), logits[: len(PROMPT)], rtol=0, atol=TOLERANCE)
    found = decoder.output("cross_attention")
    assert found.shape == (1, len(HEADS), 1, 1500)
    np.testing.assert_allclose(found[0, :, 0], attention, rtol=0, atol=0.01)


def test_what_is_no_triple(tmp_path: Path) -> None:
    assert not is_triple(tmp_path / "nowhere")
    assert not is_triple(NANO)
    for name in ("encoder.xml", "cross_kv.xml", "decoder.xml", "openvino_tokenizer.xml"):
        (tmp_path / name).touch()
    (tmp_path / ENCODER).mkdir()
    assert not is_triple(tmp_path)


Ports = dict[str, tuple[Sequence[int], str]]

# A model of sizes that no Whisper has, for graphs that are never computed.
SMALL = ModelDimensions(80, 1500, 12, 3, 2, 16, 40, 12, 3, 2)
CROSS_PORTS: Ports = {f"{i}.encoder.{kind}": ([1, 3, 1500, 4], "f16") for i in range(2) for kind in ("key", "value")}
CACHE_PORTS: Ports = {f"{i}.decoder.{kind}": ([1, 3, 39, 4], "f32") for i in range(2) for kind in ("key", "value")}
INPUTS: dict[str, Ports] = {
    ENCODER: {"input_features": ([1, 80, 3000], "f32")},
    CROSS_KV: {"encoder_hidden_states": ([1, 1500, 12], "f32")},
    DECODER: {
        "input_ids": ([1, 1], "i64"),
        "attention_mask": ([1, 40], "f32"),
        "position_ids": ([1], "i64"),
        **{f"past_key_values.{name}": port for name, port in (CACHE_PORTS | CROSS_PORTS).items()},
    },
}
OUTPUTS: dict[str, Ports] = {
    ENCODER: {"last_hidden_state": ([1, 1500, 12], "f32")},
    CROSS_KV: {f"present_key_values.{name}": port for name, port in CROSS_PORTS.items()},
    DECODER: {
        "logits": ([1, 1, 16], "f32"),
        "attention.0": ([3, 1, 1500], "f32"),
        "attention.1": ([1, 3, 1, 1500], "f32"),
        **{f"present_key_values.{name}": ([1, 3, 1, 4], "f32") for name in CACHE_PORTS},
    },
}


def write_ports(path: Path, inputs: Ports, outputs: Ports) -> None:
    parameters = []
    for name, (shape, kind) in inputs.items():
        parameters.append(ops.parameter(ov.PartialShape(list(shape)), getattr(ov.Type, kind), name))
        parameters[-1].output(0).set_names({name})
    results = []
    for name, (shape, kind) in outputs.items():
        node = ops.broadcast(ops.constant(0, getattr(ov.Type, kind)), np.array(shape))
        node.output(0).set_names({name})
        results.append(ops.result(node))
    ov.save_model(ov.Model(results, parameters, "main_graph"), path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs that have the ports of a triple and compute nothing."""
    directory = tmp_path_factory.mktemp("small")
    for file in INPUTS:
        write_ports(directory / file, INPUTS[file], OUTPUTS[file])
    return directory


@pytest.fixture
def triple(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small graphs, which need not be tried out in another process: they crash nothing."""
    monkeypatch.setattr(foreign, "probe_graphs", lambda _: None)
    return shutil.copytree(small, tmp_path / "triple")


def test_every_size_comes_from_the_ports_and_of_the_encoder_from_a_config_beside_them(triple: Path) -> None:
    # Without one, its layers are taken to be as many as the decoder's.
    assert load_triple(triple).dims == SMALL
    config = config_of(replace(SMALL, n_audio_layer=5, n_audio_head=6, n_text_ctx=448))
    (triple / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_triple(triple).dims == replace(SMALL, n_audio_layer=5, n_audio_head=6)


@pytest.mark.parametrize("file", [ENCODER, CROSS_KV, DECODER])
def test_there_is_one_graph_of_each_kind(triple: Path, file: str) -> None:
    shutil.copy(triple / file, triple / file.replace("medium", "small"))
    with pytest.raises(ModelError):
        load_triple(triple)
    for path in triple.glob(file.replace("medium", "*")):
        path.unlink()
    with pytest.raises(ModelError):
        load_triple(triple)


CACHE = "past_key_values.1.decoder.value"
PRESENT = "present_key_values.1.decoder.value"
CROSS = "past_key_values.1.encoder.key"
TOO_LONG: Ports = {f"past_key_values.{name}": ([1, 3, 999, 4], "f32") for name in CACHE_PORTS}


@pytest.mark.parametrize(
    ("file", "name", "shape", "kind"),
    [
        (ENCODER, "input_features", [1, 80, 2998], "f32"),
        (ENCODER, "input_features", [1, 80, -1], "f32"),
        (ENCODER, "input_features", [1, 300, 3000], "f32"),
        (ENCODER, "last_hidden_state", [1, 1500, 16], "f32"),
        (CROSS_KV, "encoder_hidden_states", [1, 1500, 16], "f32"),
        (CROSS_KV, "present_key_values.1.encoder.key", [1, 3, 1500, 8], "f16"),
        (DECODER, "input_ids", [1, 4], "i64"),
        (DECODER, "attention_mask", [1, 39], "f32"),
        (DECODER, "position_ids", [2], "i64"),
        (DECODER, CACHE, [1, 3, 38, 4], "f32"),
        (DECODER, CACHE, [1, 3, 39, 4], "bf16"),
        (DECODER, CROSS, [1, 3, 750, 4], "f16"),
        (DECODER, PRESENT, [1, 3, 40, 4], "f32"),
        (DECODER, "logits", [1, 16], "f32"),
        (DECODER, "beam_idx", [1], "i32"),
        (DECODER, "past_key_values.2.decoder.key", [1, 3, 39, 4], "f32"),
        # Word times need the attention of each layer.
        (DECODER, "attention.0", [3, 1, 750], "f32"),
    ],
)
def test_ports_of_other_shapes_and_types_are_refused(
    triple: Path, file: str, name: str, shape: Sequence[int], kind: str
) -> None:
    inputs, outputs = dict(INPUTS[file]), dict(OUTPUTS[file])
    (outputs if name in outputs else inputs)[name] = (shape, kind)
    write_ports(triple / file, inputs, outputs)
    with pytest.raises(ModelError):
        load_triple(triple)


def test_caches_of_a_length_that_no_whisper_has_are_refused(triple: Path) -> None:
    write_ports(
        triple / DECODER, {**INPUTS[DECODER], **TOO_LONG, "attention_mask": ([1, 1000], "f32")}, OUTPUTS[DECODER]
    )
    with pytest.raises(ModelError):
        load_triple(triple)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", 17),
        ("num_mel_bins", 128),
        ("d_model", 24),
        ("decoder_layers", 4),
        ("max_target_positions", 39),
        ("d_model", None),
    ],
)
def test_a_config_of_another_model_is_refused(triple: Path, key: str, value: object) -> None:
    (triple / "config.json").write_text(json.dumps({**config_of(SMALL), key: value}), encoding="utf-8")
    with pytest.raises(ModelError):
        load_triple(triple)
