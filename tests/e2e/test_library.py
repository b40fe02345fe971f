"""`from streamer import listen, stream, transcribe, load_model, LiveText`."""

import asyncio
import importlib
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import streamer
from streamer import load_model, transcribe
from streamer.errors import AudioFileError, ConfigError, ModelError, ProtocolError
from streamer.whisper.model import WhisperModel
from tests.daemon import REPOSITORY, SAMPLE, WAIT_S, environment, recording
from tests.unit.test_imports import loaded_by, within
from tests.virtual_mic import VirtualMicrophone

# As the command transcribes the first five seconds.
FIRST = "The Commission regards such imprompt two stops as presenting an"


@pytest.fixture(scope="module")
def model() -> WhisperModel:
    return load_model("nano.en", device="CPU")


def test_the_package_itself_imports_next_to_nothing() -> None:
    loaded = loaded_by(["streamer"])
    assert within(loaded, "streamer") == ["streamer", "streamer.version"]
    assert not within(loaded, "numpy", "websockets", "openvino", "asyncio", "msgspec")


@pytest.mark.parametrize("name", ["listen", "stream"])
def test_a_client_imports_no_model_and_no_server(name: str) -> None:
    code = f"import sys; from streamer import {name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert not within(
        set(done.stdout.split()), "openvino", "streamer.whisper", "streamer.server", "streamer.audio.sources"
    )


def test_the_functions_are_functions_whatever_was_imported() -> None:
    importlib.import_module("streamer.session.session")
    importlib.import_module("streamer.offline.recording")
    assert all(
        callable(getattr(streamer, name)) for name in ("listen", "stream", "transcribe", "load_model", "LiveText")
    )
    with pytest.raises(AttributeError):
        _ = streamer.whistle


async def test_a_file_and_its_samples_read_the_same(model: WhisperModel, tmp_path: Path) -> None:
    samples = recording(end_s=5.0)
    path = tmp_path / "first.wav"
    soundfile.write(path, samples, 16_000, subtype="FLOAT")
    of_file = await asyncio.to_thread(transcribe, path, model)
    assert of_file.text == FIRST
    assert of_file.language == "en"
    assert of_file.duration_s == 5.0
    assert of_file.words[0].word == " The"
    assert of_file.segments[0].end <= 5.0
    stereo = np.stack([samples, samples], axis=1)
    for audio in (stereo.astype(np.float64), (samples * 32768).astype(np.int16)):
        assert transcribe(audio, model).text == FIRST
    assert transcribe(samples, model, temperature=np.float64(0.0)).text == FIRST


def test_silence_is_no_text(model: WhisperModel) -> None:
    silence = transcribe(np.zeros(8000, dtype=np.int16), model, sample_rate=8000)
    assert (silence.text, silence.words, silence.language, silence.duration_s) == ("", (), "", 1.0)


def test_a_file_that_is_cut_off_is_transcribed_as_far_as_it_goes(
    model: WhisperModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cut.wav"
    soundfile.write(path, recording(end_s=8.0), 16_000, subtype="PCM_16")
    path.write_bytes(path.read_bytes()[: 44 + 2 * 5 * 16_000])
    with caplog.at_level(logging.WARNING):
        assert transcribe(path, model).duration_s == 5.0
    assert "truncated" in caplog.text


def test_what_cannot_be_done_is_refused(model: WhisperModel, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"colour": "red", "temperature": "hot", "language": "de", "beam_size": 6}
    for name, value in wrong.items():
        with pytest.raises(ConfigError):
            transcribe(recording(end_s=1.0), model, **{name: value})
    for audio in (tmp_path / "missing.wav", np.zeros(3, dtype=np.int64)):
        with pytest.raises(AudioFileError):
            transcribe(audio, model)
    with pytest.raises(ProtocolError):
        transcribe(np.zeros(3, dtype=np.int16), model, sample_rate=1)
    with pytest.raises(ModelError):
        transcribe(SAMPLE, "./no such model")


def test_the_example_captions_the_microphone_until_ctrl_c(virtual_microphone: VirtualMicrophone) -> None:
    command = [sys.executable, "examples/live_text.py", "nano.en"]
    environ = environment(virtual_microphone.env)
    with subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE) as example:
        assert example.stdout is not None
        try:
            assert example.stdout.readline().startswith(b"Speak")
            with virtual_microphone.play(SAMPLE) as player:
                assert b"regards" in example.stdout.readline()
                player.terminate()
            example.send_signal(signal.SIGINT)
            example.stdout.read()
            assert example.wait(WAIT_S) == 0
        finally:
            example.kill()
