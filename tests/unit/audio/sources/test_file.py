"""Audio files: whole, broken and hostile."""

import dataclasses
import io
import logging
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.arrays import Float32Array
from streamer.audio.sources import file
from streamer.audio.sources.file import FileReplay, Recording, read_audio
from streamer.constants import SAMPLE_RATE
from streamer.errors import AudioFileError
from tests.unit.audio.support import SPEECH, Recorder, patched, played, speech, written
from tests.waiting import WAIT_S

WAV = written(speech())


def saved(folder: Path, data: bytes) -> Path:
    (folder / "audio").write_bytes(data)
    return folder / "audio"


def read(folder: Path, data: bytes) -> Float32Array:
    return np.concatenate(list(read_audio(saved(folder, data))))


@pytest.mark.parametrize(
    ("format", "subtype", "tolerance"),
    [("WAV", None, 0.0), ("FLAC", None, 0.0), ("OGG", "VORBIS", 1e-5), ("MP3", None, 1e-5)],
)
def test_files_read_as_by_libsndfile(tmp_path: Path, format: str, subtype: str | None, tolerance: float) -> None:
    data = written(speech(), format=format, subtype=subtype)
    expected = soundfile.read(io.BytesIO(data), dtype="float32")[0]
    # Block by block as in one go: no click where one block ends and the next begins.
    np.testing.assert_allclose(read(tmp_path, data), expected, rtol=0, atol=tolerance)


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
    source = FileReplay(saved(tmp_path, written(speech(2.0))), speed=speed)

    def wait(timeout: float) -> bool:
        nonlocal now_s
        waits.append(timeout)
        now_s += timeout + (slept_s if len(waits) == 5 else 0.0)
        return False

    monkeypatch.setattr(file, "monotonic", lambda: now_s)
    monkeypatch.setattr(source._stopping, "wait", wait)
    played(source)
    assert waits == pytest.approx(expected)
    assert source.realtime


def test_a_slow_consumer_holds_the_replay_back(tmp_path: Path) -> None:
    recorder, source = Recorder(), FileReplay(saved(tmp_path, WAV), speed=0)
    assert not source.realtime
    entered, go_on = threading.Event(), threading.Event()

    def on_audio(samples: Float32Array) -> None:
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
    recorder, source = Recorder(), FileReplay(SPEECH, speed=1.0)
    source.start(recorder.callbacks)
    assert recorder.heard.wait(WAIT_S)
    source.stop()
    source.stop()
    assert recorder.ends == []
    assert 0 < len(recorder.blocks) < 100
    FileReplay(saved(tmp_path, WAV)).stop()  # never started


def test_a_truncated_recording_is_read_up_to_its_end_and_says_so(tmp_path: Path) -> None:
    recording = Recording(saved(tmp_path, WAV[: len(WAV) // 2 + 1]))
    audio = np.concatenate(list(recording.read()))
    assert recording.n_samples == len(audio) == 2 * SAMPLE_RATE - 11  # half a header, too
    assert recording.truncated is not None


@pytest.mark.parametrize("length", [0, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x7FFF_F000, 2_000_000_000, 0x4000_0000 - 44, 10**9])
def test_a_wav_written_to_a_pipe_does_not_know_its_length(tmp_path: Path, length: int) -> None:
    audio = read(tmp_path, patched(WAV, 40, struct.pack("<I", length)))
    np.testing.assert_allclose(audio, speech(), rtol=0, atol=1e-6)


def test_an_aiff_written_to_a_pipe_does_not_know_its_length(tmp_path: Path) -> None:
    data = written(speech(), format="AIFF")
    data = patched(data, data.index(b"COMM") + 10, struct.pack(">I", 0x7F00_0000 // 2))  # as SoX writes them
    data = patched(data, data.index(b"SSND") + 4, struct.pack(">I", 0x7F00_0008))
    np.testing.assert_allclose(read(tmp_path, data), speech(), rtol=0, atol=1e-6)


def test_audio_behind_what_a_header_announces_is_ignored_and_reported_and_a_chunk_is_not(tmp_path: Path) -> None:
    data = WAV + b"LIST" + struct.pack("<I", 40_000) + bytes(40_000)
    recorder = played(FileReplay(saved(tmp_path, data), speed=0))
    assert (len(recorder.audio), recorder.errors) == (len(speech()), [])
    recorder = played(FileReplay(saved(tmp_path, patched(data, 40, struct.pack("<I", 2 * SAMPLE_RATE))), speed=0))
    assert (len(recorder.audio), len(recorder.errors), recorder.ends) == (SAMPLE_RATE, 1, [None])


@pytest.mark.parametrize("padding", [b"", b"JUNK\x1c\0\0\0" + bytes(28), b"JUNK\3\0\0\0abc\0"])
def test_integers_of_24_bits_in_32_are_integers(padding: bytes, tmp_path: Path) -> None:
    samples = (speech() * 2**23).astype("<i4")
    pcm = bytes.fromhex("0100000000001000800000aa00389b71")
    format = struct.pack("<HHIIHHHHI", 0xFFFE, 1, SAMPLE_RATE, 4 * SAMPLE_RATE, 4, 32, 22, 24, 4) + pcm
    chunks = padding + b"fmt " + struct.pack("<I", 40) + format + b"data" + struct.pack("<I", samples.nbytes)
    header = b"RIFF" + struct.pack("<I", 4 + len(chunks) + samples.nbytes) + b"WAVE" + chunks
    audio = read(tmp_path, (header + (samples << 8).tobytes()) * 2)  # of both, the header is mended
    np.testing.assert_allclose(audio, np.tile(samples / 2**23, 2), rtol=0, atol=1e-6)


def test_bad_samples_are_mended_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    samples = speech()
    samples[[5_000, 5_001, 30_000]] = np.nan, np.nan, np.inf
    samples[[1_000, 20_000, 20_001, 40_000]] = 3e38, -32_768.0, 17.0, 15.0
    path = saved(tmp_path, written(samples, subtype="FLOAT"))
    expected = np.where(np.isfinite(samples), samples, 0)
    expected[[1_000, 20_000, 20_001]] = 1.0, -1.0, 1.0
    recorder, recording = played(FileReplay(path, speed=0)), Recording(path)
    np.testing.assert_array_equal(recorder.audio, expected)
    assert [type(error) for error in recorder.errors] == [AudioFileError] * 2
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate(list(recording.read())), expected)
    assert len(caplog.records) == 2


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written(speech(), format="FLAC"))))
    np.testing.assert_allclose(np.concatenate(list(read_audio("-"))), speech(), rtol=0, atol=1e-6)
