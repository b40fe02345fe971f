"""Every published size: tiny and turbo computed against both references, all of them counted, each kind built.

The weights are random: a size is its dimensions, and what the published weights say is no matter of size.
"""

import dataclasses
import gc
import math
from pathlib import Path
from typing import Protocol

import numpy as np
import openvino as ov
import psutil
import pytest
import torch
import whisper.model

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.graphs.build import build_cross_kv, build_decoder, build_encoder, fix_sizes
from streamer.whisper.graphs.ports import ports as graph_ports
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from streamer.whisper.weights.openai import openai_name
from tests.unit.whisper.sizes import (
    BYTES,
    SIZES,
    cache_bytes,
    cross_kv_bytes,
    empty_openai,
    empty_transformers,
    lively_checkpoint,
    openai_model,
    transformers_model,
    weight_bytes,
    weightless,
)
from tests.unit.whisper.support import ROOT, SPEECH, Untyped, random_checkpoint, read, start_runtime, tensor

# Largest error of a value, relative to the spread of all. A sum of 5120 products in float32 errs by about
# sqrt(5120) * 2**-24 = 4e-6 of its spread, and 64 such sums one after the other by sqrt(64) times that, 3.4e-5: three
# times this. Seen: 2.3e-5. With GELU by its tanh formula it is 1e-3, with another epsilon in the layer norms 1.7e-4.
TOLERANCE = 1e-4

# Start of transcript, English, transcribe, no timestamps: of the multilingual vocabularies.
PROMPT = [50258, 50259, 50359, 50363]
N_STEPS = 8

# Millions of parameters as OpenAI's README and distil-whisper's model cards have them.
PUBLISHED = {
    "tiny.en": 39,
    "tiny": 39,
    "base.en": 74,
    "base": 74,
    "small.en": 244,
    "small": 244,
    "medium.en": 769,
    "medium": 769,
    "large-v1": 1550,
    "large-v2": 1550,
    "large-v3": 1550,
    "large-v3-turbo": 809,
    "distil-small.en": 166,
    "distil-medium.en": 394,
    "distil-large-v2": 756,
    "distil-large-v3": 756,
    "distil-large-v3.5": 756,
}

every_size = pytest.mark.parametrize("name", list(SIZES))


class Reference(Protocol):
    """An independent Whisper."""

    def __init__(self, checkpoint: Checkpoint) -> None: ...

    def encode(self, mel: FloatArray) -> Untyped:
        """Return the encoder's output, shape (1, 1500, n_audio_state), as a torch tensor."""

    def decode(self, tokens: list[int], hidden: Untyped) -> Untyped:
        """Return the logits, shape (1, n, n_vocab), as a torch tensor."""


class Transformers:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model = transformers_model(checkpoint)

    def encode(self, mel: FloatArray) -> Untyped:
        return self.model.model.encoder(tensor(mel[None])).last_hidden_state

    def decode(self, tokens: list[int], hidden: Untyped) -> Untyped:
        return self.model(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([tokens])).logits


class OpenAI:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model = openai_model(checkpoint)

        # Cross-attention scores by layer, each of shape (1, n_head, n, 1500), of the latest call.
        self.scores: list[Untyped] = []
        for block in self.model.decoder.blocks:
            block.cross_attn.register_forward_hook(lambda _module, _inputs, outputs: self.scores.append(outputs[1]))

    def encode(self, mel: FloatArray) -> Untyped:
        return self.model.encoder(tensor(mel[None]))

    def decode(self, tokens: list[int], hidden: Untyped) -> Untyped:
        self.scores.clear()
        with whisper.model.disable_sdpa():  # which keeps the scores to itself
            return self.model.decoder(torch.tensor([tokens]), hidden)

    def attention(self, heads: Heads) -> FloatArray:
        return np.stack([self.scores[layer][0, head].softmax(-1).numpy() for layer, head in heads])


