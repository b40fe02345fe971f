"""Word error rate, as it is usually reported for Whisper: over text put through openai-whisper's English normalizer."""

import functools
from collections.abc import Callable

import jiwer


@functools.cache
def _normalizer() -> Callable[[str], str]:
    # Not `import whisper`, which loads torch: only the text part is wanted.
    from whisper.normalizers import EnglishTextNormalizer

    normalizer: Callable[[str], str] = EnglishTextNormalizer()
    return normalizer


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are compared: no case, no punctuation, numbers and spelling unified."""
    return _normalizer()(text).split()


def wer(reference: str, hypothesis: str) -> float:
    """Return the word error rate, 0 for the same words; more than 1 is possible. The reference must have words."""
    expected = words_of(reference)
    assert expected, "a word error rate needs a reference with words"
    return float(jiwer.wer(" ".join(expected), " ".join(words_of(hypothesis))))
