"""One application's sound: with stand-ins for PulseAudio's tools, and with a real PulseAudio and PipeWire."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from streamer.audio.sources import application as module
from streamer.audio.sources.application import (
    PATIENCE_SAMPLES,
    Application,
    PlaybackStream,
    describe_applications,
    list_streams,
)
from streamer.constants import SAMPLE_RATE
from tests.sound_servers import StandIn, running_pipewire, why_no_pipewire, write
from tests.unit.audio.support import Recorder, likeness, speech, written
from tests.virtual_mic import running_virtual_microphone, why_not
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs pipes, as Linux has them")


@pytest.fixture
def sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A sound server whose pauses are at once silence, so that nothing waits for a clock."""
    server = StandIn(tmp_path)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    return server


@contextmanager
def capturing(name: str, server: StandIn | None = None) -> Iterator[Recorder]:
    recorder, source = Recorder(), Application(name)
    source.start(recorder.callbacks)
    try:
        if server is not None:
            server.connect()
        yield recorder
    finally:
        source.stop()
    assert recorder.ends == []
    assert "application" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("name", ["Firefox", "fireFOX", "firefox-bin"])
def test_captions_begin_when_the_application_plays_and_go_on_when_it_is_back(sound: StandIn, name: str) -> None:
    sound.play(1, "mpv", "mpv")
    with capturing(name, sound) as recorder:
        wait_until(lambda: bool(recorder.gaps))
        for index in (2, 3):
            sound.play(index, "Firefox", "firefox-bin")
            pipe = sound.recorded(index)
            write(pipe, 0.5)
            wait_until(lambda: recorder.order[-1] == "audio")
            sound.end(index, pipe)
            wait_until(lambda: recorder.order[-1] == "gap")
    # What comes and goes within seconds is announced once.
    assert recorder.order == ["error", "gap", "audio", "gap", "audio", "gap"]
    assert "'mpv'" in str(recorder.errors[0])
    assert {reason for _, reason in recorder.gaps} == {"device"}
    # The first application is not recorded. Nor is anything else when a stream has ended.
    assert [call.rpartition("=")[2] for call in sound.calls] == ["2", "3"]
    assert all("--property=node.dont-reconnect=true" in call for call in sound.calls)


def test_all_streams_of_an_application_are_mixed(sound: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 1e9)
    for index in (1, 2):
        sound.play(index, "Chromium")
    with capturing("chromium", sound) as recorder:
        first, second = sound.recorded(1), sound.recorded(2)

        expected: list[float] = []

        def expect_next(n_samples: int, value: float) -> None:
            expected.extend([value] * n_samples)
            wait_until(lambda: len(recorder.audio) >= len(expected))
            assert recorder.audio.tolist() == expected

        write(first, 0.25)
        os.write(second, b"\0\0")  # a sample that is not complete yet
        write(first, 0.75)
        os.write(second, np.full(1600, 0.5, dtype="<f4").tobytes()[2:])
        expect_next(1600, 0.75)
        # What one has goes out alone if the other has nothing, except the last moment, which waits for it.
        write(first, np.nan, PATIENCE_SAMPLES)
        expect_next(1600, 0.75)
        write(second, 0.5)
        expect_next(1600, 0.5)
        # Its end releases what waits.
        sound.end(2, second)
        expect_next(PATIENCE_SAMPLES - 1600, 0.0)
        write(first, 7.0, 800)
        expect_next(800, 1.0)
    assert recorder.order == ["audio"]


