"""Containers: what is in them is what was put in, and what is no audio is an error."""

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.sources.file import check_audio, count_tracks, read_audio
from streamer.audio.stream import StreamDecoder
from streamer.audio.track import AudioTrack
from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError, TruncatedAudioError
from tests.unit.audio.support import mux, muxed, patched, written

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


def write(path: Path, samples: Float32Array, kind: str, *more: Float32Array, **options: Any) -> Path:  # noqa: ANN401
    """Write a stereo file, with a track for each of the signals; `options` are those of `mux`."""
    format, codec = KINDS[kind]
    rate = 48_000 if codec == "libopus" else 44_100
    mux(str(path), format, codec, samples, *more, rate=rate, layout="stereo", **options)
    return path


def decoded(path: Path, notes: list[StreamerError] | None = None, *, track: int = 1) -> Float32Array:
    return np.concatenate(list(read_audio(path, notes.append if notes is not None else None, track)))


def begins_s(samples: Float32Array) -> float:
    return float(np.flatnonzero(np.abs(samples) > 0.1)[0]) / SAMPLE_RATE


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hls"])
def test_audio_in_a_container_is_read_at_its_place(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"tone.{kind}", tone(), kind)
    samples = decoded(path)
    assert abs(len(samples) / SAMPLE_RATE - 2) < 0.1
    assert abs(begins_s(samples) - 1.0) < 0.08
    assert 0.19 < np.abs(samples).max() < 0.25  # the writer takes 3 dB off each of two channels
    if kind not in ("aac", "opus"):  # without a header that says so, FFmpeg guesses it from the bit rate
        assert check_audio(path) == pytest.approx(2.0, abs=0.15)


