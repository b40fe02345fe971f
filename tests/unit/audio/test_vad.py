"""The speech detector, on speech and on what is none."""

import os
import subprocess
import sys

import numpy as np
import pytest

from streamer.audio.vad import CHUNK_SAMPLES, SpeechDetector
from streamer.constants import SAMPLE_RATE
from tests.unit.whisper.support import SPEECH, Samples, noise, read


def detected(samples: Samples, block_samples: int = 1 << 30) -> list[float]:
    detector = SpeechDetector()
    blocks = [samples[first : first + block_samples] for first in range(0, len(samples), block_samples)]
    return [probability for block in blocks for probability in detector.process(block)]


def test_speech_is_speech_and_silence_is_not() -> None:
    speech = read(SPEECH)
    loud, quiet, silence = (np.array(detected(np.float32(gain) * speech)) for gain in (1.0, 0.001, 0.0))
    assert len(loud) == len(speech) // CHUNK_SAMPLES
    assert loud.min() >= 0
    assert loud.max() <= 1
    assert np.mean(loud > 0.5) > 0.5
    assert silence.max() < 0.5
    assert np.sum(quiet > 0.5) > 0.8 * np.sum(loud > 0.5)


def test_cutting_into_pieces_does_not_change_the_result() -> None:
    speech = read(SPEECH)[: 3 * SAMPLE_RATE]
    assert detected(speech, 333) == detected(speech)


def test_loud_samples_are_clipped() -> None:
    loud = 50 * noise(4 * CHUNK_SAMPLES)
    assert detected(loud) == detected(np.clip(loud, -1.0, 1.0))


COUNTED = """
import os
import numpy as np
def n_threads(): return len(os.listdir("/proc/self/task"))
from streamer.audio.vad import SpeechDetector
detector = SpeechDetector()
before = n_threads()
for _ in range(10):
    detector.process(np.zeros(512, dtype=np.float32))
assert n_threads() == before
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("first", ["", "import torch; torch.set_num_threads(3)"])
def test_one_thread_is_enough_and_other_libraries_keep_theirs(first: str) -> None:
    script = first + COUNTED + 'assert os.environ["OMP_THREAD_LIMIT"] == "7", "what the user has set is left as it was"'
    if first:
        script += "\ntorch.ones(2000, 2000).exp()\nassert n_threads() == before + 2"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "OMP_THREAD_LIMIT": "7"}, check=True)
