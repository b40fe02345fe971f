"""Whole files one behind another, as one: chained Ogg (RFC 3533, 4), and what `cat` makes of WAV, FLAC or WebM."""

import contextlib
import re
from collections.abc import Sequence
from typing import Protocol

WAV_BEGINNING = re.compile(rb"(?:RIFF|RF64|BW64).{4}WAVE", re.DOTALL)
WAV_MAGICS = (b"RIFF", b"RF64", b"BW64")

# What a file of the kind begins with, in enough bytes not to be found in audio by chance, and its first bytes alone.
# An Ogg file begins with the first page of each of its streams, of one segment, whose length is the group.
_BEGINNINGS = (
    (re.compile(rb"OggS\0[\x02\x06]\0{8}.{12}\x01(.)", re.DOTALL), (b"OggS",)),
    (WAV_BEGINNING, WAV_MAGICS),
    (re.compile(rb"fLaC\0\0\0\x22"), (b"fLaC",)),
    (re.compile(rb"\x1aE\xdf\xa3.{1,8}?B\x86\x81\x01", re.DOTALL), (b"\x1aE\xdf\xa3",)),
)
LOOK_BYTES = 32  # the longest of them fits in
PAGE_BYTES = 28  # header of an Ogg page with one segment

SKIP_BYTES = 1 << 16


class Readable(Protocol):
    """A file, or what can only be read on."""

    def read(self, n_bytes: int, /) -> bytes:
        """Return up to `n_bytes` bytes, none at the end."""
        ...


class Links:
    """A file of several, the links: each is read as if it were alone. What FFmpeg reads from.

    `seek` and `tell` are there if the source has them. Errors of the source end it: PyAV writes tracebacks of
    exceptions to standard error, or takes them for the end.
    """

    def __init__(self, source: Readable) -> None:
        """Begin with the first link, at the source's beginning."""
        self._source = source

        # What keeps the source from being read on; empty if nothing does.
        self.failure = ""

        # In place of the first bytes of the link.
        self.header = b""

        # Where the link begins, what read() returns next, and up to where all of it was searched for the next link.
        self._start = self._position = self._searched = 0

        # Where the next link begins, as far as was read; None if it was not found.
        self._next: int | None = None

        # What was read of the source and not returned: it may be a part of a beginning.
        self._ahead = b""

        # How links begin, None if it is not known, and where the first pages of an Ogg file's streams may be.
        self._pattern: re.Pattern[bytes] | None = None
        self._magics: Sequence[bytes] = ()
        self._first_pages: set[int] = set()

        if self.is_file:
            self.seek, self.tell = self._seek, self._tell
        self._begin()

    @property
    def is_file(self) -> bool:
        """Whether the source can be searched."""
        return hasattr(self._source, "seek")

    @property
    def n_read(self) -> int:
        """Bytes up to here."""
        return self._position

    def read(self, n_bytes: int) -> bytes:
        """Return up to `n_bytes` bytes of the link, none at its end."""
        while self._next is None or self._position < self._next:
            piece = self._fetch(max(1, n_bytes - len(self._ahead)))
            data = self._ahead + piece
            self._search(data)
            end = len(data) - (n_doubtful(data, self._magics) if piece else 0)
            if self._next is not None:
                end = min(end, self._next - self._position)
            first, self._ahead = self._position, data[end:]
            self._position += end
            if first <= self._searched:
                self._searched = max(self._searched, self._position)
            if end:
                n_mended = max(0, self._start + len(self.header) - first)
                mended = self.header[first - self._start :][:end] if n_mended else b""
                return mended + data[len(mended) : end]
            if not piece:
                break
        return b""

    def skip(self) -> int | None:
        """Read on to the end of the link; return its bytes, None if links of its kind are not known."""
        if self._pattern is None:
            return None
        if self.is_file:
            self._seek(self._searched - self._start)
        while self.read(SKIP_BYTES):
            pass
        return self._position - self._start

    def next(self) -> bool:
        """Go to the next link; whether there is one. Only behind `skip`."""
        if self._next is None:
            return False
        if self.is_file:
            self._source.seek(self._next)  # type: ignore[attr-defined]
            self._ahead = b""
        self._start = self._position = self._searched = self._next
        self._next, self.header = None, b""
        self._begin()
        return True

    def _begin(self) -> None:
        while len(self._ahead) < LOOK_BYTES and (piece := self._fetch(LOOK_BYTES - len(self._ahead))):
            self._ahead += piece
        self._first_pages = {self._start}
        known = ((pattern, magics) for pattern, magics in _BEGINNINGS if pattern.match(self._ahead))
        self._pattern, self._magics = next(known, (None, ()))

    def _fetch(self, n_bytes: int) -> bytes:
        try:
            return b"" if self.failure else self._source.read(n_bytes)
        except (OSError, ValueError) as error:
            self.failure = str(getattr(error, "strerror", None) or error)
            return b""

    def _search(self, data: bytes) -> None:
        """Find the next link in what lies at the position."""
        if self._pattern is None or not any(magic in data for magic in self._magics):
            return
        for match in self._pattern.finditer(data):
            place = self._position + match.start()
            if place not in self._first_pages:
                self._next = min(place, self._next if self._next is not None else place)
                return
            if match.re.groups:
                self._first_pages.add(place + PAGE_BYTES + match[1][0])

    def _tell(self) -> int:
        return self._position - self._start

    def _seek(self, offset: int, whence: int = 0) -> int:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            if whence == 2:
                end = self._source.seek(0, 2) if self._next is None else self._next  # type: ignore[attr-defined]
                place = end + offset
            else:
                place = (self._position if whence else self._start) + offset
            if place >= self._start and whence in (0, 1, 2):
                self._position, self._ahead = self._source.seek(place), b""  # type: ignore[attr-defined]
                return self._position - self._start
        return -1


def n_doubtful(data: bytes, magics: Sequence[bytes]) -> int:
    """Return how many of the last bytes may be the beginning of a file that begins with one of some magic numbers."""
    lengths = range(min(LOOK_BYTES - 1, len(data)), 0, -1)
    return next((n for n in lengths for magic in magics if magic.startswith(data[-n:][:4])), 0)
