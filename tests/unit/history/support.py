"""Disks and other programs that keep a history from writing."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest


class Disk:
    """The connection with which a history writes; it fails on demand, as on a full disk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writing: sqlite3.Connection | None = None
        self.failing = False
        self._connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", self._opened)

    def _opened(self, name: str | Path, *args: Any, **options: Any) -> sqlite3.Connection:  # noqa: ANN401
        if self.writing is not None or "history.db?" not in str(name):
            return cast(sqlite3.Connection, self._connect(name, *args, **options))
        # Statements that are cached would not be asked for again.
        self.writing = self._connect(name, *args, cached_statements=0, **options)
        self.writing.set_authorizer(lambda *_: sqlite3.SQLITE_DENY if self.failing else sqlite3.SQLITE_OK)
        return self.writing

    def execute(self, statement: str) -> None:
        assert self.writing is not None
        self.writing.execute(statement)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a history's file as another program would, for a block."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")
