"""Raw PCM to samples, and samples to integers."""

import io
import math
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from streamer.arrays import Float32Array
from streamer.audio.pcm import PcmDecoder, to_int16
from streamer.constants import PcmEncoding


def decode(decoder: PcmDecoder, data: bytes, cuts: list[int]) -> Float32Array:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [decoder.decode(data[start:end]) for start, end in pairwise(edges)]
    return np.concatenate([*pieces, decoder.finish()])


@given(
    data=st.binary(max_size=3_000),
    format=st.sampled_from(get_args(PcmEncoding)),
    sample_rate=st.sampled_from([8_000, 16_000, 44_100]),
    channels=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 3_000), max_size=12),
)
def test_cuts_do_not_matter(data: bytes, format: PcmEncoding, sample_rate: int, channels: int, cuts: list[int]) -> None:
    whole = decode(decoder := PcmDecoder(format, sample_rate, channels), data, [])
    pieces = decode(PcmDecoder(format, sample_rate, channels), data, cuts)
    assert decoder.frames_decoded == len(data) // decoder.frame_bytes
    assert whole.dtype == np.float32
    assert np.isfinite(whole).all()
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("encoding", "subtype"), [("mulaw", "ULAW"), ("alaw", "ALAW"), ("u8", "PCM_U8")])
def test_each_byte_is_what_libsndfile_reads(encoding: PcmEncoding, subtype: str) -> None:
    codes = bytes(range(256))  # libsndfile has the ITU's tables
    expected, _ = soundfile.read(
        io.BytesIO(codes), dtype="float32", format="RAW", subtype=subtype, samplerate=16_000, channels=1
    )
    np.testing.assert_array_equal(PcmDecoder(encoding, 16_000, 1).decode(codes), expected)


@pytest.mark.parametrize(("encoding", "width"), [("s16le", 2), ("s24le", 3), ("s32le", 4)])
def test_integers_are_samples_of_minus_one_to_one_and_back(encoding: PcmEncoding, width: int) -> None:
    values = [-32768, -16384, 0, 16384, 32767]
    data = b"".join((value << 8 * (width - 2)).to_bytes(width, "little", signed=True) for value in values)
    assert PcmDecoder(encoding, 16_000, 1).decode(data).tolist() == [-1.0, -0.5, 0.0, 0.5, 32767 / 32768]
    assert to_int16(np.array([-2.0, -1.0, 0.5, 7.0], dtype=np.float32)).tolist() == [-32767, -32767, 16383, 32767]


@pytest.mark.parametrize(("whole_chunks", "codes"), [(True, ["odd_bytes"]), (False, [])])
def test_a_pipe_may_cut_frames_but_not_end_within_one(whole_chunks: bool, codes: list[str]) -> None:
    decoder = PcmDecoder("f32le", 16_000, 2, whole_chunks=whole_chunks)
    for n_bytes in (8 + 5, 8, 8):
        decoder.decode(bytes(n_bytes))
    assert [code for code, _ in decoder.take_problems()] == codes
    assert len(decoder.finish()) == 0
    assert [code for code, _ in decoder.take_problems()] == [] if codes else ["odd_bytes"]


def test_bad_samples_are_silence_and_what_is_out_of_range_is_clipped() -> None:
    samples = np.array([0.1, math.nan, math.inf, -math.inf, 1.5, -1.25, -1.0], dtype="<f4")
    decoder = PcmDecoder("f32le", 16_000, 1)
    decoder.decode(np.array([-1.0, 1.0], dtype="<f4").tobytes())
    assert decoder.take_problems() == []
    for _ in range(2):
        np.testing.assert_allclose(decoder.decode(samples.tobytes()), [0.1, 0, 0, 0, 1, -1, -1], rtol=1e-6)
    assert [code for code, _ in decoder.take_problems()] == ["bad_samples", "out_of_range"]


def test_a_sender_that_begins_again_sends_whole_frames() -> None:
    decoder = PcmDecoder("s16le", 16_000, 1)
    assert len(decoder.decode(b"\x00\x40\x00")) == 1
    decoder.drop_rest()
    assert decoder.decode(b"\x00\x40").tolist() == [0.5]
