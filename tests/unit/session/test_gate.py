"""The speech gate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.session.gate import SpeechEnd, SpeechGate, SpeechStart
from streamer.settings.table import SpeechSettings

CHUNK = 512
SETTINGS = SpeechSettings(threshold=0.5, min_speech_s=0.1, min_silence_s=0.6, pad_s=0.3)
PAD = 4_800

Boundary = SpeechStart | SpeechEnd


def feed(gate: SpeechGate, first: int, n_chunks: int, probability: float) -> list[Boundary]:
    """Feed chunks from number `first` on; return what was said."""
    boundaries = (gate.feed(i * CHUNK, (i + 1) * CHUNK, probability) for i in range(first, first + n_chunks))
    return [boundary for boundary in boundaries if boundary is not None]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param(
            [(50, 0.1), (20, 0.9), (40, 0.1)],
            [SpeechStart(50 * CHUNK - PAD), SpeechEnd(70 * CHUNK + PAD)],
            id="it starts before and ends behind what was heard",
        ),
        pytest.param([(3, 0.9), (100, 0.1)], [], id="a short burst is not speech"),
        pytest.param(
            [(50, 0.4), (10, 0.9), (100, 0.4), (40, 0.3)],
            [SpeechStart(50 * CHUNK - PAD), SpeechEnd(160 * CHUNK + PAD)],
            id="it goes on a little below the threshold but does not start there",
        ),
    ],
)
def test_speech_is_found(chunks: list[tuple[int, float]], expected: list[Boundary]) -> None:
    gate, n_fed, found = SpeechGate(SETTINGS), 0, list[Boundary]()
    for n_chunks, probability in chunks:
        found += feed(gate, n_fed, n_chunks, probability)
        n_fed += n_chunks
    assert found == expected


def test_the_end_of_the_audio_ends_speech_within_it_and_none_reaches_back_into_lost_audio() -> None:
    gate = SpeechGate(SETTINGS)
    feed(gate, 0, 20, 0.9)
    assert gate.close(20 * CHUNK) == SpeechEnd(20 * CHUNK)
    assert gate.close(20 * CHUNK) is None
    gate.skip_to(100 * CHUNK)
    assert feed(gate, 100, 10, 0.9) == [SpeechStart(100 * CHUNK)]


@given(
    probabilities=st.lists(st.sampled_from((0.0, 0.3, 0.4, 0.6, 1.0)), max_size=300),
    min_silence_s=st.sampled_from((0.1, 0.6)),
    pad_s=st.sampled_from((0.0, 0.3, 2.0)),
)
def test_starts_and_ends_alternate_and_never_go_back(
    probabilities: list[float], min_silence_s: float, pad_s: float
) -> None:
    gate = SpeechGate(SpeechSettings(threshold=0.5, min_speech_s=0.1, min_silence_s=min_silence_s, pad_s=pad_s))
    boundaries: list[Boundary] = []
    for i, probability in enumerate(probabilities):
        boundaries += feed(gate, i, 1, probability)
        assert gate.open == (len(boundaries) % 2 == 1)
        assert not boundaries or boundaries[-1].position <= (i + 1) * CHUNK
    positions = [boundary.position for boundary in boundaries]
    assert positions == sorted(positions)
    assert all(type(b) is (SpeechEnd if i % 2 else SpeechStart) for i, b in enumerate(boundaries))