# With a place in the header that sends the reader before the file, or behind the end of all files.
@pytest.mark.parametrize(
    ("kind", "at"),
    [("m4a", 43), ("webm", 43), ("wma", 43), ("AIFF", 35), ("W64", 98), ("FLAC", 43), ("OGG", 43), ("MP3", 43)],
)
def test_a_broken_file_is_our_error(kind: str, at: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng, path = random.Random(0), tmp_path / "broken"
    if kind in KINDS:
        data = write(tmp_path / f"tone.{kind}", tone(0.5), kind).read_bytes()
    else:
        data = written(tone(0.5), format=kind)
    broken = [patched(data, at, b"\xff\xff\xff\xff"), patched(data, len(data) // 2, rng.randbytes(len(data) // 2))]
    for _ in range(20):
        part = bytearray(data[: rng.randrange(1, len(data))])
        for _ in range(rng.choice([0, 1, 30])):
            part[rng.randrange(len(part))] = rng.randrange(256)
        broken.append(bytes(part))
    for content in broken:
        path.write_bytes(content)
        with contextlib.suppress(StreamerError):
            blocks = list(read_audio(path))
            assert sum(map(len, blocks)) < 10 * SAMPLE_RATE
            assert all(np.isfinite(block).all() for block in blocks)
    assert capfd.readouterr().err == "", "a traceback"


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_sound_that_begins_later_and_has_holes_is_at_its_place(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"late.{kind}", tone(0.5), kind, tone(0.1), moved=lambda at_s: 200.0 + (at_s > 0.1))
    samples = decoded(path)
    assert abs(len(samples) / SAMPLE_RATE - 201.5) < 0.1
    assert abs(begins_s(samples) - 201.25) < 0.08


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_another_track_can_be_chosen(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"tracks.{kind}", np.zeros_like(tone()), kind, tone(), tone())
    assert [bool(np.abs(decoded(path, track=track)).max() > 0.1) for track in (1, 2, 3)] == [False, True, True]
    assert count_tracks(path) == 3


def link(kind: str, number: int) -> bytes:
    """Return a file of a second of tone, of another rate and channel count for each number."""
    rate, channels = ((48_000, 1), (16_000, 2), (24_000, 1))[number]
    samples = np.tile(0.2 * np.sin(np.arange(rate) * 2 * np.pi * 440 / rate)[:, None], channels)
    if kind != "opus":
        return written(samples, rate, format=kind)
    layout = ("mono", "stereo")[channels - 1]
    return muxed("ogg", "libopus", samples.astype(np.float32), sample_rate=rate, layout=layout)


def without_audio() -> bytes:
    """Return an Ogg file with nothing but a picture."""
    file = io.BytesIO()
    with av.open(file, "w", format="ogg") as container:
        stream: Any = container.add_stream("libvpx", rate=25, width=64, height=64, pix_fmt="yuv420p")
        for packet in (*stream.encode(av.VideoFrame(64, 64, "yuv420p")), *stream.encode(None)):
            container.mux(packet)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["opus", "OGG", "FLAC", "WAV"])
def test_files_one_behind_another_are_all_read(kind: str, tmp_path: Path) -> None:
    picture = without_audio() if kind == "opus" else b""
    (tmp_path / "chained").write_bytes(picture + b"".join(link(kind, n) for n in (0, 1)) + picture + link(kind, 2))
    samples = decoded(tmp_path / "chained")
    assert len(samples) == pytest.approx(3 * SAMPLE_RATE, rel=0.01)
    loud = np.abs(samples[: 2 * SAMPLE_RATE + 8_000].reshape(-1, 800)).max(axis=1)
    assert np.all((loud > 0.15) & (loud < 0.25))  # each as loud, and no hole


def read_until_truncated(path: Path, *, of_s: float | None = None, reason: str = "") -> float:
    """Read what ends before it should; return how many seconds there are."""
    blocks: list[Float32Array] = []
    with pytest.raises(TruncatedAudioError) as caught:
        blocks.extend(read_audio(path))
    found_s = sum(map(len, blocks)) / SAMPLE_RATE
    assert caught.value.found_s == pytest.approx(found_s, abs=0.1)
    assert (caught.value.expected_s, caught.value.reason) == (of_s and pytest.approx(of_s, abs=0.1), reason)
    return found_s


def test_what_ends_too_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "tone.m4a", tone(), "m4a", options={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    assert 1.0 < read_until_truncated(path, of_s=2.0) < 2.0
    path = write(tmp_path / "tone.mkv", tone(), "mkv")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    assert 1.0 < read_until_truncated(path, of_s=2.0) < 2.0
    for kind in ("FLAC", "WAV"):
        path.write_bytes((link(kind, 0) + link(kind, 1))[: -len(link(kind, 1)) // 2])
        assert 1.0 < read_until_truncated(path, of_s=2.0) < 2.0
    path.write_bytes(link("FLAC", 0) + link("FLAC", 1)[:42] + bytes(3_000))
    assert read_until_truncated(path, reason="Invalid data found when processing input") == 1.0


class Failing(io.BytesIO):
    """A file on a disk that fails behind some bytes."""

    def read(self, n_bytes: int | None = -1, /) -> bytes:
        if self.tell() >= 4_000:
            raise OSError(5, "Input/output error")
        return super().read(min(n_bytes or 0, 4_000 - self.tell()))


@pytest.mark.parametrize("kind", ["aac", "opus"])
def test_a_disk_that_fails_is_no_end(kind: str, tmp_path: Path) -> None:
    track = AudioTrack(Failing(write(tmp_path / f"tone.{kind}", tone(), kind).read_bytes()), name="tone")
    with contextlib.closing(track), pytest.raises(TruncatedAudioError) as caught:
        assert sum(map(len, track.blocks())) > 0
    assert (caught.value.path, caught.value.reason) == ("tone", "Input/output error")


# A frame of ADTS, of 44,100 stereo samples a second and 100 bytes, without sense.
DEAD = bytes.fromhex("fff15080" + "0c9ffc") + b"\xff" * 93


def test_packets_that_cannot_be_decoded_are_reported_and_at_the_end_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "tone.m4a", tone(), "m4a", options={"movflags": "faststart"})
    data = path.read_bytes()
    first = data.index(b"mdat")
    path.write_bytes(patched(data, (len(data) + first) // 2, bytes((len(data) - first) // 4)))
    notes: list[StreamerError] = []
    assert abs(len(decoded(path, notes)) / SAMPLE_RATE - 2) < 0.1
    assert [note.code for note in notes] == ["audio_file"]
    path = write(tmp_path / "tone.aac", tone(), "aac")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + DEAD * 40)
    assert 1.0 < read_until_truncated(path, reason="it cannot be decoded") < 2.0


# Of ITU-R BS.775: 3 dB less for each side, 6 dB behind; nothing of the LFE.
LAYOUTS = {
    "5.1": (0.7071, 0.7071, 1, 0, 0.5, 0.5),
    "5.1(side)": (0.7071, 0.7071, 1, 0, 0.5, 0.5),
    "7.1": (0.7071, 0.7071, 1, 0, 0.5, 0.5, 0.5, 0.5),
    "quad": (0.7071, 0.7071, 0.5, 0.5),
    "2.1": (1, 1, 0),
    "6 channels": (1,) * 6,
    "3 channels": (1,) * 3,
}
# What WAV headers say instead, and FFmpeg makes of no speakers: none, and the left one without a right one.
MASKS = {"6 channels": ("5.1", 0), "3 channels": ("2.1", 0b1101)}


def speakers(layout: str, format: str, samples: np.ndarray[Any, np.dtype[np.int16]]) -> bytes:
    """Return a file of samples, shape (n, channels), with the speakers of a layout."""
    codec = "flac" if format == "flac" else "pcm_s16le"
    name, mask = MASKS.get(layout, (layout, None))
    data = muxed(format, codec, samples, rate=SAMPLE_RATE, layout=name)
    return data if mask is None else patched(data, 40, mask.to_bytes(4, "little"))


def received(path: Path) -> Float32Array:
    """Return what a file becomes if a client sends it."""
    decoder = StreamDecoder()
    return np.concatenate([decoder.decode(path.read_bytes()), decoder.finish()])


# FLAC has speakers for six channels.
@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (layout, kind)
        for layout in LAYOUTS
        for kind in ("flac", "wav", "stream")
        if layout not in MASKS or kind != "flac"
    ],
)
def test_speakers_are_mixed_as_ffmpeg_does(layout: str, kind: str, tmp_path: Path) -> None:
    weights = np.array(LAYOUTS[layout])
    n_channels, has_centre = len(weights), layout in ("5.1", "5.1(side)", "7.1")
    alone = np.eye(n_channels, dtype=np.int16).repeat(1_600, axis=0) * 20_000  # each for a tenth of a second
    if has_centre:  # it alone is taken if it is not silent
        alone[:, 2] = 0
    path = tmp_path / "speakers"
    path.write_bytes(speakers(layout, "flac" if kind == "flac" else "wav", alone))
    mixed = received(path) if kind == "stream" else decoded(path)
    found = mixed.reshape(n_channels, -1)[:, 800:].mean(axis=1) / (20_000 / 32_768)
    expected = weights / sum(weights)
    np.testing.assert_allclose(found, np.where((np.arange(n_channels) == 2) & has_centre, 0, expected), atol=2e-3)


def live(codec: str, *, late_s: float = 0.0, hole_s: float = 0.0) -> bytes:
    """Return Matroska without a duration: a tone of two seconds that begins late, or with a hole in the middle."""
    signal = (6_000 * np.sin(np.arange(96_000) / 17)).astype(np.int16)
    signals = [signal] * (1 + (late_s > 0))
    options = {"live": "1"}
    return muxed(
        *("matroska", codec, *signals),
        sample_rate=48_000,
        options=options,
        moved=lambda at_s: late_s + hole_s * (at_s >= 1.0),
    )


@pytest.mark.parametrize("codec", ["libopus", "pcm_s16le"])
@pytest.mark.parametrize("read", [decoded, received])
def test_missing_time_is_kept(codec: str, read: Callable[[Path], Float32Array], tmp_path: Path) -> None:
    def length_s(data: bytes) -> float:
        (tmp_path / "live").write_bytes(data)
        return len(read(tmp_path / "live")) / SAMPLE_RATE

    assert length_s(live(codec, hole_s=5.0)) == pytest.approx(7.0, abs=0.1)
    assert length_s(live(codec, late_s=4.0)) == pytest.approx(6.0, abs=0.1)
    # No stamp is believed that would make hours of some kilobytes.
    assert length_s(live(codec, hole_s=10_000.0)) == pytest.approx(2.0, abs=0.1)
