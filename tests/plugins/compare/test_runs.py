"""What is made of the output of a process that ends too early."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.events import End, Event, Final, Ready
from streamer.plugins.compare import runs
from streamer.plugins.compare.runs import Runs, played, transcribed
from tests.builders import final

PATHS = [Path("a.wav"), Path("b.wav")]


def ready() -> Ready:
    return Ready(model="m", device={}, sample_rate=16_000, language="en")


def said() -> Final:
    return final("Yes.", end=1.0)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> "Program":
    return Program(monkeypatch)


class Program:
    """Stands in for the program."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def does(self, *events: Event, error: str = "", exit_code: int) -> None:
        """Let it write events and an error, and end."""
        output = "".join(event.to_json() + "\n" for event in events)
        code = f"import os; os.write(1, {output.encode()!r}); os.write(2, {error.encode()!r}); os._exit({exit_code})"
        self._monkeypatch.setattr(runs, "PROGRAM", (sys.executable, "-c", code))


def test_what_was_done_before_the_process_died_is_kept(program: Program) -> None:
    program.does(ready(), said(), End(time=2.0), ready(), said(), exit_code=9)
    found = transcribed(PATHS, os.environ)
    first, second = found.recordings
    assert first is not None
    assert (first.segments, first.audio_s, second) == ([(0.0, "Yes.")], 2.0, None)
    assert found.error.startswith("its process ended with exit code 9")
    assert found.first_text_s is not None


def test_a_recording_that_fails_spoils_no_other(program: Program) -> None:
    program.does(ready(), ready(), said(), End(time=2.0), error="streamer: error: no audio\n", exit_code=1)
    found = transcribed(PATHS, os.environ)
    assert [run is None for run in found.recordings] == [True, False]
    assert found.error == "no audio"


def test_a_truncated_recording_has_not_failed(program: Program) -> None:
    program.does(ready(), said(), End(time=2.0), error="streamer: error: a.wav ends too early\n", exit_code=2)
    found = transcribed(PATHS[:1], os.environ)
    assert (len(found.recordings), found.recordings[0] is None, found.error) == (1, False, "")


@pytest.mark.parametrize("measure", [transcribed, played])
def test_without_a_model_nothing_is_measured(program: Program, measure: Callable[..., Runs]) -> None:
    program.does(error="streamer: error: there is no such model\n", exit_code=2)
    found = measure(PATHS, os.environ)
    assert (found.recordings, found.error) == ([None, None], "there is no such model")
    assert (found.load_s, found.peak_rss_mb, found.first_text_s) == (None, None, None)
