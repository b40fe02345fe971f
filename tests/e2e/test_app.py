"""The program against what goes wrong: one clear line, the right exit code, nothing lost."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import soundfile

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.events import Error, Final, Gap, Partial
from streamer.signals import handled
from streamer.whisper.shipped import EMBEDDED_ORIGIN, limits
from streamer.whisper.source import read_model
from tests.daemon import (
    SAMPLE,
    Daemon,
    Outcome,
    command,
    connected,
    events_of,
    follow,
    free_port,
    pause_after,
    recording,
    running,
    sample_text,
    started,
)
from tests.promises import check_promises, transcript
from tests.unit.audio.sources.test_container import write
from tests.wer import wer, words_of

SENTENCE_S = pause_after(1)  # the first of the sample

# nano.en gets about one word in six wrong.
MAX_WER = 0.4


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first sentence of the sample, as a file."""
    path = tmp_path_factory.mktemp("audio") / "sentence.wav"
    soundfile.write(path, recording(SAMPLE, 0.0, SENTENCE_S), SAMPLE_RATE, subtype="PCM_16")
    return path


Run = Callable[..., Outcome]
Refused = Callable[..., str]


@pytest.fixture
def refused(run_here: Run) -> Refused:
    """Run a command that must fail with an exit code and one line, and return that line."""
    return lambda exit_code, *arguments: refusal(exit_code, run_here(*arguments))


def refusal(exit_code: int, outcome: Outcome) -> str:
    """Return the one line with which a command failed."""
    error = outcome.error()
    assert outcome.exit_code == exit_code, outcome.stderr
    assert outcome.stdout == ""
    return error


# --- configuration ----------------------------------------------------------------------------------------------------


def test_others_are_not_let_in_without_a_token(refused: Refused) -> None:
    error = refused(2, "run", "--host", "0.0.0.0", "--port", "0", "--input", "none")
    assert "server.token" in error


def test_outputs_that_cannot_be_are_refused_at_once(refused: Refused) -> None:
    run = ("run", "--port", "0", "--input")
    assert "name one, or drop --to" in refused(2, *run, "none", "--to", "obs")
    assert "outputs.zoom_url is empty" in refused(2, *run, SAMPLE, "--to", "obs", "--to", "zoom")
    assert "--to 'twitch' is not an output" in refused(2, *run, SAMPLE, "--to", "twitch")


def test_an_address_of_a_meeting_in_a_flag_is_told_and_not_repeated(run_here: Run) -> None:
    outcome = run_here("run", "--port", "0", "--input", "none", "--to", "zoom:https://zoom.example/cc?id=SECRET")
    assert "every user of this machine sees the address in --to: use --to zoom:@FILE" in outcome.stderr
    assert "SECRET" not in outcome.stderr
    shown = run_here("config", "show", "--to", "zoom:https://zoom.example/cc?id=SECRET")
    assert "SECRET" not in shown.stdout


def test_a_port_in_use_is_named(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is already in use" in refused(
            2, "run", "--input", "none", "--port", str(port)
        )


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    directory = tmp_path / "model"
    shutil.copytree(
        SAMPLE.parent, directory, ignore=shutil.ignore_patterns("sample.*", "vocab.json"), copy_function=shutil.copyfile
    )
    return directory


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_of_a_model_is_named(refused: Refused, model: Path, sentence: Path, name: str) -> None:
    (model / name).unlink()
    missing = "has no tokenizer beside it" if name == "tokenizer.json" else f"{name}.* missing"
    assert re.search(missing, refused(2, "transcribe", "--model", model, sentence))


def test_a_file_of_a_model_that_is_cut_off_or_does_not_fit_is_named(refused: Refused, model: Path) -> None:
    run = ("run", "--port", "0", "--input", "none", "--model", model)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    more = {**config, "encoder_layers": config["encoder_layers"] + 1}
    (model / "config.json").write_text(json.dumps(more), encoding="utf-8")
    assert re.search(r"model\.safetensors.*config\.json", refused(2, *run))
    os.truncate(model / "model.safetensors", 100_000)
    assert "model.safetensors" in refused(2, *run)


