"""What the drivers ask of faster-whisper, openvino-genai and pywhispercpp, which are scripted here."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tools.benchmarks.windows import END_OF_TEXT, PROMPT, Task, Transcribe, Window

SAMPLES = np.zeros(480_000, dtype=np.float32)
TASK = Task("model", "audio.npy", n_tokens=7, n_threads=2, options=("INFERENCE_PRECISION_HINT=f32",))


class Asked:
    """What a library was called with, by the name of the call."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}

    def note(self, name: str, answer: object) -> Any:  # noqa: ANN401
        def call(*arguments: object, **keywords: object) -> object:
            self.calls[name] = (arguments, keywords)
            return answer

        return call


@pytest.fixture
def asked() -> Asked:
    return Asked()


def load(monkeypatch: pytest.MonkeyPatch, driver: str, **libraries: object) -> Transcribe:
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.2.3")
    name = f"tools.benchmarks.peers.{driver}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, module)  # so that it goes with the libraries
    version, transcribe = module.load(TASK)
    assert "1.2.3" in version
    found: Transcribe = transcribe
    return found


def test_faster_whisper_samples_as_many_tokens_as_asked_for(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    generated = [SimpleNamespace(sequences_ids=[list(range(7))])]
    model = SimpleNamespace(
        feature_extractor=asked.note("features", np.zeros((80, 3001), np.float32)),
        encode=asked.note("encode", np.zeros((1, 1500, 512), np.float32)),
        model=SimpleNamespace(generate=asked.note("generate", generated)),
    )
    library = SimpleNamespace(
        WhisperModel=asked.note("load", model),
        audio=SimpleNamespace(pad_or_trim=lambda features: features[:, :3000]),
    )
    ctranslate2 = SimpleNamespace(__version__="1.2.3")
    window = load(monkeypatch, "faster_whisper", faster_whisper=library, ctranslate2=ctranslate2)(SAMPLES)
    assert window.n_tokens == 7
    assert None not in (window.mel_s, window.encode_s, window.decode_s)
    _, options = asked.calls["load"]
    assert (options["compute_type"], options["cpu_threads"]) == ("int8", 2)
    (features,), _ = asked.calls["encode"]
    assert features.shape == (80, 3000)
    (_, prompts), options = asked.calls["generate"]
    assert prompts == [list(PROMPT)]
    assert END_OF_TEXT in options["suppress_tokens"]
    # CTranslate2 samples half of this at most.
    assert (options["beam_size"], options["max_length"]) == (1, 14)


def test_openvino_genai_is_left_as_it_is_but_for_the_length(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    parts = SimpleNamespace(
        features_extraction_durations=[1000.0],
        encode_inference_durations=[2000.0],
        decode_inference_durations=[1000.0, 2000.0],
    )
    metrics = SimpleNamespace(get_num_generated_tokens=lambda: 7, whisper_raw_metrics=parts)
    config = SimpleNamespace(suppress_tokens=[1, 2])
    pipeline = SimpleNamespace(
        get_generation_config=lambda: config,
        generate=asked.note("generate", SimpleNamespace(perf_metrics=metrics)),
    )
    library = SimpleNamespace(WhisperPipeline=asked.note("load", pipeline), __version__="1.2.3")
    window = load(monkeypatch, "openvino_genai", openvino_genai=library)(SAMPLES)
    assert window == Window(n_tokens=7, mel_s=0.001, encode_s=0.002, decode_s=0.003)
    expected = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}
    assert asked.calls["load"] == (("model", "CPU"), expected)
    assert (config.max_new_tokens, config.suppress_tokens) == (7, [1, 2, END_OF_TEXT])
    assert (config.language, config.return_timestamps) == ("<|en|>", False)


def test_pywhispercpp_tries_once_and_counts_all_segments(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    model = SimpleNamespace(transcribe=asked.note("transcribe", []), _ctx="context")
    inner = SimpleNamespace(
        whisper_full_n_segments=lambda context: 2, whisper_full_n_tokens=lambda context, segment: 3 + segment
    )
    outer = SimpleNamespace(model=SimpleNamespace(Model=asked.note("load", model)))
    libraries = {"_pywhispercpp": inner, "pywhispercpp": outer, "pywhispercpp.model": outer.model}
    assert load(monkeypatch, "pywhispercpp", **libraries)(SAMPLES).n_tokens == 7
    _, options = asked.calls["load"]
    assert (options["n_threads"], options["max_tokens"], options["temperature_inc"]) == (2, 6, 0.0)
    assert options["greedy"] == {"best_of": 1}
