"""Whisper's rules on which tokens may come next (openai-whisper's `decoding.py`: logit filters, timestamp rules)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.decode.probabilities import log_sum_exp

N_TIMESTAMPS = 1501  # <|0.00|> to <|30.00|>; what a fine-tune has added behind them is no time


class LogitFilter(Protocol):
    """A rule on which tokens may come next."""

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """Set the logits (n_vocab,) of the forbidden tokens to -inf, given the tokens sampled so far."""


class SuppressTokens:
    """Tokens that never come."""

    def __init__(self, suppressed: Sequence[int], n_vocab: int) -> None:
        # Added to the logits: much cheaper than to set 1500 timestamps one by one at each step.
        self._bias = np.zeros(n_vocab, dtype=np.float32)
        self._bias[list(suppressed)] = -np.inf

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        logits += self._bias


@dataclass(frozen=True, slots=True)
class SuppressAtBegin:
    """Tokens that never come first: a blank, and the end of the text."""

    suppressed: tuple[int, ...]

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        if not tokens:
            logits[list(self.suppressed)] = -np.inf


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """Timestamps come in pairs, never decrease, begin the text, and come where they are likelier than any text."""

    end_of_text: int
    no_timestamps: int
    timestamp_begin: int
    max_initial: int | None  # latest time at which the text may begin, in steps of 20 ms

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        begin = self.timestamp_begin
        logits[self.no_timestamps] = -np.inf
        last_is_time = len(tokens) >= 1 and tokens[-1] >= begin
        second_last_is_time = len(tokens) < 2 or tokens[-2] >= begin
        if last_is_time:
            if second_last_is_time:
                logits[begin:] = -np.inf
            else:
                logits[: self.end_of_text] = -np.inf
        last_time = next((token for token in reversed(tokens) if token >= begin), None)
        if last_time is not None:
            # A segment has a length: its end may not be its beginning, the next beginning may be this end.
            logits[begin : last_time + (0 if last_is_time and not second_last_is_time else 1)] = -np.inf
        if not tokens:
            logits[:begin] = -np.inf
            if self.max_initial is not None:
                logits[begin + self.max_initial + 1 :] = -np.inf
        # Timestamps as a whole against the likeliest text; what both would be divided by makes no difference.
        if log_sum_exp(logits[begin:]) > logits[:begin].max():
            logits[:begin] = -np.inf
