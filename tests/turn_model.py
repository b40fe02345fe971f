"""A stand-in for the turn model, with the same input and output."""

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops


def write_turn_model(folder: Path, *, shape: tuple[int, ...] = (-1, 80, 800), newest: bool = False) -> Path:
    """Write a model whose probability grows with the mean of its features, of the newest 0.1 s or of all."""
    features = ops.parameter(list(shape), np.float32, "input_features")
    if newest:
        seen: ov.Node = ops.slice(
            features, *(ops.constant(np.array([bound], np.int64)) for bound in (-10, 10_000, 1, 2))
        )
    else:
        seen = features
    mean = ops.reduce_mean(seen, np.array([1, 2], np.int64), keep_dims=False)
    probability = ops.sigmoid(ops.reshape(mean, np.array([-1, 1], np.int64), False))
    path = folder / "turns.xml"
    ov.save_model(ov.Model([probability], [features], "turns"), path)
    return path
