"""Pre-exported triples: whole ones transcribe as transformers does, others are refused by name."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from streamer.arrays import FloatArray
from streamer.whisper.device.devices import the_core
from streamer.whisper.device.masks import CONVENTIONS, OURS, MaskConvention, find_convention
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import foreign
from streamer.whisper.graphs.foreign import is_triple, load_triple
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import NANO, Untyped, load_reference, tensor
from tests.unit.whisper.triple import TripleDecoder, build_decoder, decoder_name, write_triple
from tests.unit.whisper.weights import checks

# Weights, keys and values in half precision.
TOLERANCE = 0.05

PROMPT = [513, 514, 516, 520]

HEADS = [(2, 0), (0, 1), (1, 2)]

FULL_PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}


ENCODER = "whisper_medium_encoder.xml"
CROSS_KV = "whisper_medium_encoder_decoder_cross_kv.xml"
DECODER = decoder_name()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    return write_triple(tmp_path_factory.mktemp("whole"), checkpoint, OURS)


@pytest.fixture(scope="module")
def cross(whole: Path, mel: FloatArray) -> dict[str, FloatArray]:
    """The keys and values of the sample, by the triple's own encoder."""
    triple = load_triple(whole)
    core = the_core()
    hidden = core.compile_model(triple.read("encoder", HEADS), "CPU", FULL_PRECISION)([mel[None]])[0]
    outputs = core.compile_model(triple.read("cross_kv", HEADS), "CPU", FULL_PRECISION)([hidden])
    return {port.any_name: values.copy() for port, values in outputs.items()}


@pytest.fixture(scope="module")
def expected(reference: Untyped, mel: FloatArray) -> tuple[list[int], FloatArray]:
    """transformers' greedy tokens, the prompt first, and their logits."""
    tokens = list(PROMPT)
    with torch.no_grad():
        hidden = reference.model.encoder(tensor(mel[None])).last_hidden_state
        for _ in range(20):
            output = reference(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([tokens]))
            logits = output.logits[0].numpy()
            tokens.append(int(logits[-1].argmax()))
    return tokens, logits


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
def test_a_triple_of_each_convention_decodes_as_transformers(
    tmp_path: Path,
    whole: Path,
    checkpoint: Checkpoint,
    convention: MaskConvention,
    cross: Mapping[str, FloatArray],
    expected: tuple[list[int], FloatArray],
) -> None:
    directory = shutil.copytree(whole, tmp_path / "triple")
    model = build_decoder(checkpoint, convention, position_shape=(1, 1), cache_type=np.float16)
    ov.save_model(model, directory / DECODER, compress_to_fp16=True)
    decoder = TripleDecoder(
        the_core().compile_model(load_triple(directory).read("decoder", HEADS), "CPU", FULL_PRECISION)
    )
    found = find_convention(decoder, DECODER, PROMPT[0])
    assert found is convention
    decoder.use(cross)
    tokens, logits = expected
    rows = decoder.decode(found, tokens[:-1])
    np.testing.assert_allclose(rows, logits, rtol=0, atol=TOLERANCE)
    assert rows[len(PROMPT) - 1 :].argmax(1).tolist() == tokens[len(PROMPT) :]


def test_a_triple_says_what_its_model_is(whole: Path, checkpoint: Checkpoint) -> None:
    triple = load_triple(whole)
    assert is_triple(whole)
    assert triple.dims == replace(checkpoint.dims, n_text_ctx=224, n_audio_layer=checkpoint.dims.n_text_layer)
    assert triple.dims.cache_size == 223
    assert [path.name for path in triple.paths.values()] == [ENCODER, CROSS_KV, DECODER]


@pytest.fixture(scope="module")
def attention(mel: FloatArray) -> list[FloatArray]:
    """What transformers attends to after the prompt, by head of HEADS, each of shape (1500,)."""
    eager = load_reference(attn_implementation="eager")
    with torch.no_grad():
        output = eager(
            input_features=tensor(mel[None]), decoder_input_ids=torch.tensor([PROMPT]), output_attentions=True
        )
    return [output.cross_attentions[layer][0, head, -1].numpy() for layer, head in HEADS]


