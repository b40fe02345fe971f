r"""GBNF, the format of grammars that whisper.cpp and llama.cpp read, as a grammar in llguidance's Lark.

    root  ::= "turn " ("on" | "off") " the " thing "."?    # a comment
    thing ::= "light" "s"? | [a-z]+

llguidance parses it. The Lark is written here: llguidance's own takes the longest literal or class that fits and no
other, so that `[a-z]+ "ing"` fits no text.

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

# The parser drops the leading zeros of these escapes, so that their end is unknown.
_LONG_ESCAPE = re.compile(r"\\(?:\\|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")

# Parsed literals and classes consist of characters, or of two with a hyphen between.
_CHARACTER = re.compile(r"\\x..|\\.|.", re.DOTALL)
_RANGE = re.compile(rf"({_CHARACTER.pattern})(?:-({_CHARACTER.pattern}))?", re.DOTALL)
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}


def to_lark(text: str, root: str) -> str:
    """Return a grammar for the text of a rule, with or without a space before it. Raises ValueError."""
    try:
        rules = GrammarParser().parse(_LONG_ESCAPE.sub(_short_escape, text))
        # Named in capitals, rules are one regular expression, which is much faster, unless a rule contains itself.
        writer = _Writer(rules, "R")
        start = writer.add(root)
        if writer.recursive:
            writer = _Writer(rules, "r")
            start = writer.add(root)
    except (GbnfToLarkError, IndexError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("rules or parentheses are nested too deep") from None
    # Without forcing, any tokens may spell the text, and not only those that the tokenizer would.
    head = ['%llguidance {"no_forcing": true}', f"start: {start[0]}", f'{start[0]}: " "? {start}']
    return "\n".join([*head, *writer.lines])


class _Writer:
    """Writes rules as Lark, with all that they contain."""

    def __init__(self, rules: Mapping[str, RuleNode], letter: str) -> None:
        self._rules = rules
        self._letter = letter
        # Names in Lark, and of those rules that are not complete yet.
        self._names: dict[str, str] = {}
        self._open: set[str] = set()
        self.lines: list[str] = []
        self.recursive = False

    def add(self, name: str) -> str:
        """Write a rule, and return its name in Lark."""
        if name not in self._rules:
            raise ValueError(f"rule {name!r:.60} is missing")
        self.recursive |= name in self._open
        if name not in self._names:
            self._names[name] = f"{self._letter}{len(self._names)}"
            self._open.add(name)
            self.lines.append(f"{self._names[name]}: {self._write(self._rules[name].alternatives)}")
            self._open.remove(name)
        return self._names[name]

    def _write(self, node: ASTNode) -> str:
        match node:
            case LiteralNode():
                # One by one: llguidance takes the longest literal that fits, and tries no other.
                characters = (json.dumps(_character(spelled)) for spelled in _CHARACTER.findall(node.value))
                return f"({' '.join(characters)})" if node.value else '""'
            case RegexNode():
                return _class(node.rx)
            case RuleRefNode():
                return self.add(node.name)
            case RepetitionNode():
                most = "" if node.max_times is None else node.max_times
                return f"({self._write(node.node)}){{{node.min_times},{most}}}"
            case AlternativeNode():
                return f"({' | '.join([self._write(child) for child in node.children()])})"
        return " ".join([self._write(child) for child in node.children()]) or '""'


def _class(pattern: str) -> str:
    if pattern == ".":
        return r"/[\x{0}-\x{10FFFF}]/"
    negated = pattern.startswith("[^")
    ranges = [
        rf"\x{{{ord(_character(first)):X}}}-\x{{{ord(_character(last or first)):X}}}"
        for first, last in _RANGE.findall(pattern[1 + negated : -1])
    ]
    if not ranges:
        raise ValueError(f"the class {pattern} is empty")
    return f"/[{'^' if negated else ''}{''.join(ranges)}]/"


def _short_escape(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2]
    if not digits:
        return escape[0]
    code = int(digits, 16)
    if code > sys.maxunicode or 0xD800 <= code < 0xE000:
        raise ValueError(f"{escape[0]} is not a character")
    return chr(code) if code > 0x7F else f"\\x{code:02x}"


def _character(spelled: str) -> str:
    return chr(int(spelled[2:], 16)) if spelled.startswith("\\x") else _ESCAPES.get(spelled, spelled[-1])
