"""What is refused of audio, and with which sentence: tests/golden/refusals/audio.toml."""

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer.audio.pcm import PcmDecoder
from streamer.audio.sources import application, system
from streamer.audio.sources.address import Address
from streamer.audio.sources.application import Application
from streamer.audio.sources.file import FileReplay, read_audio
from streamer.audio.sources.microphone import Microphone, list_microphones
from streamer.audio.sources.stdin import StdinPcm
from streamer.audio.sources.system import SystemSound
from streamer.audio.stream import StreamDecoder
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tests.refusals import Refusal, refusals
from tests.sound_servers import StandIn
from tests.unit.audio.sources.test_microphone import FakePortAudio
from tests.unit.audio.support import Recorder, patched, played, speech, written


def content(given: Mapping[str, Any]) -> bytes:
    """Return the bytes that a row describes: a WAV file of a second unless it names another `format`, or `text`.

    Its `floats` replace samples, its `at` and `new` bytes; `cut` is where it ends, `more` is behind that.
    """
    if "noise" in given:
        return np.random.default_rng(0).bytes(given["noise"])
    data: bytes
    if "text" in given:
        data = given["text"].encode("latin-1") * given.get("times", 1)
    elif "floats" in given:
        samples = speech(1.0)
        samples[: len(given["floats"])] = given["floats"]
        data = samples.astype("<f4").tobytes() if given.get("raw") else written(samples, subtype="FLOAT")
    else:
        samples = np.tile(speech(1.0) * (not given.get("silent")), given.get("times", 1))
        data = written(samples, given.get("rate", SAMPLE_RATE), format=given.get("format", "WAV"))
    data = patched(data, given.get("at", 0), bytes.fromhex(given.get("new", "")))
    data = data[: given.get("cut")] + bytes.fromhex(given.get("more", "")) * given.get("more_times", 1)
    return data


class Attempts:
    """How each kind of row is tried: the method of its name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch

    def pcm(self, given: list[int]) -> None:
        PcmDecoder("s16le", *given)

    def file(self, given: Mapping[str, Any]) -> None:
        (self.folder / "audio").write_bytes(content(given))
        self.path("audio", given.get("track", 1))

    def path(self, name: str, track: int = 1) -> None:
        FileReplay(self.folder / name).stop()
        notes: list[StreamerError] = []
        for _ in read_audio(self.folder / name, notes.append, track):
            pass
        for note in notes:
            raise note

    def pipe(self, name: str) -> None:
        os.mkfifo(self.folder / name)
        self.path(name)

    def forbidden(self, name: str) -> None:
        def forbid(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        (self.folder / name).write_bytes(b"RIFF")
        with self.monkeypatch.context() as only_here:
            only_here.setattr(Path, "open", forbid)
            self.path(name)

    def standard_input(self, given: str) -> None:
        """Read a file from it; `closed` is none."""
        stream = io.TextIOWrapper(io.BytesIO(given.encode()))
        self.monkeypatch.setattr(sys, "stdin", None if given == "closed" else stream)
        list(read_audio("-"))

    def stdin(self, given: Mapping[str, Any]) -> None:
        recorder = played(StdinPcm(io.BytesIO(content(given)), "f32le", SAMPLE_RATE, 1))
        for error in (*recorder.errors, *recorder.ends):
            if error is not None:
                raise error

    def message(self, given: Mapping[str, Any]) -> None:
        decoder = StreamDecoder()
        assert len([*decoder.decode(content(given)), *decoder.finish()]) == 0
        if decoder.failure is not None:
            raise decoder.failure

    def address(self, url: str) -> None:
        Address(url)

    def microphone(self, given: Mapping[str, Any]) -> None:
        portaudio = None if given.get("missing") else FakePortAudio()
        self.monkeypatch.setitem(sys.modules, "sounddevice", portaudio)
        self.monkeypatch.setattr(sys, "platform", given.get("platform", "linux"))
        if portaudio is not None:
            for name in given["have"]:
                portaudio.add(name, channels=0 if name == "Speakers" else 1, sample_rate=given.get("rate", 16_000.0))
            portaudio.error_of_open = OSError("bad\nday") if given.get("fails") == "open" else None
            portaudio.error_of_start = portaudio.PortAudioError("busy") if given.get("fails") == "start" else None
        list_microphones()
        try:
            Microphone(given.get("named", "")).start(Recorder().callbacks)
        finally:
            assert portaudio is None or all(stream.closed for stream in portaudio.streams)

    def system(self, given: Mapping[str, Any]) -> None:
        self.monkeypatch.setattr(sys, "platform", given.get("platform", "linux"))
        self.monkeypatch.setattr(system, "_CHILD", given.get("child", ""))
        self.monkeypatch.setattr(system, "OPEN_TIMEOUT_S", given.get("timeout_s", 60.0))
        SystemSound().start(Recorder().callbacks)

    def application(self, given: Mapping[str, Any]) -> None:
        server = StandIn(self.folder)
        for name, value in server.environ.items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.setattr(sys, "platform", given.get("platform", "linux"))
        server.list(given.get("list", "[]").replace("A", "a" * given.get("times", 1)))
        if "pactl" in given:
            (self.folder / "pactl").write_text(given["pactl"], encoding="utf-8")
            self.monkeypatch.setattr(application, "LIST_TIMEOUT_S", 0.01)
        if given.get("missing"):
            self.monkeypatch.setenv("PATH", str(self.folder / "nowhere"))
        Application(given.get("named", "music")).start(Recorder().callbacks)


@pytest.mark.skipif(sys.platform != "linux", reason="sentences of Linux")
@refusals("audio")
def test_what_is_refused(refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((kind, given),) = refusal.given.items()
    with refusal.expected(tmp_path):
        getattr(Attempts(tmp_path, monkeypatch), kind)(given)
