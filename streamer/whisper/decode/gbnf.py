r"""GBNF, the format of grammars that whisper.cpp and llama.cpp read, as a grammar in llguidance's Lark.

    root  ::= "turn " ("on" | "off") " the " thing "."?    # a comment
    thing ::= "light" "s"? | [a-z]+

llguidance parses it. The Lark is written here: what llguidance makes of GBNF begins with `root` alone, and takes the
longest literal or class that fits and no other, so that `[a-z]+ "ing"` fits no text.

Source: whisper.cpp's `grammar-parser.cpp`, llama.cpp's `grammars/README.md` (`.` and `{}`).
"""

import json
import re
import sys
from collections.abc import Mapping

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleNode,
    RuleRefNode,
)

# What llguidance does not limit: rules and parentheses inside of each other, of which some thousands overflow its
# stack, and items that may be left out, which take the square of their number to build.
MAX_DEPTH = 50
MAX_OPTIONAL = 1000

_TOO_DEEP = "rules or parentheses are too deep inside of each other"

# Of these escapes the parser removes the zeros, and so where they end.
_LONG_ESCAPE = re.compile(r"\\(?:\\|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")

# What the parser leaves of literals and classes: characters, or two with a hyphen between.
_CHARACTER = re.compile(r"\\x..|\\.|.", re.DOTALL)
_RANGE = re.compile(rf"({_CHARACTER.pattern})(?:-({_CHARACTER.pattern}))?", re.DOTALL)
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}


def to_lark(text: str, root: str) -> str:
    """Return what a rule of a grammar says, with or without a space before it. Raises ValueError if it cannot be."""
    try:
        rules = GrammarParser().parse(_LONG_ESCAPE.sub(_shortened, text))
        # Without a rule that contains itself all is one regular expression, named in capitals, which is much faster.
        writer = _Writer(rules, "R")
        start, _ = writer.add(root)
        if writer.recursive:
            writer = _Writer(rules, "r")
            start, _ = writer.add(root)
    except (GbnfToLarkError, IndexError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Without forcing, any tokens may spell the text, and not only those that the tokenizer would.
    head = ['%llguidance {"no_forcing": true}', f"start: {start[0]}", f'{start[0]}: " "? {start}']
    return "\n".join([*head, *writer.lines])


class _Writer:
    """Writes rules as Lark, with all that they contain."""

    def __init__(self, rules: Mapping[str, RuleNode], letter: str) -> None:
        self._rules = rules
        self._letter = letter
        self._n_optional = 0

        # Of the rules so far: their names in Lark, and how many rules and parentheses they have inside of each other.
        self._names: dict[str, str] = {}
        self._heights: dict[str, int] = {}
        self.lines: list[str] = []

        # Whether a rule contains itself.
        self.recursive = False

    def add(self, name: str) -> tuple[str, int]:
        """Write a rule; return its name in Lark, and its height."""
        if name not in self._rules:
            raise ValueError(f"there is no rule {name!r:.60}")
        if name not in self._names:
            self._names[name] = f"{self._letter}{len(self._names)}"
            lark, self._heights[name] = self._write(self._rules[name].alternatives)
            self.lines.append(f"{self._names[name]}: {lark}")
        self.recursive |= name not in self._heights
        return self._names[name], self._heights.get(name, 0)

    def _write(self, node: ASTNode) -> tuple[str, int]:
        """Return a part of a rule in Lark, and its height."""
        match node:
            case LiteralNode():
                # One by one: llguidance takes the longest literal that fits, and tries no other.
                characters = (json.dumps(_character(spelled)) for spelled in _CHARACTER.findall(node.value))
                return f"({' '.join(characters)})" if node.value else '""', 0
            case RegexNode():
                return _class(node.rx), 0
            case RuleRefNode():
                return self.add(node.name)
            case RepetitionNode():
                self._n_optional += node.min_times == 0
                if self._n_optional > MAX_OPTIONAL:
                    raise ValueError(f"more than {MAX_OPTIONAL} items may be left out")
                lark, height = self._write(node.node)
                return f"({lark}){{{node.min_times},{'' if node.max_times is None else node.max_times}}}", height
        # A rule, and what is in parentheses, has alternatives, and these are sequences.
        parts = [self._write(child) for child in node.children()]
        height = max((height for _, height in parts), default=0)
        if not isinstance(node, AlternativeNode):
            return " ".join(lark for lark, _ in parts) or '""', height
        if height == MAX_DEPTH:
            raise ValueError(_TOO_DEEP)
        return f"({' | '.join(lark for lark, _ in parts)})", height + 1


def _class(pattern: str) -> str:
    if pattern == ".":
        return r"/[\x{0}-\x{10FFFF}]/"
    negated = pattern.startswith("[^")
    ranges = [
        rf"\x{{{ord(_character(first)):X}}}-\x{{{ord(_character(last or first)):X}}}"
        for first, last in _RANGE.findall(pattern[1 + negated : -1])
    ]
    if not ranges:
        raise ValueError(f"the class {pattern} has no characters")
    return f"/[{'^' if negated else ''}{''.join(ranges)}]/"


def _shortened(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2]
    if not digits:
        return escape[0]
    code = int(digits, 16)
    if code > sys.maxunicode or 0xD800 <= code < 0xE000:
        raise ValueError(f"there is no character {escape[0]}")
    return chr(code) if code > 0x7F else f"\\x{code:02x}"


def _character(spelled: str) -> str:
    if spelled.startswith("\\x"):
        return chr(int(spelled[2:], 16))
    return _ESCAPES.get(spelled, spelled[-1])
