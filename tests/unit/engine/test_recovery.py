"""When what failed is tried again, and when it works again."""

import logging
import math
from typing import Any, cast

from streamer.engine.recovery import Recovery, Step
from streamer.errors import InferenceError
from streamer.session.session import Session
from tests.unit.engine.simulation import SETTINGS


def fail(recovery: Recovery, session: Session, step: Step, now_s: float) -> None:
    recovery.fail(session, InferenceError("it is gone"), step, now_s, head=16_000, recorded=False)


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
