"""Adapters of short windows: whose they are, and that they change these windows and no others."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.constants import FRAMES_PER_SECOND, SAMPLE_RATE
from streamer.errors import ModelError
from streamer.settings.table import Settings
from streamer.setup.session import session_settings
from streamer.whisper import adapters
from streamer.whisper.model import ADAPTED_SILENCE_S, WhisperModel
from streamer.whisper.weights import lora
from streamer.whisper.weights.checkpoint import Checkpoint, LazyTensors
from tests.unit.whisper.support import NANO, SPEECH, load_on_cpu, read
from tests.unit.whisper.weights.models import matrices, write_adapter

SHORT_S = 5


def write(directory: Path, of: Checkpoint, **description: object) -> Path:
    """Write an adapter of all queries of an encoder and all cross-attention values.

    description : replaces parts of what it is said to be for
    """
    layers = [f"encoder.layers.{i}.self_attn.q_proj" for i in range(of.dims.n_audio_layer)]
    layers += [f"decoder.layers.{i}.encoder_attn.v_proj" for i in range(of.dims.n_text_layer)]
    about = {
        "windows_s": [SHORT_S, 8],
        "encoder_sha256": adapters.encoder_digest(of),
        "n_audio_layer": of.dims.n_audio_layer,
        "n_audio_state": of.dims.n_audio_state,
        **description,
    }
    return write_adapter(directory, matrices(of, layers), lora_alpha=0.5, streamer=about)


@pytest.fixture(scope="module")
def adapter(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("adapter"), checkpoint)


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have some adapters come with the program, and no others."""
    return lambda *paths: monkeypatch.setattr(adapters, "shipped_adapters", lambda: list(paths))


def load(*, adapter: str = "none", lora: str = "") -> WhisperModel:
    return load_on_cpu(NANO, windows_s=(SHORT_S,), adapter=adapter, lora=lora)


def test_an_adapter_changes_short_windows_and_no_others(adapter: Path) -> None:
    plain, adapted, merged = load(), load(adapter=str(adapter)), load(lora=str(adapter))
    mel = log_mel(read(SPEECH)[: SHORT_S * SAMPLE_RATE], 80)

    def encoded(model: WhisperModel, n_frames: int) -> tuple[FloatArray, FloatArray]:
        """Return the encoder's states and the last layer's values."""
        tensors = model.runtime.encode(mel[:, :n_frames], 0).tensors
        n_layers = plain.dims.n_text_layer
        return model.runtime.last_hidden_state, np.array(tensors[f"key_values.{n_layers - 1}.encoder.value"].data)

    short, whole = SHORT_S * FRAMES_PER_SECOND, 3000
    for n_frames, expected in ((short, merged), (whole, plain)):
        for ours, theirs in zip(encoded(adapted, n_frames), encoded(expected, n_frames), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
    for changed, unchanged in zip(encoded(merged, short), encoded(plain, short), strict=True):
        assert np.abs(changed - unchanged).max() > 0.1
    assert adapted.adapter == adapter


def test_auto_takes_the_one_that_is_for_these_weights_in_any_type(
    checkpoint: Checkpoint, adapter: Path, tmp_path: Path, ship: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    others = write(tmp_path / "others", checkpoint, encoder_sha256=64 * "0")
    larger = write(tmp_path / "larger", checkpoint, n_audio_layer=32)
    damaged = write(tmp_path / "damaged", checkpoint)
    (damaged / "adapter_model.safetensors").write_bytes(b"no adapter")
    older = write(tmp_path / "older", checkpoint, windows_s=[500])
    ship(others, larger, damaged, older, adapter)
    tensors = {
        name: partial(lambda name: checkpoint.tensors[name].astype(np.float32), name) for name in checkpoint.tensors
    }
    for weights in (checkpoint, replace(checkpoint, tensors=LazyTensors(tensors))):
        caplog.clear()
        found = adapters.find(weights, "auto")
        assert found is not None
        assert (found.path, found.windows_s) == (adapter, (SHORT_S, 8))
        for path, record in zip((damaged, older), caplog.records, strict=True):
            assert str(path) in record.message


def test_weights_that_were_changed_get_none(checkpoint: Checkpoint, adapter: Path, ship: Callable[..., None]) -> None:
    ship(adapter)
    tuned = lora.merged(checkpoint, adapter)
    assert adapters.find(tuned, "auto") is None
    assert adapters.find(checkpoint, "none") is None
    for path in (str(adapter), str(NANO)):
        with pytest.raises(ModelError):
            adapters.find(tuned, path)


def test_its_windows_are_those_of_captions_with_less_silence_behind_the_sound(adapter: Path) -> None:
    model = load_on_cpu(NANO, windows_s=(SHORT_S, 8), adapter=str(adapter))
    assert session_settings(Settings(), model).window_s == 8 - ADAPTED_SILENCE_S
    model.adapter = None
    assert session_settings(Settings(), model).window_s == 6
