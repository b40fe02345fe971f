"""Small files, of a model or beside it: read up to the size that such a file can have, and written as a whole."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from streamer.errors import ModelError

T = TypeVar("T")

# Largest JSON file that is read, except a tokenizer's: those of a Whisper have a few kilobytes.
MAX_JSON_BYTES = 4 << 20

_EXPECTED = (
    "a model directory holds config.json, generation_config.json, preprocessor_config.json, tokenizer.json and"
    " model.safetensors; fetch it again"
)


@contextmanager
def readable(path: Path, expected: str = "a file that you may read") -> Iterator[None]:
    """Turn what the system says of a file into a ModelError."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename or path!s:.500}"
        raise ModelError(f"{where} cannot be read ({error.strerror}): expected {expected}") from None


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def format_size(n_bytes: int) -> str:
    """Return a number of bytes as people write it, such as 290 MB."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def read_text(path: Path, max_bytes: int, expected: str) -> str:
    """Read a file of UTF-8 text of up to `max_bytes`.

    expected : what was looked for and what to do, for the message if it is missing

    Raises ModelError if it is missing, larger, no text, or may not be read.
    """
    shown = f"{path!s:.500}"
    with readable(path):
        try:
            if path.exists() and not path.is_file():  # reading a pipe would wait
                raise ModelError(f"{shown} is not a regular file: {expected}")
            with path.open("rb") as file:
                data = file.read(max_bytes + 1)
        except (FileNotFoundError, ValueError):  # a name with a zero byte is a ValueError
            raise ModelError(f"{shown} is missing: {expected}") from None
    if len(data) > max_bytes:
        raise ModelError(f"{shown} has more than {max_bytes >> 20} MiB: expected a smaller file; fetch it again")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{shown} is not text ({error}): expected UTF-8; fetch it again") from None


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES, expected: str = _EXPECTED) -> dict[str, Any]:
    """Read a JSON object; raises ModelError as `read_text`, and if the file holds something else."""
    return parse_json(read_text(path, max_bytes, expected), path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """Parse a JSON object, which `path` holds; raise ModelError if it is not one."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else f"{error!s:.120}"
        raise ModelError(f"{path} is not valid JSON ({reason}): expected a JSON object; fetch it again") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a JSON {type(data).__name__}: expected an object; fetch it again")
    return data


def write_text(path: Path, text: str) -> None:
    """Write a small file, and its folder if it is missing; others see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def converted(data: Mapping[str, Any], kind: type[T], path: Path, remedy: str = "fetch it again") -> T:
    """Return what the object in a file says as a type of msgspec's; raise ModelError if a value is of another type."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).replace("`", "").partition(" - at $.")
        key = re.split(r"\W", place)[0]
        found = f" has {key} {data.get(key)!r:.60}" if key else ""
        raise ModelError(f"{path}{found}: {what[0].lower()}{what[1:]}; {remedy}") from None
