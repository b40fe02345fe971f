"""One file over HTTP: resumed after an interruption, and checked against its digest before it counts.

`huggingface_hub` begins a file anew once its program was ended, so this part is our own. Plain HTTP, not Xet: every
server of the hub's protocol speaks it, and a file's parts come in order, so that the rest can be asked for.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

# What is read at once; progress is reported as often.
_BLOCK_BYTES = 1 << 20

# How often in a row nothing may arrive, and the pause before the nth new try, n times this.
_TRIES = 4
_PAUSE_S = 1.0


class DownloadError(Exception):
    """A server that cannot be reached, refuses, or goes away; `status` is its answer if it gave one."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class DamagedError(Exception):
    """A file that does not hold what was promised."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file and what its server promised of it."""

    name: str  # path in its repository, with slashes
    n_bytes: int
    digest: str  # in hexadecimal: SHA-256 of the content (64 digits), or SHA-1 of the content as a git blob (40 digits)

    def is_at(self, path: Path) -> bool:
        """Whether a file holds what was promised; the whole of it is read."""
        return path.is_file() and path.stat().st_size == self.n_bytes and has_digest(path, self.digest)


def has_digest(path: Path, digest: str) -> bool:
    """Whether the content of a file has a digest such as RemoteFile's."""
    with path.open("rb") as file:
        if len(digest) == 64:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
        # https://git-scm.com/book/en/v2/Git-Internals-Git-Objects
        found = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
        return found.hexdigest() == digest


def download(
    client: httpx.Client, url: str, file: RemoteFile, path: Path, partial: Path, on_bytes: Callable[[int], None]
) -> None:
    """Fetch a file; `path` appears only when it is whole and right.

    What has arrived is kept in `partial`, and the next call asks for the rest of it alone; while more arrives, it is
    tried again. `on_bytes` gets how many bytes of the file are here.

    Raises DownloadError if it cannot be fetched (what has arrived stays), DamagedError if it is not what was
    promised (nothing stays), OSError if it cannot be written.
    """
    n_failures = 0
    while not partial.exists() or size_of(partial) < file.n_bytes:
        here = size_of(partial)
        try:
            _fetch_rest(client, url, file, partial, on_bytes)
            break
        except (httpx.HTTPError, DownloadError) as trouble:
            error = trouble if isinstance(trouble, DownloadError) else DownloadError(reason_of(trouble))
            passes = error.status is None or error.status >= 500 or error.status == 429
            if not passes or not isinstance(trouble, httpx.TransportError | DownloadError):
                raise error from None  # also of too many redirects, and a broken encoding
        n_failures = 1 if size_of(partial) > here else n_failures + 1
        if n_failures == _TRIES:
            raise error
        time.sleep(_PAUSE_S * n_failures)
    if not file.is_at(partial):
        partial.unlink()
        raise DamagedError
    partial.replace(path)


def _fetch_rest(
    client: httpx.Client, url: str, file: RemoteFile, partial: Path, on_bytes: Callable[[int], None]
) -> None:
    """Ask for what is missing once, and keep what arrives."""
    here = size_of(partial)
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={here}-"} if here else {})}
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:  # there is less than was promised, and all of that is here
            return
        if response.status_code not in (200, 206):
            raise DownloadError(f"it answered {response.status_code}", response.status_code)
        with partial.open("ab" if response.status_code == 206 else "wb") as output:
            here = output.tell()
            on_bytes(here)
            for block in response.iter_bytes():
                output.write(block)
                here += len(block)
                if here > file.n_bytes:  # not what was promised, and it might never end
                    break
                on_bytes(here)
            output.flush()
            os.fsync(output.fileno())


def size_of(path: Path) -> int:
    """Return the length of a file in bytes, 0 if it is missing."""
    return path.stat().st_size if path.is_file() else 0


def reason_of(error: BaseException) -> str:
    """Say why a server could not be asked, in the system's words: those of HTTP libraries may hold the user's token."""
    link: BaseException | None = error
    while link is not None:
        if "Timeout" in type(link).__name__:
            return "no answer in time"
        if "RemoteProtocolError" in type(link).__name__:
            return "the connection was cut"
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
        link = link.__cause__ or link.__context__
    return type(error).__name__
