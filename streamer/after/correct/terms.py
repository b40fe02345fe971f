"""Finds terms in texts: by the very words, or near in spelling and in sound.

Sounds are codes of Double Metaphone (L. Philips, 2000), whose rules are for Latin script; spelling decides alone
elsewhere, and more strictly. Usual words are never taken for a term, nor are digits and negations.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streamer.after.correct.corrector import text_of
from streamer.after.correct.glossary import MAX_WORDS, Form, Term
from streamer.after.correct.spans import NEGATIONS, letters_of, mean_probability, respelled
from streamer.arrays import Float32Array
from streamer.events import Word

# Words of a text that may be one term that they are near to.
MAX_NEAR_WORDS = 3

# How near a term has to be, 0 to 1, on the average of spelling and sound; by spelling alone. The first was chosen
# with `tools/benchmark.py`, by hand.
LEAST_NEAR = 0.62
LEAST_SPELLED = 0.8
# Nearer for each letter that a term is shorter than this: short words are like many others.
LONG_TERM, SHORTER = 7, 0.07
# And nearer the surer the model is of its words: beyond this probability, by this much up to 1.
DOUBTFUL, SURER = 0.7, 0.25

# Capitals of an acronym, which is found by its very spellings alone.
MAX_ACRONYM = 4

# A byte-level BPE gives frequent words a token of their own, the most frequent ones first. Of Whisper's 50,000, those
# up to this one spell nine in ten words of ordinary English.
N_FREQUENT_TOKENS = 20_000

# Texts whose nearest terms are remembered: partials bring the same ones again and again.
N_REMEMBERED = 5_000

# Returns whether a word, in lower case, is so usual that it stands for itself and for no term.
IsUsual = Callable[[str], bool]

# A term's beginning and end in a text: what stands around it stays. Some end with signs of their own: C++
_CORE = re.compile(r"([\s\"'“”‘’«»„(\[{¿¡…—–,;:!?-]*)(.*?)([^\w+#*&]*)", re.DOTALL)
_POSSESSIVE = re.compile(r"(?<=\w)['’]s$", re.IGNORECASE)
_BREAK = re.compile(r"[.,;:!?…。，、！？；：](?=\s)|[。，、！？；：]")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


class Replacement(NamedTuple):
    """Words of a text, from `first` up to `end`, and the words that they are to read."""

    first: int
    end: int
    pieces: tuple[str, ...]


class _Meant(NamedTuple):
    """A term that a text may mean, with what stands around it; how near it is, and how near it has to be."""

    before: str
    term: Term
    after: str
    near: float
    least: float


def usual_words(encode: Callable[[str], Sequence[int]]) -> IsUsual:
    """Return which words are usual: those that have a token of their own among a model's most frequent ones.

    encode : returns the tokens of a text
    """

    @lru_cache(20_000)
    def is_usual(word: str) -> bool:
        tokens = encode(f" {word}")
        return len(tokens) == 1 and tokens[0] < N_FREQUENT_TOKENS

    return is_usual


class TermIndex:
    """The terms of one language. Any thread may use it."""

    def __init__(self, terms: Iterable[Term], is_usual: IsUsual) -> None:
        """Index terms. Raises ValueError if one spelling is to become two things."""
        self._is_usual = is_usual
        self._exact: dict[str, Term] = {}
        near: dict[str, list[tuple[str, str, Term]]] = defaultdict(list)
        for term in terms:
            for spelling in dict.fromkeys((*term.spellings, term.text)):
                key = _core(spelling)[1].casefold()
                other = self._exact.setdefault(key, term).text
                if key and other != term.text:
                    raise ValueError(
                        f"{spelling!r:.60} is to be written both as {other!r:.60} and as {term.text!r:.60}:"
                        " expected one way; delete an entry"
                    )
                letters = letters_of(spelling)
                is_acronym = spelling.isupper() and len(letters) <= MAX_ACRONYM
                for sound in sounds_of(letters) if term.form in (Form.NAME, Form.WORD) and not is_acronym else ():
                    near[sound[:1]].append((letters, sound, term))
        self._exact.pop("", None)
        # How spellings of several words begin.
        self._begun = {key[: gap.start()] for key in self._exact for gap in re.finditer(" ", key)}
        self._longest = max([MAX_NEAR_WORDS, *map(_n_words, self._exact)])
        # By the first sound: the others do not come near.
        self._near = {first: tuple(zip(*found, strict=True)) for first, found in near.items()}
        if near:
            _similar("", [""])  # imports what it needs now, and not under the lock of a session that publishes
        self._meant = lru_cache(N_REMEMBERED)(self._find)

    def replacements(self, words: Sequence[Word]) -> list[Replacement]:
        """Find the words that are to read otherwise, in order."""
        found = []
        for first in range(len(words) if self._exact else 0):
            text = ""
            for end in range(first + 1, min(first + self._longest, len(words)) + 1):
                text += words[end - 1].word
                meant = self._meant(text)
                if meant is None:
                    continue
                sure = max(0.0, mean_probability(words[first:end]) - DOUBTFUL) / (1 - DOUBTFUL)
                if meant.near == 1 or meant.near >= meant.least + SURER * sure:
                    found.append((meant.near, end - first, first, end, meant))
        taken: list[Replacement] = []
        # The very words come first, then what is nearest; of the same, what is longer.
        for _, _, first, end, meant in sorted(found, key=lambda item: item[:3], reverse=True):
            if all(end <= other.first or first >= other.end for other in taken):
                taken.append(Replacement(first, end, _pieces(meant, words[first:end])))
        return sorted(each for each in taken if " ".join(each.pieces) != text_of(words[each.first : each.end]))

    def begins(self, words: Sequence[Word]) -> bool:
        """Return whether words are the beginning of a spelling, of which more may follow."""
        if not self._begun or len(words) >= self._longest:
            return False
        _, core, after = _core(text_of(words))
        return not after and core.casefold() in self._begun

    def _find(self, text: str) -> _Meant | None:
        """Return the term that a text may mean; None if it means none."""
        before, core, after = _core(text)
        possessive = _POSSESSIVE.search(core)
        term = self._exact.get(core.casefold())
        if term is None and possessive is not None:
            core, after = core[: possessive.start()], possessive[0] + after
            term = self._exact.get(core.casefold())
        words = [word.lower() for word in _WORD.findall(core)]
        all_usual = all(map(self._is_usual, words))
        if term is not None:
            # A term that is a usual word, too, is meant only if it is written so.
            as_usual = core.casefold() == term.text.casefold() and core != term.text and all_usual
            return None if as_usual and term.form is not Form.MASKED else _Meant(before, term, after, 1.0, 1.0)
        spaced = core.split()
        if all_usual or len(spaced) > MAX_NEAR_WORDS or not all(map(_WORD.search, spaced)) or _BREAK.search(core):
            return None
        if any(NEGATIONS.fullmatch(word) or any(map(str.isdigit, word)) for word in words):
            return None
        return self._nearest(before, letters_of(core), after)

    def _nearest(self, before: str, letters: str, after: str) -> _Meant | None:
        best: _Meant | None = None
        for sound in sounds_of(letters):
            if sound[:1] not in self._near:
                continue
            spellings, sounds, terms = self._near[sound[:1]]
            near = _similar(letters, spellings)
            if sound:
                near = (near + _similar(sound, sounds)) / np.float32(2)
            i = int(near.argmax())
            if best is None or near[i] > best.near:
                shorter = SHORTER * max(0, LONG_TERM - len(spellings[i]))
                least = (LEAST_NEAR if sound else LEAST_SPELLED) + shorter
                best = _Meant(before, terms[i], after, min(0.999, float(near[i])), least)
        return best if best is not None and best.near >= best.least else None


def rewritten(words: Sequence[Word], replacements: Iterable[Replacement]) -> list[Word]:
    """Return words with some replaced."""
    result, done = [], 0
    for each in replacements:
        result += [*words[done : each.first], *respelled(words[each.first : each.end], each.pieces)]
        done = each.end
    return [*result, *words[done:]]


def sounds_of(letters: str) -> tuple[str, ...]:
    """Return how letters may sound (Double Metaphone); an empty code if there are no rules for them."""
    if not (letters.isascii() and letters.isalpha()):
        return ("",)
    from doublemetaphone import doublemetaphone  # late, as the other: of the extra `glossary`

    return tuple(filter(None, dict.fromkeys(doublemetaphone(letters)))) or ("",)


def _pieces(meant: _Meant, words: Sequence[Word]) -> tuple[str, ...]:
    before = meant.before.lstrip()
    said = "".join(word.word for word in words)[len(meant.before) :]
    text = meant.term.text
    if meant.term.form is Form.MASKED:
        text = re.sub(r"\S", "*", said.removesuffix(meant.after))
    elif meant.term.form in (Form.WORD, Form.REPLACED) and said[0].isupper():
        text = text[0].upper() + text[1:]
    first, *others = f"{text}{meant.after}".split()
    return (before + first, *others)


def _core(text: str) -> tuple[str, str, str]:
    """Cut what stands around a term off a text."""
    match = _CORE.fullmatch(text)
    assert match is not None
    return match[1], " ".join(match[2].split()), match[3]


def _similar(text: str, others: Sequence[str]) -> Float32Array:
    """Return how near a text is to others, shape (n,), 0 to 1."""
    from rapidfuzz import process
    from rapidfuzz.distance import Levenshtein

    near: Float32Array = process.cdist([text], others, scorer=Levenshtein.normalized_similarity, dtype=np.float32)[0]
    return near


def _n_words(text: str) -> int:
    """Return how many of a text's words these are, at most: in scripts without spaces each character may be one."""
    return min(MAX_WORDS, len(text.split()) + sum(unicodedata.east_asian_width(char) in "WF" for char in text))
