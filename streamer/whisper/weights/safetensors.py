"""The safetensors format: a length, a JSON table of that length, and the tensors.

Read here and not by the `safetensors` library, which cannot give bfloat16 to NumPy, and keeps a file mapped while it
is in use. Source: https://github.com/huggingface/safetensors#format; what it asks of a file is asked here too.
"""

import json
import math
from pathlib import Path

from streamer.whisper.weights.binary import open_file
from streamer.whisper.weights.tensors import TYPES, Tensor, is_shape, stored


def read_header(path: Path) -> dict[str, Tensor]:
    """Read which tensors a file has, and where, but none of them. Raises ModelError if the file is damaged."""
    with open_file(path, "safetensors") as file:
        (length,) = file.read_numbers("Q", "its header")
        table = json.loads(file.read_all(length, "its header"))
        if not isinstance(table, dict):
            raise ValueError(f"its header is a JSON {type(table).__name__}, not an object")
        table.pop("__metadata__", None)
        entries = [_entry(name, value) for name, value in table.items()]
        position = 0
        for name, _, _, begin, end in sorted(entries, key=lambda entry: entry[3:]):
            if begin != position:
                raise ValueError(f"a gap or an overlap before tensor {name!r:.60}")
            position = end
        if position != file.left_bytes():
            raise ValueError(f"it has {file.left_bytes()} bytes of tensors, and its header says {position}")
        return {name: stored(path, dtype, shape, file.tell() + begin) for name, dtype, shape, begin, _ in entries}


def _entry(name: str, value: object) -> tuple[str, str, tuple[int, ...], int, int]:
    """Return name, type, shape, first byte, and the byte behind the last one."""
    match value:
        case {"dtype": str(dtype), "shape": shape, "data_offsets": [begin, end]} if is_shape(shape):
            # None of a type that no model has.
            n_bytes = TYPES[dtype].itemsize * math.prod(shape) if dtype in TYPES else None
            if is_shape([begin, end]) and begin <= end and n_bytes in (None, end - begin):
                return name, dtype, tuple(shape), begin, end
    raise ValueError(f"its header's entry for {name!r:.60} is invalid")
