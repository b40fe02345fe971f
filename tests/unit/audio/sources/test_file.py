"""Audio files: whole, broken and hostile."""

import contextlib
import dataclasses
import io
import os
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from streamer.audio.sources import file
from streamer.audio.sources.file import FileReplay, read_audio
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError, StreamerError, TruncatedAudioError
from tests.unit.audio.sources.recorder import Recorder
from tests.waiting import WAIT_S

SPEECH = Path(__file__).parents[3] / "data" / "speech.flac"


def speech(duration_s: float = 4.0) -> NDArray[np.float32]:
    samples, _ = soundfile.read(SPEECH, dtype="float32", frames=int(duration_s * SAMPLE_RATE))
    return np.asarray(samples)


def write(path: Path, samples: NDArray[np.float32], sample_rate: int = SAMPLE_RATE, subtype: str | None = None) -> Path:
    soundfile.write(path, samples, sample_rate, subtype=subtype)
    return path


def cut(path: Path, n_bytes: int) -> Path:
    path.write_bytes(path.read_bytes()[:n_bytes])
    return path


def read_until_error(path: Path) -> tuple[NDArray[np.float32], StreamerError | None]:
    blocks = [np.empty(0, dtype=np.float32)]
    try:
        blocks.extend(read_audio(path))
    except StreamerError as error:
        return np.concatenate(blocks), error
    return np.concatenate(blocks), None


def replay(path: Path) -> Recorder:
    recorder = Recorder()
    source = FileReplay(path, speed=0)
    source.start(recorder.callbacks)
    recorder.wait_for_end()
    source.stop()
    assert len(recorder.ends) == 1
    return recorder


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_lossless_files_are_read_exactly(tmp_path: Path, name: str) -> None:
    audio, error = read_until_error(write(tmp_path / name, speech()))
    assert error is None
    np.testing.assert_allclose(audio, speech(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["a.ogg", "a.mp3"])
def test_lossy_files_are_read(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, speech())
    audio, error = read_until_error(path)
    assert error is None
    assert len(audio) == len(speech())
    assert np.corrcoef(audio, speech())[0, 1] > 0.95
    # Block by block as in one go: no click where one block ends and the next begins.
    np.testing.assert_allclose(audio, soundfile.read(path, dtype="float32")[0], rtol=0, atol=1e-5)


def test_rate_and_channels_are_converted(tmp_path: Path) -> None:
    audio, _ = read_until_error(write(tmp_path / "a.wav", np.stack([speech(), np.zeros_like(speech())], 1), 48_000))
    assert abs(len(audio) - len(speech()) / 3) <= 1
    assert np.abs(audio).max() == pytest.approx(0.25, abs=0.01)


def test_a_replay_delivers_what_the_file_holds_and_ends_once() -> None:
    recorder = replay(SPEECH)
    whole, _ = soundfile.read(SPEECH, dtype="float32")
    np.testing.assert_allclose(recorder.audio, whole, rtol=0, atol=1e-6)
    assert recorder.order == ["audio", "end"]
    assert recorder.ends == [None]


@pytest.mark.parametrize(
    ("speed", "slept_s", "expected"),
    # After the computer slept, the block that follows is due at once.
    [(2.0, 0.0, [0.05] * 20), (1.0, 3600.0, [0.1] * 5 + [0.0] + [0.1] * 14)],
)
def test_a_replay_keeps_its_pace_also_after_the_computer_slept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, slept_s: float, expected: list[float]
) -> None:
    """By a clock that only moves when the replay waits."""
    now_s = 1000.0
    waits: list[float] = []
    source = FileReplay(write(tmp_path / "a.wav", speech(2.0)), speed=speed)

    def wait(timeout: float) -> bool:
        nonlocal now_s
        waits.append(timeout)
        now_s += timeout + (slept_s if len(waits) == 5 else 0.0)
        return False

    recorder = Recorder()
    monkeypatch.setattr(file, "monotonic", lambda: now_s)
    monkeypatch.setattr(source._stopping, "wait", wait)
    source.start(recorder.callbacks)
    recorder.wait_for_end()
    assert waits == pytest.approx(expected)
    assert source.realtime


def test_a_slow_consumer_holds_the_replay_back(tmp_path: Path) -> None:
    recorder = Recorder()
    source = FileReplay(write(tmp_path / "a.wav", speech()), speed=0)
    assert not source.realtime
    entered, go_on = threading.Event(), threading.Event()

    def on_audio(samples: NDArray[np.float32]) -> None:
        recorder.callbacks.on_audio(samples)
        entered.set()
        assert go_on.wait(WAIT_S)

    source.start(dataclasses.replace(recorder.callbacks, on_audio=on_audio))
    assert entered.wait(WAIT_S)
    assert len(recorder.blocks) == 1
    go_on.set()
    recorder.wait_for_end()
    assert len(recorder.audio) == len(speech())


