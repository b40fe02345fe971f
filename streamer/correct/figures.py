"""Numbers, dates and sums of money in words, to figures, where they are nothing else.

`text2num` finds numbers in seven languages. What it finds is looked at again here, by rules: a word that is a number in
one sentence is a pronoun, a time of day, a title or half a telephone number in another, and stays as it was said.
"""

import re
from bisect import bisect
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import text_to_num
import yaml

from streamer.correct.corrector import Heard, text_of
from streamer.correct.spans import CLOSING, OPENING, respelled, written
from streamer.events import Word

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pt")

# Words further apart are no number together.
MAX_PAUSE_S = 0.5

_LARGE = {"million": 10**6, "billion": 10**9, "trillion": 10**12}
_MULTIPLIERS = ("hundred", "thousand", *_LARGE)

# Behind these no number goes on.
_ENDS = (".", ",", ";", ":", "?", "!", "…", '"', "”", ")")

# What may stand between two numbers instead of within one. In English it is within one behind a multiplier.
_AND = {"en": "and", "de": "und", "nl": "en", "it": "e"}

# Numbers that are other words too.
_HOMONYMS = {"nl": "elf"}


class Figures:
    """A corrector."""

    name = "figures"
    slow = False

    def correct(self, heard: Heard, left_s: float) -> Sequence[Word]:
        goes_on = bool(heard.before) and not heard.before[-1].endswith(_ENDS)
        return in_figures(heard.words, heard.language, goes_on=goes_on)


def in_figures(words: Sequence[Word], language: str, *, goes_on: bool = False) -> list[Word]:
    """Return words with what is surely a number in figures.

    goes_on : whether they follow others without a mark of punctuation: a number may have begun before
    """
    groups = written(words)
    pauses = {n for n in range(1, len(groups)) if groups[n][0].start - groups[n - 1][-1].end > MAX_PAUSE_S}
    result: list[Word] = []
    end = 0
    for place, figures in figured([text_of(group) for group in groups], language, pauses):
        if (goes_on and place.start == 0) or (place.stop == len(groups) and not groups[-1][-1].word.endswith(_ENDS)):
            continue  # it may have begun before, or go on
        result += [part for group in groups[end : place.start] for part in group]
        result += respelled([part for group in groups[place.start : place.stop] for part in group], figures.split())
        end = place.stop
    return result + [part for group in groups[end:] for part in group]


def figured(words: Sequence[str], language: str, pauses: Container[int] = ()) -> list[tuple[range, str]]:
    """Return which words become which figures, in order, with the punctuation around them.

    words : as they are written
    pauses : indices of words that have a pause before them
    """
    if language not in LANGUAGES or any(char in word for word in words for char in "⟦⟧"):
        return []
    pieces = [*_pieces([_Token(word, n in pauses) for n, word in enumerate(words)], language)]
    line = " ".join(text for _, text in pieces)
    begins = [*accumulate((len(text) + 1 for _, text in pieces), initial=0)]
    places: list[_Place] = []
    for pattern, template, kind in _RULES.get(language, _OTHERS):
        for match in pattern.finditer(line):
            start, end = match.span("n")
            if all(end <= place.start or place.end <= start for place in places):
                places.append(_Place(start, end, match.expand(template), kind))
    found = []
    for place in _agreed(sorted(places), line):
        first, last = bisect(begins, place.start) - 1, bisect(begins, place.end - 1) - 1
        text = line[begins[first] : place.start] + place.figures + line[place.end : begins[last + 1] - 1]
        found.append((range(pieces[first][0].start, pieces[last][0].stop), text))
    return found


class _Token:
    """A written word, as text2num asks for it."""

    def __init__(self, word: str, after_pause: bool) -> None:
        self.word = word
        bare = word.lstrip(OPENING)
        self.lead = word[: len(word) - len(bare)]
        self.core = bare.rstrip(CLOSING)
        self.tail = bare[len(self.core) :]
        self.low = self.core.lower()
        self.after_pause = after_pause

    def text(self) -> str:
        return self.core

    def nt_separated(self, previous: "_Token") -> bool:
        return bool(previous.tail or self.lead) or self.after_pause

    def not_a_number_part(self) -> bool:
        return False


