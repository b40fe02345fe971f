"""The safetensors format: a length, a JSON table of that length, and the tensors.

Read here and not by the `safetensors` library, which cannot give bfloat16 to NumPy, and keeps a file mapped while it
is in use. Source: https://github.com/huggingface/safetensors#format; what it asks of a file is asked here too.
"""

import json
import math
import os
from pathlib import Path

from streamer.errors import ModelError
from streamer.whisper.files import readable
from streamer.whisper.weights.tensors import ITEM_BYTES, StoredTensor, is_shape

# Longest table that is read: that of large-v3 has 150 kB.
_MAX_HEADER_BYTES = 4 << 20

_LENGTH_BYTES = 8


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read which tensors a file has, and where, but none of them. Raises ModelError where the file is damaged."""
    try:
        with readable(path), path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            start = _LENGTH_BYTES + length
            if start > n_bytes:
                raise ValueError(f"{n_bytes} bytes, and a header of {length}")
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of more than {_MAX_HEADER_BYTES >> 20} MiB")
            table = json.loads(file.read(length).decode("utf-8"))
        if not isinstance(table, dict):
            raise ValueError(f"a header that is a JSON {type(table).__name__}")
        table.pop("__metadata__", None)
        entries = sorted((_entry(name, value) for name, value in table.items()), key=lambda entry: entry[3:])
        tensors = {}
        end = 0
        for name, dtype, shape, begin, next_begin in entries:
            if begin != end:
                raise ValueError(f"a gap or an overlap before {name!r:.60}")
            tensors[name] = StoredTensor(path, dtype, shape, start + begin)
            end = next_begin
        if start + end != n_bytes:
            raise ValueError(f"{n_bytes} bytes where {start + end} are announced")
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"{path} cannot be read ({reason:.120}): it is truncated or no safetensors file; fetch it again"
        ) from None
    return tensors


def _entry(name: str, value: object) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return name, type, shape, first byte, and the byte behind the last one."""
    if not isinstance(value, dict):
        raise ValueError(f"no entry for {name!r:.60}")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or not is_shape(shape) or not is_shape(offsets) or len(offsets) != 2:
        raise ValueError(f"a wrong entry for {name!r:.60}")
    begin, end = offsets
    item_bytes = ITEM_BYTES.get(dtype)  # none of a type that no model has
    if begin > end or (item_bytes and end - begin != item_bytes * math.prod(shape)):
        raise ValueError(f"a wrong number of bytes for {name!r:.60}")
    return name, dtype, tuple(shape), begin, end
