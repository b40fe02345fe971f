r"""GBNF, the small format of grammars that whisper.cpp and llama.cpp read.

    root  ::= "turn " ("on" | "off") " the " thing "."?    # a comment
    thing ::= "light" "s"? | [a-z]+

A rule's name is made of letters, digits and hyphens. Literals and classes of characters, `[a-z]` or `[^a-z]`, know the
escapes \n \r \t \\ \" \[ \] \xFF \uFFFF \UFFFFFFFF; `.` is any character. An item, and a literal is one, is repeated
with `*`, `+`, `?`, `{3}`, `{3,}` or `{3,5}`. A rule ends with its line, except behind `::=`, behind `|` and inside of
parentheses.

Source: whisper.cpp's `grammar-parser.cpp`, llama.cpp's `grammars/README.md` (`.` and `{}`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import ConfigError

MAX_BYTES = 1 << 16
MAX_DEPTH = 50  # of parentheses
MAX_REPEATS = 1000

_NAME = re.compile(r"[A-Za-z0-9-]+")
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_BRACES = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_HEX = {"x": re.compile("[0-9A-Fa-f]{2}"), "u": re.compile("[0-9A-Fa-f]{4}"), "U": re.compile("[0-9A-Fa-f]{8}")}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}

LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of ranges of code points, first and last, in order and apart."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """What another rule says."""

    name: str

    # Offset in the file.
    offset: int


@dataclass(frozen=True, slots=True)
class Group:
    """One of several sequences of items."""

    alternatives: "tuple[tuple[Item, ...], ...]"


@dataclass(frozen=True, slots=True)
class Repetition:
    """An item, again and again."""

    item: "Item"
    least: int
    most: int | None


Item = Characters | Reference | Group | Repetition


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a file by their names."""

    rules: Mapping[str, Group]
    text: str
    where: str

    def error(self, offset: int, problem: str) -> ConfigError:
        """Return the error that tells of a problem at a place in the file."""
        return _error(self.text, self.where, offset, problem)


