"""Windows shorter than 30 s: what their graphs compute, and that all is as with 30 s otherwise."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.constants import SAMPLE_RATE
from streamer.engine.decoder import WhisperEncoder
from streamer.settings.load import load_settings
from streamer.whisper.choices import choose_windows
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.sizes import with_whole
from streamer.whisper.loading import LoadOptions, verify_model
from streamer.whisper.model import WhisperModel
from streamer.whisper.source import read_model
from tests.unit.whisper.support import NANO, SPEECH, Untyped, load_on_cpu, load_reference, read, tensor

# float32's own rounding.
TOLERANCE = 1e-4

SHORT_S = 7
PROMPT = [513, 514, 516, 520]
TOKENS = [*PROMPT, *range(30, 50)]


@pytest.fixture(scope="module")
def short_model(cache_dir: Path) -> WhisperModel:
    return load_on_cpu(NANO, cache_dir, windows_s=[SHORT_S], n_beams=3)


@pytest.fixture(scope="module")
def mel() -> FloatArray:
    return log_mel(read(SPEECH), 80)


@pytest.fixture(scope="module")
def short_mel(mel: FloatArray) -> FloatArray:
    return mel[:, : 100 * SHORT_S]


@pytest.fixture(scope="module")
def short_reference() -> Untyped:
    """transformers' model of the embedded weights, with as many positions as the short window has."""
    reference = load_reference(attn_implementation="eager")
    positions = reference.model.encoder.embed_positions
    reference.config.max_source_positions = positions.num_embeddings = 50 * SHORT_S
    positions.weight.data = positions.weight.data[: 50 * SHORT_S]
    return reference


def assert_close(actual: FloatArray, expected: FloatArray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


def logits_of(decoder: Decoder) -> FloatArray:
    """Return the logits after a prompt, in a block, and of steps behind it."""
    return np.concatenate([decoder.feed(tokens)[0][0] for tokens in (PROMPT, [7], [8], [9, 10, 11])])


def test_all_is_computed_as_transformers_does_with_fewer_positions(
    short_model: WhisperModel, short_reference: Untyped, short_mel: FloatArray
) -> None:
    with torch.no_grad():
        output = short_reference(
            tensor(short_mel[None]), decoder_input_ids=torch.tensor([TOKENS]), output_attentions=True
        )
    runtime = short_model.runtime
    runtime.decoder.use(runtime.encode(short_mel, 0))
    assert_close(runtime.last_hidden_state, output.encoder_last_hidden_state[0].numpy())
    (logits,), (attention,) = runtime.decoder.feed(TOKENS[:-5])
    steps = [runtime.decoder.feed([token]) for token in TOKENS[-5:]]
    assert_close(np.concatenate([logits, *(row for (row,), _ in steps)]), output.logits[0].numpy())
    heads = short_model.generation.alignment_heads
    expected = np.array([output.cross_attentions[layer][0, head].numpy() for layer, head in heads])
    assert_close(np.concatenate([attention, *(row for _, (row,) in steps)], axis=1), expected)


def test_nothing_is_left_from_a_window_of_another_length(
    short_model: WhisperModel, mel: FloatArray, short_mel: FloatArray
) -> None:
    runtime, decoder = short_model.runtime, short_model.runtime.decoder
    alone = {}
    for name, part in (("short", short_mel), ("whole", mel)):
        decoder.use(runtime.encode(part, 0))
        alone[name] = logits_of(decoder)
    assert not np.allclose(alone["short"], alone["whole"], atol=1e-2)
    for name, part, other in (("whole", mel, short_mel), ("short", short_mel, mel)):
        decoder.use(runtime.encode(other, 0))
        decoder.feed(list(range(40)))
        decoder.pollute_hidden_slots()
        decoder.use(runtime.encode(part, 0))
        np.testing.assert_array_equal(logits_of(decoder), alone[name])


@pytest.mark.parametrize(
    ("n_samples", "expected"),
    [(0, SHORT_S), (SHORT_S * SAMPLE_RATE, SHORT_S), (SHORT_S * SAMPLE_RATE + 1, 30), (30 * SAMPLE_RATE, 30)],
)
def test_the_shortest_window_that_holds_the_audio_is_taken(
    short_model: WhisperModel, mel: FloatArray, n_samples: int, expected: int
) -> None:
    encoded = WhisperEncoder(short_model).encode(mel.astype(np.float32), 0, n_samples)
    assert encoded.n_audio_ctx == 50 * expected
    # Whoever does not say how long the audio is has a window of 30 s.
    assert WhisperEncoder(short_model).encode(mel.astype(np.float32), 0).n_audio_ctx == 1500


def test_the_graphs_of_all_windows_are_checked_and_kept(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    checks = list(
        verify_model(
            str(NANO),
            LoadOptions(DeviceSettings("CPU"), cache_dir=str(tmp_path), windows_s=[SHORT_S, 30]),
            on_compiled=lambda *progress: told.append(progress),
        )
    )
    assert [check.name for check in checks if not check.passed] == []
    names = {check.name for check in checks}
    for graph in ("encoder", "cross_kv", "decoder"):
        assert f"{graph}: left of the window before" in names
        assert f"{graph} (7 s): left of the window before" in names
    assert "decoder: noise in hidden slots moves the logits by" in names
    assert told[-1] == (4, 4)
    assert len(list(tmp_path.glob("CPU-*/*.blob"))) == 4


@pytest.mark.parametrize(
    ("told", "wanted", "device", "expected"),
    [
        (None, "", "NPU", (15, 30)),
        (None, "", "CPU", (5, 15, 30)),
        ([4], "", "CPU", (4, 30)),
        ([4], "30", "CPU", (30,)),
        (None, "9,5,9", "NPU", (5, 9, 30)),
    ],
)
def test_the_windows_are_those_of_the_settings_else_of_the_model(
    told: list[int] | None, wanted: str, device: str, expected: tuple[int, ...]
) -> None:
    source = read_model(NANO, "nano.en")
    generation = dataclasses.replace(source.generation, windows_s=tuple(told or ()))
    source = dataclasses.replace(source, generation=generation)
    settings = load_settings(None, {}, {"model.windows_s": wanted}).model
    plans = plan_stages(DeviceSettings(device), ["CPU", "NPU"])
    found = choose_windows(source, plans, settings.windows_s or None)
    assert with_whole(found) == expected
