"""Word error rate, as it is usually reported for Whisper: over text put through openai-whisper's English normalizer."""

import functools
from collections.abc import Callable, Sequence

import numpy as np


@functools.cache
def _normalizer() -> Callable[[str], str]:
    # Not `import whisper`, which loads torch: only the text part is wanted.
    from whisper.normalizers import EnglishTextNormalizer

    normalizer: Callable[[str], str] = EnglishTextNormalizer()
    return normalizer


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are compared: no case, no punctuation, numbers and spelling unified."""
    return _normalizer()(text).split()


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Return the least number of words to put in, take out or replace (Levenshtein distance)."""
    previous = np.arange(len(hypothesis) + 1)
    there = np.array(hypothesis, dtype=object)
    for n, word in enumerate(reference, start=1):
        # Replaced or kept, and taken out; put in is a running minimum along the row.
        best = np.empty(len(hypothesis) + 1, dtype=np.int64)
        best[0] = n
        best[1:] = np.minimum(previous[:-1] + (there != word), previous[1:] + 1)
        offsets = np.arange(len(hypothesis) + 1)
        previous = np.minimum.accumulate(best - offsets) + offsets
    return int(previous[-1])


def wer(reference: str, hypothesis: str) -> float:
    """Return the word error rate, 0 for the same words; more than 1 is possible. The reference must have words."""
    expected = words_of(reference)
    assert expected, "a word error rate needs a reference with words"
    return word_errors(expected, words_of(hypothesis)) / len(expected)
