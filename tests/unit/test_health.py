"""What the log and /healthz say of parts that fail, and when these are tried again."""

import logging

import pytest

from streamer.errors import StreamerError
from streamer.health import FIRST_PAUSE_S, LONGEST_PAUSE_S, QUIET_S, Health
from tests.fakes import Clock


def test_a_part_that_fails_is_logged_once_and_noted_while_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    health = Health(Clock())
    with caplog.at_level(logging.INFO):
        health.failed("a", StreamerError("no network: connect it"))
        health.failed("a", StreamerError("no answer: wait"))
        health.failed("b", ValueError("x"))
        assert str(health) == "a: no answer: wait; b: unexpected ValueError: x"
        health.works("a")
        health.works("a")
    assert health.why == {"b": "unexpected ValueError: x"}
    first, second, third = caplog.records
    assert (first.getMessage().endswith(": no network: connect it"), bool(first.exc_info)) == (True, False)
    assert (second.getMessage().endswith(": unexpected ValueError: x"), bool(second.exc_info)) == (True, True)
    assert (third.levelno, third.getMessage()[:2]) == (logging.INFO, "a ")


def test_a_part_that_fails_now_and_then_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    health = Health(clock)
    for _ in range(3):
        health.failed("a", StreamerError("no"))
        health.works("a")
    assert len(caplog.records) == 1
    clock.advance(QUIET_S)
    health.failed("a", StreamerError("no"))
    assert len(caplog.records) == 2


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    clock = Clock()
    health = Health(clock)
    assert not health.waits("a")
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, *[LONGEST_PAUSE_S] * 2000):
        while True:
            health.failed("a", StreamerError("no"))
            clock.advance(pause_s - 0.1)
            if health.waits("a"):
                break
        clock.advance(0.2)
        assert not health.waits("a")
        assert not health.waits("b")
    health.works("a")
    health.failed("a", StreamerError("no"))
    clock.advance(FIRST_PAUSE_S)
    assert not health.waits("a")
