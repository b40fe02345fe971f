"""When what failed is tried again, and when it works again."""

import logging
import math
from typing import Any, cast

from streamer.engine.recovery import FIRST_RETRY_S, LONGEST_RETRY_S, Recovery, Step
from streamer.errors import InferenceError
from streamer.session.session import Session
from tests.unit.engine.simulation import SETTINGS


def fail(recovery: Recovery, session: Session, step: Step, now_s: float) -> None:
    recovery.fail(session, InferenceError("it is gone"), step, now_s, head=16_000, recorded=False)


def test_it_is_tried_ever_more_rarely_until_it_works() -> None:
    recovery, session = Recovery(cast(Any, logging.getLogger())), Session(SETTINGS)
    for pause_s in (FIRST_RETRY_S, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_RETRY_S, LONGEST_RETRY_S):
        fail(recovery, session, "decide", 10.0)
        assert recovery.waits(10.0 + pause_s - 0.01)
        assert not recovery.waits(10.0 + pause_s)
    recovery.succeed(session, listening=False)
    assert not recovery.waits(10.0)
    fail(recovery, session, "decide", 10.0)
    assert not recovery.waits(10.0 + FIRST_RETRY_S)


def test_only_what_failed_ends_it_by_succeeding() -> None:
    recovery, session = Recovery(cast(Any, logging.getLogger())), Session(SETTINGS)
    fail(recovery, session, "listen", 10.0)
    recovery.succeed(session, listening=False)
    assert (recovery.reason, recovery.waits(10.0)) == ("it is gone", True)
    recovery.succeed(session, listening=True)
    assert (recovery.reason, recovery.waits(10.0)) == ("", False)


def test_audio_that_is_complete_is_tried_at_once() -> None:
    recovery, session = Recovery(cast(Any, logging.getLogger())), Session(SETTINGS)
    fail(recovery, session, "decide", math.inf)
    recovery.hurry()
    assert not recovery.waits(10.0)
