"""Text that cannot be what was said: Whisper fills silence and scraps of speech with sentences of its training data."""

import re

from streamer.constants import SAMPLE_RATE

MOST_WORDS_PER_SECOND = 8.0  # that people speak, in a hurry; 2 to 5 are usual
_FEW_WORDS = 2  # that may be said, or timed, in no time at all

# Characters that words without spaces between them are written in: of Chinese and Japanese two make a word; Thai, Lao,
# Burmese and Khmer write vowels and tones as characters too, and four do.
_CHARACTERS_PER_WORD = {
    2: re.compile("[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"),
    4: re.compile("[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]"),
}


def can_be_spoken(text: str, n_samples: int) -> bool:
    """Return whether a text can be spoken in the time of some samples; one of two words always can."""
    return _n_words(text) <= max(_FEW_WORDS, MOST_WORDS_PER_SECOND * n_samples / SAMPLE_RATE)


def repeats(text: str, before: str) -> bool:
    """Return whether a text of more than two words repeats part of the text before it, ignoring case and marks."""
    return _n_words(text) > _FEW_WORDS and f" {without_marks(text)} " in f" {without_marks(before)} "


def without_marks(text: str) -> str:
    """Return a text's words in lower case, with a space between them."""
    return " ".join(re.sub(r"\W", " ", text).lower().split())


def _n_words(text: str) -> float:
    n_words = 0.0
    for n_characters, script in _CHARACTERS_PER_WORD.items():
        text, n_found = script.subn(" ", text)
        n_words += n_found / n_characters
    return n_words + sum(any(map(str.isalnum, word)) for word in text.split())