def read(path: Path) -> Rules:
    """Read a grammar. Raises ConfigError where the file cannot be read or is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{str(path)!r:.200} cannot be read ({reason}): expected a grammar, a .gbnf file") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_BYTES} bytes: expected a small grammar; shorten it")
    try:
        return parse(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}: expected a grammar; save it as UTF-8") from None


def parse(text: str, where: str) -> Rules:
    """Parse the text of a grammar; `where` names it in messages. Raises ConfigError where it is none."""
    return _Parser(text, where).parse()


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where

        # Offset of what is read next.
        self._at = 0

    def parse(self) -> Rules:
        rules: dict[str, Group] = {}
        self._skip(lines=True)
        while self._next:
            start = self._at
            name = self._name()
            if name is None:
                raise self._expected("the name of a rule")
            if name in rules:
                raise self._error(start, f"the rule {name!r:.60} comes twice: give it once, with | between")
            self._skip(lines=False)
            if not self._take("::="):
                raise self._expected("::=")
            self._skip(lines=True)
            rules[name] = self._alternatives(depth=0)
            if self._next not in ("", "\r", "\n"):
                raise self._expected("an item, | or the end of the line")
            self._skip(lines=True)
        if not rules:
            raise ConfigError(f'{self._where} has no rules: expected a grammar, such as root ::= "yes" | "no"')
        return Rules(rules, self._text, self._where)

    def _alternatives(self, depth: int) -> Group:
        found = [self._sequence(depth)]
        while self._take("|"):
            self._skip(lines=True)
            found.append(self._sequence(depth))
        return Group(tuple(found))

    def _sequence(self, depth: int) -> tuple[Item, ...]:
        items: list[Item] = []
        while True:
            start = self._at
            if self._take('"'):
                items.append(self._literal())
            elif self._take("["):
                items.append(self._class(start))
            elif self._take("."):
                items.append(_characters([(0, LAST_CODE_POINT)]))
            elif self._take("("):
                if depth == MAX_DEPTH:
                    raise self._error(start, f"more than {MAX_DEPTH} parentheses are open: split the rule")
                self._skip(lines=True)
                items.append(self._alternatives(depth + 1))
                if not self._take(")"):
                    raise self._expected("an item, | or )")
            elif (name := self._name()) is not None:
                items.append(Reference(name, start))
            elif self._next in ("*", "+", "?", "{"):
                if not items:
                    raise self._expected("an item before the sign that repeats it")
                items[-1] = Repetition(items[-1], *self._repeats())
            else:
                return tuple(items)
            self._skip(lines=depth > 0)

    def _literal(self) -> Item:
        characters: list[Item] = []
        while not self._take('"'):
            code = self._character('"')
            characters.append(_characters([(code, code)]))
        return characters[0] if len(characters) == 1 else Group((tuple(characters),))

    def _class(self, start: int) -> Item:
        negated = self._take("^")
        ranges = []
        while not self._take("]"):
            first = last = self._character("]")
            if self._next == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character("]")
            if last < first:
                raise self._error(start, f"the range {chr(first)!r} to {chr(last)!r} goes backwards: swap its ends")
            ranges.append((first, last))
        found = _characters(_others(ranges) if negated else ranges)
        if not found.ranges:
            raise self._error(start, "the class has no characters: expected some, such as [a-z]")
        return found

    def _character(self, end: str) -> int:
        start = self._at
        character = self._next
        if character in ("", "\r", "\n"):
            raise self._expected(f"{end} before the end of the line")
        self._at += 1
        if character != "\\":
            return ord(character)
        letter = self._next
        self._at += 1
        if letter in _ESCAPES:
            return ord(_ESCAPES[letter])
        if letter in _HEX and (digits := _HEX[letter].match(self._text, self._at)):
            code = int(digits[0], 16)
            if code > LAST_CODE_POINT or 0xD800 <= code <= 0xDFFF:
                raise self._error(start, f"there is no character U+{code:04X}: expected one of Unicode's")
            self._at = digits.end()
            return code
        raise self._error(
            start, rf"the escape \{letter!r:.10} is unknown: expected \n \r \t \\ \" \[ \] \xFF \uFFFF or \UFFFFFFFF"
        )

    def _repeats(self) -> tuple[int, int | None]:
        for sign, repeats in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return repeats
        braces = _BRACES.match(self._text, self._at)
        if not braces:
            raise self._expected("{3}, {3,} or {3,5}")
        least = int(braces[1])
        most = None if braces[2] and not braces[3] else int(braces[3] or least)
        if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
            raise self._error(self._at, f"{braces[0]:.40} is no count: expected up to {MAX_REPEATS}, the least first")
        self._at = braces.end()
        return least, most

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> bool:
        taken = self._text.startswith(sign, self._at)
        if taken:
            self._at += len(sign)
        return taken

    def _name(self) -> str | None:
        name = _NAME.match(self._text, self._at)
        if not name:
            return None
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
        return _error(self._text, self._where, offset, problem)


def _error(text: str, where: str, offset: int, problem: str) -> ConfigError:
    lines = re.split(r"\r\n|\r|\n", text[:offset])
    return ConfigError(f"{where}, line {len(lines)}, column {len(lines[-1]) + 1}: {problem}")


def _characters(ranges: list[tuple[int, int]]) -> Characters:
    """Return the characters of ranges, put in order; surrogates are none."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    apart = [
        (max(first, low), min(last, high))
        for first, last in merged
        for low, high in ((0, 0xD7FF), (0xE000, LAST_CODE_POINT))
    ]
    return Characters(tuple((first, last) for first, last in apart if first <= last))


def _others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of all characters that are not in these."""
    others = []
    begin = 0
    for first, last in sorted(ranges):
        others.append((begin, first - 1))
        begin = max(begin, last + 1)
    others.append((begin, LAST_CODE_POINT))
    return [(first, last) for first, last in others if first <= last]
