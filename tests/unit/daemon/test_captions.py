"""Captions in the terminal: a sink that is slow, and one that fails."""

import logging
import threading

import pytest

from streamer.daemon.captions import drawn_captions
from streamer.engine.eventlog import EventLog
from streamer.events import End, Event
from tests.builders import final, partial
from tests.waiting import WAIT_S


class Terminal:
    """A sink that takes an event when it is told to, or fails."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.drawn: list[int] = []
        self.closed = threading.Event()
        self.ended = threading.Event()

        # Released for each event that may be drawn.
        self.may_draw = threading.Semaphore(0)

        # Set once there was an event to draw.
        self.entered = threading.Event()
        self._error = error

    def handle(self, event: Event) -> None:
        self.entered.set()
        assert self.may_draw.acquire(timeout=WAIT_S)
        if self._error is not None:
            raise self._error
        self.drawn.append(event.seq)
        if isinstance(event, End):
            self.ended.set()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time end the drawing before all is drawn."""
    monkeypatch.setattr("streamer.daemon.captions.CLOSE_TIMEOUT_S", WAIT_S)


def test_all_that_was_published_is_drawn_before_the_end() -> None:
    log, terminal = EventLog("s", 100), Terminal()
    terminal.may_draw.release(3)
    with drawn_captions(log, terminal):
        for segment in (1, 2, 3):
            log.append(final(segment=segment))
    assert terminal.drawn == [1, 2, 3]
    assert terminal.closed.is_set()


def test_a_slow_terminal_is_shown_the_newest_only() -> None:
    log, terminal = EventLog("s", 100), Terminal()
    with drawn_captions(log, terminal):
        log.append(partial("a", segment=1))
        assert terminal.entered.wait(WAIT_S)
        for _ in range(1000):
            log.append(partial("a", segment=1))
        log.append(final(segment=1))
        log.append(partial("a", segment=2))
        terminal.may_draw.release(3)
    assert terminal.drawn == [1, 1002, 1003]


@pytest.mark.parametrize("error", [BrokenPipeError("gone"), ValueError("closed")])
def test_a_terminal_that_is_gone_is_followed_by_nothing(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    log, terminal = EventLog("s", 100), Terminal(error=error)
    with caplog.at_level(logging.INFO), drawn_captions(log, terminal):
        log.append(final(segment=1))
        terminal.may_draw.release()
        assert terminal.closed.wait(WAIT_S)
        log.append(final(segment=2))
    assert terminal.drawn == []
    assert "captions are no longer drawn" in caplog.text


def test_a_terminal_that_stood_still_misses_no_final() -> None:
    log, terminal = EventLog("s", 100), Terminal()
    with drawn_captions(log, terminal):
        log.append(final(segment=1))
        assert terminal.entered.wait(WAIT_S)
        for segment in range(2, 100):
            log.append(partial("a", segment=segment))
            log.append(final(segment=segment))
        log.close()
        terminal.may_draw.release(101)
        assert terminal.ended.wait(WAIT_S)
    assert terminal.drawn == [1, *range(3, 199, 2), 198]
