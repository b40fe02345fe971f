"""A model that leaves memory while it is not needed, and comes back when it is."""

import dataclasses
import gc
import logging
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from streamer.audio.mel import log_mel
from streamer.engine.decoder import WhisperDecoder, WhisperEncoder
from streamer.errors import InferenceError, ModelError
from streamer.session.task import Request
from streamer.settings.table import DecodingSettings
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import Hypothesis
from tests.unit.whisper.support import SPEECH, load_on_cpu, random_checkpoint, read, shallow, write_huggingface
from tests.waiting import WAIT_S

REQUEST = Request(prefix=(), prompt="", language="en", task="transcribe", n_samples=160_000)
MEL = log_mel(read(SPEECH), 80).astype(np.float32)


def text(model: WhisperModel) -> str:
    encoded = WhisperEncoder(model).encode(MEL, 0)
    return "".join(word.text for word in WhisperDecoder(model, DecodingSettings()).decode(encoded, REQUEST).words)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A copy of a small model."""
    return Path(shutil.copytree(shallow(), tmp_path / "model"))


@pytest.fixture
def model(place: Path, cache_dir: Path) -> WhisperModel:
    return load_on_cpu(place, cache_dir)


def n_loads(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.name == "streamer.whisper.shared" for record in caplog.records)


def test_all_graphs_are_freed_and_the_next_computation_loads_them_again(
    model: WhisperModel, caplog: pytest.LogCaptureFixture
) -> None:
    fork = model.fork()
    expected = text(model), text(fork)
    described = model.runtime.windows_s, model.runtime.devices, model.tokenizer
    left = list(
        map(weakref.ref, (model.runtime, model.runtime.decoder, *model.runtime.compiled.graphs.values(), fork.runtime))
    )
    assert fork.unload()
    assert (model.loaded, fork.loaded) == (True, False), "a fork frees what is its own"
    assert text(fork) == expected[1]
    assert model.unload()
    assert not model.unload(), "there is nothing left to free"
    gc.collect()
    assert [part() for part in left] == [None] * len(left)
    assert model.state == "unloaded"
    calls: list[str] = []
    fork.call_before(lambda: calls.append("fork"))
    with caplog.at_level(logging.INFO):
        assert (text(model), text(fork)) == expected
    assert calls, "what is called before each run is not forgotten"
    assert (model.state, n_loads(caplog)) == ("loaded", 1)
    assert (model.runtime.windows_s, model.runtime.devices, model.tokenizer) == described


def test_a_computation_that_has_begun_ends_with_its_graphs(model: WhisperModel) -> None:
    expected = text(model)
    encoded = WhisperEncoder(model).encode(MEL, 0)
    decoder = WhisperDecoder(model, DecodingSettings(carry_initial_prompt=True))

    def decode(runtime: Runtime) -> Hypothesis:
        assert model.unload()
        return decoder._decode(runtime.decoder_of(encoded), REQUEST, lambda: False)

    assert "".join(word.text for word in model.run(decode).words) == expected
    assert model.state == "unloaded"


def test_unloading_does_not_wait_for_a_load(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    unloaded: list[bool] = []
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(Runtime, "warm_up", lambda _: unloaded.append(pool.submit(model.unload).result(WAIT_S)))
        model.unload()
        model.wake()
    assert (unloaded, model.loaded) == ([False], True)


def test_nothing_is_kept_of_a_load_that_fails_and_threads_at_once_load_it_once(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(runtime: Runtime) -> None:
        assert model.state == "loading"
        raise InferenceError("it is too warm", "decoder")

    model.unload()
    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "warm_up", fail)
        with pytest.raises(InferenceError):
            model.wake()
    assert model.state == "unloaded"
    together = threading.Barrier(4)
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(4) as pool:
        runtimes = list(pool.map(lambda _: (together.wait(), model.wake())[1], range(4)))
    assert len(set(map(id, runtimes))) == 1
    assert n_loads(caplog) == 1


def test_a_model_that_is_gone_is_an_error_until_it_is_back(model: WhisperModel, place: Path) -> None:
    expected = text(model)
    model.unload()
    away = place.rename(place.with_name("away"))
    for _ in range(2):
        with pytest.raises(ModelError):
            text(model)
        assert model.state == "unloaded"
    away.rename(place)
    assert text(model) == expected


def test_another_model_of_that_name_is_refused(model: WhisperModel, place: Path) -> None:
    model.unload()
    write_huggingface(place, random_checkpoint(dataclasses.replace(model.dims, n_audio_layer=2)))
    with pytest.raises(ModelError):
        model.wake()
    assert model.state == "unloaded"
