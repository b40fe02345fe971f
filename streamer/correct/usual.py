"""Words so usual that they stand for themselves, and for no term."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

# A byte-level BPE gives frequent words a token of their own, the most frequent ones first. Of Whisper's 50,000, those
# up to this one spell nine in ten words of ordinary English.
N_FREQUENT_TOKENS = 20_000

# What an English word may have in place of its end, by that end.
_ENDINGS = {
    "": "'s s es ed ing ly er est ment ness ion able al y n't 'll",
    "e": "ed ing er est ion able",
    "le": "ly",
    "y": "ies ied",
}
_MIN_STEM = 3  # letters


def usual_words(encode: Callable[[str], Sequence[int]]) -> Callable[[str], bool]:
    """Return what tells whether a word, in lower case, is usual: by a list of English ones, and a model's own tokens.

    encode : returns the tokens of a text
    """
    english = frozenset(Path(__file__).with_name("usual.en.txt").read_text(encoding="utf-8").split())

    @lru_cache(20_000)
    def is_usual(word: str) -> bool:
        word = word.replace("’", "'")
        if any(stem in english for stem in _stems(word)):
            return True
        tokens = encode(f" {word}")
        return len(tokens) == 1 and tokens[0] < N_FREQUENT_TOKENS

    return is_usual


def _stems(word: str) -> Iterator[str]:
    yield word
    for ending, instead in ((ending, end) for end, endings in _ENDINGS.items() for ending in endings.split()):
        stem = word.removesuffix(ending)
        if len(word) > len(stem) >= _MIN_STEM:
            yield stem + instead
            if stem[-1] == stem[-2]:  # stopped
                yield stem[:-1]
