"""A lock that one process holds at a time."""

import sqlite3
from pathlib import Path

import pytest

from streamer.lock import LockedError, locked


def test_it_is_held_once_and_free_again(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        with pytest.raises(LockedError), locked(tmp_path / "lock"):
            raise AssertionError
        with locked(tmp_path / "other"):
            pass
    with locked(tmp_path / "lock"):
        pass


def test_what_is_no_database_is_not_taken_for_locked(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"text" * 1000)
    with pytest.raises(sqlite3.DatabaseError), locked(tmp_path / "lock"):
        raise AssertionError
