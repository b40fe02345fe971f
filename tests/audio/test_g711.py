"""Each code of G.711 against libsndfile, which has the ITU's tables."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import soundfile

from streamer.audio.g711 import decode_alaw, decode_mulaw

CODES = bytes(range(256))


@pytest.mark.parametrize(("decode", "subtype"), [(decode_mulaw, "ULAW"), (decode_alaw, "ALAW")])
def test_each_code_is_what_libsndfile_reads(decode: Callable[[bytes], bytes], subtype: str) -> None:
    expected, _ = soundfile.read(
        io.BytesIO(CODES), dtype="int16", format="RAW", subtype=subtype, samplerate=8000, channels=1
    )
    np.testing.assert_array_equal(np.frombuffer(decode(CODES), "<i2"), expected)


def test_nothing_is_nothing() -> None:
    assert decode_mulaw(b"") == decode_alaw(b"") == b""
