"""Work beside live sessions, in threads of its own: it lets these go first."""

import time
from collections.abc import Callable

# From one look at the live sessions to the next.
LOOK_S = 0.005


def rest() -> None:
    time.sleep(LOOK_S)


def wait_turn(is_live_busy: Callable[[], bool], check: Callable[[], object], wait: Callable[[], object] = rest) -> None:
    """Return when no live session is at work. To be called before each call of a graph (`WhisperModel.call_before`).

    check : is called before each look, and raises what ends the work
    """
    check()
    while is_live_busy():
        wait()
        check()
