"""What a language model may change in what was heard.

It is trusted with spelling, punctuation and case, and with nothing else: what it answers may be a guess, a
conversation, or what somebody told it to say.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path

import text_to_num
import yaml
from rapidfuzz import fuzz

from streamer.correct.likeness import letters_of, sounds_of
from streamer.correct.spans import CLOSING, OPENING

# Least likeness of a word to what replaces it, 0 to 1; and of words to another number of words.
MIN_LIKENESS = 0.5
MIN_LIKENESS_JOINED = 0.8
MAX_JOINED = 3

# Of a final's words, at most this part may become others.
MAX_CHANGED = 1 / 3

# Codes of Double Metaphone that are shorter must be equal: few consonants are alike by chance.
_MIN_CODE = 3

_MAX_OPENING, _MAX_CLOSING = 2, 3

# What turns a word into its opposite, before or behind it.
_NEGATING = re.compile(r"(un|in|im|il|ir|non|dis|de|des|dés|mis|mal|anti|on|a|s)-?")
_NEGATING_END = re.compile(r"(less|los)(ly|ness)?$")

# From one range of the words as they were to one of the words as they are to be.
Change = tuple[range, range]

FROZEN: dict[str, dict[str, frozenset[str]]] = {
    language: {kind: frozenset(words.split()) for kind, words in kinds.items()}
    for language, kinds in yaml.safe_load(Path(__file__).with_name("frozen.yaml").read_text(encoding="utf-8")).items()
}


class RefusedError(Exception):
    """A correction that is none."""


def changes(old: Sequence[str], new: Sequence[str], language: str) -> list[Change]:
    """Return which words become which, in order; a single word may become itself, with other punctuation or case.

    old, new : words as they are written, with their punctuation
    language : one that `FROZEN` has

    Raises RefusedError where anything is otherwise than a correction may make it.
    """
    old_keys, new_keys = [_key(word) for word in old], [_key(word) for word in new]
    found: list[Change] = []
    n_changed = 0
    for tag, i, i_end, j, j_end in _opcodes(old_keys, new_keys):
        if tag == "equal":
            found += [(range(i + n, i + n + 1), range(j + n, j + n + 1)) for n in range(i_end - i)]
            n_changed += sum(_core(a)[1:] != _core(b)[1:] for a, b in zip(old[i:i_end], new[j:j_end], strict=True))
            continue
        n_changed += max(i_end - i, j_end - j)
        if tag == "delete":
            _check_repeat(old_keys[i:i_end], new_keys[:j], new_keys[j:], language)
        elif tag == "replace":
            _check_replacement(old_keys[i:i_end], new_keys[j:j_end], language)
        else:
            raise RefusedError("it puts words in")
        found.append((range(i, i_end), range(j, j_end)))
    if n_changed > MAX_CHANGED * len(old):
        raise RefusedError(f"it changes {n_changed} of {len(old)} words")
    for word in {*new} - {*old}:
        _check_marks(word)
    return found


def _opcodes(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield what difflib does. Behind words that are replaced, the first of a repeated word is the one that goes."""
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "replace" and i_end - i > 1 and old[i_end - 1 : i_end] == new[j_end : j_end + 1]:
            yield "replace", i, i_end - 1, j, j_end
            yield "delete", i_end - 1, i_end, j_end, j_end
        else:
            yield tag, i, i_end, j, j_end


def _check_repeat(gone: list[str], before: list[str], behind: list[str], language: str) -> None:
    if _frozen(gone, language, "meaning"):
        raise RefusedError("it takes a number or a negation out")
    for n in range(1, len(gone) + 1):
        times, rest = divmod(len(gone), n)
        if not rest and gone == gone[:n] * times and gone[:n] in (before[-n:], behind[:n]):
            return
    raise RefusedError("it takes words out")


def _check_replacement(gone: list[str], come: list[str], language: str) -> None:
    if any(_frozen(gone, language, kind) != _frozen(come, language, kind) for kind in ("meaning", "function")):
        raise RefusedError("it changes a number, a negation or a function word")
    joined = "".join(gone), "".join(come)
    if any(_opposite(a, b) for a, b in (*product(gone, come), joined)):
        raise RefusedError("it turns a word into its opposite")
    if list(map(_n_parts, gone)) == list(map(_n_parts, come)):
        like = all(likeness(a, b) >= MIN_LIKENESS for a, b in zip(gone, come, strict=True))
    else:
        like = max(len(gone), len(come)) <= MAX_JOINED and _spelling(*joined) >= MIN_LIKENESS_JOINED
    if not like:
        raise RefusedError("it puts in words that are unlike what was heard")


def _n_parts(key: str) -> int:
    """Return how many words a word is made of, such as two with a hyphen."""
    return len(re.findall(r"[^\W_]+(?:'[^\W_]+)*", key))


def _check_marks(word: str) -> None:
    core = _core(word)
    n_opening = len(word) - len(word.lstrip(OPENING))
    n_closing = len(word) - len(word.rstrip(CLOSING))
    if not core or n_opening > _MAX_OPENING or n_closing > _MAX_CLOSING:
        raise RefusedError("it puts in more than a word's punctuation")
    # Letters beyond Latin, which look like it, and characters that cannot be seen.
    if not all(char.isnumeric() or (char.isalpha() and char < "\u0250") or char in "'’-.&,:/%$€£+°" for char in core):
        raise RefusedError("it puts in characters that are no letters")


def likeness(a: str, b: str) -> float:
    """Return how alike two words are in spelling or sound, whichever is more: 0 to 1.

    Codes of sounds have no vowels, so that half of them are alike by chance: they count from there on.
    """
    sounds = [
        2 * fuzz.ratio(x, y) / 100 - 1 if min(len(x), len(y)) >= _MIN_CODE else float(x == y)
        for x in sounds_of(letters_of(a))
        for y in sounds_of(letters_of(b))
        if x and y
    ]
    return max([_spelling(a, b), *sounds])


def _spelling(a: str, b: str) -> float:
    return fuzz.ratio(letters_of(a), letters_of(b)) / 100


def _opposite(a: str, b: str) -> bool:
    short, long = sorted((a, b), key=len)
    negated = long.endswith(short) and _NEGATING.fullmatch(long[: len(long) - len(short)]) is not None
    return negated or (_NEGATING_END.search(a) is None) != (_NEGATING_END.search(b) is None)


def _core(word: str) -> str:
    """Return a word without the punctuation around it. What belongs to a number, such as a sign or a unit, stays."""
    return unicodedata.normalize("NFC", word).lstrip(OPENING).rstrip(CLOSING).replace("’", "'")


def _key(word: str) -> str:
    return _core(word).casefold() or word


@lru_cache(10_000)
def _number(key: str, language: str) -> bool:
    return any(char.isnumeric() for char in key) or text_to_num.alpha2digit(key, language, threshold=0) != key


def _frozen(keys: Sequence[str], language: str, kind: str) -> list[str]:
    """Return what of words may not change, in order."""
    parts = (part for key in keys for part in ([key] if _number(key, language) else re.split("['-]", key)))
    return [part for part in parts if part in FROZEN[language][kind] or _number(part, language)]