def test_a_model_that_is_not_there_is_refused(refused: Refused, tmp_path: Path, sentence: Path) -> None:
    assert "nano.en" in refused(2, "transcribe", "--model", "nano.de", sentence)


# --- files ------------------------------------------------------------------------------------------------------------

COMMANDS: list[tuple[str | Path, ...]] = [
    ("transcribe",),
    ("transcribe", "--stream"),
    ("run", "--port", "0", "--speed", "0", "--exit-at-end", "--input"),
]
command_names = pytest.mark.parametrize("arguments", COMMANDS, ids=["transcribe", "stream", "run"])


@command_names
def test_a_file_that_is_no_audio_is_refused(refused: Refused, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    empty, text, missing = tmp_path / "empty.wav", tmp_path / "text.wav", tmp_path / "missing.wav"
    empty.touch()
    text.write_text("These are words, but nobody says them.\n" * 100, encoding="utf-8")
    for path, said in ((empty, "is empty"), (text, "is not audio"), (missing, "does not exist")):
        error = refused(2, *arguments, path)
        assert str(path) in error
        assert said in error


@pytest.mark.slow
@command_names
def test_what_a_truncated_file_holds_is_transcribed(
    run_here: Run, tmp_path: Path, sentence: Path, arguments: tuple[str, ...]
) -> None:
    whole = tmp_path / "whole.wav"
    truncated = tmp_path / "truncated.wav"
    soundfile.write(whole, recording(SAMPLE, 0.0, 2 * SENTENCE_S), SAMPLE_RATE, subtype="PCM_16")
    truncated.write_bytes(whole.read_bytes()[: sentence.stat().st_size])
    outcome = run_here(*arguments, truncated)
    assert outcome.exit_code == 1
    assert f"{truncated} ends after {SENTENCE_S:.2f} s, its header announces {2 * SENTENCE_S:.2f} s" in outcome.error()
    assert words_of(outcome.stdout)[:4] == words_of(sample_text())[:4]


def test_one_bad_file_does_not_keep_the_others_from_being_transcribed(
    run_here: Run, tmp_path: Path, sentence: Path
) -> None:
    outcome = run_here("transcribe", "--format", "srt", "-o", tmp_path, tmp_path / "missing.wav", sentence)
    assert "missing.wav does not exist" in outcome.error()
    assert outcome.exit_code == 2
    assert "danger" in (tmp_path / "sentence.srt").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentence.srt"]


def test_a_folder_and_its_subfolders_are_transcribed_and_a_damaged_file_is_reported_once(
    run_here: Run, tmp_path: Path, sentence: Path
) -> None:
    folder, new = tmp_path / "talks", tmp_path / "new"
    (folder / "more").mkdir(parents=True)
    write(folder / "talk.m4a", recording(SAMPLE, 0.0, SENTENCE_S), "m4a")
    soundfile.write(folder / "more" / "talk.wav", np.zeros(96), SAMPLE_RATE)  # 6 ms
    (folder / "damaged.mp4").write_bytes((folder / "talk.m4a").read_bytes()[:5000])
    (folder / "notes.txt").touch()
    outcome = run_here("transcribe", folder, "--output_dir", new, "--output_format", "srt", "--language", "English")
    assert outcome.exit_code == 2
    assert outcome.stderr.count("damaged.mp4 is not audio") == 1
    assert "talk.wav: no speech found, its text is empty" in outcome.stderr
    assert "talk.m4a: no speech found" not in outcome.stderr
    assert "1 of 2 talk.wav" in outcome.stderr
    assert sorted(path.relative_to(new).as_posix() for path in new.rglob("*.*")) == ["more/talk.srt", "talk.srt"]
    assert "danger" in (new / "talk.srt").read_text(encoding="utf-8")


def test_a_place_that_cannot_be_written_to_is_refused(refused: Refused, tmp_path: Path, sentence: Path) -> None:
    assert "cannot be written" in refused(2, "transcribe", "-o", tmp_path / "no" / "where.txt", sentence)
    assert "is one file" in refused(2, "transcribe", "-o", tmp_path / "a.txt", sentence, SAMPLE)


def test_an_empty_address_of_nats_leaves_files_to_this_machine(run_here: Run, tmp_path: Path) -> None:
    outcome = run_here("transcribe", "--nats", "", "--stream", tmp_path / "missing.wav")
    assert "missing.wav does not exist" in outcome.error()


def test_a_dash_is_standard_output(
    run_here: Run, tmp_path: Path, sentence: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run_here("transcribe", "-o", "-", sentence)
    assert outcome.exit_code == 0, outcome.stderr
    assert "danger" in outcome.stdout
    assert not list(tmp_path.glob("-*"))


@pytest.mark.parametrize("arguments", [(), ("--stream",)], ids=["offline", "stream"])
def test_json_lines_are_numbered_events_from_ready_to_end(
    run_here: Run, sentence: Path, arguments: tuple[str, ...]
) -> None:
    outcome = run_here("transcribe", "--format", "jsonl", *arguments, sentence)
    assert outcome.exit_code == 0, outcome.stderr
    check_promises(events_of(outcome.stdout), duration_s=SENTENCE_S)


# --- microphones ------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_portaudio(tmp_path: Path) -> dict[str, str]:
    """An environment in which PortAudio cannot be found, neither in the system nor beside sounddevice."""
    hiding = (
        "import ctypes.util, sys\n"
        "find_library = ctypes.util.find_library\n"
        "ctypes.util.find_library = lambda name: None if 'portaudio' in name.lower() else find_library(name)\n"
        "sys.modules['_sounddevice_data'] = None\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hiding, encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture
def without_microphone(tmp_path: Path) -> dict[str, str]:
    """An environment in which PortAudio is there and has no device."""
    hiding = (
        "import pathlib, sys\n"
        "sys.path = [path for path in sys.path if path != str(pathlib.Path(__file__).parent)]\n"
        "del sys.modules['sounddevice']\n"
        "import sounddevice\n"
        "def query_devices(device=None, kind=None):\n"
        "    if device is None and kind is None:\n"
        "        return sounddevice.DeviceList()\n"
        "    raise sounddevice.PortAudioError('Error querying device -1')\n"
        "sounddevice.query_devices = query_devices\n"
    )
    (tmp_path / "sounddevice.py").write_text(hiding, encoding="utf-8")
    return {"PYTHONPATH": str(tmp_path)}


# A sounddevice module with one microphone, which hears nothing and goes away once, after a tenth of a second.
PRETENDED = """
import threading, types
import numpy as np

class PortAudioError(Exception):
    pass

MICROPHONE = dict(index=0, name="pretended", hostapi=0, max_input_channels=1, default_samplerate=16000.0)

def query_devices(device=None, kind=None):
    return MICROPHONE if kind else [MICROPHONE]

def query_hostapis():
    return [dict(name="none")]

def _initialize():
    pass

def _terminate():
    pass

class InputStream:
    n_opened = 0

    def __init__(self, *, callback, **_):
        InputStream.n_opened += 1
        self._blocks = 10 if InputStream.n_opened == 1 else 10**9
        self._callback = callback
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._hear, daemon=True)

    @property
    def active(self):
        return self._thread.is_alive()

    def start(self):
        self._thread.start()

    def abort(self):
        self._closed.set()

    def close(self):
        self._closed.set()

    def _hear(self):
        silence = np.zeros((160, 1), dtype=np.float32)
        while self._blocks and not self._closed.wait(0.01):
            self._blocks -= 1
            times, status = types.SimpleNamespace(inputBufferAdcTime=0.0), types.SimpleNamespace(input_overflow=False)
            self._callback(silence, len(silence), times, status)
"""


@pytest.fixture
def pretended_microphone(tmp_path: Path) -> dict[str, str]:
    """An environment with a microphone that hears nothing and goes away once."""
    modules = tmp_path / "pretended"
    modules.mkdir()
    (modules / "sounddevice.py").write_text(PRETENDED, encoding="utf-8")
    return {"PYTHONPATH": str(modules)}


@pytest.mark.slow
def test_with_a_microphone_it_is_said_once_what_the_embedded_model_is_not(
    pretended_microphone: dict[str, str],
) -> None:
    with running("--no-captions", environ=pretended_microphone) as daemon:
        daemon.wait_said(r"'pretended': back")
        outcome = daemon.stop()
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stderr.count(limits(EMBEDDED_ORIGIN)) == 1


@pytest.mark.slow
def test_of_a_model_with_another_origin_nothing_is_said(model: Path, pretended_microphone: dict[str, str]) -> None:
    set_origin(model, "somebody/nano.en")
    with running("--no-captions", "--model", model, environ=pretended_microphone) as daemon:
        outcome = daemon.stop()
    assert outcome.exit_code == 0, outcome.stderr
    assert limits(EMBEDDED_ORIGIN) not in outcome.stderr


@pytest.mark.parametrize(
    ("said", "origin"),
    [("streamer/nano.en", EMBEDDED_ORIGIN), ("somebody/nano.en", "somebody/nano.en"), (None, ""), (7, "")],
)
def test_a_models_origin_is_what_it_says(model: Path, said: object, origin: str) -> None:
    set_origin(model, said)
    assert read_model(model, "nano.en").origin == origin


def set_origin(model: Path, origin: object) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "_name_or_path": origin}), encoding="utf-8")


