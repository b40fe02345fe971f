"""Logits to log-probabilities."""

import math

import numpy as np

from streamer.arrays import FloatArray
from streamer.errors import InferenceError


def log_prob(logits: FloatArray, token: int) -> float:
    """Return a token's log-probability. Raises InferenceError if the logits are not finite."""
    return float(logits[token]) - _finite_log_sum(logits)


def log_sum_exp(logits: FloatArray) -> float:
    """Return the logarithm of the sum of exponentials, shape (n,)."""
    highest = logits.max()
    if not np.isfinite(highest):
        return float(highest)
    return float(highest + np.log(np.exp(logits - highest).sum()))


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return log-probabilities, shape (n,). Raises InferenceError if the logits are not finite."""
    result: FloatArray = logits - _finite_log_sum(logits)
    return result


def _finite_log_sum(logits: FloatArray) -> float:
    log_sum = log_sum_exp(logits)
    # One NaN among the logits makes the sum one, and all that is compared with it passes.
    if not math.isfinite(log_sum):
        raise InferenceError(
            "the decoder's logits are not finite, though they were when the model was loaded: update the device's"
            " driver, or choose another device with --device CPU"
        )
    return log_sum
