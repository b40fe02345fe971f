"""Files one behind another: where each begins is found, however they are read."""

import io
from typing import Any

import numpy as np
import pytest

from streamer.audio.links import Links, Readable
from tests.unit.audio.support import muxed, written

SAMPLES = (np.sin(np.arange(4_000) / 9) * 9_000).astype(np.int16)


def coded(format: str = "ogg", codec: str = "libopus", *, seed: int = 1, **options: Any) -> bytes:  # noqa: ANN401
    return muxed(format, codec, np.tile(SAMPLES // seed, 10), sample_rate=48_000, **options)


def wav(format: str = "WAV") -> bytes:
    return written(SAMPLES, format=format)


PAGE = coded()
PAGE = PAGE[: PAGE.index(b"OggS", 1)]  # the first one: it names the stream
KINDS = {
    "ogg": [coded(seed=seed) for seed in (1, 2, 3)],
    "ogg of several streams": [PAGE * 3 + coded(), wav("OGG"), PAGE + coded()],
    "wav": [wav(), wav("RF64"), wav()],
    "flac": [wav("FLAC"), wav("FLAC")],
    "webm": [coded("webm"), coded("matroska", options={"live": "1"})],
    "one": [wav()],
    "of another kind": [coded("adts", "aac") * 2],
}


class Pipe(io.BytesIO):
    """What can only be read on, in pieces of some size."""

    seek = tell = property()

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, n_bytes: int | None = -1, /) -> bytes:
        return super().read(min(n_bytes or 0, self._size))


def links_of(links: Links, n_bytes: int) -> list[bytes]:
    found = [b"".join(iter(lambda: links.read(n_bytes), b""))]
    while links.skip() is not None and links.next():
        found.append(b"".join(iter(lambda: links.read(n_bytes), b"")))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 40, 333, 100_000])
def test_each_is_read_as_it_was_wherever_it_is_cut(kind: str, size: int) -> None:
    data = b"".join(KINDS[kind])
    sources: list[Readable] = [Pipe(data, size), io.BytesIO(data)]
    assert [links_of(Links(source), max(size, 40)) for source in sources] == [KINDS[kind]] * 2


@pytest.mark.parametrize("kind", ["ogg", "wav", "webm"])
def test_places_in_a_file_are_those_of_the_link_also_after_a_look_at_the_end(kind: str) -> None:
    expected = KINDS[kind]
    links = Links(io.BytesIO(b"".join(expected)))
    links.seek(-20, 2)  # as FFmpeg looks for the length
    links.read(100)
    links.seek(0)
    for n, each in enumerate(expected):
        assert links.read(100) == each[:100]
        assert (links.tell(), links.seek(-5), links.seek(50), links.read(10)) == (100, -1, 50, each[50:60])
        assert (links.seek(5, 1), links.seek(0, 3), links.seek(1 << 70)) == (65, -1, -1)
        assert links.skip() == len(each)
        assert links.seek(-7, 2) == len(each) - 7
        assert (links.read(100), links.read(1)) == (each[-7:], b"")
        assert links.next() == (n + 1 < len(expected))
