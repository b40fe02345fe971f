"""Windows shorter than 30 s: what their graphs compute, and that all is as with 30 s otherwise."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from streamer.arrays import FloatArray
from streamer.audio.mel import log_mel
from streamer.commands.transcribe import transcribe_files
from streamer.constants import SAMPLE_RATE
from streamer.engine.decoder import WhisperEncoder
from streamer.errors import ConfigError
from streamer.settings.load import load_settings
from streamer.whisper import model as model_module
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.masks import OURS
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import LoadOptions, WhisperModel, verify_model
from streamer.whisper.source import read_model
from streamer.whisper.weights import huggingface
from tests.unit.whisper.support import NANO, SPEECH, Untyped, load_on_cpu, read, tensor
from tests.unit.whisper.triple import write_triple
from tests.wer import wer

# float32's own rounding.
TOLERANCE = 1e-4

SHORT_S = 7
PROMPT = [513, 514, 516, 520]
TOKENS = [*PROMPT, *range(30, 50)]


def load_short(cache_dir: Path, windows_s: Sequence[int] = (SHORT_S,), **keywords: Untyped) -> WhisperModel:
    return load_on_cpu(NANO, cache_dir, windows_s=windows_s, **keywords)


@pytest.fixture(scope="module")
def short_model(cache_dir: Path) -> WhisperModel:
    return load_short(cache_dir, n_beams=3)


@pytest.fixture(scope="module")
def mel() -> FloatArray:
    return log_mel(read(SPEECH), 80)


@pytest.fixture(scope="module")
def short_mel(mel: FloatArray) -> FloatArray:
    return mel[:, : 100 * SHORT_S]


@pytest.fixture(scope="module")
def short_reference() -> Untyped:
    """transformers' model of the embedded weights, with as many positions as the short window has."""
    config = transformers.WhisperConfig.from_pretrained(
        NANO, max_source_positions=50 * SHORT_S, attn_implementation="eager"
    )
    untyped: Untyped = transformers.WhisperForConditionalGeneration
    reference = untyped(config).eval()
    tensors = dict(huggingface.load(NANO).tensors)
    positions = "encoder.embed_positions.weight"
    tensors[positions] = tensors[positions][: 50 * SHORT_S]
    reference.model.load_state_dict(
        {name: tensor(value.astype(np.float32)) for name, value in tensors.items()}, strict=True
    )
    reference.tie_weights()
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
    assert "decoder (7 s): noise in hidden slots moves the logits by" in names
    assert told[-1] == (4, 4)
    assert len(list(tmp_path.glob("CPU-*/*"))) == 4


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
    copy_of_nano: Callable[..., Path], told: list[int] | None, wanted: str, device: str, expected: tuple[int, ...]
) -> None:
    source = read_model(copy_of_nano("copy", stream_windows_s=told), "copy")
    settings = load_settings(None, {}, {"model.windows_s": wanted}).model
    plans = plan_stages(DeviceSettings(device), ["CPU", "NPU"])
    found = model_module.window_lengths(source, plans, settings.windows_s or None)
    compilation = Compilation(source.graphs, plans, windows_s=found)
    assert tuple(compilation.windows_s) == expected


@pytest.fixture
def copy_of_nano(tmp_path: Path) -> Callable[..., Path]:
    """Return a copy of the embedded model with other generation settings; None takes one out."""

    def copy(name: str, **changes: object) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        for file in NANO.iterdir():
            if not file.name.startswith("sample"):
                (directory / file.name).write_bytes(file.read_bytes())
        path = directory / "generation_config.json"
        data = {**json.loads(path.read_text(encoding="utf-8")), **changes}
        path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}), encoding="utf-8")
        return directory

    return copy


def test_captions_are_made_in_short_windows_and_files_in_whole_ones(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = set()
    encode = Runtime.encode

    def listening(runtime: Runtime, mel: FloatArray, buffer: int) -> EncodedWindow:
        lengths.add(mel.shape[1])
        return encode(runtime, mel, buffer)

    monkeypatch.setattr(Runtime, "encode", listening)

    def text(windows_s: str, *, streaming: bool) -> str:
        overrides = {"model.name": "nano.en", "model.device": "CPU", "model.cache_dir": str(cache_dir)}
        overrides["model.windows_s"] = windows_s
        settings = load_settings(None, {}, overrides)
        lengths.clear()
        assert transcribe_files(settings, [SPEECH], format="text", streaming=streaming, output=None) == 0
        return capsys.readouterr().out

    whole = text("10", streaming=False)
    assert lengths == {3000}
    assert wer(whole, text("10", streaming=True)) < 0.4
    assert 1000 in lengths


def test_graphs_that_others_exported_stay_at_30_s(
    tmp_path: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    triple = write_triple(tmp_path / "triple", huggingface.load(NANO), OURS)
    for name in ("tokenizer.json", "generation_config.json"):
        (triple / name).write_bytes((NANO / name).read_bytes())
    with pytest.raises(ConfigError, match=r"model.windows_s is \[7\].*exported for 30 s: leave it out, or use"):
        load_on_cpu(triple, cache_dir, windows_s=[SHORT_S])
    caplog.set_level(logging.WARNING)
    model = load_on_cpu(triple, cache_dir, windows_s=None)
    assert model.runtime.windows_s == (30,)
    assert not caplog.records
