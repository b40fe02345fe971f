"""Raw PCM to samples."""

import math
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.audio.pcm import PcmDecoder
from streamer.errors import ProtocolError


def decode(decoder: PcmDecoder, data: bytes, cuts: list[int]) -> NDArray[np.float32]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [decoder.decode(data[start:end]) for start, end in pairwise(edges)]
    return np.concatenate([*pieces, decoder.finish()])


@given(
    data=st.binary(max_size=3_000),
    format=st.sampled_from(["s16le", "f32le"]),
    sample_rate=st.sampled_from([8_000, 16_000, 44_100]),
    channels=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 3_000), max_size=12),
)
def test_where_bytes_are_cut_does_not_matter(
    data: bytes, format: str, sample_rate: int, channels: int, cuts: list[int]
) -> None:
    whole = decode(PcmDecoder(format, sample_rate, channels), data, [])
    pieces = decode(PcmDecoder(format, sample_rate, channels), data, cuts)
    assert whole.dtype == np.float32
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-6)


def test_s16le_covers_minus_one_to_one() -> None:
    data = np.array([-32768, -16384, 0, 16384, 32767], dtype="<i2").tobytes()
    assert PcmDecoder("s16le", 16_000, 1).decode(data).tolist() == [-1.0, -0.5, 0.0, 0.5, 32767 / 32768]


def test_odd_bytes_are_joined_to_the_next_chunk_and_told_once() -> None:
    data = np.array([100, 200, 300], dtype="<i2").tobytes()
    decoder = PcmDecoder("s16le", 16_000, 1)
    samples = [*decoder.decode(data[:3]), *decoder.decode(data[3:5]), *decoder.decode(data[5:])]
    assert samples == [100 / 32768, 200 / 32768, 300 / 32768]
    [(code, message)] = decoder.take_problems()
    assert code == "odd_bytes"
    assert "multiple of 2 bytes" in message
    assert decoder.take_problems() == []


def test_bytes_left_over_at_the_end_are_dropped_and_told() -> None:
    decoder = PcmDecoder("f32le", 16_000, 2, whole_chunks=False)
    decoder.decode(bytes(8 + 5))
    assert decoder.take_problems() == []
    assert len(decoder.finish()) == 0
    [(code, message)] = decoder.take_problems()
    assert code == "odd_bytes"
    assert "5 bytes into a frame of 8" in message


def test_nan_and_infinity_are_heard_as_silence_and_counted() -> None:
    samples = np.array([0.1, math.nan, math.inf, -math.inf, 0.2], dtype="<f4")
    decoder = PcmDecoder("f32le", 16_000, 1)
    np.testing.assert_allclose(decoder.decode(samples.tobytes()), [0.1, 0, 0, 0, 0.2], rtol=1e-6)
    decoder.decode(samples.tobytes())
    [(code, message)] = decoder.take_problems()
    assert code == "bad_samples"
    assert message.startswith("3 audio samples are NaN or infinite")
    assert decoder.bad_samples == 6


def test_samples_out_of_range_are_clipped() -> None:
    decoder = PcmDecoder("f32le", 16_000, 1)
    assert decoder.decode(np.array([3e38, -32768, 0.5], dtype="<f4").tobytes()).tolist() == [1.0, -1.0, 0.5]
    [(code, message)] = decoder.take_problems()
    assert code == "out_of_range"
    assert "expected -1 to 1" in message


@pytest.mark.parametrize(
    ("sample_rate", "channels", "word"),
    [(3_999, 1, "3999"), (384_001, 1, "384001"), (10**400, 1, "sample rate"), (16_000, 0, "0"), (16_000, 33, "33")],
)
def test_what_nobody_may_ask_for(sample_rate: int, channels: int, word: str) -> None:
    with pytest.raises(ProtocolError, match="expected") as caught:
        PcmDecoder("s16le", sample_rate, channels)
    assert word in str(caught.value)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_a_stream_of_single_bytes_does_not_make_it_grow() -> None:
    decoder = PcmDecoder("f32le", 48_000, 32)
    for _ in range(300):
        decoder.decode(b"\x00")
    tracemalloc.start()
    for _ in range(3_000):
        decoder.decode(b"\x00")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000


def test_a_sender_that_begins_again_sends_whole_frames() -> None:
    decoder = PcmDecoder("s16le", 16_000, 1)
    assert len(decoder.decode(b"\x00\x40\x00")) == 1
    decoder.drop_rest()
    assert decoder.decode(b"\x00\x40").tolist() == [0.5]
    assert decoder.frames_decoded == 2
