"""Audio that is no speech, hardly audio, or far too much: read to its end, in order, within bounds."""

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from streamer.constants import SAMPLE_RATE
from streamer.events import End, Final, Ready
from streamer.offline import transcribe
from streamer.whisper.model import WhisperModel
from tests.daemon import SAMPLE, Outcome, command, events_of
from tests.promises import check_promises
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import NANO, read

Samples = NDArray[np.float32]

SECONDS = np.arange(3 * SAMPLE_RATE) / SAMPLE_RATE


def speech() -> Samples:
    return read(SAMPLE)[: 3 * SAMPLE_RATE].copy()


def with_values(*values: float) -> Samples:
    """Return speech in which every hundredth sample is one of these."""
    samples = speech()
    samples[::100] = np.resize(np.array(values, dtype=np.float32), len(samples[::100]))
    return samples


AUDIO: dict[str, Samples] = {
    "clipped": np.clip(100 * speech(), -1, 1),
    "square": np.sign(np.sin(2 * np.pi * 100 * SECONDS)).astype(np.float32),
    "dc": np.full(len(SECONDS), 0.7, dtype=np.float32),
    "tone": (0.5 * np.sin(2 * np.pi * 1000 * SECONDS)).astype(np.float32),
    "nan": with_values(np.nan),
    "inf": with_values(np.inf, -np.inf),
    "all_nan": np.full(len(SECONDS), np.nan, dtype=np.float32),
    "huge": with_values(1e30, -3e38),
    "denormal": np.full(len(SECONDS), 1e-40, dtype=np.float32),
    "silence": np.zeros(len(SECONDS), dtype=np.float32),
    "noise": np.random.default_rng(0).uniform(-1, 1, len(SECONDS)).astype(np.float32),
    "click": np.eye(1, len(SECONDS), 20_000, dtype=np.float32)[0],
    "one_sample": np.array([0.5], dtype=np.float32),
    "two_samples": np.array([1.0, -1.0], dtype=np.float32),
    "one_frame": np.full(160, 0.1, dtype=np.float32),
}

# Of these something is said, besides their text.
WARNED = {"nan": "NaN or infinite", "inf": "NaN or infinite", "all_nan": "NaN or infinite", "huge": "samples beyond"}


@pytest.fixture(scope="module", params=["files", "streaming"])
def transcripts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The transcripts of all of them, and what was said on the way."""
    audio, output = tmp_path_factory.mktemp("audio"), tmp_path_factory.mktemp("output")
    for name, samples in AUDIO.items():
        soundfile.write(audio / f"{name}.wav", samples, SAMPLE_RATE, subtype="FLOAT")
    paths = [audio / f"{name}.wav" for name in AUDIO]
    mode = ["--stream"] if request.param == "streaming" else []
    outcome = command("transcribe", *paths, "--model", NANO, "--format", "jsonl", "-o", output, *mode)
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout == ""
    return output, outcome.stderr


@pytest.mark.parametrize("name", AUDIO)
def test_it_is_read_to_its_end_in_order(transcripts: tuple[Path, str], name: str) -> None:
    output, _ = transcripts
    events = events_of((output / f"{name}.jsonl").read_text(encoding="utf-8"))
    assert isinstance(events[0], Ready)
    assert isinstance(events[-1], End)
    check_promises(events, duration_s=len(AUDIO[name]) / SAMPLE_RATE)
    for event in events:
        if isinstance(event, Final):
            assert np.isfinite([event.avg_logprob, event.no_speech_prob]).all()


def test_what_is_wrong_with_the_samples_is_said_once(transcripts: tuple[Path, str]) -> None:
    _, stderr = transcripts
    for name in AUDIO:
        said = [line for line in stderr.splitlines() if f"{os.sep}{name}.wav " in line]
        assert len(said) == (name in WARNED), said
        assert all(WARNED[name] in line for line in said)
    assert "Traceback" not in stderr


@pytest.mark.parametrize("mode", [[], ["--stream"]], ids=["files", "streaming"])
def test_no_sample_at_all_is_one_line(run_here: Callable[..., Outcome], tmp_path: Path, mode: list[str]) -> None:
    path = tmp_path / "empty.wav"
    soundfile.write(path, np.zeros(0, dtype=np.float32), SAMPLE_RATE)
    outcome = run_here("transcribe", path, *mode)
    assert outcome.exit_code == 2
    assert outcome.stdout == ""
    assert "it has no audio that can be decoded" in outcome.error()


def test_a_long_recording_takes_no_more_memory_than_a_short_one(model: WhisperModel) -> None:
    """Of twelve hours the samples alone would be 2.8 GB."""
    second = np.zeros(SAMPLE_RATE, dtype=np.float32)

    def blocks(n_seconds: int) -> Iterator[Samples]:
        return (second for _ in range(n_seconds))

    def peak_bytes(n_seconds: int) -> int:
        tracemalloc.start()
        try:
            for _ in transcribe(model, blocks(n_seconds), as_whisper(model)):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(1)  # what is imported late
    # Of three minutes the samples are 12 MB, the spectrogram 6 MB.
    assert peak_bytes(180) < peak_bytes(60) + 2_000_000