@pytest.mark.parametrize("cross_names", [True, False])
def test_cross_attention_is_found_by_name_or_by_shape(
    tmp_path: Path,
    checkpoint: Checkpoint,
    cross: Mapping[str, FloatArray],
    attention: list[FloatArray],
    cross_names: bool,
) -> None:
    triple = load_triple(write_triple(tmp_path, checkpoint, OURS, cross_names=cross_names))
    compiled = the_core().compile_model(triple.read("decoder", HEADS), "CPU", FULL_PRECISION)
    decoder = TripleDecoder(compiled)
    decoder.use(cross)
    decoder.decode(OURS, PROMPT)
    found = decoder.output("cross_attention")
    assert found.shape == (1, len(HEADS), 1, 1500)
    np.testing.assert_allclose(found[0, :, 0], attention, rtol=0, atol=0.01)


def test_graphs_that_hand_over_in_other_types_are_joined(
    tmp_path: Path, checkpoint: Checkpoint, cross: Mapping[str, FloatArray], expected: tuple[list[int], FloatArray]
) -> None:
    triple = load_triple(write_triple(tmp_path, checkpoint, OURS, cross_type=np.float32))
    model = triple.read("decoder", HEADS)
    kinds = {port.any_name: port.element_type.get_type_name() for port in model.inputs}
    assert {kind for name, kind in kinds.items() if ".encoder." in name} == {"f16"}
    decoder = TripleDecoder(the_core().compile_model(model, "CPU", FULL_PRECISION))
    decoder.use(cross)
    tokens, logits = expected
    np.testing.assert_allclose(decoder.decode(OURS, tokens[:-1]), logits, rtol=0, atol=TOLERANCE)


def test_what_is_no_triple(tmp_path: Path) -> None:
    assert not is_triple(tmp_path)
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs that have the ports of a triple and compute nothing."""
    directory = tmp_path_factory.mktemp("small")
    for file in INPUTS:
        write_ports(directory / file, INPUTS[file], OUTPUTS[file])
    return directory


@pytest.fixture
def triple(small: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small, tmp_path / "triple")


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the time of another process, for graphs that crash nothing."""
    monkeypatch.setattr(foreign, "probe_graphs", lambda _: None)


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


refuse = partial(checks.refuse, load_triple)


def test_every_size_comes_from_the_ports(triple: Path) -> None:
    # The encoder's layers are taken to be as many as the decoder's.
    assert load_triple(triple).dims == SMALL


@pytest.mark.usefixtures("unprobed")
def test_word_times_need_the_attention_of_each_layer(triple: Path) -> None:
    outputs = {name: port for name, port in OUTPUTS[DECODER].items() if name != "attention.0"}
    write_ports(triple / DECODER, INPUTS[DECODER], outputs)
    refuse(triple, "does not give its cross-attention", "expected an output of it for each layer")


@pytest.mark.parametrize("file", [ENCODER, CROSS_KV, DECODER])
def test_a_missing_graph(triple: Path, file: str) -> None:
    (triple / file).unlink()
    pattern = {ENCODER: "*_encoder.xml", CROSS_KV: "*_cross_kv.xml", DECODER: "*_decoder_static_kvcache_*.xml"}[file]
    refuse(triple, f"has no {pattern} (whisper_medium_", "fetch all of them again")


@pytest.mark.parametrize("file", [ENCODER, CROSS_KV, DECODER])
def test_two_graphs_of_a_kind(triple: Path, file: str) -> None:
    other = file.replace("medium", "small")
    shutil.copy(triple / file, triple / other)
    refuse(triple, "has several *", file, other, "expected the three graphs")


def other(inputs: Ports | None = None, outputs: Ports | None = None) -> tuple[Ports, Ports]:
    return inputs or {}, outputs or {}


