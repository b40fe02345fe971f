"""Disks and other programs that keep a history from writing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """The connections with which histories write; they fail on demand, as on a full disk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writing: sqlite3.Connection | None = None
        self._connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", self._opened)

    def _opened(self, name: str | Path, *args: Any, **options: Any) -> sqlite3.Connection:  # noqa: ANN401
        connection: sqlite3.Connection = self._connect(name, *args, **options)
        if self.writing is None and "history.db?" in str(name):
            self.writing = connection
        return connection

    def execute(self, statement: str) -> None:
        assert self.writing is not None
        self.writing.execute(statement)

    def fail(self, failing: bool) -> None:
        assert self.writing is not None
        self.writing.set_authorizer((lambda *_: sqlite3.SQLITE_DENY) if failing else None)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a history's file as another program would, for a block."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")
