"""What a glossary's file says; how it is refused: tests/golden/refusals/after.toml."""

from pathlib import Path

from streamer.after.correct.glossary import Form, Term, read_terms

TEXT = """
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


def test_each_kind_of_entry_is_read(tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(TEXT, encoding="utf-8")
    assert read_terms(path) == [
        Term("Katarzyna Wróbel", ("Katarzyna Wróbel",)),
        Term("007", ("007",)),
        Term("C++", ("C++", "see plus plus"), Form.EXACT),
        Term("Gradle", ("Gradle", "grey dull", "great all"), Form.WORD, "de"),
        Term("gray", ("grey", "greyish"), Form.REPLACED),
        Term("", ("damn",), Form.MASKED),
    ]
    for empty in ("# nothing yet\n", "", "''"):
        path.write_text(empty, encoding="utf-8")
        assert read_terms(path) == []
