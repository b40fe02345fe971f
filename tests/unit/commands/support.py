"""What the tests of commands share: a console that can be read, and histories."""

import contextlib
import io
import threading
from pathlib import Path

from rich.console import Console

from streamer.arrays import Float32Array
from streamer.engine.journal import Journal
from streamer.events import Event, Gap
from streamer.history.writer import History
from tests.builders import final, ready
from tests.waiting import WAIT_S


class Paper(Console):
    """A console that is read afterwards."""

    def __init__(self, width: int = 200) -> None:
        super().__init__(file=io.StringIO(), width=width)

    @property
    def text(self) -> str:
        assert isinstance(self.file, io.StringIO)
        return self.file.getvalue()

    def rows(self) -> dict[str, list[str]]:
        """Return the cells of the tables' rows behind the first, by the first."""
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in self.text.splitlines() if "│" in line]
        return {cells[0]: cells[1:] for cells in rows}


def keep(path: Path, name: str, *events: Event, audio: tuple[int, Float32Array] | None = None) -> None:
    """Write a session into a history; `audio` is the position in samples of samples that are kept, too."""
    with contextlib.closing(History(path, audio=audio is not None)) as history:
        log = Journal(name, 100, keep=history.keeper(source="mic"))
        log.append(ready())
        if audio is not None:
            wait_published(log)
            history.audio_keeper(name)(*audio)
        for event in events:
            log.append(event)
        log.close()


def wait_published(log: Journal) -> None:
    """Wait until all that was appended is in the history."""
    done = threading.Event()
    log.call_behind(done.set)
    assert done.wait(WAIT_S)


def keep_mornings(path: Path, *names: str) -> None:
    """Write sessions of two sentences with a gap between them."""
    for name in names:
        first, last = final(f"Good morning from {name}", start=61.0), final("a good day", start=80.0, segment=1)
        keep(path, name, first, Gap(start=70.0, end=71.5, reason="overload"), last)
