"""Encoded windows: cross-attention keys and values, in rows of memory that is used over and over."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from streamer.whisper.dims import ModelDimensions

# Of tensors in memory, in bytes: a line of a processor's cache.
ALIGNMENT = 64


@dataclass(slots=True)
class EncodedWindow:
    """One window's cross-attention keys and values, in a row of a runtime's buffers."""

    buffers: "WindowBuffers"
    row: int

    # Encoder positions, 20 ms each.
    n_audio_ctx: int

    @property
    def tensors(self) -> dict[str, ov.Tensor]:
        """Keys and values by name, such as `key_values.0.encoder.key`, each of shape (1, n_head, n_audio_ctx, head)."""
        return self.buffers.tensors(self.row, 1, self.n_audio_ctx)


class WindowBuffers:
    """Memory for the keys and values of some windows, of at most 30 s each.

    A row belongs to its window until another is encoded into it. Windows of 30 s in neighbouring rows are also one
    tensor of several. What was never written to takes no memory.
    """

    def __init__(self, dims: ModelDimensions, types: Mapping[str, ov.Type], n_rows: int) -> None:
        """Reserve rows; `types` are those of the keys and values, by name."""
        self._dims = dims
        self._types = types
        self.n_rows = n_rows
        values = dims.n_text_head * dims.n_audio_ctx * dims.text_head_size
        self._rows = {name: _zeros(n_rows, values * kind.size) for name, kind in types.items()}

    def tensors(self, row: int, n_rows: int, n_audio_ctx: int) -> dict[str, ov.Tensor]:
        """Return the keys and values of windows in neighbouring rows, of shape (n_rows, n_head, n_audio_ctx, head)."""
        dims = self._dims
        assert n_rows == 1 or n_audio_ctx == dims.n_audio_ctx, "short windows have gaps between their rows"
        shape = [n_rows, dims.n_text_head, n_audio_ctx, dims.text_head_size]
        tensors = {}
        for name, kind in self._types.items():
            part = self._rows[name][row : row + n_rows].reshape(-1)[: math.prod(shape) * kind.size]
            tensors[name] = ov.Tensor(part, shape, kind)
        return tensors

    def swap(self, one: int, other: int) -> None:
        """Exchange what two rows hold."""
        for rows in self._rows.values():
            rows[[one, other]] = rows[[other, one]]


def _zeros(n_rows: int, row_bytes: int) -> NDArray[np.uint8]:
    memory = np.zeros(n_rows * row_bytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    return memory[begin : begin + n_rows * row_bytes].reshape(n_rows, row_bytes)