def test_a_pause_is_silence_and_no_gap(sound: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    sound.play(1, "Music")
    sound.play(2, "Music")
    with capturing("music", sound) as recorder:
        pipe, other = sound.recorded(1), sound.recorded(2)
        wait_until(lambda: len(recorder.audio) > 1600)
        write(pipe, 0.5, 800)
        wait_until(lambda: np.count_nonzero(recorder.audio) == 800)
        n_before = len(recorder.audio)
        wait_until(lambda: len(recorder.audio) > n_before + 1600)
        # The last audio of a stream is not kept until the other plays.
        write(pipe, 0.5, 800)
        sound.end(1, pipe)
        wait_until(lambda: np.count_nonzero(recorder.audio) == 1600)
    os.close(other)
    assert recorder.order == ["audio"]


def test_a_sound_server_that_goes_away_and_comes_back(sound: StandIn) -> None:
    sound.play(1, "Music")
    with capturing("music", sound) as recorder:
        write(sound.recorded(1), 0.5)
        wait_until(lambda: bool(recorder.blocks))
        sound.list("")
        sound.disconnect()
        wait_until(lambda: bool(recorder.gaps))
        sound.play(2, "Music")
        sound.connect()
        write(sound.recorded(2), 0.25)
        wait_until(lambda: recorder.order[-1] == "audio" and bool((recorder.audio == 0.25).any()))
    assert recorder.order == ["audio", "error", "gap", "audio"]


def test_a_stream_that_cannot_be_recorded_is_tried_again(sound: StandIn) -> None:
    parec = sound.directory / "parec"
    script = parec.read_text(encoding="utf-8")
    parec.write_text(script.replace("\n", '\ntest -e "$SOUND/allowed" || exit 1\n', 1), encoding="utf-8")
    sound.play(1, "Music")
    with capturing("music", sound) as recorder:
        wait_until(lambda: bool(recorder.errors))
        (sound.directory / "allowed").touch()
        write(sound.recorded(1), 0.5)
        wait_until(lambda: recorder.order[-1] == "audio")
    assert [error.code for error in recorder.errors] == ["audio_device"]


def test_names_cannot_steer_a_terminal_or_fill_it(sound: StandIn) -> None:
    names = ("\x1b[2J\nSink Input #7", "ΩλΜüsik 🎵", "x" * 100_000, "(null)", "")
    streams = [
        {"index": i, "properties": {"application.name": name, "application.process.binary": "play\x07er"}}
        for i, name in enumerate(names)
    ]
    sound.list(json.dumps(streams))
    text = describe_applications(list_streams())
    assert text.isprintable()
    assert text.startswith("'[2J Sink Input #7' (play er), 'ΩλΜüsik 🎵' (play er), 'xxx")
    assert text.endswith("xxx' (play er), 'play er'")
    assert len(text) < 400
    assert PlaybackStream(1, {"node.name": "synth", "application.name": "synth"}).names == ("synth",)


@pytest.fixture(params=["pulseaudio", "pipewire"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """A real sound server with the outputs `vmic` and `speakers`."""
    pulseaudio = request.param == "pulseaudio"
    if reason := why_not() if pulseaudio else why_no_pipewire():
        pytest.skip(f"no {request.param}: {reason}")
    with ExitStack() as stack:
        if pulseaudio:
            microphone = stack.enter_context(running_virtual_microphone())
            microphone.plug_speakers()
            environ: Mapping[str, str] = microphone.env
        else:
            environ = stack.enter_context(running_pipewire())
        for name in ("PULSE_SERVER", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, environ[name])
        yield environ


@pytest.mark.slow
def test_only_one_of_two_that_play_at_once_is_recorded(server: Mapping[str, str], tmp_path: Path) -> None:
    spoken = {"Alice": speech(3.0, 4.4), "Bob": speech(3.0, 0.8)}
    with capturing("alice") as recorder:
        wait_until(lambda: bool(recorder.errors))
        players = []
        for name, samples in spoken.items():
            path = tmp_path / f"{name}.wav"
            path.write_bytes(written(np.concatenate([np.zeros(SAMPLE_RATE // 2), samples])))
            options = ["--latency-msec=100", f"--client-name={name}", "--device=speakers"]
            players.append(subprocess.Popen(["paplay", *options, str(path)], env=server))
        wait_until(lambda: recorder.order[-1] == "audio")
        assert sorted(describe_applications(list_streams()).split(", ")) == ["'Alice' (pacat)", "'Bob' (pacat)"]
        assert [player.wait() for player in players] == [0, 0]
        wait_until(lambda: recorder.order[-1] == "gap")
    assert recorder.order == ["error", "gap", "audio", "gap"]
    # The best of six pieces: on a busy machine the player stumbles.
    for name, like in (("Alice", True), ("Bob", False)):
        assert (max(likeness(recorder.audio, piece) for piece in np.split(spoken[name], 6)) > 0.9) is like, name
