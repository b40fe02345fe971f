"""People who are known by name; what is refused of their names and files: tests/golden/refusals/after.toml."""

import os
from pathlib import Path

import numpy as np
import pytest

from streamer.after.speakers.enrolled import enrol, enrolled_folder, forget, path_of, read_enrolled
from tests.unit.after.speakers.voices import heard, voice


def test_people_are_read_as_they_were_enrolled_until_they_are_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    assert read_enrolled(folder) == {}
    for name, vector in (("Zoë", heard({3: 1.0})), ("Anna", voice(1)), ("Anna", voice(2))):
        enrol(folder, name, vector)
    found = read_enrolled(folder)
    assert list(found) == ["Anna", "Zoë"]
    np.testing.assert_array_equal(found["Anna"], voice(2))
    np.testing.assert_allclose(found["Zoë"], heard({3: 1.0}), atol=1e-6)
    forget(folder, "Anna")
    assert list(read_enrolled(folder)) == ["Zoë"]
    assert len(list(folder.iterdir())) == 1, "nothing is left of what was replaced"


def test_the_folder_is_the_one_that_is_named_or_the_users(tmp_path: Path) -> None:
    assert enrolled_folder(str(tmp_path)) == tmp_path
    assert enrolled_folder("~/voices") == Path.home() / "voices"
    assert (enrolled_folder("").name, enrolled_folder("").is_absolute()) == ("voices", True)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "CON", ".", "x" * 60, "名前"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "voices"
    enrol(folder, name, voice(1))
    assert list(read_enrolled(folder)) == [name]
    assert [path.parent for path in tmp_path.rglob("*.json")] == [folder]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_no_other_user_may_read_a_voice(tmp_path: Path) -> None:
    enrol(tmp_path, "Anna", voice(1))
    assert path_of(tmp_path, "Anna").stat().st_mode & 0o077 == 0
