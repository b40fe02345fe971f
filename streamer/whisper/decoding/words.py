"""Decoded tokens as words with times."""

from collections.abc import Sequence

import numpy as np

from streamer.whisper.decoding.loops import compression_ratio
from streamer.whisper.decoding.window import DecodedWindow
from streamer.whisper.result import Hypothesis, TimedWord
from streamer.whisper.timing import word_spans
from streamer.whisper.tokenizer import Tokenizer

# A word and the tokens that spell it.
Spelling = tuple[str, tuple[int, ...]]


def to_hypothesis(window: DecodedWindow, tokenizer: Tokenizer, language: str, n_samples: int) -> Hypothesis:
    """Turn tokens without timestamps into words with times, for a window of `n_samples`."""
    spellings = tokenizer.split_to_words(window.tokens, language)
    if spellings and spellings[-1][0].isspace():
        del spellings[-1]  # the beginning of a word that has not come
    words = time_words(window, spellings, n_samples)
    ratio = compression_ratio("".join(word.text for word in words))
    return Hypothesis(tuple(words), language, window.no_speech_prob, window.avg_logprob, ratio, window.looped)


def time_words(window: DecodedWindow, words: Sequence[Spelling], n_samples: int) -> list[TimedWord]:
    """Give the words that a window decoded without timestamps their times and probabilities."""
    n_text = sum(len(tokens) for _, tokens in words)
    attention = window.attention[:, : window.n_start + n_text]
    spans = word_spans(attention, window.n_start, [len(tokens) for _, tokens in words], n_samples)
    timed: list[TimedWord] = []
    position = 0
    for (text, tokens), (start, end) in zip(words, spans, strict=True):
        log_probs = window.log_probs[position : position + len(tokens)]
        position += len(tokens)
        timed.append(TimedWord(text, tokens, start, end, float(np.exp(np.mean(log_probs)))))
    return timed
