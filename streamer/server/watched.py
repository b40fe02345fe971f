"""Small files that the server reads, and reads again when they change."""

from pathlib import Path

from streamer.errors import ConfigError

MAX_FILE_BYTES = 1 << 20  # a chain of certificates, or a file of tokens, is some ten kilobytes

# What tells one state of a file from another: time, size and number.
Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """Return what changes when a file does; None where there is none, or none that this user may see."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_file(path: Path, what: str, expected: str) -> bytes:
    """Return the content of a file, up to one byte more than MAX_FILE_BYTES. Raises ConfigError, which names `what`."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{what} cannot be read ({reason}): expected {expected}") from None
