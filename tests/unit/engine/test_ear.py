"""Speech detection over a ring: one detector for audio that follows, a new one for audio that does not."""

import itertools

import numpy as np
import pytest

from streamer.arrays import Float32Array
from streamer.audio.ring import Overrun, RingBuffer
from streamer.audio.vad import CHUNK_SAMPLES
from streamer.constants import SAMPLE_RATE
from streamer.engine.ear import WARMING_CHUNKS, Ear
from tests.fakes import FakeDetector


class Counting(FakeDetector):
    """Notes the first sample of each chunk; may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.processed: list[float] = []

    def process(self, samples: Float32Array) -> list[float]:
        """See SpeechDetector."""
        assert len(samples) == CHUNK_SAMPLES
        self.processed.append(float(samples[0]))
        if samples[0] < 0:
            raise ZeroDivisionError
        return super().process(samples)


def ear_of(start: int | None, *, capacity_samples: int = 10 * SAMPLE_RATE) -> tuple[Ear, list[Counting]]:
    """Return one over a ring whose samples are their positions, and the detectors that it makes."""
    ring = RingBuffer(capacity_samples)
    ring.write(np.arange(4 * SAMPLE_RATE, dtype=np.float32))
    made: list[Counting] = []

    def new_detector() -> Counting:
        made.append(Counting())
        return made[-1]

    return Ear(ring, new_detector, start=start), made


CHUNK = CHUNK_SAMPLES
LATER = 3 * SAMPLE_RATE


@pytest.mark.parametrize(
    ("start", "heard", "processed"),
    [
        pytest.param(0, [0, CHUNK, CHUNK + 100, 2 * CHUNK], [[0, CHUNK, CHUNK + 100]], id="one hears what follows"),
        pytest.param(0, [0, CHUNK, None, LATER, LATER + 9], [[0], [LATER]], id="a new one what is behind a hole"),
        pytest.param(
            None,
            [LATER, LATER + CHUNK, LATER + 2 * CHUNK],
            [[], [LATER + CHUNK * i for i in range(-WARMING_CHUNKS, 2)]],
            id="behind another machine a second is heard again",
        ),
    ],
)
def test_which_detector_hears_what(start: int | None, heard: list[int | None], processed: list[list[int]]) -> None:
    ear, made = ear_of(start)
    for begin, end in itertools.pairwise(heard):
        if begin is not None and end is not None:
            assert ear.probability(begin, end) == 0.9
    assert [detector.processed for detector in made] == processed


def test_one_that_has_failed_is_replaced() -> None:
    ear, made = ear_of(0)
    ear._ring.write(np.full(CHUNK_SAMPLES, -1, dtype=np.float32))
    head = ear._ring.head
    ear.probability(head - 2 * CHUNK_SAMPLES, head - CHUNK_SAMPLES)
    with pytest.raises(ZeroDivisionError):
        ear.probability(head - CHUNK_SAMPLES, head)
    ear._ring.write(np.ones(CHUNK_SAMPLES, dtype=np.float32))
    ear.probability(head, head + CHUNK_SAMPLES)
    assert made[-1].processed == [1]


def test_overwritten_audio_is_an_overrun() -> None:
    ear, _ = ear_of(0, capacity_samples=SAMPLE_RATE)
    with pytest.raises(Overrun):
        ear.probability(0, CHUNK_SAMPLES)