def _pieces(tokens: list[_Token], language: str) -> Iterator[tuple[range, str]]:
    """Yield the text in pieces, each with its words: a number is one, `⟦25⟧`.

    `⟦*100⟧` is "a hundred", which is one where it has a unit; `⟦!million⟧` is none by itself.
    """
    end = 0
    for found in text_to_num.find_numbers(tokens, language, 0.0):
        start, inside = found.start, tokens[found.start : found.end]
        figures = found.text if found.is_ordinal else _figures([token.low for token in inside], found, language)
        begins = start == 0 or inside[0].lead or set(tokens[start - 1].tail) & set(".?!…")
        if figures[0] == "*" and start > end and tokens[start - 1].low == "a" and not tokens[start - 1].tail:
            start -= 1
            figures = figures if len(inside) == 1 else figures[1:]
        elif figures[0] == "*" or any(token.core[:1].isupper() for token in inside[1 if begins else 0 :]):
            figures = f"!{inside[-1].low}"  # hundreds of them, or a title or a name
        yield from ((range(n, n + 1), tokens[n].word) for n in range(end, start))
        yield range(start, found.end), f"{tokens[start].lead}⟦{figures}⟧{inside[-1].tail}"
        end = found.end
    yield from ((range(n, n + 1), tokens[n].word) for n in range(end, len(tokens)))


def _figures(low: list[str], found: text_to_num.Occurence, language: str) -> str:
    """Return the figures of a cardinal number, with the marks of `_pieces`."""
    last = low[-1]
    is_joined = any(b == _AND.get(language) and a not in _MULTIPLIERS for a, b in pairwise(low))
    if is_joined or low == [_HOMONYMS.get(language)] or (found.text[0] == "0" and found.value >= 1):
        return f"!{last}"
    if language != "en":
        is_sure = found.value < 10**6 and (len(low) > 1 or found.value not in (100, 1000))
        return str(found.text) if is_sure else f"!{last}"
    if last.endswith("s") or (len(low) == 1 and found.value >= 10**6):
        return f"!{last}"
    mark = "*" if low[0] in _MULTIPLIERS else ""
    if found.value < 10**4 or "." in found.text:
        return f"{mark}{found.text}"
    if last in _LARGE and found.value % _LARGE[last] == 0:
        return f"{mark}{found.value / _LARGE[last]:,.0f} {last}"
    return f"{mark}{found.value:,.0f}"


class _Place(NamedTuple):
    """A place in the line of `_pieces`, and its figures; empty where it stays as it was said."""

    start: int
    end: int
    figures: str

    # `%`, a currency, `date`, `year`; empty: a plain number.
    kind: str


# Kinds that are sure whatever stands beside them.
_DATES = ("date", "year")


def _agreed(places: Sequence[_Place], line: str) -> Iterator[_Place]:
    """Yield what becomes figures. Numbers that are said in one breath do so alike, or none does."""
    chains: list[list[_Place]] = []
    for place in places:
        between = line[chains[-1][-1].end : place.start] if chains else "."
        if _LINK.fullmatch(between) and not (between[0] == "," and chains[-1][-1].kind in _DATES):
            chains[-1].append(place)
        else:
            chains.append([place])
    for chain in chains:
        plain = [place for place in chain if place.kind not in _DATES]
        agree = len({(bool(place.figures), bool(place.kind)) for place in plain}) == 1
        # Side by side they are a price, a telephone number or a time of day; or one number with a comma in it.
        for a, b in pairwise(plain):
            agree &= line[a.end : b.start] != (", " if a.figures.endswith("000") else " ")
        yield from (place for place in chain if place.figures and (agree or place.kind in _DATES))


_Rule = tuple[str, str, str]

# Words in groups, each an alternative of a regular expression.
_WORDS = {
    name: f"(?:{'|'.join(words.split())})"
    for name, words in yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8")).items()
}
_LINK = re.compile(rf",?(?: {_WORDS['links']}){{0,2}} ", re.IGNORECASE)

_BEHIND = r"(?:(?P<s> )⟦!(?P<l>million|billion|trillion)⟧)?"
_ANY = rf"⟦\*?(?P<v>[\d.,]+(?: \w+)?)⟧{_BEHIND}"
_AMOUNT = r"\g<v>\g<s>\g<l>"
_STAYS = [("(?P<n>⟦[^⟧]*⟧)", "", "")]
_PLAIN = [(rf"(?P<n>⟦(?P<v>(?!\d⟧)[\d.,]+(?: \w+)?)⟧{_BEHIND})", _AMOUNT, "")]


