"""A history for the tests of what keeps, reads and sends it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streamer.history import history as history_module
from streamer.history.history import History
from tests.wire.support import WAIT_S


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """Return a history that publishes nothing before it is in the file, however slow the disk is."""
    monkeypatch.setattr(history_module, "PUBLISH_TIMEOUT_S", WAIT_S)
    with closing(History(tmp_path / "data" / "history.db").start()) as opened:
        yield opened
