"""whisper.cpp's files, read again by our own reader."""

from pathlib import Path

import numpy as np

from streamer.whisper.dims import ModelDimensions
from streamer.whisper.weights import ggml as reader
from tests.whisper.support import random_checkpoint
from tools.benchmarks.peers import ggml

DIMS = ModelDimensions(80, 1500, 64, 1, 1, 51865, 448, 64, 1, 1)


def test_matrices_in_blocks_keep_seven_bits(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(DIMS)
    # A block of zeros has no scale.
    checkpoint.tensors["encoder.layers.0.fc1.weight"][0] = 0
    ranks = [number.to_bytes(2, "little") for number in range(50257)]
    ggml.write(tmp_path / "blocks.bin", checkpoint, ranks, blocks=True)
    ggml.write(tmp_path / "half.bin", checkpoint, ranks)
    assert (tmp_path / "blocks.bin").stat().st_size < 0.6 * (tmp_path / "half.bin").stat().st_size
    found = reader.load(tmp_path / "blocks.bin")
    assert found.dims == DIMS
    for name, expected in checkpoint.tensors.items():
        actual = found.tensors[name].astype(np.float32)
        if expected.ndim == 2 and "embed_positions" not in name:
            largest = np.abs(expected.reshape(-1, 32)).max(axis=1, keepdims=True)
            difference = np.abs(actual - expected).reshape(-1, 32)
            assert (difference <= largest * (0.5 / 127 + 2**-11)).all(), name
        else:
            np.testing.assert_allclose(actual, expected, rtol=2**-11 if expected.ndim == 3 else 0, atol=2**-24)
