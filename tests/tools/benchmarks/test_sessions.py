"""How many sessions are kept, found by trying."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from streamer.errors import StreamerError
from tests.tools.benchmarks.played import Shows, write_corpus
from tools.benchmarks import sessions
from tools.benchmarks.playing import Samples
from tools.benchmarks.recordings import find
from tools.benchmarks.sessions import Session, largest, measure_sessions
from tools.benchmarks.text import plain
from tools.benchmarks.timeline import Timeline


@pytest.mark.parametrize(
    ("bearable", "most"), [(0, 64), (1, 64), (2, 64), (5, 64), (7, 64), (8, 64), (99, 20), (20, 20)]
)
def test_the_largest_number_is_found_in_few_steps(bearable: int, most: int) -> None:
    tried: list[int] = []

    def keeps(n: int) -> bool:
        tried.append(n)
        return n <= bearable

    assert largest(keeps, most) == min(bearable, most)
    assert len(tried) == len(set(tried)) <= 10


def test_a_session_is_kept_while_its_words_come_soon_and_are_there() -> None:
    assert Session(2.9, 0.9).kept(share_alone=1.0)
    assert not Session(3.1, 0.9).kept(share_alone=1.0)
    assert not Session(0.5, 0.7).kept(share_alone=1.0)
    assert not Session(None, 0.0).kept(share_alone=0.0)
    assert not Session(0.5, 1.0, "refused").kept(share_alone=1.0)


class Bears(Shows):
    """Refuses clients beyond some."""

    def __init__(self, n_clients: int) -> None:
        super().__init__("streamer")
        self._n_clients = n_clients

    def stream(self, recording: str, samples: Samples) -> Timeline:
        if int(recording.rpartition(" ")[2]) >= self._n_clients:
            raise StreamerError("no room")
        return super().stream(recording, samples)


def test_clients_are_added_until_one_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "APART_S", 0.0)
    write_corpus(tmp_path)
    recordings = find(tmp_path, ["spoken"])
    system = Bears(3)
    to = Console(file=io.StringIO(), width=200)
    figures = measure_sessions(system, recordings, plain, to)
    assert figures["sessions"] == 3
    assert system.stopped
    assert isinstance(to.file, io.StringIO)
    assert "4 at once, 3 kept" in to.file.getvalue()
    assert "no room" in to.file.getvalue()
