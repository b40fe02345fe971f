import json
import os
from pathlib import Path

import numpy as np
import pytest

from streamer.after.speakers.enrolled import enrol, forget, path_of, read_enrolled
from streamer.errors import ConfigError, UsageError
from tests.unit.after.speakers.voices import heard, voice


def test_people_are_read_as_they_were_enrolled_until_they_are_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    assert read_enrolled(folder) == {}
    enrol(folder, "Zoë", heard({3: 1.0}))
    enrol(folder, "Anna", voice(1))
    enrol(folder, "Anna", voice(2))
    found = read_enrolled(folder)
    assert list(found) == ["Anna", "Zoë"]
    np.testing.assert_array_equal(found["Anna"], voice(2))
    np.testing.assert_allclose(found["Zoë"], heard({3: 1.0}), atol=1e-6)
    forget(folder, "Anna")
    assert list(read_enrolled(folder)) == ["Zoë"]
    with pytest.raises(UsageError, match="`streamer speakers list`"):
        forget(folder, "Anna")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "CON", ".", "x" * 60, "名前"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "voices"
    enrol(folder, name, voice(1))
    assert list(read_enrolled(folder)) == [name]
    assert [path.parent for path in tmp_path.rglob("*.json")] == [folder]


@pytest.mark.parametrize("name", ["", " ", "S1", "S23", "x" * 61, "a\nb", "\x1b[31m", " Anna", "\ud800"])
def test_what_cannot_be_a_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="speaker's name"):
        enrol(tmp_path, name, voice(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_nobody_else_may_read_a_voice(tmp_path: Path) -> None:
    enrol(tmp_path, "Anna", voice(1))
    assert path_of(tmp_path, "Anna").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "change",
    [
        {"vector": [0.1] * 191},
        {"vector": [0.0] * 192},
        {"vector": ["x"] * 192},
        {"vector": [1e300] * 192},
        {"name": "Bert"},
        {"name": "\x1b[31m"},
        {"model": "of another"},
        {"model": None},
    ],
)
def test_a_damaged_file_is_one_line_that_says_which(tmp_path: Path, change: dict[str, object]) -> None:
    enrol(tmp_path, "Anna", voice(1))
    path = path_of(tmp_path, "Anna")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}), encoding="utf-8")
    with pytest.raises(ConfigError, match=path.name) as caught:
        read_enrolled(tmp_path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"{}"])
def test_so_is_one_that_is_no_such_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.voice.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.voice\.json"):
        read_enrolled(tmp_path)
