"""Terms as they are to be spelled, as a YAML file names them (docs/correction.md)."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from streamer.errors import ConfigError
from streamer.languages import LANGUAGE_NAMES, code_of
from streamer.outside import printable

# Ten thousand terms, each with some aliases, take less than a mebibyte.
MAX_BYTES = 4 << 20
MAX_SPELLINGS = 50_000
MAX_LENGTH = 200  # characters of a spelling
MAX_WORDS = 8  # of one

_KEYS = ({"term", "aliases", "language", "kind"}, {"find", "replace"}, {"mask"})
_ENTRY = "text, or one of {term, aliases, language, kind}, {find, replace} and {mask}"

# The C parser reads ten thousand terms ten times as fast. Only its events are taken: what it composes may overflow.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Form(Enum):
    """What a term is, and so how it is found and written."""

    NAME = auto()
    WORD = auto()  # has a capital where what was heard has one
    EXACT = auto()  # only by its very spellings
    REPLACED = auto()  # likewise, and with a capital as a word
    MASKED = auto()


@dataclass(frozen=True, slots=True)
class Term:
    """What is to be written where one of some spellings is meant."""

    text: str
    spellings: tuple[str, ...]
    form: Form = Form.NAME
    language: str = ""


_KINDS = {"": Form.NAME, "name": Form.NAME, "word": Form.WORD, "acronym": Form.EXACT}


def read_terms(path: Path) -> list[Term]:
    """Read the terms of a file. Raises ConfigError, with the line, where it is missing or is no glossary."""
    terms: list[Term] = []
    n_spellings = 0
    for line, entry in _read_entries(path):
        try:
            terms.append(_term(entry))
        except ValueError as error:
            raise ConfigError(f"{path}:{line}: {error}") from None
        n_spellings += len(terms[-1].spellings)
        if n_spellings > MAX_SPELLINGS:
            raise ConfigError(f"{path}:{line}: over {MAX_SPELLINGS} spellings: expected fewer; leave some out")
    return terms


def _term(entry: object) -> Term:
    """Return what an entry says. Raises ValueError where that cannot be."""
    if isinstance(entry, str):
        return Term(_checked("term", entry), (entry,))
    if not isinstance(entry, dict) or not any(entry.keys() <= keys for keys in _KEYS):
        raise ValueError(f"found {'other keys' if isinstance(entry, dict) else 'a list'}: expected {_ENTRY}")
    said = {key: [value] if isinstance(value, str) else value for key, value in entry.items()}
    for key, values in said.items():
        if not isinstance(values, list) or not values or (len(values) > 1 and key not in ("aliases", "find", "mask")):
            raise ValueError(f"`{key}` has no value or several: expected text" + " or a list of it" * (key[0] in "afm"))
        for value in values:
            _checked(key, value)
    if "mask" in said:
        return Term("", tuple(said["mask"]), Form.MASKED)
    if "find" in said and "replace" in said:
        return Term(said["replace"][0], tuple(said["find"]), Form.REPLACED)
    if "term" not in said:
        raise ValueError(f"found only {', '.join(sorted(said))}: expected {_ENTRY}; add what is missing")
    term, kind = said["term"][0], said.get("kind", [""])[0]
    language = code_of(said.get("language", [""])[0])
    if kind not in _KINDS:
        raise ValueError(f"`kind` is {kind!r:.60}: expected name, word or acronym")
    if language and language not in LANGUAGE_NAMES:
        raise ValueError(f"`language` is {language!r:.60}: expected a language's code or name, such as de or german")
    return Term(term, (term, *said.get("aliases", ())), _KINDS[kind], language)


def _checked(key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{key}` is no text: expected words; in quotation marks where they hold `: ` or ` #`")
    if len(value) > MAX_LENGTH or len(value.split()) > MAX_WORDS or not value.isprintable():
        raise ValueError(
            f"`{key}` is {value!r:.60}: expected printable text of up to {MAX_WORDS} words and {MAX_LENGTH} characters"
        )
    return value


def _read_entries(path: Path) -> Iterator[tuple[int, object]]:
    """Yield each entry's line and what it holds: text, a list of it, or a mapping to these."""
    expected = "expected a YAML list of terms, each a line such as `- Grafana`"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"glossary {path} is larger than {MAX_BYTES} bytes: {expected}; shorten it")
        text = unicodedata.normalize("NFC", data.decode("utf-8-sig"))
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a name with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"glossary {path} cannot be read ({reason}): {expected}, in UTF-8") from None
    line = 1
    try:
        events = yaml.parse(text, Loader=_Loader)
        opened = list(islice(events, 3))
        if len(opened) < 3 or (isinstance(opened[2], yaml.ScalarEvent) and not opened[2].value):
            return  # nothing but comments
        line = _line(opened[2])
        if not isinstance(opened[2], yaml.SequenceStartEvent):
            raise ConfigError(f"{path}:{line}: this is no list: {expected}")
        for event in events:
            line = _line(event)
            if isinstance(event, yaml.SequenceEndEvent):
                break
            yield line, _value(event, events, depth=2)
        if len(list(islice(events, 3))) > 2:
            raise ConfigError(f"{path}:{line}: a second document (`---`) begins behind this: {expected}")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else line
        raise ConfigError(f"{path}:{line}: this is not YAML ({error.problem}): {expected}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}:{line}: {' '.join(str(error).split())}: {expected}") from None


def _value(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> object:
    """Return what begins with an event. Raises ValueError where that is an alias, or nested too deeply."""
    if isinstance(event, yaml.ScalarEvent):
        return str(event.value)
    if depth and isinstance(event, yaml.SequenceStartEvent):
        return [_value(item, events, depth=0) for item in _until(yaml.SequenceEndEvent, events)]
    if depth == 2 and isinstance(event, yaml.MappingStartEvent):
        found: dict[str, object] = {}
        for key in _until(yaml.MappingEndEvent, events):
            name = str(_value(key, events, depth=0))
            if name in found:
                raise ValueError(f"`{printable(name):.60}` is set twice in one entry")
            found[name] = _value(next(events), events, depth=1)
        return found
    raise ValueError(f"found {'an alias (*)' if isinstance(event, yaml.AliasEvent) else 'lists or keys within others'}")


def _until(end: type[yaml.Event], events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    for event in events:
        if isinstance(event, end):
            return
        yield event


def _line(event: yaml.Event) -> int:
    return 1 + (event.start_mark.line if event.start_mark is not None else 0)