def compute(
    checkpoint: Checkpoint, mel: FloatArray, heads: Heads
) -> tuple[FloatArray, list[int], FloatArray, FloatArray]:
    """Return the encoder's output, the tokens of a prompt and some greedy steps, their logits and attention."""
    runtime = start_runtime(checkpoint, heads)
    runtime.decoder.use(runtime.encode(mel, 0))
    tokens = list(PROMPT)
    (logits,), (attention,) = runtime.decoder.feed(tokens)
    rows, weights = [logits], [attention]
    for _ in range(N_STEPS):
        tokens.append(int(rows[-1][-1].argmax()))
        (logits,), (attention,) = runtime.decoder.feed(tokens[-1:])
        rows.append(logits)
        weights.append(attention)
    return runtime.last_hidden_state, tokens, np.concatenate(rows), np.concatenate(weights, axis=1)


def assert_close(actual: FloatArray, expected: FloatArray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * float(expected.std()))


@torch.no_grad()
@pytest.mark.parametrize(("name", "n_layer"), [("tiny", 2), ("large-v3-turbo", 1)])
def test_prompt_and_greedy_steps_equal_transformers_and_openai_whisper(name: str, n_layer: int) -> None:
    # All layers of a stack are alike, and turbo's 32 and 4 would take a minute.
    dims = dataclasses.replace(SIZES[name], n_audio_layer=n_layer, n_text_layer=n_layer)
    needed = 11 * sum(weight_bytes(dims, "f32").values()) // 4  # the weights, and the compiled graphs, two of decoders
    if psutil.virtual_memory().available < needed:
        pytest.skip(f"{name} takes {needed / 1e9:.1f} GB of memory, which are not free")
    last_layer, last_head = dims.n_text_layer - 1, dims.n_text_head - 1
    heads = [(last_layer, 1), (0, last_head), (last_layer, 0)]
    checkpoint = lively_checkpoint(dims)
    mel = log_mel(read(SPEECH), dims.n_mels)
    hidden, tokens, logits, attention = compute(checkpoint, mel, heads)
    gc.collect()  # one model at a time
    # What is compared depends on the audio and on the text: attention picks places, tokens vary.
    assert hidden.std(axis=0).mean() > 0.1
    assert attention.max() > 30 / dims.n_audio_ctx
    assert len(set(tokens[len(PROMPT) :])) > 1

    references: list[type[Reference]] = [Transformers, OpenAI]
    for reference in references:
        model = reference(checkpoint)
        expected_hidden = model.encode(mel)
        assert_close(hidden, expected_hidden[0].numpy())
        expected = model.decode(tokens, expected_hidden)[0].numpy()
        assert_close(logits, expected)
        np.testing.assert_array_equal(tokens[len(PROMPT) :], expected[len(PROMPT) - 1 : -1].argmax(axis=-1))
        if isinstance(model, OpenAI):
            np.testing.assert_allclose(attention, model.attention(heads), rtol=0, atol=TOLERANCE)
        del model


@every_size
def test_its_tensors_are_those_of_both_references(name: str) -> None:
    dims = SIZES[name]
    ours = expected_shapes(dims)
    theirs = empty_transformers(dims).model.state_dict()
    assert {key: tuple(value.shape) for key, value in theirs.items()} == ours
    theirs = empty_openai(dims).state_dict()
    assert {key: tuple(value.shape) for key, value in theirs.items()} == {openai_name(key): ours[key] for key in ours}


@every_size
def test_it_has_as_many_parameters_as_published(name: str) -> None:
    n_parameters = sum(math.prod(shape) for shape in expected_shapes(SIZES[name]).values())
    # OpenAI's own figures are round: its tiny of "39 M" has 37.8 M with the encoder's positions, 37.2 M without.
    assert n_parameters / 1e6 == pytest.approx(PUBLISHED[name], rel=0.035)


@every_size
def test_its_dimensions_are_accepted(name: str) -> None:
    dims = SIZES[name]
    config = empty_transformers(dims).config.to_dict()
    assert ModelDimensions.from_huggingface(config, Path("config.json")) == dims
    assert ModelDimensions.from_openai(dataclasses.asdict(dims), Path("model.pt")) == dims


