"""The golden file of refusals: what it compares, and how it is written anew."""

from dataclasses import replace
from pathlib import Path

import pytest

from streamer.errors import ConfigError
from tests import refusals

ROWS = """# Kept.

[[refusal]]
name = "first"
given = 1
error = "ConfigError"
says = "old"

[[refusal]]
name = "second"
given = [2]
error = "ConfigError"
"""


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(refusals, "ROWS", tmp_path)
    (tmp_path / "room.toml").write_text(ROWS, encoding="utf-8")
    return tmp_path / "room.toml"


def refuse(row: refusals.Refusal, error: Exception, folder: Path) -> None:
    with row.expected(folder):
        raise error


def test_another_sentence_or_class_is_noticed(tmp_path: Path) -> None:
    first = refusals.rows("room")[0]
    for error in (ConfigError("new"), ValueError("old")):
        with pytest.raises(AssertionError):
            refuse(first, error, tmp_path)


def test_sentences_are_written_where_they_stand(room: Path, tmp_path: Path) -> None:
    for row in refusals.rows("room"):
        refuse(replace(row, rewrite=True), ConfigError(f'say "{row.name}" of {tmp_path}/a'), tmp_path)
    lines = ['code = "config"', 'says = "say \\"first\\" of DIR/a"']
    second = [*ROWS.splitlines()[8:], lines[0], lines[1].replace("first", "second")]
    assert room.read_text(encoding="utf-8").splitlines() == [*ROWS.splitlines()[:6], *lines, "", *second]
    for row in refusals.rows("room"):
        refuse(row, ConfigError(f'say "{row.name}" of {tmp_path}/a'), tmp_path)
