"""Whisper's rules on which tokens may come next (openai-whisper's `decoding.py`: logit filters, timestamp rules)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamer.arrays import FloatArray
from streamer.whisper.decode.probabilities import log_sum_exp
from streamer.whisper.tokens.special import SpecialTokens


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
    """Timestamps come in pairs, never decrease, begin the text, and come if they are likelier than any text."""

    special: SpecialTokens
    max_initial: int | None  # latest time at which the text may begin, in steps of 20 ms

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        special = self.special
        # Text comes before the times, and what a fine-tune has added to it, behind them.
        before, times, behind = np.split(logits, (special.timestamp_begin, special.timestamp_end))
        before[special.no_timestamps] = -np.inf
        last_is_time = len(tokens) >= 1 and special.is_time(tokens[-1])
        second_last_is_time = len(tokens) < 2 or special.is_time(tokens[-2])
        if last_is_time:
            if second_last_is_time:
                times[:] = -np.inf
            else:
                before[: special.end_of_text] = behind[:] = -np.inf
        last_time = next((token for token in reversed(tokens) if special.is_time(token)), None)
        if last_time is not None:
            # A segment has a length: its end may not be its beginning, the next beginning may be this end.
            n_past = last_time - special.timestamp_begin + (0 if last_is_time and not second_last_is_time else 1)
            times[:n_past] = -np.inf
        if not tokens:
            before[:] = behind[:] = -np.inf
            if self.max_initial is not None:
                times[self.max_initial + 1 :] = -np.inf
        # Timestamps as a whole against the likeliest text; what both would be divided by makes no difference.
        if log_sum_exp(times) > max(before.max(), behind.max(initial=-np.inf)):
            before[:] = behind[:] = -np.inf