@pytest.mark.parametrize("name", ["tiny.en", "medium", "large-v3-turbo", "distil-large-v3"])
def test_its_graphs_can_be_built_and_take_what_they_take_on_paper(name: str) -> None:
    """Weights, and keys and values, without the memory that they would take."""
    dims = SIZES[name]
    tensors = weightless(dims).tensors
    heads = [(dims.n_text_layer - 1, 0), (0, dims.n_text_head - 1)]
    stages = {
        "encoder": build_encoder(dims, tensors),
        "cross_kv": build_cross_kv(dims, tensors),
        "decoder": build_decoder(dims, tensors, heads),
    }
    assert {stage: constant_bytes(model) for stage, model in stages.items()} == on_paper(dims, "f16")
    assert port_bytes(stages["cross_kv"].outputs) == cross_kv_bytes(dims)
    sizes = graph_ports("decoder", dims, len(heads), n_tokens=1, n_slots=447)
    fixed = fix_sizes(stages["decoder"], sizes.inputs)
    assert port_bytes([port for port in fixed.inputs if ".decoder." in port.any_name]) == cache_bytes(dims)
    assert {port.any_name: tuple(port.shape) for port in fixed.inputs} == sizes.inputs
    assert {port.any_name: tuple(port.shape) for port in fixed.outputs} == sizes.outputs


def test_compressed_weights_take_what_they_take_on_paper() -> None:
    dims, precision = ModelDimensions(8, 1500, 128, 2, 2, 500, 448, 128, 2, 3), "int8"
    tensors = {key: value.astype(np.float16) for key, value in random_checkpoint(dims).tensors.items()}
    stages = {
        "encoder": build_encoder(dims, tensors, precision),
        "cross_kv": build_cross_kv(dims, tensors, precision),
        "decoder": build_decoder(dims, tensors, [(0, 0)], precision),
    }
    assert {stage: constant_bytes(model) for stage, model in stages.items()} == on_paper(dims, precision)


def test_the_documented_table_is_right() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert table() in text


def table() -> str:
    """Return the table of sizes in docs/models.md, without the models that are as large as another."""
    rows = [
        "| Model | Parameters | Layers | f16 | int8 | Cross-KV | Cache |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    alike = {"tiny.en", "base.en", "small.en", "medium.en", "large-v1", "distil-large-v3.5"}
    for name, dims in SIZES.items():
        if name in alike:
            continue
        cells = (
            name,
            f"{sum(math.prod(shape) for shape in expected_shapes(dims).values()) / 1e6:.1f} M",
            f"{dims.n_audio_layer} + {dims.n_text_layer}",
            *(megabytes(sum(weight_bytes(dims, precision).values())) for precision in ("f16", "int8")),
            megabytes(cross_kv_bytes(dims)),
            megabytes(cache_bytes(dims)),
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows) + "\n"


def megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f}"


def port_bytes(found: list[ov.Output]) -> int:
    return sum(math.prod(port.shape) * port.element_type.size for port in found)


def on_paper(dims: ModelDimensions, precision: str) -> dict[str, int]:
    """Return the weights' bytes by stage, with what the graphs add to them.

    The biases of the two convolutions are in float32 whatever the precision; the keys that the decoder computes along
    with queries and values have a bias of zeros.
    """
    paper = weight_bytes(dims, precision)
    return {
        **paper,
        "encoder": paper["encoder"] + 4 * dims.n_audio_state,
        "decoder": paper["decoder"] + BYTES[precision] * dims.n_text_layer * dims.n_text_state,
    }


def constant_bytes(model: ov.Model) -> int:
    """Return how large the weights in a graph are: all constants but shapes, indices and single numbers."""
    return sum(
        node.get_byte_size()
        for node in model.get_ops()
        if node.get_type_name() == "Constant"
        and node.get_element_type().get_type_name() != "i64"
        and math.prod(node.get_output_shape(0)) > 1
    )
