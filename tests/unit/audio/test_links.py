"""Files one behind another: where each begins is found, however they are read."""

import io
from typing import Any

import av
import numpy as np
import pytest

from streamer.audio.links import Links, Readable
from tests.unit.audio.support import written

SAMPLES = (np.sin(np.arange(4_000) / 9) * 9_000).astype(np.int16)


def coded(format: str, codec: str, *, seed: int = 1, live: bool = False) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=format, options={"live": "1"} if live else {}) as container:
        stream: Any = container.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.tile(SAMPLES // seed, 10)[None], "s16", "mono")
        frame.sample_rate = 48_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return file.getvalue()


def wav(format: str = "WAV") -> bytes:
    return written(SAMPLES, format=format)


PAGE = coded("ogg", "libopus")
PAGE = PAGE[: PAGE.index(b"OggS", 1)]  # the first one: it names the stream
KINDS = {
    "ogg": [coded("ogg", "libopus"), coded("ogg", "libopus", seed=2), coded("ogg", "libopus", seed=3)],
    "ogg of several streams": [PAGE * 3 + coded("ogg", "libopus"), wav("OGG"), PAGE + coded("ogg", "libopus")],
    "wav": [wav(), wav("RF64"), wav()],
    "flac": [wav("FLAC"), wav("FLAC")],
    "webm": [coded("webm", "libopus"), coded("matroska", "libopus", live=True)],
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
        assert (links.seek(5, 1), links.seek(0, 3)) == (65, -1)
        assert links.skip() == len(each)
        assert links.seek(-7, 2) == len(each) - 7
        assert (links.read(100), links.read(1)) == (each[-7:], b"")
        assert links.next() == (n + 1 < len(expected))


def test_what_was_skipped_is_searched_too() -> None:
    links = Links(io.BytesIO(wav() + wav()))
    links.seek(3 * len(wav()))
    assert (links.read(10), links.skip(), links.next()) == (b"", len(wav()), True)


def test_a_disk_that_fails_ends_it_and_says_why() -> None:
    class Failing(Pipe):
        def read(self, n_bytes: int | None = -1, /) -> bytes:
            if data := super().read(n_bytes):
                return data
            raise OSError(5, "Input/output error")

    links = Links(Failing(wav()[:1_000], 300))
    assert b"".join(iter(lambda: links.read(300), b"")) == wav()[:1_000]
    assert links.failure == "Input/output error"
