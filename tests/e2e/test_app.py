"""The program when something goes wrong: one clear line, the right exit code, nothing lost."""

import asyncio
import json
import os
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
from tests.refusals import Refusal, refusals
from tests.unit.audio.test_track import write
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sentence: Path) -> Path:
    """The folder that `tests/golden/refusals/program.toml` describes."""
    folder = tmp_path_factory.mktemp("wrong")
    shutil.copyfile(sentence, folder / "sentence.wav")
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("These are words, but nobody says them.\n" * 100, encoding="utf-8")
    names = ("config.json", "tokenizer.json", "model.safetensors")
    for name in (*(f"without-{name}" for name in names), "unfit", "cut"):
        ignored = shutil.ignore_patterns("sample.*", "vocab.json", name.removeprefix("without-"))
        shutil.copytree(SAMPLE.parent, folder / name, ignore=ignored, copy_function=shutil.copyfile)
    config = folder / "unfit" / "config.json"
    known = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**known, "encoder_layers": known["encoder_layers"] + 1}), encoding="utf-8")
    os.truncate(folder / "cut" / "model.safetensors", 100_000)
    return folder


@refusals("program")
def test_what_cannot_be_done_is_an_exit_code_and_one_line(run_here: Run, folder: Path, refusal: Refusal) -> None:
    refusal.check_command(run_here(*(argument.replace("{DIR}", str(folder)) for argument in refusal.given)), folder)


def test_an_address_of_a_meeting_in_a_flag_is_not_repeated(run_here: Run) -> None:
    for arguments in (("run", "--port", "0", "--input", "none"), ("config", "show")):
        outcome = run_here(*arguments, "--to", "zoom:https://zoom.example/cc?id=SECRET")
        assert "SECRET" not in outcome.stdout + outcome.stderr


def test_a_port_in_use_is_a_wrong_use(run_here: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = run_here("run", "--input", "none", "--port", str(taken.getsockname()[1]))
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.error()


# --- files ------------------------------------------------------------------------------------------------------------

COMMANDS: list[tuple[str | Path, ...]] = [
    ("transcribe",),
    ("transcribe", "--stream"),
    ("run", "--port", "0", "--speed", "0", "--exit-at-end", "--input"),
]
command_names = pytest.mark.parametrize("arguments", COMMANDS, ids=["transcribe", "stream", "run"])


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
    assert f"{SENTENCE_S:.2f} s" in outcome.error()
    assert words_of(outcome.stdout)[:4] == words_of(sample_text())[:4]


def test_one_bad_file_does_not_keep_the_others_from_being_transcribed(
    run_here: Run, tmp_path: Path, sentence: Path
) -> None:
    outcome = run_here("transcribe", "--format", "srt", "-o", tmp_path, tmp_path / "missing.wav", sentence)
    assert "missing.wav" in outcome.error()
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
    assert outcome.stderr.count("damaged.mp4") == 1
    assert sorted(path.relative_to(new).as_posix() for path in new.rglob("*.*")) == ["more/talk.srt", "talk.srt"]
    assert "danger" in (new / "talk.srt").read_text(encoding="utf-8")


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


@pytest.mark.slow
def test_no_audio_library_is_one_line_that_says_how_to_get_it(without_portaudio: dict[str, str]) -> None:
    outcome = command("run", "--port", "0", environ=without_portaudio)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "PortAudio" in outcome.error()


@pytest.mark.slow
def test_no_microphone_is_one_line_that_says_what_else_there_is(without_microphone: dict[str, str]) -> None:
    outcome = command("run", "--port", "0", environ=without_microphone)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "--input FILE" in outcome.error()


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
def test_a_minute_without_speech_gives_no_words(
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
