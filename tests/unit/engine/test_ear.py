"""Speech detection over a ring: one detector for audio that follows, a new one for audio that does not."""

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


def test_audio_that_follows_is_processed_by_one_detector() -> None:
    ear, made = ear_of(0)
    assert ear.probability(0, CHUNK_SAMPLES) == 0.9
    ear.probability(CHUNK_SAMPLES, CHUNK_SAMPLES + 100)  # up to a command
    ear.probability(CHUNK_SAMPLES + 100, 2 * CHUNK_SAMPLES)
    assert [detector.processed for detector in made] == [[0, CHUNK_SAMPLES, CHUNK_SAMPLES + 100]]


def test_audio_behind_a_hole_is_processed_by_a_new_one() -> None:
    ear, made = ear_of(0)
    ear.probability(0, CHUNK_SAMPLES)
    ear.probability(SAMPLE_RATE, SAMPLE_RATE + CHUNK_SAMPLES)
    assert [detector.processed for detector in made] == [[0], [SAMPLE_RATE]]


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


def test_behind_another_machine_a_second_is_processed_again() -> None:
    ear, made = ear_of(None)
    ear.probability(3 * SAMPLE_RATE, 3 * SAMPLE_RATE + CHUNK_SAMPLES)
    first = 3 * SAMPLE_RATE - WARMING_CHUNKS * CHUNK_SAMPLES
    assert made[-1].processed == [first + CHUNK_SAMPLES * i for i in range(WARMING_CHUNKS + 1)]
    ear.probability(3 * SAMPLE_RATE + CHUNK_SAMPLES, 3 * SAMPLE_RATE + 2 * CHUNK_SAMPLES)
    assert len(made[-1].processed) == WARMING_CHUNKS + 2


def test_overwritten_audio_is_an_overrun() -> None:
    ear, _ = ear_of(0, capacity_samples=SAMPLE_RATE)
    with pytest.raises(Overrun):
        ear.probability(0, CHUNK_SAMPLES)