@pytest.mark.slow
def test_no_audio_library_is_one_line_that_says_how_to_get_it(without_portaudio: dict[str, str]) -> None:
    error = refusal(1, command("run", "--port", "0", environ=without_portaudio))
    assert "PortAudio" in error
    assert "install" in error


@pytest.mark.slow
def test_no_microphone_is_one_line_that_says_what_else_there_is(without_microphone: dict[str, str]) -> None:
    error = refusal(1, command("run", "--port", "0", environ=without_microphone))
    assert "no microphone" in error
    assert "--input FILE" in error


@pytest.mark.slow
def test_without_a_microphone_the_fallback_is_played(sentence: Path, without_portaudio: dict[str, str]) -> None:
    with running(
        *("--no-captions", "--exit-at-end", "--speed", "3", "--fallback", sentence), environ=without_portaudio
    ) as daemon:
        received = asyncio.run(follow(daemon.address("/v1/captions?after=0")))
        assert daemon.wait().exit_code == 0
    assert f"playing {sentence} instead" in daemon.stderr
    check_promises(received.events, duration_s=SENTENCE_S)
    assert wer(sample_text(0.0, SENTENCE_S), transcript(received.events)) <= MAX_WER


@pytest.mark.slow
def test_a_fallback_that_is_missing_is_refused(tmp_path: Path, without_microphone: dict[str, str]) -> None:
    missing = tmp_path / "missing.wav"
    error = refusal(2, command("run", "--port", "0", "--fallback", missing, environ=without_microphone))
    assert "missing.wav does not exist" in error


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to catch on Windows")
@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_a_daemon_that_is_stopped_while_its_model_is_compiled_ends_in_order(tmp_path: Path, delay_s: float) -> None:
    # The server is there before the model is: when it answers, the model is being loaded, or just has been.
    port = free_port()
    environ = {"STREAMER_CACHE_DIR": str(tmp_path)}  # nothing was compiled before
    with started("run", "--input", "none", "--port", str(port), environ=environ) as daemon:
        daemon.url = f"http://127.0.0.1:{port}/"
        daemon.wait_answer()
        time.sleep(delay_s)
        outcome = daemon.stop()
    assert outcome.exit_code == 0, outcome.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to catch on Windows")
