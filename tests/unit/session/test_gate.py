"""The speech gate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.session.gate import Gate, SpeechEnd, SpeechStart
from streamer.settings.table import SpeechSettings

CHUNK = 512
SETTINGS = SpeechSettings(threshold=0.5, min_speech_s=0.1, min_silence_s=0.6, pad_s=0.3)
PAD = 4_800

Boundary = SpeechStart | SpeechEnd


def hear(
    gate: Gate, first: int, n_chunks: int, probability: float, settings: SpeechSettings = SETTINGS
) -> tuple[Gate, list[Boundary]]:
    """Let a gate hear chunks from number `first` on; return it and what was found."""
    found: list[Boundary] = []
    for i in range(first, first + n_chunks):
        gate, boundary = gate.feed(settings, i * CHUNK, (i + 1) * CHUNK, probability)
        found += [boundary] if boundary is not None else []
    return gate, found


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param(
            [(50, 0.1), (20, 0.9), (40, 0.1)],
            [SpeechStart(50 * CHUNK - PAD), SpeechEnd(70 * CHUNK + PAD)],
            id="it starts before and ends behind what was detected",
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
    gate, n_heard, found = Gate(), 0, list[Boundary]()
    for n_chunks, probability in chunks:
        gate, more = hear(gate, n_heard, n_chunks, probability)
        found += more
        n_heard += n_chunks
    assert found == expected


def test_the_end_of_the_audio_ends_speech_within_it_and_none_reaches_back_into_lost_audio() -> None:
    gate, _ = hear(Gate(), 0, 20, 0.9)
    gate, end = gate.close(SETTINGS, 20 * CHUNK)
    assert end == SpeechEnd(20 * CHUNK)
    assert gate.close(SETTINGS, 20 * CHUNK) == (gate, None)
    assert hear(gate.skip_to(100 * CHUNK), 100, 10, 0.9)[1] == [SpeechStart(100 * CHUNK)]


@given(
    probabilities=st.lists(st.sampled_from((0.0, 0.3, 0.4, 0.6, 1.0)), max_size=300),
    min_silence_s=st.sampled_from((0.1, 0.6)),
    pad_s=st.sampled_from((0.0, 0.3, 2.0)),
)
def test_starts_and_ends_alternate_and_never_go_back(
    probabilities: list[float], min_silence_s: float, pad_s: float
) -> None:
    gate = Gate()
    settings = SpeechSettings(threshold=0.5, min_speech_s=0.1, min_silence_s=min_silence_s, pad_s=pad_s)
    boundaries: list[Boundary] = []
    for i, probability in enumerate(probabilities):
        gate, more = hear(gate, i, 1, probability, settings)
        boundaries += more
        assert gate.open == (len(boundaries) % 2 == 1)
        assert not boundaries or boundaries[-1].position <= (i + 1) * CHUNK
    positions = [boundary.position for boundary in boundaries]
    assert positions == sorted(positions)
    assert all(type(b) is (SpeechEnd if i % 2 else SpeechStart) for i, b in enumerate(boundaries))
