"""A history for the tests of what keeps, reads and sends it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from streamer.engine.journal import Journal
from streamer.events import Event, Gap
from streamer.history import writer
from streamer.history.writer import History
from tests.builders import final, ready
from tests.waiting import WAIT_S
from tests.wire.harness import wait_published


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """Return a history that publishes nothing before it is in the file, however slow the disk is."""
    monkeypatch.setattr(writer, "PUBLISH_TIMEOUT_S", WAIT_S)
    with closing(History(tmp_path / "data" / "history.db")) as opened:
        yield opened


def keep(history: History, session: str, *texts: str, own: bool = True, end: bool = True) -> Sequence[Event]:
    """Keep a session with a text every 3 s and a gap, and return its events."""
    log = Journal(session, 1000, keep=history.keeper(source="mic", own=own))
    events: list[Event] = [log.append(ready())]
    events += [log.append(final(text, start=3.0 * i, segment=i)) for i, text in enumerate(texts)]
    events.append(log.append(Gap(start=90.0, end=91.5, reason="overload")))
    if end:
        log.close()
    wait_published(log)
    return events
