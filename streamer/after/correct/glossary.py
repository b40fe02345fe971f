"""Terms as they are to be spelled, as a YAML file names them (docs/streaming.md)."""

import unicodedata
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import yaml

from streamer.errors import ConfigError
from streamer.languages import LANGUAGE_NAMES, code_of
from streamer.outside import printable

MAX_LENGTH = 200  # characters of a spelling
MAX_WORDS = 8  # of one

_FILE = "expected a YAML list of terms, each a line such as `- Grafana`"
_ENTRY = "expected text, or the keys {term, aliases, language, kind}, {find, replace} or {mask}"

# Keys of which the value may be a list.
_LISTS = ("aliases", "find", "mask")

# The C parser reads ten thousand terms ten times as fast, and limits how deeply lists are nested.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Form(Enum):
    """What a term is, and so how it is found and written."""

    NAME = auto()
    WORD = auto()  # has a capital if the words that it replaces have one
    EXACT = auto()  # only by its very spellings
    REPLACED = auto()  # likewise, and with a capital as a word
    MASKED = auto()


@dataclass(frozen=True, slots=True)
class Term:
    """What is to be written for any of some spellings."""

    text: str
    spellings: tuple[str, ...]
    form: Form = Form.NAME
    language: str = ""


_KINDS = {"name": Form.NAME, "word": Form.WORD, "acronym": Form.EXACT}


def read_terms(path: Path) -> list[Term]:
    """Read the terms of a file. Raises ConfigError, with the line, if it is missing or is no glossary."""
    terms: list[Term] = []
    for node in _read_list(path):
        line = node.start_mark.line + 1
        try:
            terms.append(_term(_texts(node)))
        except (ValueError, ConfigError) as error:
            raise ConfigError(f"{path}:{line}: {error}") from None
    return terms


def _read_list(path: Path) -> list[yaml.Node]:
    """Return the nodes of a file's list. Raises ConfigError."""
    try:
        text = unicodedata.normalize("NFC", path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read glossary {path} ({reason}): {_FILE}, in UTF-8") from None
    try:
        root = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        reason = problem or " ".join(str(error).split())
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: invalid YAML ({reason}): {_FILE}") from None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return []  # nothing but comments
    if not isinstance(root, yaml.SequenceNode):
        raise ConfigError(f"{path}:{root.start_mark.line + 1}: not a list: {_FILE}")
    nodes: list[yaml.Node] = root.value
    return nodes


def _texts(entry: yaml.Node) -> dict[str, tuple[str, ...]]:
    """Return the texts of an entry by their keys. Raises ValueError."""
    if isinstance(entry, yaml.ScalarNode):
        return {"term": (_text("term", entry),)}
    if not isinstance(entry, yaml.MappingNode):
        raise ValueError(f"found a list: {_ENTRY}")
    found: dict[str, tuple[str, ...]] = {}
    for key_node, node in entry.value:
        key = printable(str(key_node.value))[:60]
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if key in found:
            raise ValueError(f"`{key}` is set twice in one entry: expected once; delete one")
        if not items or (len(items) > 1 and key not in _LISTS):
            raise ValueError(
                f"`{key}` has no value or several: expected one text" + " or a list of texts" * (key in _LISTS)
            )
        found[key] = tuple(_text(key, item) for item in items)
    return found


def _text(key: str, node: yaml.Node) -> str:
    value = node.value if isinstance(node, yaml.ScalarNode) else ""
    if not value.strip():
        raise ValueError(
            f"`{key}` is empty or not a text: expected words; put them in quotation marks if they contain `: ` or ` #`"
        )
    if len(value) > MAX_LENGTH or len(value.split()) > MAX_WORDS or not value.isprintable():
        raise ValueError(
            f"`{key}` is {value!r:.60}: expected printable text of up to {MAX_WORDS} words and {MAX_LENGTH} characters"
        )
    return str(value)


def _term(said: dict[str, tuple[str, ...]]) -> Term:
    """Return the term of an entry. Raises ValueError."""
    if said.keys() == {"mask"}:
        return Term("", said["mask"], Form.MASKED)
    if said.keys() == {"find", "replace"}:
        return Term(said["replace"][0], said["find"], Form.REPLACED)
    if not {"term"} <= said.keys() <= {"term", "aliases", "language", "kind"}:
        raise ValueError(f"found the keys {{{', '.join(sorted(said))}}}: {_ENTRY}")
    (term,), (kind,), (language,) = said["term"], said.get("kind", ("name",)), said.get("language", ("",))
    if kind not in _KINDS:
        raise ValueError(f"`kind` is {kind!r:.60}: expected name, word or acronym")
    code = code_of(language, "`language`") if language else ""
    if code and code not in LANGUAGE_NAMES:
        raise ValueError(f"`language` is {language!r:.60}: expected a language's code or name, such as de or german")
    return Term(term, (term, *said.get("aliases", ())), _KINDS[kind], code)
