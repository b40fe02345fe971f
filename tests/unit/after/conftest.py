"""What tests of post-processing share."""

from types import SimpleNamespace

import pytest

from streamer.after import queues, translation
from streamer.after.correct import pipeline
from tests.fakes import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all deadlines, moved by hand."""
    clock = Clock()
    for module in (queues, translation, pipeline):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock
