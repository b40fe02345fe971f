"""Small files that the server reads again when they change."""

from pathlib import Path

from streamer.errors import ConfigError

MAX_FILE_BYTES = 1 << 20  # a chain of certificates, or a file of tokens, has some ten kilobytes

# State of a file: its time, size and number.
Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """Return the state of a file; None if it is missing, or hidden from this user."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_file(path: Path, what: str, expected: str) -> bytes:
    """Return the content of a file, at most MAX_FILE_BYTES and one byte. Raises ConfigError, which names `what`."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{what} cannot be read ({reason}): expected {expected}") from None
