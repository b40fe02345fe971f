"""Decoded tokens as words with times."""

import math
from collections.abc import Sequence

from streamer.whisper.decode.loops import compression_ratio
from streamer.whisper.decode.timing import attended_samples, word_spans
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.result import Hypothesis, TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer

# A word and the tokens that spell it.
Spelling = tuple[str, tuple[int, ...]]


def to_hypothesis(window: DecodedWindow, tokenizer: Tokenizer, language: str, n_samples: int) -> Hypothesis:
    """Turn tokens without timestamps into words with times, for a window of `n_samples`."""
    spellings = tokenizer.split_to_words(window.tokens, language)
    if spellings and spellings[-1][0].isspace():
        del spellings[-1]  # the beginning of a word that has not come
    words = time_words(window, spellings, n_samples)
    ratio = compression_ratio("".join(word.text for word in words))
    return Hypothesis(
        tuple(words),
        language,
        window.no_speech_prob,
        window.avg_logprob,
        ratio,
        window.looped,
        temperature=window.temperature,
        n_sampled=window.n_sampled,
        n_given=window.n_given,
        n_begins_with=window.n_begins_with,
    )


def time_words(window: DecodedWindow, words: Sequence[Spelling], n_samples: int) -> list[TimedWord]:
    """Give the words that a window decoded without timestamps their times and probabilities."""
    n_text = sum(len(tokens) for _, tokens in words)
    attention = window.attention[:, : window.n_start + n_text]
    lengths = [len(tokens) for _, tokens in words]
    spans = word_spans(attention, window.n_start, lengths, n_samples)
    attended = attended_samples(attention, window.n_start, lengths, n_samples)
    timed: list[TimedWord] = []
    position = 0
    for (text, tokens), (start, end), furthest in zip(words, spans, attended, strict=True):
        log_probs = window.log_probs[position : position + len(tokens)]
        position += len(tokens)
        probability = sum(map(math.exp, log_probs)) / len(log_probs)
        timed.append(TimedWord(text, tokens, start, end, probability, furthest, sum(log_probs)))
    return timed
