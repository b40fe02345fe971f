"""Which text is typed: stable text alone, between the answers to two `flush`, with the spaces that it needs."""

import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.plugins.dictation.dictation import Dictation, typeable
from tests.builders import final, partial
from tests.unit.outputs.finals import read_events

PATH = Path(__file__).parents[2] / "golden" / "dictation.toml"
ROWS = tomllib.loads(PATH.read_text(encoding="utf-8"))["dictation"]


def typed(rows: list[dict[str, Any]], *, finals: bool) -> str:
    dictation = Dictation(finals=finals)
    text = ""
    for row in rows:
        if "expect" in row:
            dictation.expect(on=row["expect"])
        else:
            text += "".join(map(dictation.handle, read_events([row])))
    return text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_text_is_typed_as_it_was_read(row: dict[str, Any]) -> None:
    assert typed(row["events"], finals=False) == row["typed"]
    if "finals" in row:
        assert typed(row["events"], finals=True) == row["finals"]


def test_what_is_stable_before_it_begins_at_once_is_not_typed() -> None:
    dictation = Dictation(finals=False)
    dictation.handle(partial("Said before", 4, segment=1))
    dictation.expect(on=True)
    dictation.settle()
    assert dictation.handle(final("Said before this.", segment=1)) == "before this."


@given(st.text())
def test_no_control_character_is_typed(text: str) -> None:
    assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs") for char in typeable(text))
