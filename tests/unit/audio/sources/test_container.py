"""Containers: what is in them is what was put in, and what is no audio is an error."""

import contextlib
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.sources.file import read_audio
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError

# Container and codec of PyAV, by the file's suffix.
KINDS = {
    "hls": ("hls", "aac"),
    "m4a": ("ipod", "aac"),
    "mp4": ("mp4", "aac"),
    "mov": ("mov", "aac"),
    "webm": ("webm", "libopus"),
    "opus": ("ogg", "libopus"),
    "mkv": ("matroska", "libopus"),
    "aac": ("adts", "aac"),
    "wma": ("asf", "wmav2"),
}


def tone(seconds: float = 2.0) -> Float32Array:
    """A tone that begins in the middle, shape (n,)."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (0.3 * np.sin(2 * np.pi * 440 * time) * (time > seconds / 2)).astype(np.float32)


def write(
    path: Path,
    samples: Float32Array,
    kind: str,
    *more: Float32Array,
    options: dict[str, str] | None = None,
    moved: Callable[[int], float] = lambda n: 0.0,
) -> Path:
    """Write a stereo file, with a track for each of the signals; frame n of the first is moved by some seconds."""
    format, codec = KINDS[kind]
    rate = 48_000 if codec == "libopus" else 44_100
    with av.open(str(path), "w", format=format, options=options or {}) as container:
        streams: list[Any] = [container.add_stream(codec, rate=rate, layout="stereo") for _ in (samples, *more)]
        for stream in streams:
            stream.bit_rate = 128_000
            stream.codec_context.open()
        for stream, signal in zip(streams, (samples, *more), strict=True):
            frame = av.AudioFrame.from_ndarray(signal[None, :], format="flt", layout="mono")
            frame.sample_rate = SAMPLE_RATE
            size = stream.codec_context.frame_size or 1024
            resampler = av.AudioResampler(stream.codec_context.format, "stereo", rate, frame_size=size)
            parts = [*resampler.resample(frame), *resampler.resample(None)]
            for n, part in enumerate(parts):
                if stream is streams[0]:
                    part.pts, part.time_base = n * size + round(moved(n) * rate), Fraction(1, rate)
                container.mux(stream.encode(part))
            container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hls"])
def test_audio_in_a_container_is_read_at_its_place(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"tone.{kind}", tone(), kind)
    heard = np.concatenate(list(read_audio(path)))
    assert abs(len(heard) - 2 * SAMPLE_RATE) < 0.1 * SAMPLE_RATE
    loud = np.flatnonzero(np.abs(heard) > 0.1)
    assert abs(loud[0] / SAMPLE_RATE - 1.0) < 0.08
    assert 0.19 < np.abs(heard).max() < 0.25  # the writer takes 3 dB off each of two channels


def test_a_broken_container_is_an_error_of_ours(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    for kind in ("m4a", "webm", "wma"):
        data = write(tmp_path / f"tone.{kind}", tone(0.5), kind).read_bytes()
        for _ in range(20):
            broken = bytearray(data[: rng.randrange(1, len(data))])
            for _ in range(rng.choice([0, 1, 30])):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            (tmp_path / "broken").write_bytes(broken)
            with contextlib.suppress(StreamerError):
                assert sum(map(len, read_audio(tmp_path / "broken"))) < 10 * SAMPLE_RATE
    assert capfd.readouterr().err == ""


def test_a_header_that_sends_the_reader_behind_the_end_of_all_files_writes_no_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(write(tmp_path / "tone.wma", tone(0.1), "wma").read_bytes())
    data[43:47] = b"\xff\xff\xff\xff"
    (tmp_path / "tone.wma").write_bytes(data)
    with contextlib.suppress(StreamerError):
        list(read_audio(tmp_path / "tone.wma"))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "text", ["#EXTM3U\n#EXTINF:9,\nfile://{0}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile {0}\n"]
)
def test_a_playlist_opens_no_other_file(text: str, tmp_path: Path) -> None:
    secret = write(tmp_path / "secret.aac", tone(), "aac")
    (tmp_path / "list").write_text(text.format(secret), encoding="utf-8")
    with pytest.raises(AudioFileError, match="is not audio that can be read"):
        list(read_audio(tmp_path / "list"))


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_sound_that_begins_later_and_has_holes_is_at_its_place(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"late.{kind}", tone(), kind, tone(7.0), moved=lambda n: 3.5 if n < 20 else 4.5)
    heard = np.concatenate(list(read_audio(path)))
    assert abs(len(heard) / SAMPLE_RATE - 6.5) < 0.1
    assert abs(np.flatnonzero(np.abs(heard) > 0.1)[0] / SAMPLE_RATE - 5.5) < 0.08


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_another_track_can_be_chosen(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"tracks.{kind}", np.zeros_like(tone()), kind, tone())
    assert max(np.abs(block).max() for block in read_audio(path)) < 0.01
    assert max(np.abs(block).max() for block in read_audio(path, track=2)) > 0.1
    with pytest.raises(AudioFileError, match="no audio track 3; its last is 2"):
        read_audio(path, track=3)


def test_a_truncated_container_is_read_as_far_as_it_goes_and_told(tmp_path: Path) -> None:
    data = write(tmp_path / "tone.m4a", tone(), "m4a", options={"movflags": "faststart"}).read_bytes()
    (tmp_path / "tone.m4a").write_bytes(data[: len(data) * 3 // 4])
    heard: list[Float32Array] = []
    with pytest.raises(TruncatedAudioError, match=r"announces 2\.0"):
        heard.extend(read_audio(tmp_path / "tone.m4a"))
    assert SAMPLE_RATE < sum(map(len, heard)) < 2 * SAMPLE_RATE
