"""Small files that are read, and those that are refused."""

import os
from pathlib import Path

import pytest

from streamer.errors import ModelError
from streamer.whisper.files import MAX_JSON_BYTES, read_json


@pytest.mark.parametrize("name", ["none", "none/none", "a\0b", "x" * 5000, ".", "pipe", "latin-1", "long"])
def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "latin-1").write_bytes(b'{"a": "\xe4"}')
    (tmp_path / "long").write_bytes(b"{}" + b" " * (MAX_JSON_BYTES - 1))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError):
        read_json(tmp_path / name)


def test_the_longest_file_that_can_be_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes('{"a": "\N{SNOWMAN}"}'.encode().ljust(MAX_JSON_BYTES))
    assert read_json(tmp_path / "x.json") == {"a": "\N{SNOWMAN}"}