CACHE = "past_key_values.1.decoder.value"
PRESENT = "present_key_values.1.decoder.value"
CROSS = "past_key_values.1.encoder.key"


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize(
    ("file", "change", "problem"),
    [
        (ENCODER, other({"input_features": ([1, 80, 2998], "f32")}), "[1,80,2998] f32: expected [1, 80, 3000] of f32"),
        (ENCODER, other({"input_features": ([1, 80, -1], "f32")}), "of shape [1,80,?]: expected 3 fixed"),
        (ENCODER, other({"input_features": ([1, 300, 3000], "f32")}), "n_mels 300: expected a whole number from 1"),
        (ENCODER, other({}, {"last_hidden_state": ([1, 1500, 16], "f32")}), "[1,1500,16] f32: expected [1, 1500, 12]"),
        (CROSS_KV, other({"encoder_hidden_states": ([1, 1500, 16], "f32")}), "[1,1500,16] f32: expected [1, 1500, 12]"),
        (CROSS_KV, other({}, {"present_key_values.1.encoder.key": ([1, 3, 1500, 8], "f16")}), "[1, 3, 1500, 4] of f32"),
        (DECODER, other({"input_ids": ([1, 4], "i64")}), "input_ids [1,4] i64: expected [1, 1] of i32 or i64"),
        (DECODER, other({"attention_mask": ([1, 39], "f32")}), "attention_mask [1,39] f32: expected [1, 40]"),
        (DECODER, other({"position_ids": ([2], "i64")}), "position_ids [2] i64: expected [1] of i32 or i64"),
        (DECODER, other({CACHE: ([1, 3, 38, 4], "f32")}), f"{CACHE} [1,3,38,4] f32: expected [1, 3, 39, 4]"),
        (DECODER, other({CACHE: ([1, 3, 39, 4], "bf16")}), "[1,3,39,4] bf16: expected [1, 3, 39, 4] of f32 or"),
        (DECODER, other({CROSS: ([1, 3, 750, 4], "f16")}), f"{CROSS} [1,3,750,4] f16: expected [1, 3, 1500, 4]"),
        (DECODER, other({}, {PRESENT: ([1, 3, 40, 4], "f32")}), f"{PRESENT} [1,3,40,4] f32: expected [1, 3, 1, 4]"),
        (DECODER, other({}, {"logits": ([1, 16], "f32")}), "logits of shape [1,16]: expected 3 fixed sizes"),
        (DECODER, other({"beam_idx": ([1], "i32")}), "has the input 'beam_idx': expected only input_ids"),
        (DECODER, other({"past_key_values.2.decoder.key": ([1, 3, 39, 4], "f32")}), "no output present_key_values.2."),
    ],
)
def test_ports_of_other_shapes_and_types(triple: Path, file: str, change: tuple[Ports, Ports], problem: str) -> None:
    inputs, outputs = change
    write_ports(triple / file, {**INPUTS[file], **inputs}, {**OUTPUTS[file], **outputs})
    refuse(triple, problem)


@pytest.mark.usefixtures("unprobed")
def test_caches_of_a_length_that_no_whisper_has(triple: Path) -> None:
    caches: Ports = {f"past_key_values.{name}": ([1, 3, 999, 4], "f32") for name in CACHE_PORTS}
    write_ports(triple / DECODER, {**INPUTS[DECODER], **caches, "attention_mask": ([1, 1000], "f32")}, OUTPUTS[DECODER])
    refuse(triple, "n_text_ctx 1000: expected a whole number from 32 to 448")


CONFIG: dict[str, Any] = {
    "model_type": "whisper",
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "d_model": 12,
    "encoder_attention_heads": 6,
    "encoder_layers": 5,
    "vocab_size": 16,
    "max_target_positions": 448,
    "decoder_attention_heads": 3,
    "decoder_layers": 2,
}


def test_a_config_beside_the_graphs_knows_the_encoder(triple: Path) -> None:
    (triple / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    assert load_triple(triple).dims == replace(SMALL, n_audio_layer=5, n_audio_head=6)


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("vocab_size", 17, "says n_vocab 17, the graphs beside it have 16"),
        ("num_mel_bins", 128, "says n_mels 128, the graphs beside it have 80"),
        ("d_model", 24, "says n_audio_state 24, the graphs beside it have 12"),
        ("decoder_layers", 4, "says n_text_layer 4, the graphs beside it have 2"),
        ("max_target_positions", 39, "says n_text_ctx 39, the graphs beside it have 40"),
        ("d_model", None, "has d_model None"),
    ],
)
def test_a_config_of_another_model(triple: Path, key: str, value: object, problem: str) -> None:
    (triple / "config.json").write_text(json.dumps({**CONFIG, key: value}), encoding="utf-8")
    refuse(triple, "config.json", problem)
