"""What is made of the output of a process that ends too early."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamer.events import End, Event
from streamer.plugins.compare import runs
from streamer.plugins.compare.runs import Runs, played, transcribed
from tests.builders import final, ready

PATHS = [Path("a.wav"), Path("b.wav")]
SAID = [final("Yes.", end=1.0), End(time=2.0)]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets the program write events and an error, and end."""

    def does(*events: Event, error: str = "", exit_code: int) -> None:
        output = "".join(event.to_json() + "\n" for event in events)
        code = f"import os; os.write(1, {output.encode()!r}); os.write(2, {error.encode()!r}); os._exit({exit_code})"
        monkeypatch.setattr(runs, "PROGRAM", (sys.executable, "-c", code))

    return does


@pytest.mark.parametrize(
    ("events", "error", "exit_code", "measured"),
    [
        ([ready(), *SAID, ready(), SAID[0]], "", 9, [True, False]),
        ([ready(), ready(), *SAID], "streamer: error: no audio\n", 1, [False, True]),
        ([ready(), *SAID, ready(), *SAID], "streamer: error: a.wav ends too early\n", 2, [True, True]),
    ],
    ids=["died in the second", "no first", "a truncated first"],
)
def test_a_recording_that_fails_spoils_no_other(
    program: Callable[..., None], events: list[Event], error: str, exit_code: int, measured: list[bool]
) -> None:
    program(*events, error=error, exit_code=exit_code)
    found = transcribed(PATHS, os.environ)
    assert [run is not None for run in found.recordings] == measured
    assert {(run.segments[0], run.audio_s) for run in found.recordings if run} == {((0.0, "Yes."), 2.0)}
    assert bool(found.error) == (False in measured)
    assert found.first_text_s is not None


@pytest.mark.parametrize("measure", [transcribed, played])
def test_without_a_model_nothing_is_measured(program: Callable[..., None], measure: Callable[..., Runs]) -> None:
    program(error="streamer: error: there is no such model\n", exit_code=2)
    found = measure(PATHS, os.environ)
    assert (found.recordings, found.error) == ([None, None], "there is no such model")
    assert (found.load_s, found.peak_rss_mb, found.first_text_s) == (None, None, None)
