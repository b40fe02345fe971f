"""What a language model may change in a final: spelling, punctuation and case, and nothing else.

Its answer may be a guess, a conversation, or what a speaker asked it to say.
"""

import difflib
import unicodedata
from collections.abc import Sequence

from rapidfuzz import fuzz

from streamer.after.correct.spans import CLOSING, NEGATIONS, OPENING, letters_of

# At most this part of a final's words may change.
MAX_CHANGED = 1 / 3

# Least likeness in spelling of words to those that replace them, 0 to 1: as many, or up to three others.
MIN_LIKENESS = 0.6
MIN_LIKENESS_JOINED = 0.8
MAX_JOINED = 3

# Punctuation around a word, in characters.
MAX_MARKS = 5

# From one range of the words as they were to one of the words as they are to be.
Change = tuple[range, range]


class RefusedError(Exception):
    """A correction that changes more than it may."""


def changes(old: Sequence[str], new: Sequence[str]) -> list[Change]:
    """Return which words become which, in order; a single word may become itself, with other punctuation or case.

    old, new : words as they are written, with their punctuation

    Raises RefusedError if the correction changes more than it may.
    """
    old_keys, new_keys = [_key(word) for word in old], [_key(word) for word in new]
    found: list[Change] = []
    n_changed = 0
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
        if tag == "equal":
            found += [(range(i + n, i + n + 1), range(j + n, j + n + 1)) for n in range(i_end - i)]
            n_changed += sum(_core(a)[1:] != _core(b)[1:] for a, b in zip(old[i:i_end], new[j:j_end], strict=True))
            continue
        n_changed += max(i_end - i, j_end - j)
        gone, come = old_keys[i:i_end], new_keys[j:j_end]
        if any(map(_is_frozen, [*gone, *come])):
            raise RefusedError("it changes a number or a negation")
        if not gone:
            raise RefusedError("it puts words in")
        if not come and not _is_repeated(gone, new_keys[:j], new_keys[j:]):
            raise RefusedError("it takes words out")
        if come and not _are_alike(gone, come):
            raise RefusedError("it puts in words that are unlike what was said")
        found.append((range(i, i_end), range(j, j_end)))
    if n_changed > MAX_CHANGED * len(old):
        raise RefusedError(f"it changes {n_changed} of {len(old)} words")
    _check_characters(old, new)
    return found


def _is_repeated(gone: list[str], before: list[str], behind: list[str]) -> bool:
    """Return whether words that go are said again right before or behind, once or more often."""
    for n in range(1, len(gone) + 1):
        times, rest = divmod(len(gone), n)
        if not rest and gone == gone[:n] * times and gone[:n] in (before[-n:], behind[:n]):
            return True
    return False


def _are_alike(gone: list[str], come: list[str]) -> bool:
    if [key.count("-") for key in gone] == [key.count("-") for key in come]:
        return all(likeness(a, b) >= MIN_LIKENESS for a, b in zip(gone, come, strict=True))
    return max(len(gone), len(come)) <= MAX_JOINED and likeness("".join(gone), "".join(come)) >= MIN_LIKENESS_JOINED


def likeness(a: str, b: str) -> float:
    """Return how alike two words are spelled, 0 to 1."""
    return fuzz.ratio(letters_of(a), letters_of(b)) / 100


def _check_characters(old: Sequence[str], new: Sequence[str]) -> None:
    """Refuse markup, characters that cannot be seen, and letters of a script that the text does not have."""
    scripts = _scripts("".join(old))
    for word in {*new} - {*old}:
        core = _core(word)
        if not core or len(word) - len(core) > MAX_MARKS:
            raise RefusedError("it puts in more than a word's punctuation")
        if not _scripts(core) <= scripts or not all(char.isalnum() or char in "'-.&,:/%$€£+°" for char in core):
            raise RefusedError("it puts in characters that are no letters of the text")


def _scripts(text: str) -> set[str]:
    """Return the scripts of a text's letters, such as LATIN."""
    return {unicodedata.name(char, "").split(" ")[0] for char in text if char.isalpha()}


def _is_frozen(key: str) -> bool:
    """Return whether a word is a number in digits or a negation: these stay."""
    return any(char.isnumeric() for char in key) or NEGATIONS.fullmatch(key) is not None


def _core(word: str) -> str:
    """Return a word without the punctuation around it. What belongs to a number, such as a sign or a unit, stays."""
    return unicodedata.normalize("NFC", word).lstrip(OPENING).rstrip(CLOSING).replace("’", "'")


def _key(word: str) -> str:
    return _core(word).casefold() or word
