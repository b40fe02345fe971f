"""Every published size: tiny and turbo computed against both references, all of them counted.

The weights are random: a size is its dimensions, and what the published weights say is no matter of size.
"""

import dataclasses
import gc
import math
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import whisper.model

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.whisper.dims import Heads, ModelDimensions
from streamer.whisper.weights.checkpoint import Checkpoint, expected_shapes
from streamer.whisper.weights.openai import openai_name
from tests.reference.sizes import (
    cache_bytes,
    cross_kv_bytes,
    empty_openai,
    empty_transformers,
    openai_model,
    transformers_model,
    weight_bytes,
)
from tests.unit.whisper.support import ROOT, SIZES, SPEECH, Untyped, lively_checkpoint, read, start_runtime, tensor

# Largest error of a value, relative to the spread of all. A sum of 5120 products in float32 errs by about
# sqrt(5120) * 2**-24 = 4e-6 of its spread, and 64 such sums one after the other by sqrt(64) times that, 3.4e-5: three
# times this. Seen: 2.3e-5. With GELU by its tanh formula it is 1e-3, with another epsilon in the layer norms 1.7e-4.
TOLERANCE = 1e-4

# Start of transcript, English, transcribe, no timestamps: of the multilingual vocabularies.
PROMPT = [50258, 50259, 50359, 50363]
N_STEPS = 8

# All kinds of vocabularies, widths and numbers of layers.
every_size = pytest.mark.parametrize("name", ["tiny.en", "base", "small", "medium", "large-v2", "large-v3-turbo"])


class Transformers:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._model = transformers_model(checkpoint)

    def encode(self, mel: FloatArray) -> Untyped:
        """Return the encoder's output, shape (1, 1500, n_audio_state), as a torch tensor."""
        return self._model.model.encoder(tensor(mel[None])).last_hidden_state

    def decode(self, tokens: list[int], hidden: Untyped) -> Untyped:
        """Return the logits, shape (1, n, n_vocab), as a torch tensor."""
        return self._model(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([tokens])).logits


class OpenAI:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._model = openai_model(checkpoint)

        # Cross-attention scores by layer, each of shape (1, n_head, n, 1500), of the latest call.
        self._scores: list[Untyped] = []
        for block in self._model.decoder.blocks:
            block.cross_attn.register_forward_hook(lambda _module, _inputs, outputs: self._scores.append(outputs[1]))

    def encode(self, mel: FloatArray) -> Untyped:
        return self._model.encoder(tensor(mel[None]))

    def decode(self, tokens: list[int], hidden: Untyped) -> Untyped:
        self._scores.clear()
        with whisper.model.disable_sdpa():  # which keeps the scores to itself
            return self._model.decoder(torch.tensor([tokens]), hidden)

    def attention(self, heads: Heads) -> FloatArray:
        return np.stack([self._scores[layer][0, head].softmax(-1).numpy() for layer, head in heads])


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

    for reference in (Transformers, OpenAI):
        model = reference(checkpoint)
        expected_hidden = model.encode(mel)
        assert_close(hidden, expected_hidden[0].numpy())
        expected = model.decode(tokens, expected_hidden)[0].numpy()
        assert_close(logits, expected)
        np.testing.assert_array_equal(tokens[len(PROMPT) :], expected[len(PROMPT) - 1 : -1].argmax(axis=-1))
        if isinstance(model, OpenAI):
            np.testing.assert_allclose(attention, model.attention(heads), rtol=0, atol=TOLERANCE)


@every_size
def test_its_tensors_and_dimensions_are_those_of_both_references(name: str) -> None:
    dims = SIZES[name]
    ours, theirs = expected_shapes(dims), empty_transformers(dims)
    assert {key: tuple(value.shape) for key, value in theirs.model.state_dict().items()} == ours
    openai = empty_openai(dims).state_dict()
    assert {key: tuple(value.shape) for key, value in openai.items()} == {openai_name(key): ours[key] for key in ours}
    assert ModelDimensions.from_huggingface(theirs.config.to_dict(), Path("config.json")) == dims
    assert ModelDimensions.from_openai(dataclasses.asdict(dims), Path("model.pt")) == dims


def test_the_documented_table_is_right() -> None:
    """Of all sizes but those that are as large as another."""
    alike = {"tiny.en", "base.en", "small.en", "medium.en", "large-v1", "distil-large-v3.5"}
    rows = [row_of(name) for name in SIZES if name not in alike]
    assert "\n".join(rows) in (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def row_of(name: str) -> str:
    """Return a row of the table of sizes in docs/models.md."""
    dims = SIZES[name]
    n_parameters = sum(math.prod(shape) for shape in expected_shapes(dims).values())
    sizes = [
        *(sum(weight_bytes(dims, each).values()) for each in ("f16", "int8")),
        cross_kv_bytes(dims),
        cache_bytes(dims),
    ]
    cells = [f"{n_parameters / 1e6:.1f} M", f"{dims.n_audio_layer} + {dims.n_text_layer}"]
    return f"| {' | '.join([name, *cells, *(f'{n_bytes / 1e6:.0f}' for n_bytes in sizes)])} |"
