"""What files and the terminal make of events: the conversations of `tests/golden/captions.toml`."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from streamer.outputs.subtitles import FORMATS
from tests.unit.outputs.finals import read_events, written
from tests.unit.outputs.screen import Screen, show

PATH = Path(__file__).parents[2] / "golden" / "captions.toml"
ROWS = tomllib.loads(PATH.read_text(encoding="utf-8"))["captions"]


def caption_forms(row: dict[str, Any]) -> dict[str, Any]:
    """Return what each format of a row, and the screen, has of its events."""
    events = read_events(row["events"])
    found: dict[str, Any] = {
        format: written(format, events, **row.get("options", {})) for format in FORMATS if format in row
    }
    if "screen" in row:
        screen = Screen(row.get("width", 40), row.get("height", 12))
        shown = show(*events, screen=screen, close=not row.get("open"), corrections=row.get("corrections", False))
        found["screen"] = shown.lines()
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_captions_are_as_they_were_read(row: dict[str, Any]) -> None:
    found = caption_forms(row)
    assert found
    assert found == {form: row[form] for form in found}