def test_stop_ends_a_replay_without_on_end_and_may_be_called_again(tmp_path: Path) -> None:
    recorder = Recorder()
    source = FileReplay(SPEECH, speed=1.0)
    source.start(recorder.callbacks)
    assert recorder.heard.wait(WAIT_S)
    source.stop()
    source.stop()
    n_blocks = len(recorder.blocks)
    assert recorder.ends == []
    assert 0 < n_blocks < 100
    path = write(tmp_path / "a.wav", speech())
    never_started = FileReplay(path)
    never_started.stop()
    path.unlink()


@pytest.mark.parametrize("n_bytes", [44 + 2 * SAMPLE_RATE + 1, 44 + 2])
def test_a_truncated_wav_is_read_as_far_as_it_goes(tmp_path: Path, n_bytes: int) -> None:
    path = cut(write(tmp_path / "a.wav", speech()), n_bytes)
    n_frames = (n_bytes - 44) // 2
    recorder = replay(path)
    np.testing.assert_allclose(recorder.audio, speech()[:n_frames], rtol=0, atol=1e-6)
    [error] = recorder.ends
    assert isinstance(error, TruncatedAudioError)
    assert error.found_s == pytest.approx(n_frames / SAMPLE_RATE)
    assert error.expected_s == pytest.approx(4.0)
    assert "\n" not in str(error)