def test_a_daemon_that_waits_for_standard_input_ends_in_order() -> None:
    reading, writing = os.pipe()
    try:
        with running("--input", "-", "--no-captions", stdin=reading) as daemon:
            outcome = daemon.stop()
    finally:
        os.close(reading)
        os.close(writing)
    assert outcome.exit_code == 0, outcome.stderr


# --- pausing ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGUSR1 on Windows")
def test_without_an_input_there_is_nothing_to_pause() -> None:
    with running("--input", "none") as daemon:
        daemon.process.send_signal(signal.SIGUSR1)
        daemon.wait_said("there is no input to pause")
        outcome = daemon.stop()
    assert outcome.exit_code == 0, outcome.stderr


async def test_what_is_heard_while_paused_is_a_gap() -> None:
    with running("--input", SAMPLE, "--speed", "1", "--no-captions") as daemon:
        async with connected(daemon.address("/v1/captions?after=0")) as (_, received):
            await received.wait_for(Partial)
            assert daemon.post("/v1/input/pause") == (200, '{"paused":true,"kept":false,"audio":false}\n')
            await asyncio.sleep(0.5)  # of what is said
            assert daemon.get("/v1/input") == (200, '{"paused":true,"kept":false,"audio":false}\n')
            assert daemon.post("/v1/input/resume") == (200, '{"paused":false,"kept":false,"audio":false}\n')
            n_gaps = 1
            if sys.platform != "win32":  # which has no SIGUSR1
                await pause_and_resume_by_signals(daemon)
                n_gaps = 2
            await received.wait_for(Gap, n=n_gaps)
            daemon.terminate()
            await received.wait_closed()
        outcome = daemon.wait()
    assert outcome.exit_code == 0, outcome.stderr
    assert [gap.reason for gap in received.of(Gap)] == ["paused"] * n_gaps
    check_promises(received.events)


