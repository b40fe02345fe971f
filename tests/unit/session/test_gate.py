"""The speech gate."""

from hypothesis import given
from hypothesis import strategies as st

from streamer.constants import SAMPLE_RATE
from streamer.session.gate import SpeechEnd, SpeechGate, SpeechStart
from streamer.settings.table import SpeechSettings

CHUNK = 512
SETTINGS = SpeechSettings(threshold=0.5, min_speech_s=0.1, min_silence_s=0.6, pad_s=0.3)

Boundary = SpeechStart | SpeechEnd


def feed(gate: SpeechGate, first: int, n_chunks: int, probability: float) -> list[Boundary]:
    """Feed chunks from number `first` on; return what was said."""
    boundaries = (gate.feed(i * CHUNK, (i + 1) * CHUNK, probability) for i in range(first, first + n_chunks))
    return [boundary for boundary in boundaries if boundary is not None]


def test_speech_starts_before_and_ends_behind_what_was_heard() -> None:
    gate = SpeechGate(SETTINGS)
    pad = round(0.3 * SAMPLE_RATE)
    assert feed(gate, 0, 50, 0.1) == []
    assert feed(gate, 50, 20, 0.9) == [SpeechStart(50 * CHUNK - pad)]
    assert feed(gate, 70, 40, 0.1) == [SpeechEnd(70 * CHUNK + pad)]


def test_a_short_burst_is_not_speech() -> None:
    gate = SpeechGate(SETTINGS)
    assert feed(gate, 0, 3, 0.9) == []
    assert feed(gate, 3, 100, 0.1) == []


def test_speech_goes_on_a_little_below_the_threshold_but_does_not_start_there() -> None:
    gate = SpeechGate(SETTINGS)
    assert feed(gate, 0, 50, 0.4) == []
    assert len(feed(gate, 50, 10, 0.9)) == 1
    assert feed(gate, 60, 100, 0.4) == []
    assert len(feed(gate, 160, 40, 0.3)) == 1


def test_the_end_of_the_audio_ends_speech_within_it() -> None:
    gate = SpeechGate(SETTINGS)
    feed(gate, 0, 20, 0.9)
    assert gate.close(20 * CHUNK) == SpeechEnd(20 * CHUNK)
    assert gate.close(20 * CHUNK) is None


def test_no_speech_reaches_back_into_lost_audio() -> None:
    gate = SpeechGate(SETTINGS)
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
    assert [type(b) for b in boundaries] == [SpeechStart, SpeechEnd] * (len(boundaries) // 2) + [SpeechStart] * (
        len(boundaries) % 2
    )
