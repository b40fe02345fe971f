"""Logits to log-probabilities."""

import math

import numpy as np
from numpy.typing import NDArray

from streamer.errors import InferenceError

FloatArray = NDArray[np.floating]


def log_prob(logits: FloatArray, token: int) -> float:
    """Return a token's log-probability. Raises InferenceError where the device gave no numbers."""
    log_prob = float(logits[token]) - log_sum_exp(logits)
    if math.isnan(log_prob):
        raise InferenceError(
            "the decoder's logits are not finite, though they were when the model was loaded: update the device's"
            " driver, or choose another device with --device CPU"
        )
    return log_prob


def log_sum_exp(logits: FloatArray) -> float:
    """Return the logarithm of the sum of exponentials, shape (n,)."""
    highest = logits.max()
    if not np.isfinite(highest):
        return float(highest)
    return float(highest + np.log(np.exp(logits - highest).sum()))


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return log-probabilities, shape (n,)."""
    result: FloatArray = logits - log_sum_exp(logits)
    return result
