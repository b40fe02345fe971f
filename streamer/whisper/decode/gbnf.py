r"""GBNF, the small format of grammars that whisper.cpp and llama.cpp read, as a grammar for llguidance.

    root  ::= "turn " ("on" | "off") " the " thing "."?    # a comment
    thing ::= "light" "s"? | [a-z]+

A rule's name is made of letters, digits and hyphens. Literals and classes of characters, `[a-z]` or `[^a-z]`, know the
escapes \n \r \t \\ \" \[ \] \xFF \uFFFF \UFFFFFFFF; `.` is any character. An item, and a literal is one, is repeated
with `*`, `+`, `?`, `{3}`, `{3,}` or `{3,5}`. A rule ends with its line, except behind `::=`, behind `|` and inside of
parentheses.

llguidance has a converter, too. It writes `\x41` and `\u0041` as what its own Lark cannot read, takes the last of two
rules with one name, can begin with `root` alone, and tells of a broken grammar in Lark or with an IndexError. Its
lexemes are whole literals, of which the longest counts, so that `[a-z]+ "ing"` fits no text at all.

Source: whisper.cpp's `grammar-parser.cpp`, llama.cpp's `grammars/README.md` (`.` and `{}`).
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamer.errors import ConfigError

MAX_REPEATS = 1000

# What llguidance does not bound itself: rules and parentheses inside of each other, of which some thousands overflow
# its stack, and items that may be none, which take the square of their number to build.
MAX_DEPTH = 50
MAX_OPTIONAL = 1000

_NAME = re.compile(r"[A-Za-z0-9-]+")
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_BRACES = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}

_LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class _Item:
    """Characters or another rule, once or repeated."""

    # In Lark; empty where it is a rule, which is named here at this offset. Parentheses are rules such as "(1".
    characters: str = ""
    rule: str = ""
    offset: int = 0

    # In Lark.
    repeats: str = ""
    optional: bool = False

    def ends(self, ended: "_Rules") -> bool:
        """Whether some text completes it, given the rules for which that is so."""
        return not self.rule or self.rule in ended


# The alternatives of each rule, by the rule's name.
_Rules = dict[str, list[list[_Item]]]


def to_lark(text: str, where: str, root: str) -> str:
    """Return the Lark of what a rule of a grammar says, with or without a space before it.

    where : names the grammar in messages

    Raises ConfigError where the grammar is broken, a rule is missing or has no end, or rules are too deep in others.
    """
    rules = _Parser(text, where).parse()
    if root not in rules:
        raise ConfigError(f"{where}: there is no rule {root!r:.60}: add it, or correct its name")
    heights: dict[str, int] = {}
    # What contains itself nowhere is one regular expression, in capitals, which is much faster.
    letter = "r" if _measure(rules, root, set(), heights, where) else "T"
    rules = _with_end({name: rules[name] for name in heights})
    if root not in rules:
        raise no_end(where, root)
    names = {name: f"{letter}{number}" for number, name in enumerate(rules)}
    lines = [f"{names[name]}: {' | '.join(_sequence(items, names) for items in rules[name])}" for name in rules]
    # Without forcing, any tokens may spell the text, and not only those that the tokenizer would.
    return "\n".join(['%llguidance {"no_forcing": true}', f"start: {letter}", f'{letter}: " "? {names[root]}', *lines])


def no_end(where: str, root: str) -> ConfigError:
    """Return the error that tells of a rule that no text completes."""
    return ConfigError(f"{where}: no text ever completes the rule {root!r:.60}; give it an end")


def _sequence(items: Sequence[_Item], names: Mapping[str, str]) -> str:
    return " ".join((item.characters or names[item.rule]) + item.repeats for item in items) or '""'


def _with_end(rules: _Rules) -> _Rules:
    """Return the rules that some text completes, without the alternatives that none does.

    rules : each behind those that it contains, as far as that can be: so a few rounds are enough
    """
    ended: _Rules = {}
    n_before = -1
    while len(ended) > n_before:
        n_before = len(ended)
        for name, alternatives in rules.items():
            kept = [items for items in alternatives if all(item.optional or item.ends(ended) for item in items)]
            if kept:
                ended[name] = [[item for item in items if item.ends(ended)] for items in kept]
    return ended


def _measure(rules: _Rules, name: str, inside: set[str], heights: dict[str, int], where: str) -> bool:
    """Add how many rules deep a rule is, and all that it contains; return whether one of them contains itself."""
    if name in inside:
        return True
    if name in heights:
        return False
    inside.add(name)
    named = [item.rule for items in rules[name] for item in items if item.rule]
    recursive = False
    if len(inside) <= MAX_DEPTH:
        for other in named:
            recursive |= _measure(rules, other, inside, heights, where)
    inside.discard(name)
    heights[name] = 1 + max((heights.get(other, 0) for other in named), default=0)
    if heights[name] > MAX_DEPTH or len(inside) >= MAX_DEPTH:
        raise ConfigError(f"{where} has rules too deep inside of each other: join some of them")
    return recursive


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where

        # Offset of what is read next.
        self._at = 0
        self._n_optional = 0
        self._rules: _Rules = {}

    def parse(self) -> _Rules:
        self._skip(lines=True)
        while self._next:
            start = self._at
            name = self._name()
            if not name:
                raise self._expected("the name of a rule")
            if name in self._rules:
                raise self._error(start, f"the rule {name!r:.60} comes twice: give it once, with | between")
            self._skip(lines=False)
            if not self._take("::="):
                raise self._expected("::=")
            self._skip(lines=True)
            self._rules[name] = []
            self._rules[name] += self._alternatives(depth=0)
            if self._next not in ("", "\r", "\n"):
                raise self._expected("an item, | or the end of the line")
            self._skip(lines=True)
        if not self._rules:
            raise ConfigError(f'{self._where} has no rules: expected a grammar, such as root ::= "yes" | "no"')
        for item in (item for alternatives in self._rules.values() for items in alternatives for item in items):
            if item.rule and item.rule not in self._rules:
                raise self._error(item.offset, f"there is no rule {item.rule!r:.60}: add it, or correct its name")
        return self._rules

    def _alternatives(self, depth: int) -> list[list[_Item]]:
        found = [self._items(depth)]
        while self._take("|"):
            self._skip(lines=True)
            found.append(self._items(depth))
        return found

    def _items(self, depth: int) -> list[_Item]:
        items: list[_Item] = []
        while True:
            start = self._at
            if self._take('"'):
                items.append(self._literal())
            elif self._take("["):
                items.append(self._class(start))
            elif self._take("."):
                items.append(_Item(rf"/[\x{{0}}-\x{{{_LAST_CODE_POINT:X}}}]/"))
            elif self._take("("):
                if depth == MAX_DEPTH:
                    raise self._error(start, f"more than {MAX_DEPTH} parentheses are open: split the rule")
                self._skip(lines=True)
                items.append(self._group(self._alternatives(depth + 1)))
                if not self._take(")"):
                    raise self._expected("an item, | or )")
            elif name := self._name():
                items.append(_Item(rule=name, offset=start))
            elif self._next in ("*", "+", "?", "{"):
                if not items:
                    raise self._expected("an item before the sign that repeats it")
                if items[-1].repeats:
                    items[-1] = self._group([items[-1:]])
                repeats, optional = self._repeats()
                self._n_optional += optional
                if self._n_optional > MAX_OPTIONAL:
                    raise self._error(self._at, f"more than {MAX_OPTIONAL} items may be left out, which is too large")
                items[-1] = dataclasses.replace(items[-1], repeats=repeats, optional=optional)
            else:
                return items
            self._skip(lines=depth > 0)

    def _group(self, alternatives: list[list[_Item]]) -> _Item:
        name = f"({len(self._rules)}"  # which no rule can have
        self._rules[name] = alternatives
        return _Item(rule=name)

    def _literal(self) -> _Item:
        characters: list[str] = []
        while not self._take('"'):
            characters.append(json.dumps(chr(self._character('"'))))
        # One by one: the library takes the longest literal that fits, and looks at no other.
        return _Item(f"({' '.join(characters)})" if characters else '""')

    def _class(self, start: int) -> _Item:
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            first = last = self._character("]")
            if self._next == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character("]")
            if last < first:
                raise self._error(start, f"the range {chr(first)!r} to {chr(last)!r} goes backwards: swap its ends")
            ranges.append(rf"\x{{{first:X}}}-\x{{{last:X}}}")
        if not ranges and not negated:
            raise self._error(start, "the class has no characters: expected some, such as [a-z]")
        return _Item(f"/[{'^' if negated else ''}{''.join(ranges)}]/")

    def _character(self, end: str) -> int:
        start = self._at
        character = self._next
        if character in ("", "\r", "\n"):
            raise self._expected(f"{end} before the end of the line")
        self._at += 1
        if character != "\\":
            return ord(character)
        letter = self._next
        if letter in _ESCAPES:
            self._at += 1
            return ord(_ESCAPES[letter])
        if digits := _CODE.match(self._text, self._at):
            code = int(digits[digits.lastindex or 0], 16)
            if code > _LAST_CODE_POINT or 0xD800 <= code <= 0xDFFF:
                raise self._error(start, f"there is no character U+{code:04X}: expected one of Unicode's")
            self._at = digits.end()
            return code
        raise self._error(
            start, rf"the escape \{letter!r:.10} is unknown: expected \n \r \t \\ \" \[ \] \xFF \uFFFF or \UFFFFFFFF"
        )

    def _repeats(self) -> tuple[str, bool]:
        """Read what repeats an item, as Lark has it too; return it, and whether there may be none."""
        for sign in ("*", "+", "?"):
            if self._take(sign):
                return sign, sign != "+"
        braces = _BRACES.match(self._text, self._at)
        if not braces:
            raise self._expected("{3}, {3,} or {3,5}")
        least = int(braces[1])
        most = int(braces[3] or least)
        if max(least, most) > MAX_REPEATS or most < least:
            raise self._error(self._at, f"{braces[0]:.40} is no count: expected up to {MAX_REPEATS}, the least first")
        self._at = braces.end()
        return f"{{{least},{'' if braces[2] and not braces[3] else most}}}", least == 0

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> bool:
        taken = self._text.startswith(sign, self._at)
        if taken:
            self._at += len(sign)
        return taken

    def _name(self) -> str:
        name = _NAME.match(self._text, self._at)
        if not name:
            return ""
        self._at = name.end()
        return name[0]

    def _skip(self, *, lines: bool) -> None:
        blanks = (_BLANKS_AND_LINES if lines else _BLANKS).match(self._text, self._at)
        assert blanks  # may be empty
        self._at = blanks.end()

    def _expected(self, what: str) -> ConfigError:
        found = f"{self._next!r}" if self._next else "the end of the file"
        return self._error(self._at, f"expected {what}, found {found}: correct the grammar")

    def _error(self, offset: int, problem: str) -> ConfigError:
        lines = re.split(r"\r\n|\r|\n", self._text[:offset])
        return ConfigError(f"{self._where}, line {len(lines)}, column {len(lines[-1]) + 1}: {problem}")
