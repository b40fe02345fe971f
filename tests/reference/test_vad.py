"""The speech detector, on speech and on what is none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE

SPEECH = Path(__file__).parents[1] / "data" / "speech.flac"


def test_speech_is_speech_and_silence_is_not() -> None:
    speech, _ = soundfile.read(SPEECH, dtype="float32")
    detector = SpeechDetector()
    probabilities = detector.process(speech)
    assert len(probabilities) == len(speech) // CHUNK_SAMPLES
    assert all(0.0 <= probability <= 1.0 for probability in probabilities)
    assert np.mean(np.array(probabilities) > 0.5) > 0.5
    assert max(SpeechDetector().process(np.zeros(5 * SAMPLE_RATE, dtype=np.float32))) < 0.5


def test_very_quiet_speech_is_found_as_well() -> None:
    speech, _ = soundfile.read(SPEECH, dtype="float32")
    loud, quiet = (np.array(SpeechDetector().process(np.float32(gain) * speech)) > 0.5 for gain in (1.0, 0.001))
    assert quiet.sum() > 0.8 * loud.sum()


def test_cutting_into_pieces_does_not_change_the_result() -> None:
    speech, _ = soundfile.read(SPEECH, dtype="float32", frames=3 * SAMPLE_RATE)
    whole = SpeechDetector().process(speech)
    pieces: list[float] = []
    detector = SpeechDetector()
    for start in range(0, len(speech), 333):
        pieces += detector.process(speech[start : start + 333])
    assert pieces == whole


def test_loud_samples_are_clipped() -> None:
    loud = 5.0 * np.random.default_rng(0).standard_normal(CHUNK_SAMPLES * 4).astype(np.float32)
    assert SpeechDetector().process(loud) == SpeechDetector().process(np.clip(loud, -1.0, 1.0))


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("first", ["", "torch"])
def test_one_thread_is_enough_whatever_was_imported_before(first: str) -> None:
    if first:
        pytest.importorskip(first)
    script = f"import {first}" if first else ""
    script += """
import os
import numpy as np
from streamer.audio.vad import SpeechDetector

detector = SpeechDetector()
n_threads = len(os.listdir("/proc/self/task"))
for _ in range(10):
    detector.process(np.zeros(512, dtype=np.float32))
assert len(os.listdir("/proc/self/task")) == n_threads
assert os.environ["OMP_THREAD_LIMIT"] == "7", "what the user has set is left as it was"
"""
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "OMP_THREAD_LIMIT": "7"}, check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_other_libraries_keep_their_threads() -> None:
    pytest.importorskip("torch")
    script = """
import os
import torch
import numpy as np
from streamer.audio.vad import SpeechDetector

torch.set_num_threads(3)
SpeechDetector().process(np.zeros(512, dtype=np.float32))
n_threads = len(os.listdir("/proc/self/task"))
torch.ones(2000, 2000).exp()
assert len(os.listdir("/proc/self/task")) == n_threads + 2
"""
    subprocess.run([sys.executable, "-c", script], check=True)