def _years() -> Iterator[_Rule]:
    months, known = _WORDS["months"], f"(?:{_WORDS['year']}|{_WORDS['months']}|{_WORDS['seasons']})(?: of)?"
    ends = rf"(?! (?:⟦|{_WORDS['no_year']}\b|{_WORDS['units']}\b|(?-i:[a-z]\w{{3,}}s)\b))"
    for behind, template in (("⟦(?P<y>[1-9]\\d)⟧", r"\g<c>\g<y>"), ("(?:oh|o) ⟦(?P<y>[1-9])⟧", r"\g<c>0\g<y>")):
        year = f"(?P<n>⟦(?P<c>1[1-9]|20)⟧ {behind}){ends}"
        yield rf"\b{known} {year}", template, "year"
        yield rf"\b{known} ⟦\d\d⟧ (?:oh |o )?⟦\d\d?⟧(?:,| to| and| or| through| until| till) {year}", template, "year"
        yield rf"\b{months}(?: (?:the )?⟦\d\d?[a-z]*⟧)?,? {year}", template, "year"


def _dates() -> Iterator[_Rule]:
    months, day = _WORDS["months"], "(?P<n>⟦(?P<v>(?:[12]?\\d|3[01])[a-z]+)⟧)"
    yield rf"{day}(?= (?:of |(?!may|march)){months}\b)", r"\g<v>", "date"
    # "May second" is also what somebody may do, and "in May five people" no date.
    month = rf"\b(?!(?-i:may|march)\b|(?:may|march)(?: the)? ⟦2nd){months}"
    yield rf"{month}(?: the)? {day}", r"\g<v>", "date"
    yield (
        rf"{month} {day.replace('[a-z]+', '')}(?=[.,;?!]|$| ⟦(?:1[1-9]|20)⟧ | (?:and|or|to) {months})",
        r"\g<v>",
        "date",
    )


def _units() -> Iterator[_Rule]:
    yield rf"(?P<n>{_ANY} per ?cent)\b", rf"{_AMOUNT}%", "%"
    for unit, coin, sign in (("dollars?", "cents?", "$"), ("euros?", "cents?", "€"), ("pounds?", "pence", "£")):
        for digits, zero in ((r"\d\d", ""), (r"[1-9]", "0")):
            sum_of_money = rf"(?P<n>⟦(?P<v>[\d,]+)⟧ {unit}(?:,|,? and)? ⟦(?P<c>{digits})⟧ {coin})\b"
            yield sum_of_money, rf"{sign}\g<v>.{zero}\g<c>", sign
    for unit, sign in (("dollars?", "$"), ("euros?", "€"), ("yen", "¥"), ("pounds? sterling", "£")):
        yield rf"(?P<n>{_ANY} {unit})(?!['’\w])", rf"{sign}{_AMOUNT}", sign
    yield rf"(?P<n>⟦(?P<v>[02-9])⟧)(?= {_WORDS['units']}\b)", r"\g<v>", ""


def _doubts(language: str) -> Iterator[_Rule]:
    """A number that is a part of something else."""
    yield rf"\b{_WORDS[f'never_behind_{language}']}(?: to)? (?P<n>⟦[^⟧]*⟧)", "", ""
    yield rf"(?P<n>⟦[^⟧]*⟧)(?= {_WORDS[f'never_before_{language}']}\b)", "", ""
    yield r"(?P<n>⟦(?:5|10|20|25)⟧)(?= to ⟦(?:\d|1[0-2])⟧)", "", ""  # a time of day


def _compiled(*rules: _Rule) -> list[tuple[re.Pattern[str], str, str]]:
    return [(re.compile(pattern, re.IGNORECASE), template, kind) for pattern, template, kind in rules]


# What is looked for, what it becomes, and its kind. Where two find the same place, the first has it.
_OTHERS = _compiled(*_doubts("others"), *_PLAIN, *_STAYS)
_RULES = {"en": _compiled(*_years(), *_dates(), *_doubts("en"), *_units(), *_PLAIN, *_STAYS)}
