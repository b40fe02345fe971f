"""What a glossary's file says, and how it is refused."""

import re
from pathlib import Path

import pytest

from streamer.after.correct.glossary import Form, Term, read_terms
from streamer.after.correct.spelling import Glossary
from streamer.errors import ConfigError


def read(folder: Path, text: str) -> list[Term]:
    path = folder / "terms.yaml"
    path.write_text(text, encoding="utf-8")
    return read_terms(path)


def test_each_kind_of_entry_is_read(tmp_path: Path) -> None:
    text = """
# names
- Katarzyna Wróbel
- 007
- {term: "C++", aliases: see plus plus, kind: acronym}
- term: Gradle
  aliases: [grey dull, great all]
  language: German
  kind: word
- {find: [grey, greyish], replace: gray}
- {mask: damn}
"""
    assert read(tmp_path, text) == [
        Term("Katarzyna Wróbel", ("Katarzyna Wróbel",)),
        Term("007", ("007",)),
        Term("C++", ("C++", "see plus plus"), Form.EXACT),
        Term("Gradle", ("Gradle", "grey dull", "great all"), Form.WORD, "de"),
        Term("gray", ("grey", "greyish"), Form.REPLACED),
        Term("", ("damn",), Form.MASKED),
    ]
    assert read(tmp_path, "# nothing yet\n") == read(tmp_path, "") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n- 'b", ":2: this is not YAML"),
        ("terms: [a]", ":1: this is no list"),
        ("- a\n- [b]", ":2: found a list: expected text, or one of"),
        ("- {find: a}", ":1: found find: expected text, or one of"),
        ("- {aliases: a}", ":1: found aliases: expected"),
        ("- {term: a, mask: b}", ":1: found mask, term: expected"),
        ("- {term: a, sort: b}", ":1: found sort, term: expected"),
        ("- {term: a, term: b}", ":1: `term` is set twice"),
        ("- {term: [a, b]}", ":1: `term` has no value or several"),
        ("- {term: a, aliases: []}", ":1: `aliases` has no value or several"),
        ("- {term: a, aliases: {b: c}}", ":1: `aliases` is no text"),
        ("- {term: }", ":1: `term` is no text"),
        ("- ''", ":1: `term` is no text"),
        ('- "a\\x1b[2J"', ":1: `term` is 'a\\x1b[2J': expected printable text"),
        ("- one two three four five six seven eight nine", "up to 8 words"),
        ("- {term: a, language: klingon}", "`language` is 'klingon'"),
        ("- {term: a, kind: verb}", "`kind` is 'verb': expected name, word or acronym"),
        ("- {term: a, aliases: &a [*a]}", ":1: `aliases` is no text"),
        ("- a\n---\n- b", ":2: this is not YAML (but found another document)"),
        ("[" * 100_000, ":1: "),
        ("- !!python/object/apply:os.abort []", ":1: found a list"),
    ],
)
def test_what_is_no_glossary_is_refused_in_a_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        read(tmp_path, text)
    assert "terms.yaml" in str(refused.value)
    assert "expected" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "- {find: a, replace: b}\n- {find: b, replace: a}",  # round and round
        "- {find: a, replace: b}\n- {find: b, replace: c}",
        "- {term: Anna, aliases: [an a]}\n- {find: an a, replace: any}",
        "- Redis\n- REDIS",
    ],
)
def test_a_spelling_stands_for_one_thing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"terms\.yaml: '.*' stands for '.*' and for '.*': expected one"):
        Glossary(path, lambda word: False)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("- Wróbel".encode("latin-1"))
    for path in (tmp_path / "none.yaml", tmp_path / "latin.yaml", tmp_path, Path("a\0b")):
        with pytest.raises(ConfigError, match=r"cannot be read .*expected a YAML list"):
            read_terms(path)