async def pause_and_resume_by_signals(daemon: Daemon) -> None:
    """Send the signal twice: it pauses an input that runs and resumes one that is paused."""
    for paused, said in (("true", "the input is paused"), ("false", "the input goes on")):
        daemon.process.send_signal(signal.SIGUSR1)
        daemon.wait_said(said)
        assert daemon.get("/v1/input") == (200, f'{{"paused":{paused},"kept":false,"audio":false}}\n')
        await asyncio.sleep(0.5)  # of what is said


async def test_signals_are_handled_only_while_the_daemon_runs() -> None:
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
    before = [signal.getsignal(number) for number in numbers]
    with handled(asyncio.get_running_loop(), *3 * [lambda: None]):
        assert not any(signal.getsignal(number) == handler for number, handler in zip(numbers, before, strict=True))
    assert [signal.getsignal(number) for number in numbers] == before


# --- nothing said -----------------------------------------------------------------------------------------------------

ONE_MINUTE = 60 * SAMPLE_RATE


def silence(_: np.random.Generator) -> Float32Array:
    return np.zeros(ONE_MINUTE, dtype=np.float32)


def noise(rng: np.random.Generator) -> Float32Array:
    """White, then pink, then brown noise, each of them swelling and fading."""
    white = rng.standard_normal(ONE_MINUTE // 3)
    # Pink: Kellet's filter, which falls by 3 dB an octave within half a decibel.
    b = [0.049922035, -0.095993537, 0.050612699, -0.004408786]
    a = [1, -2.494956002, 2.017265875, -0.522189400]
    pink = scipy.signal.lfilter(b, a, rng.standard_normal(len(white)))
    brown = scipy.signal.lfilter([1], [1, -0.998], rng.standard_normal(len(white)))
    swell = 0.55 - 0.45 * np.cos(np.arange(len(white)) * (2 * np.pi / (20 * SAMPLE_RATE)))
    sounds = [swell * sound / np.abs(sound).max() for sound in (white, pink, brown)]
    return (0.5 * np.concatenate(sounds)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("sound", [silence, noise])
def test_a_minute_without_speech_give_no_words(
    run_here: Run, tmp_path: Path, sound: Callable[[np.random.Generator], Float32Array]
) -> None:
    path = tmp_path / f"{sound.__name__}.wav"
    soundfile.write(path, sound(np.random.default_rng(1)), SAMPLE_RATE, subtype="PCM_16")
    outcome = run_here("transcribe", "--stream", "--format", "jsonl", path)
    assert outcome.exit_code == 0, outcome.stderr
    events = events_of(outcome.stdout)
    assert [event.text for event in events if isinstance(event, Partial | Final) and event.text] == []
    assert not any(isinstance(event, Error) for event in events)
    check_promises(events, duration_s=ONE_MINUTE / SAMPLE_RATE)
