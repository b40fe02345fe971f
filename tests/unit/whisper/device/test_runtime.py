"""The static graphs, compiled, against transformers on the same weights."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from streamer.arrays import FloatArray
from streamer.whisper.model import WhisperModel
from streamer.whisper.weights.checkpoint import Checkpoint
from tests.unit.whisper.support import Untyped, load_on_cpu, load_reference, shallow, start_runtime, tensor

pytestmark = pytest.mark.slow

# Promised: 1e-3. Held: float32's own rounding.
TOLERANCE = 1e-4


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def start(model: WhisperModel) -> list[int]:
    return [*model.tokenizer.start_sequence("en", "transcribe"), model.tokenizer.special.no_timestamps]


def encoded_reference(reference: Untyped, mel: FloatArray) -> Untyped:
    return reference.model.encoder(tensor(mel[None])).last_hidden_state


def reference_logits(reference: Untyped, hidden: Untyped, tokens: Sequence[int]) -> FloatArray:
    output = reference(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([list(tokens)]))
    logits: FloatArray = output.logits[0].numpy()
    return logits


def assert_close(actual: FloatArray, expected: FloatArray, atol: float = TOLERANCE) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.usefixtures("no_grad")
def test_encoder_cross_kv_prompt_and_50_steps_equal_transformers(
    model: WhisperModel, reference: Untyped, mel: FloatArray
) -> None:
    hidden = encoded_reference(reference, mel)
    window = model.runtime.encode(mel, 1)
    assert_close(model.runtime.last_hidden_state, hidden[0].numpy())
    decoder = model.runtime.decoder
    decoder.use(window)
    tokens = start(model)
    (logits,), _ = decoder.feed(tokens)
    assert_close(logits, reference_logits(reference, hidden, tokens))
    steps = [logits[-1]]
    for _ in range(50):
        tokens.append(int(steps[-1].argmax()))
        steps.append(decoder.feed(tokens[-1:])[0][0][0])
    # The decoder is causal: one pass over the whole sequence gives what each step gave.
    assert_close(np.array(steps), reference_logits(reference, hidden, tokens)[-51:])
    output = reference(encoder_outputs=(hidden,), decoder_input_ids=torch.tensor([[513]]), use_cache=True)
    for i, layer in enumerate(output.past_key_values.cross_attention_cache.layers):
        assert_close(window.tensors[f"key_values.{i}.encoder.key"].data, layer.keys.numpy())
        assert_close(window.tensors[f"key_values.{i}.encoder.value"].data, layer.values.numpy())


@pytest.mark.usefixtures("no_grad")
def test_alignment_heads_equal_transformers_cross_attention(
    model: WhisperModel, mel: FloatArray, checkpoint: Checkpoint
) -> None:
    eager = load_reference(attn_implementation="eager")
    tokens = [*start(model), *range(40, 60)]
    output = eager(
        encoder_outputs=(encoded_reference(eager, mel),),
        decoder_input_ids=torch.tensor([tokens]),
        output_attentions=True,
    )
    expected = {
        (layer, head): output.cross_attentions[layer][0, head].numpy() for layer in range(2) for head in range(3)
    }
    # In the order of the list, whatever that is.
    heads = [(1, 2), (0, 1), (1, 0)]
    runtime = start_runtime(checkpoint, heads)
    runtime.decoder.use(runtime.encode(mel, 0))
    (_,), (attention,) = runtime.decoder.feed(tokens)
    assert_close(attention, np.array([expected[head] for head in heads]))


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("by", [7, 1])
def test_a_sequence_fills_the_whole_context_and_no_more(
    model: WhisperModel, reference: Untyped, mel: FloatArray, by: int
) -> None:
    decoder = model.runtime.decoder
    decoder.use(model.runtime.encode(mel, 0))
    assert decoder.capacity == 448
    tokens = [*start(model), *np.random.default_rng(1).integers(0, 500, 444).tolist()]
    logits = np.concatenate([decoder.feed(tokens[i : i + by])[0][0] for i in range(0, 448, by)])
    # So many tokens at random are far from all that it was trained with, and roundings grow.
    assert_close(logits, reference_logits(reference, encoded_reference(reference, mel), tokens), 10 * TOLERANCE)
    with pytest.raises(AssertionError):
        decoder.feed([0])
    decoder.begin()
    np.testing.assert_array_equal(decoder.feed(tokens[:by])[0][0], logits[:by])


@pytest.mark.parametrize("blocked", [False, True])
def test_a_cache_that_is_damaged_or_cannot_be_written_does_not_matter(
    tmp_path: Path, cache_dir: Path, mel: FloatArray, blocked: bool
) -> None:
    def logits(loaded: WhisperModel) -> FloatArray:
        loaded.runtime.decoder.use(loaded.runtime.encode(mel, 0))
        (found,), _ = loaded.runtime.decoder.feed(start(loaded))
        return np.asarray(found)

    load_on_cpu(shallow(), tmp_path)
    blobs = [*tmp_path.rglob("*.blob")]
    assert len(blobs) == 4
    whole = blobs[0].read_bytes()
    for blob, data in zip(blobs, (b"garbage", b"", whole[:10_000], whole[:20_000]), strict=True):
        blob.write_bytes(data)
        if blocked:  # a directory where a file belongs: reading and writing both fail
            blob.unlink()
            blob.mkdir()
    assert_close(logits(load_on_cpu(shallow(), tmp_path)), logits(load_on_cpu(shallow(), cache_dir)))
