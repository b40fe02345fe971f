"""Containers: what is in them is what was put in, and what is no audio is an error."""

import contextlib
import io
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from streamer.arrays import Float32Array
from streamer.audio.encodings import AudioReader
from streamer.audio.pcm import PcmDecoder
from streamer.audio.sources.container import AudioTrack
from streamer.audio.sources.file import read_audio
from streamer.constants import SAMPLE_RATE
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


def decoded(path: Path, notes: list[StreamerError] | None = None) -> Float32Array:
    return np.concatenate(list(read_audio(path, notes.append if notes is not None else None)))


def begins_s(samples: Float32Array) -> float:
    """Return where a tone begins, in seconds."""
    return float(np.flatnonzero(np.abs(samples) > 0.1)[0]) / SAMPLE_RATE


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hls"])
def test_audio_in_a_container_is_read_at_its_place(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"tone.{kind}", tone(), kind)
    samples = decoded(path)
    assert abs(len(samples) - 2 * SAMPLE_RATE) < 0.1 * SAMPLE_RATE
    assert abs(begins_s(samples) - 1.0) < 0.08
    assert 0.19 < np.abs(samples).max() < 0.25  # the writer takes 3 dB off each of two channels


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
    samples = decoded(path)
    assert abs(len(samples) / SAMPLE_RATE - 6.5) < 0.1
    assert abs(begins_s(samples) - 5.5) < 0.08


@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_another_track_can_be_chosen(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"tracks.{kind}", np.zeros_like(tone()), kind, tone())
    assert max(np.abs(block).max() for block in read_audio(path)) < 0.01
    assert max(np.abs(block).max() for block in read_audio(path, track=2)) > 0.1
    with pytest.raises(AudioFileError, match="no audio track 3; its last is 2"):
        read_audio(path, track=3)


def link(kind: str, number: int) -> bytes:
    """Return a file of a second of tone, of another rate and channel count for each number."""
    rate, channels = ((48_000, 1), (16_000, 2), (24_000, 1))[number]
    samples = np.tile(0.2 * np.sin(np.arange(rate) * 2 * np.pi * 440 / rate)[:, None], channels)
    file = io.BytesIO()
    if kind == "opus":
        with av.open(file, "w", format="ogg") as container:
            stream: Any = container.add_stream("libopus", rate=48_000, layout=("mono", "stereo")[channels - 1])
            frame = av.AudioFrame.from_ndarray(samples.astype(np.float32).reshape(1, -1), "flt", stream.layout)
            frame.sample_rate = rate
            resampler = av.AudioResampler("flt", stream.layout, 48_000)
            for part in (*resampler.resample(frame), *resampler.resample(None), None):
                container.mux(stream.encode(part))
    else:
        soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


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


