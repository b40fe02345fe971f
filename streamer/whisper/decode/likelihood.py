"""How likely a known text is, given the sound of a window: to choose between two that were decoded of it."""

import math

import numpy as np

from streamer.whisper.decode.probabilities import log_prob
from streamer.whisper.decode.search import TokenDecoder
from streamer.whisper.tokens.tokenizer import Tokenizer


def log_likelihood(decoder: TokenDecoder, tokenizer: Tokenizer, text: str, *, language: str, task: str) -> float:
    """Return the log-probability of a text and its end in the window that the decoder holds, without timestamps.

    Only texts of one window compare. One that leaves out speech is unlikely too: its end comes too early. -inf: the
    decoder has no room for the text.
    """
    special = tokenizer.special
    start = [*tokenizer.start_sequence(language, task), special.no_timestamps]
    tokens = tokenizer.encode(text)
    if len(start) + len(tokens) > decoder.capacity:
        return -math.inf
    decoder.begin()
    (logits,), _ = decoder.feed([*start, *tokens], len(start) - 1)
    logits[:, special.end_of_text + 1 :] = -np.inf
    return sum(log_prob(row, token) for row, token in zip(logits, [*tokens, special.end_of_text], strict=True))
