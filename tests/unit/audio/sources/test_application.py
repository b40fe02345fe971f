"""One application's sound: with stand-ins for PulseAudio's tools, and with a real PulseAudio and PipeWire."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from streamer.audio.sources import application as module
from streamer.audio.sources.application import (
    PATIENCE_SAMPLES,
    Application,
    PlaybackStream,
    describe_applications,
    list_streams,
)
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioDeviceError
from tests.sound_servers import StandIn, running_pipewire, why_no_pipewire, write
from tests.unit.audio.sources.recorder import Recorder
from tests.unit.audio.sources.test_microphone import SPEECH, likeness
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
def capturing(name: str) -> Iterator[Recorder]:
    recorder, source = Recorder(), Application(name)
    source.start(recorder.callbacks)
    try:
        yield recorder
    finally:
        source.stop()
    assert recorder.ends == []
    assert source._thread is not None
    assert not source._thread.is_alive()


@pytest.mark.parametrize("name", ["Firefox", "fireFOX", "firefox-bin"])
def test_captions_begin_when_the_application_plays_and_go_on_when_it_is_back(sound: StandIn, name: str) -> None:
    sound.play(1, "mpv", "mpv")
    with capturing(name) as recorder:
        sound.connect()
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
    assert str(recorder.errors[0]) == (
        f"application {name!r} plays nothing: expected audio; captions begin when it plays; playing now: 'mpv'"
    )
    assert {reason for _, reason in recorder.gaps} == {"device"}
    # The first application is not recorded. Nor is anything else when a stream has ended.
    assert [call.rpartition("=")[2] for call in sound.calls] == ["2", "3"]
    assert all("--property=node.dont-reconnect=true" in call for call in sound.calls)


def test_all_streams_of_an_application_are_mixed(sound: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 1e9)
    for index in (1, 2):
        sound.play(index, "Chromium")
    with capturing("chromium") as recorder:
        sound.connect()
        first, second = sound.recorded(1), sound.recorded(2)
        write(first, 0.25)
        os.write(second, b"\0\0")  # a sample that is not complete yet
        write(first, 0.75)
        os.write(second, np.full(1600, 0.5, dtype="<f4").tobytes()[2:])
        wait_until(lambda: len(recorder.audio) >= 1600)
        assert recorder.audio.tolist() == [0.75] * 1600
        # What one has goes out alone if the other has nothing, except the last moment, which waits for it.
        write(first, np.nan, PATIENCE_SAMPLES)
        wait_until(lambda: len(recorder.audio) >= 3200)
        assert recorder.audio[1600:].tolist() == [0.75] * 1600
        write(second, 0.5)
        wait_until(lambda: len(recorder.audio) >= 4800)
        assert recorder.audio[3200:].tolist() == [0.5] * 1600
        # Its end releases what waits.
        sound.end(2, second)
        wait_until(lambda: len(recorder.audio) >= 3200 + PATIENCE_SAMPLES)
        write(first, 7.0, 800)
        wait_until(lambda: len(recorder.audio) >= 4000 + PATIENCE_SAMPLES)
        assert recorder.audio[-800:].tolist() == [1.0] * 800
    assert recorder.order == ["audio"]


def test_a_pause_is_silence_and_no_gap(sound: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    sound.play(1, "Music")
    sound.play(2, "Music")
    with capturing("music") as recorder:
        sound.connect()
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
    assert not recorder.errors


def test_a_sound_server_that_goes_away_and_comes_back(sound: StandIn) -> None:
    sound.play(1, "Music")
    with capturing("music") as recorder:
        sound.connect()
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
    assert "'music' failed (the sound server went away): expected audio" in str(recorder.errors[0])


def test_a_stream_that_cannot_be_recorded_is_one_line(sound: StandIn) -> None:
    parec = sound.directory / "parec"
    refusal = '\ntest -e "$SOUND/allowed" || exit 1\n'
    parec.write_text(parec.read_text(encoding="utf-8").replace("\n", refusal, 1), encoding="utf-8")
    sound.play(1, "Music")
    with capturing("music") as recorder:
        sound.connect()
        wait_until(lambda: bool(recorder.errors))
        (sound.directory / "allowed").touch()
        write(sound.recorded(1), 0.5)
        wait_until(lambda: recorder.order[-1] == "audio")
    assert [str(error) for error in recorder.errors] == [
        "application 'music' cannot be recorded: expected audio; it is tried every second;"
        " parec --monitor-stream=1 says more"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no server",
        "[" * 200_000,
        '[{"index": 1}]',
        '[{"index": "1", "properties": {}}]',
        f'[{{"index": {"9" * 5000}, "properties": {{}}}}]',
        '[{"index": 1, "properties": {"application.name": ["a"]}}]',
        f'[{{"index": 1, "properties": {{"application.name": "{"a" * 9_000_000}"}}}}]',
    ],
)
def test_a_list_that_cannot_be_read_is_one_line(sound: StandIn, text: str) -> None:
    sound.list(text)
    with pytest.raises(AudioDeviceError, match=r"cannot be listed .*expected pactl of version 16") as caught:
        Application("music").check()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


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
    assert PlaybackStream(1, {"node.name": "synth", "application.name": "synth"}).names == ("synth",)
    assert len(text) < 400
    assert describe_applications([]) == "nothing"
    with pytest.raises(AudioDeviceError, match=r"^app: lacks a name: .*playing now: .*ΩλΜüsik"):
        Application(" ").check()


def test_tools_that_are_missing_or_hang(sound: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    (sound.directory / "pactl").write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    monkeypatch.setattr(module, "LIST_TIMEOUT_S", 0.01)
    with pytest.raises(AudioDeviceError, match=r"no answer.*see that PulseAudio, or PipeWire .*, runs"):
        list_streams()
    monkeypatch.setenv("PATH", str(sound.directory / "nowhere"))
    with pytest.raises(AudioDeviceError, match=r"pactl cannot be run .*install pulseaudio-utils"):
        Application("music").start(Recorder().callbacks)


@pytest.mark.parametrize(("platform", "remedy"), [("win32", "use --input system"), ("darwin", "BlackHole")])
def test_other_systems_are_told_what_they_can_do(monkeypatch: pytest.MonkeyPatch, platform: str, remedy: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(AudioDeviceError, match=remedy):
        Application("music").check()


@pytest.fixture(params=["pulseaudio", "pipewire"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, str]]:
    """A real sound server with the outputs `vmic` and `speakers`."""
    real = request.param
    if reason := why_not() if real == "pulseaudio" else why_no_pipewire():
        pytest.skip(f"no {real}: {reason}")
    with running_pipewire() if real == "pipewire" else pulseaudio() as environ:
        for name in ("PULSE_SERVER", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, environ[name])
        yield environ


@contextmanager
def pulseaudio() -> Iterator[Mapping[str, str]]:
    with running_virtual_microphone() as microphone:
        microphone.plug_speakers()
        yield microphone.env


def recordings(directory: Path) -> dict[str, tuple[Path, NDArray[np.float32]]]:
    """Write two pieces of speech, behind half a second of silence."""
    found = {}
    for name, start_s in (("Alice", 4.4), ("Bob", 0.8)):
        samples, _ = soundfile.read(SPEECH, dtype="float32", start=int(start_s * SAMPLE_RATE), frames=3 * SAMPLE_RATE)
        path = directory / f"{name}.wav"
        soundfile.write(path, np.concatenate([np.zeros(SAMPLE_RATE // 2), samples]), SAMPLE_RATE)
        found[name] = path, np.asarray(samples)
    return found


@pytest.mark.slow
def test_only_one_of_two_that_play_at_once_is_recorded(server: Mapping[str, str], tmp_path: Path) -> None:
    spoken = recordings(tmp_path)
    with capturing("alice") as recorder:
        wait_until(lambda: bool(recorder.errors))
        players = [
            subprocess.Popen(
                ["paplay", "--latency-msec=100", f"--client-name={name}", "--device=speakers", str(path)], env=server
            )
            for name, (path, _) in spoken.items()
        ]
        wait_until(lambda: recorder.order[-1] == "audio")
        assert describe_applications(list_streams()) in (
            "'Alice' (pacat), 'Bob' (pacat)",
            "'Bob' (pacat), 'Alice' (pacat)",
        )
        assert [player.wait() for player in players] == [0, 0]
        wait_until(lambda: recorder.order[-1] == "gap")
    assert recorder.order == ["error", "gap", "audio", "gap"]
    assert "playing now: nothing" in str(recorder.errors[0])
    # The best of six pieces: on a busy machine the player stumbles.
    for name, like in (("Alice", True), ("Bob", False)):
        pieces = np.split(spoken[name][1], 6)
        assert (max(likeness(recorder.audio, piece) for piece in pieces) > 0.9) is like, name
