"""Windows shorter than 30 s: what their graphs compute, and that all is as with 30 s otherwise."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
import transformers
from rich.console import Console

from streamer.arrays import FloatArray
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.commands.convert import convert_model
from streamer.commands.loading import load
from streamer.commands.transcribe import transcribe_files
from streamer.errors import ConfigError, InferenceError, ModelError
from streamer.live.decoder import WhisperDecoder, WhisperEncoder
from streamer.settings.load import load_settings
from streamer.settings.table import DecodingSettings
from streamer.stream.window import Request
from streamer.whisper import model as model_module
from streamer.whisper.device.checks import check_freshness
from streamer.whisper.device.compile import Compilation, Sizes
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.devices import DeviceSettings, plan_stages
from streamer.whisper.device.masks import OURS
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import Stage
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.graphs.build import ModelGraphs, build_encoder
from streamer.whisper.model import WhisperModel, load_model, verify_model
from streamer.whisper.source import read_model
from streamer.whisper.weights import huggingface
from tests.wer import wer
from tests.whisper.support import NANO, SPEECH, Tensors, Untyped, read, tamper, tensor
from tests.whisper.triple import write_triple

# float32's own rounding.
TOLERANCE = 1e-4

SHORT_S = 7
PROMPT = [513, 514, 516, 520]
TOKENS = [*PROMPT, *range(30, 50)]


def load_short(cache_dir: Path, windows_s: Sequence[int] = (SHORT_S,), **keywords: Untyped) -> WhisperModel:
    return load_model(str(NANO), DeviceSettings("CPU"), cache_dir=str(cache_dir), windows_s=windows_s, **keywords)


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


def test_30_s_are_computed_as_without_shorter_windows(
    model: WhisperModel, short_model: WhisperModel, mel: FloatArray
) -> None:
    found = []
    for runtime in (model.runtime, short_model.runtime):
        runtime.decoder.use(runtime.encode(mel, 1))
        found.append((runtime.last_hidden_state, logits_of(runtime.decoder)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])


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


def test_encoding_a_window_of_another_length_leaves_the_one_being_decoded_alone(
    short_model: WhisperModel, mel: FloatArray, short_mel: FloatArray
) -> None:
    runtime, decoder = short_model.runtime, short_model.runtime.decoder
    for part, other in ((short_mel, mel), (mel, short_mel)):
        decoder.use(runtime.encode(part, 0))
        expected = logits_of(decoder)
        decoder.use(runtime.encode(part, 0))
        runtime.encode(other, 1)
        np.testing.assert_array_equal(logits_of(decoder), expected)


def test_beams_look_at_a_short_window_as_single_sequences_do(
    short_model: WhisperModel, mel: FloatArray, short_mel: FloatArray
) -> None:
    runtime, decoder = short_model.runtime, short_model.runtime.decoder
    for part in (mel, short_mel):
        decoder.use(runtime.encode(part, 0))
        decoder.feed(PROMPT)
        steps = (([0, 0], [7, 8]), ([1, 0, 1], [9, 10, 11]))
        rows = [decoder.extend(np.array([parents]), np.array([tokens]))[0] for parents, tokens in steps]
        for row, ending in zip(np.concatenate(rows), ([7], [8], [8, 9], [7, 10], [8, 11]), strict=True):
            decoder.begin()
            assert_close(row, decoder.feed([*PROMPT, *ending])[0][0][-1])


@pytest.mark.parametrize(
    ("n_samples", "expected"),
    [
        (0, SHORT_S),
        (SHORT_S * SAMPLE_RATE, SHORT_S),
        (SHORT_S * SAMPLE_RATE + 1, 30),
        (30 * SAMPLE_RATE, 30),
    ],
)
def test_the_shortest_window_that_holds_the_audio_is_taken(
    short_model: WhisperModel, mel: FloatArray, n_samples: int, expected: int
) -> None:
    encoded = WhisperEncoder(short_model).encode(mel.astype(np.float32), 0, n_samples)
    assert encoded.n_audio_ctx == 50 * expected
    # Whoever does not say how long the audio is has a window of 30 s.
    assert WhisperEncoder(short_model).encode(mel.astype(np.float32), 0).n_audio_ctx == 1500


@pytest.mark.parametrize("stage", ["encoder", "decoder"])
def test_a_device_that_is_lost_with_a_short_window_is_started_again(
    cache_dir: Path, mel: FloatArray, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_short(cache_dir)
    n_samples = SHORT_S * SAMPLE_RATE
    request = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=n_samples)
    decoder = WhisperDecoder(model, DecodingSettings())

    def text() -> str:
        encoded = WhisperEncoder(model).encode(mel.astype(np.float32), 0, n_samples)
        return "".join(word.text for word in decoder.decode(encoded, request).words)

    expected = text()
    before = model.runtime
    part = next(part for part in before.stages if part.sizes.stage == stage)

    def fail(inputs: Tensors) -> None:
        raise part.failure("ZE_RESULT_ERROR_DEVICE_LOST")

    tamper(before, stage, fail)
    assert text() == expected
    assert model.runtime is not before
    assert model.runtime.windows_s == (SHORT_S, 30)
    assert f"CPU failed while it computed the {stage} (ZE_" in caplog.text
    assert "the model is back on CPU (encoder), CPU (cross_kv), CPU (decoder)" in caplog.text


def test_a_device_is_given_up_for_all_windows_of_a_stage() -> None:
    checkpoint = huggingface.load(NANO)
    plans = plan_stages(DeviceSettings("CPU"), ["CPU"])
    plans = {stage: type(plan)(stage, ("CPU", "CPU"), plan.properties) for stage, plan in plans.items()}
    compilation = Compilation(ModelGraphs.of(checkpoint, [(2, 0)]), plans, windows_s=[SHORT_S])
    compilation.compile()
    before = dict(compilation.compiled)
    assert len(before) == 4
    compilation.reject({"encoder": InferenceError("it failed", "encoder")})
    assert "encoder" not in {graph.stage for graph in compilation.compiled}
    compilation.compile()
    assert set(compilation.compiled) == set(before)
    changed = {graph for graph, compiled in compilation.compiled.items() if compiled is not before[graph]}
    assert changed == {Sizes("encoder", None)}


def test_a_graph_that_mixes_the_window_before_in_is_named() -> None:
    compilation = Compilation(
        ModelGraphs.of(huggingface.load(NANO), [(2, 0)]),
        plan_stages(DeviceSettings("CPU"), ["CPU"]),
        windows_s=[SHORT_S],
    )
    compilation.compile()
    used, fresh = Runtime(compilation), Runtime(compilation, n_buffers=1)
    before: list[FloatArray] = []

    def stale(part: Stage, outputs: Tensors) -> None:
        hidden = part.output("last_hidden_state").data
        if hidden.shape[1] < 1500:
            kept = hidden.copy()
            hidden[:] += 0.1 * sum(before)
            before[:] = [kept]

    tamper(used, "encoder", after=stale)
    assert all(check.passed for check in check_freshness(used, fresh, PROMPT[0]))
    first = next(check for check in check_freshness(used, fresh, PROMPT[0], SHORT_S) if not check.passed)
    assert first.name == "encoder (7 s): left of the window before"
    assert first.stage == "encoder"


def test_the_graphs_of_all_windows_are_checked_and_kept(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    checks = list(
        verify_model(
            str(NANO),
            DeviceSettings("CPU"),
            cache_dir=str(tmp_path),
            windows_s=[SHORT_S, 30],
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


def test_what_was_kept_is_what_was_compiled(tmp_path: Path, short_mel: FloatArray) -> None:
    found = []
    for _ in range(2):
        runtime = load_short(tmp_path).runtime
        runtime.decoder.use(runtime.encode(short_mel, 0))
        found.append(logits_of(runtime.decoder))
    np.testing.assert_array_equal(found[0], found[1])


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
    copy_of_nano: Callable[..., Path],
    told: list[int] | None,
    wanted: str,
    device: str,
    expected: tuple[int, ...],
) -> None:
    source = read_model(copy_of_nano("copy", stream_windows_s=told), "copy")
    settings = load_settings(None, {}, {"model.windows_s": wanted}).model
    plans = plan_stages(DeviceSettings(device), ["CPU", "NPU"])
    found = model_module._windows(source, plans, settings.windows_s or None)
    compilation = Compilation(source.graphs, plans, windows_s=found)
    assert tuple(compilation.windows_s) == expected


def test_files_are_heard_in_windows_of_30_s_whatever_captions_do(
    copy_of_nano: Callable[..., Path], cache_dir: Path
) -> None:
    path = copy_of_nano("told", stream_windows_s=[4])
    settings = load_settings(
        None, {}, {"model.name": str(path), "model.device": "CPU", "model.cache_dir": str(cache_dir)}
    ).model
    assert load(settings).runtime.windows_s == (4, 30)
    assert load(settings, live=False).runtime.windows_s == (30,)


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
        load_model(str(triple), DeviceSettings("CPU"), cache_dir=str(cache_dir), windows_s=[SHORT_S])
    caplog.set_level(logging.WARNING)
    model = load_model(str(triple), DeviceSettings("CPU"), cache_dir=str(cache_dir), windows_s=None)
    assert model.runtime.windows_s == (30,)
    assert not caplog.records


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_saved_graphs_can_be_shortened(
    tmp_path: Path, cache_dir: Path, short_model: WhisperModel, short_mel: FloatArray, precision: str
) -> None:
    target = tmp_path / "saved"
    convert_model(str(NANO), target, weights=precision, console=Console(quiet=True))
    runtimes = [
        load_model(str(target), DeviceSettings("CPU"), cache_dir=str(cache_dir), windows_s=[SHORT_S]).runtime,
        short_model.runtime,
    ]
    found = []
    for runtime in runtimes:
        runtime.decoder.use(runtime.encode(short_mel, 0))
        found.append(logits_of(runtime.decoder))
    if precision == "f32":
        assert_close(*found)
    else:
        assert (found[0].argmax(-1) == found[1].argmax(-1)).mean() > 0.5


def test_a_graph_for_30_s_alone_is_refused_in_one_line() -> None:
    checkpoint = huggingface.load(NANO)
    graphs = ModelGraphs.of(checkpoint, [(2, 0)])
    table = checkpoint.tensors["encoder.embed_positions.weight"]

    def rigid() -> ov.Model:
        """An encoder with a table of positions that is added as it is."""
        model = build_encoder(checkpoint.dims, checkpoint.tensors)
        for node in model.get_ops():
            if node.get_type_name() == "Slice":
                node.output(0).replace(ops.constant(np.float32(table)).output(0))
        return model

    compilation = Compilation(
        replace(graphs, build={**graphs.build, "encoder": rigid}),
        plan_stages(DeviceSettings(npu_through_cpu=True), ["CPU"]),
        windows_s=[SHORT_S],
    )
    with pytest.raises(
        ModelError, match=r"cannot take input_features .*leave model\.windows_s out, or convert"
    ) as caught:
        compilation.compile()
    assert "\n" not in str(caught.value)