@pytest.mark.parametrize("kind", ["FLAC", "WAV"])
def test_what_the_last_of_them_lacks_is_told(kind: str, tmp_path: Path) -> None:
    data = link(kind, 0) + link(kind, 1)
    (tmp_path / "chained").write_bytes(data[: -len(link(kind, 1)) // 2])
    with pytest.raises(TruncatedAudioError, match=r"announces 2\.00"):
        decoded(tmp_path / "chained")


def test_a_link_that_cannot_be_read_ends_the_file_with_an_error(tmp_path: Path) -> None:
    broken = link("FLAC", 1)[:42] + bytes(3_000)
    (tmp_path / "chained").write_bytes(link("FLAC", 0) + broken)
    blocks: list[Float32Array] = []
    with pytest.raises(
        TruncatedAudioError, match=r"cannot be read behind 1\.00 s \(.+\): expected audio up to its end"
    ):
        blocks.extend(read_audio(tmp_path / "chained"))
    assert sum(map(len, blocks)) == SAMPLE_RATE


class Failing(io.BytesIO):
    """A file on a disk that fails behind some bytes."""

    def read(self, n_bytes: int | None = -1, /) -> bytes:
        if self.tell() >= 4_000:
            raise OSError(5, "Input/output error")
        return super().read(min(n_bytes or 0, 4_000 - self.tell()))


@pytest.mark.parametrize("kind", ["aac", "opus"])
def test_a_disk_that_fails_is_no_end(kind: str, tmp_path: Path) -> None:
    track = AudioTrack(Failing(write(tmp_path / f"tone.{kind}", tone(), kind).read_bytes()), name="tone")
    with contextlib.closing(track), pytest.raises(TruncatedAudioError, match=r"tone cannot .*\(Input/output error\)"):
        assert sum(map(len, track.blocks())) > 0


def test_packets_that_cannot_be_decoded_are_told(tmp_path: Path) -> None:
    data = write(tmp_path / "tone.m4a", tone(), "m4a", options={"movflags": "faststart"}).read_bytes()
    first = data.index(b"mdat")
    middle, last = (len(data) + first) // 2, len(data) - first
    (tmp_path / "middle.m4a").write_bytes(data[:middle] + bytes(last // 4) + data[middle + last // 4 :])
    notes: list[StreamerError] = []
    assert abs(len(decoded(tmp_path / "middle.m4a", notes)) - 2 * SAMPLE_RATE) < 0.1 * SAMPLE_RATE
    (note,) = notes
    assert "s that cannot be decoded, the first within 1." in str(note)
    (tmp_path / "rest.aac").write_bytes(
        (aac := write(tmp_path / "tone.aac", tone(), "aac").read_bytes())[: len(aac) // 2] + DEAD * 40
    )
    with pytest.raises(TruncatedAudioError, match=r"cannot be read behind 1\..* \(it cannot be decoded\)"):
        decoded(tmp_path / "rest.aac")


# A frame of ADTS, of 44,100 stereo samples a second and 100 bytes, without sense.
DEAD = bytes.fromhex("fff15080" + "0c9ffc") + b"\xff" * 93


@pytest.mark.parametrize(
    ("layout", "weights"),  # of ITU-R BS.775: 3 dB less for each side, 6 dB behind; nothing of the LFE
    [
        ("5.1", (0.7071, 0.7071, 1, 0, 0.5, 0.5)),
        ("5.1(side)", (0.7071, 0.7071, 1, 0, 0.5, 0.5)),
        ("7.1", (0.7071, 0.7071, 1, 0, 0.5, 0.5, 0.5, 0.5)),
        ("quad", (0.7071, 0.7071, 0.5, 0.5)),
        ("2.1", (1, 1, 0)),
        ("6 channels", (1,) * 6),
    ],
)
@pytest.mark.parametrize("kind", ["flac", "wav", "stream"])
def test_speakers_are_mixed_as_ffmpeg_does(layout: str, weights: tuple[float, ...], kind: str, tmp_path: Path) -> None:
    if layout == "6 channels" and kind == "flac":
        pytest.skip("FLAC has speakers for six channels")
    n_channels = len(weights)
    samples = np.zeros((n_channels, n_channels * 1_600), np.int16)
    for n in range(n_channels):  # each alone for a tenth of a second, but for the centre
        samples[n, n * 1_600 : (n + 1) * 1_600] = 20_000 * (weights[n] != 1 or max(weights[:2]) == 1)
    path = tmp_path / "speakers"
    with av.open(str(path), "w", format="flac" if kind == "flac" else "wav") as container:
        stream: Any = container.add_stream(
            "flac" if kind == "flac" else "pcm_s16le",
            rate=SAMPLE_RATE,
            layout="5.1" if layout == "6 channels" else layout,
        )
        frame = av.AudioFrame.from_ndarray(samples.T.reshape(1, -1), "s16", stream.layout)
        frame.sample_rate = SAMPLE_RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    if layout == "6 channels":  # no speakers are named
        data = path.read_bytes()
        path.write_bytes(data[:40] + bytes(4) + data[44:])
    if kind == "stream":
        reader = AudioReader(None)
        data = reader.read(path.read_bytes())
        while more := reader.finish():
            data += more
        assert reader.format is not None
        pcm = PcmDecoder(reader.format.encoding.format, SAMPLE_RATE, reader.format.channels)
        mixed = pcm.decode(data)
    else:
        mixed = decoded(path)
    found = mixed.reshape(n_channels, -1)[:, 800:].mean(axis=1) / (20_000 / 32_768)
    expected = np.array(weights) / sum(weights)
    if max(weights[:2]) < 1 and len(weights) > 4:
        expected[2] = 0.0
    np.testing.assert_allclose(found, expected, atol=2e-3)


class Pipe:
    """What a program writes to that cannot go back."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        self.data += bytes(data)
        return len(data)


def live(codec: str, *, late_s: float = 0.0, hole_s: float = 0.0) -> bytes:
    """Return Matroska without a duration: a tone of two seconds that begins late, or with a hole in the middle."""
    pipe = Pipe()
    with av.open(pipe, "w", format="matroska") as container:
        stream: Any = container.add_stream(codec, rate=48_000, layout="mono")
        other: Any = container.add_stream(codec, rate=48_000, layout="mono") if late_s else None
        for track, from_s, missing_s in ((stream, late_s, hole_s), (other, 0.0, 0.0)):
            if track is None:
                continue
            for n in range(100):
                signal = (6_000 * np.sin((n * 960 + np.arange(960)) / 17)).astype(np.int16)
                frame = av.AudioFrame.from_ndarray(signal[None], "s16", "mono")
                frame.sample_rate, frame.time_base = 48_000, Fraction(1, 48_000)
                frame.pts = n * 960 + round(48_000 * (from_s + (missing_s if n >= 50 else 0.0)))
                container.mux(track.encode(frame))
            container.mux(track.encode(None))
    return pipe.data


@pytest.mark.parametrize("codec", ["libopus", "pcm_s16le"])
@pytest.mark.parametrize("reads", ["file", "stream"])
def test_time_that_is_missing_is_kept_without_a_duration_too(codec: str, reads: str, tmp_path: Path) -> None:
    def length_s(data: bytes) -> float:
        if reads == "stream":
            reader = AudioReader(None)
            reader.read(data)
            reader.finish()
            return reader.read_s
        (tmp_path / "live").write_bytes(data)
        return len(decoded(tmp_path / "live")) / SAMPLE_RATE

    assert length_s(live(codec, hole_s=5.0)) == pytest.approx(7.0, abs=0.1)
    assert length_s(live(codec, late_s=4.0)) == pytest.approx(6.0, abs=0.1)
    # No stamp is believed that would make hours of some kilobytes.
    assert length_s(live(codec, hole_s=10_000.0)) == pytest.approx(2.0, abs=0.1)


def test_a_truncated_container_is_read_as_far_as_it_goes_and_told(tmp_path: Path) -> None:
    data = write(tmp_path / "tone.m4a", tone(), "m4a", options={"movflags": "faststart"}).read_bytes()
    (tmp_path / "tone.m4a").write_bytes(data[: len(data) * 3 // 4])
    blocks: list[Float32Array] = []
    with pytest.raises(TruncatedAudioError, match=r"announces 2\.0"):
        blocks.extend(read_audio(tmp_path / "tone.m4a"))
    assert SAMPLE_RATE < sum(map(len, blocks)) < 2 * SAMPLE_RATE
