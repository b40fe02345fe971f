"""The table of parsers, and how each is called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Parser:
    """One of them."""

    name: str

    # Bytes that it takes, or text as UTF-8.
    samples: Sequence[bytes]

    # Parses; raises what a caller would see.
    parse: Callable[[bytes], object]

    # What it may raise.
    errors: tuple[type[Exception], ...]


# What makes parsers: given a folder of their own.
MAKERS: list[Callable[[Path], list[Parser]]] = []


def makes_parsers(make: Callable[[Path], list[Parser]]) -> Callable[[Path], list[Parser]]:
    """Put what makes some parsers into the table."""
    MAKERS.append(make)
    return make


def text(data: bytes) -> str:
    """Return bytes as what a decoder of JSON, or a command line, hands over: half surrogates included."""
    return data.decode("utf-8", "surrogateescape")


def written(path: Path, data: bytes) -> Path:
    """Write a file, and return its path."""
    path.write_bytes(data)
    return path
