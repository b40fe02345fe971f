"""Small files of a model, whole and broken."""

import os
from pathlib import Path

import pytest

from streamer.errors import ModelError
from streamer.whisper.files import MAX_JSON_BYTES, read_json


def test_an_object(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": "\N{SNOWMAN}"}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"a": "\N{SNOWMAN}"}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is not JSON"),
        (b"[1]", "holds a JSON list"),
        (b"\xff\xfe", "is no text"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * (MAX_JSON_BYTES + 1), "has more than 4 MiB"),
    ],
    ids=["empty", "list", "not utf-8", "deep", "long"],
)
def test_what_is_no_object(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ModelError, match=f"x.json {part}"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["none", "none/none", "a\0b"])
def test_a_file_that_is_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"is missing: a model directory holds config\.json"):
        read_json(tmp_path / name)


def test_a_directory_and_a_pipe(tmp_path: Path) -> None:
    paths = [tmp_path]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        paths.append(tmp_path / "pipe")
    for path in paths:
        with pytest.raises(ModelError, match="is no file"):
            read_json(path)