def test_a_truncated_flac_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", speech())
    recorder = replay(cut(path, path.stat().st_size * 3 // 4))
    n_samples = len(recorder.audio)
    # All of the codec's frames that are whole, not only all of our blocks.
    assert n_samples % (SAMPLE_RATE // 10) != 0
    assert n_samples > 2 * SAMPLE_RATE
    np.testing.assert_allclose(recorder.audio, speech()[:n_samples], rtol=0, atol=1e-6)
    [error] = recorder.ends
    assert isinstance(error, TruncatedAudioError)
    assert error.expected_s == pytest.approx(4.0)


@pytest.mark.parametrize("length", [0, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x7FFF_F000, 2_000_000_000, 0x4000_0000 - 44, 10**9])
def test_a_wav_written_to_a_pipe_does_not_know_its_length(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "a.wav", speech())
    data = bytearray(path.read_bytes())
    assert data[36:40] == b"data"
    data[40:44] = struct.pack("<I", length)
    path.write_bytes(data)
    audio, error = read_until_error(path)
    assert error is None
    np.testing.assert_allclose(audio, speech(), rtol=0, atol=1e-6)


def test_an_aiff_written_to_a_pipe_does_not_know_its_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.aiff", speech())
    data = bytearray(path.read_bytes())
    frames, sound = data.index(b"COMM") + 10, data.index(b"SSND") + 4  # as SoX writes them
    data[frames : frames + 4], data[sound : sound + 4] = (
        struct.pack(">I", 0x7F00_0000 // 2),
        struct.pack(">I", 0x7F00_0008),
    )
    path.write_bytes(data)
    audio, error = read_until_error(path)
    assert error is None
    np.testing.assert_allclose(audio, speech(), rtol=0, atol=1e-6)


def test_audio_behind_what_a_header_announces_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", speech())
    data = bytearray(path.read_bytes())
    chunk = b"LIST" + struct.pack("<I", 40_000) + bytes(40_000)
    path.write_bytes(data + chunk)
    recorder = replay(path)
    assert (len(recorder.audio), recorder.errors) == (len(speech()), [])
    data[40:44] = struct.pack("<I", 2 * SAMPLE_RATE)
    path.write_bytes(data)
    recorder = replay(path)
    assert len(recorder.audio) == SAMPLE_RATE
    (error,) = recorder.errors
    assert "3.00 s behind the length that its header announces, the first within 1.0 s" in str(error)
    assert recorder.ends == [None]


@pytest.mark.parametrize("padding", [b"", b"JUNK\x1c\0\0\0" + bytes(28)])
def test_integers_of_24_bits_in_32_are_integers(padding: bytes, tmp_path: Path) -> None:
    samples = (speech() * 2**23).astype("<i4")
    pcm = bytes.fromhex("0100000000001000800000aa00389b71")
    format = struct.pack("<HHIIHHHHI", 0xFFFE, 1, SAMPLE_RATE, 4 * SAMPLE_RATE, 4, 32, 22, 24, 4) + pcm
    chunks = padding + b"fmt " + struct.pack("<I", 40) + format + b"data" + struct.pack("<I", samples.nbytes)
    header = b"RIFF" + struct.pack("<I", 4 + len(chunks) + samples.nbytes) + b"WAVE" + chunks
    (tmp_path / "a.wav").write_bytes((header + (samples << 8).tobytes()) * 2)  # of both, the header is mended
    audio, error = read_until_error(tmp_path / "a.wav")
    assert error is None
    np.testing.assert_allclose(audio, np.tile(samples / 2**23, 2), rtol=0, atol=1e-6)


def test_nan_in_a_file_is_silence_and_told_once(tmp_path: Path) -> None:
    samples = speech()
    samples[5_000:5_010] = np.nan
    samples[30_000] = np.inf
    recorder = replay(write(tmp_path / "a.wav", samples, subtype="FLOAT"))
    np.testing.assert_array_equal(recorder.audio, np.where(np.isfinite(samples), samples, 0))
    [error] = recorder.errors
    assert isinstance(error, AudioFileError)
    assert "NaN" in str(error)
    assert recorder.ends == [None]


def test_a_float_file_of_another_scale_is_clipped_and_told_once(tmp_path: Path) -> None:
    samples = speech()
    samples[1_000] = 3e38
    samples[20_000] = -32_768.0
    recorder = replay(write(tmp_path / "a.wav", samples, subtype="FLOAT"))
    np.testing.assert_array_equal(recorder.audio, np.clip(samples, -1, 1))
    [error] = recorder.errors
    assert "expected -1 to 1" in str(error)


def test_junk_is_refused_in_one_line(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    wav = write(tmp_path / "whole.wav", speech()).read_bytes()

    def patched(position: int, format: str, value: int) -> bytes:
        size = struct.calcsize(format)
        return wav[:position] + struct.pack(format, value) + wav[position + size :]

    contents = {
        "empty.wav": b"",
        "text.txt": b"hello\n" * 1000,
        "noise.wav": random.bytes(5_000),
        "noise.ogg": b"OggS" + random.bytes(5_000),
        "noise.raw": random.bytes(5_000),
        "zeros.flac": bytes(5_000),
        "header.wav": wav[:44],
        "half-header.wav": wav[:30],
        "riff.wav": wav[:12],
        "no-rate.wav": patched(24, "<I", 0),
        "one-hertz.wav": patched(24, "<I", 1),
        "gigahertz.wav": patched(24, "<I", 0xFFFF_FFFF),
        "no-channels.wav": patched(22, "<H", 0),
        "many-channels.wav": patched(22, "<H", 1000),
        "codec.wav": patched(20, "<H", 0x7777),
        "endless-chunk.wav": wav[:12] + b"junk" + struct.pack("<I", 0xFFFF_FFF0) + wav[12:],
        "endless-format.wav": wav[:16] + struct.pack("<I", 0xFFFF_FFF0) + wav[20:],
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(AudioFileError, match="expected") as caught:
            FileReplay(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
        with pytest.raises(AudioFileError):
            read_audio(tmp_path / name)


@pytest.mark.parametrize(("name", "at"), [("a.aiff", 35), ("a.w64", 98)])
def test_a_header_that_sends_the_reader_before_the_file_writes_no_traceback(
    tmp_path: Path, name: str, at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(write(tmp_path / name, speech(0.1), subtype="PCM_16").read_bytes())
    data[at : at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / name).write_bytes(data)
    with contextlib.suppress(AudioFileError):
        read_until_error(tmp_path / name)
    assert capsys.readouterr().err == ""


def test_a_file_of_random_bytes_after_a_good_header_is_no_crash(tmp_path: Path) -> None:
    for name in ("a.flac", "a.ogg", "a.mp3"):
        path = write(tmp_path / name, speech())
        data = bytearray(path.read_bytes())
        data[len(data) // 2 :] = np.random.default_rng(1).bytes(len(data) - len(data) // 2)
        path.write_bytes(data)
        audio, _ = read_until_error(path)
        assert np.isfinite(audio).all()
        assert len(audio) <= 2 * len(speech())


def test_missing_files_directories_and_bad_names(tmp_path: Path) -> None:
    for path, fact in (
        (tmp_path / "missing.wav", "does not exist"),
        (tmp_path, "is a directory"),
        (tmp_path / ("x" * 5000), "cannot be opened"),
        ("a\0b.wav", "cannot be opened"),
    ):
        with pytest.raises(AudioFileError, match=fact) as caught:
            FileReplay(path)
        assert "expected" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_by_name_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(AudioFileError, match="not a regular file"):
        FileReplay(tmp_path / "pipe.wav")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", speech())
    path.chmod(0)
    with pytest.raises(AudioFileError, match="may not be read"):
        FileReplay(path)


def test_standard_input_is_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "a.flac", speech()).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    np.testing.assert_allclose(np.concatenate(list(read_audio("-"))), speech(), rtol=0, atol=1e-6)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(AudioFileError, match="standard input is empty"):
        read_audio("-")
