"""What waits in a session: when its next window is due, and what has waited for too long. Called under its lock."""

import math
from dataclasses import dataclass

from streamer.constants import SAMPLE_RATE
from streamer.engine.inlet import Inlet
from streamer.events import GapReason
from streamer.session.session import Session

MIN_SHED_SAMPLES = 2 * SAMPLE_RATE  # least audio given up at a time because it waited too long: each ends a segment
OVERRUN_MARGIN_SAMPLES = SAMPLE_RATE  # least distance kept from where the buffer is being overwritten
RECORDED_PATIENCE_S = 2.0  # longest time that a recording's window waits for windows of live sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """When a session has work for the engine, as of its last decision."""

    # Since when the next window is due, and by when it should be encoded; infinity while none is due.
    since_s: float = math.inf
    deadline_s: float = math.inf
    quiet_s: float = math.inf  # for how long none will be, if audio comes at the pace of speech
    retrying: bool = False  # whether what failed is tried again without new speech


def next_due(session: Session, since_s: float, now_s: float, *, waits: bool, recorded: bool) -> Due:
    """Return when a session has work.

    since_s : since when a window is due, as far as is known
    waits : whether it is too soon after a failure to try again
    """
    since_s = min(since_s, now_s) if not waits and session.due else math.inf
    # At once for a final, else within the pace.
    patience_s = 0.0 if session.now.final_awaited else session.settings.pace_s
    return Due(
        since_s=since_s,
        deadline_s=since_s + (RECORDED_PATIENCE_S if recorded else patience_s),
        quiet_s=math.inf if session.until_due is None else session.until_due / SAMPLE_RATE,
        retrying=waits or session.now.waiting_from is not None,
    )


def too_late(session: Session, inlet: Inlet, now_s: float) -> tuple[int, GapReason] | None:
    """Return the position before which speech has to be given up, and why; None if it need not be."""
    waiting, oldest = session.now.waiting_from, inlet.ring.oldest
    overdue, max_delay_s = 0, inlet.input.max_delay_s
    if waiting is not None and not (inlet.recorded or session.now.ended or math.isinf(max_delay_s)):
        # While a model is being loaded, audio waits for as long as there is room.
        late = now_s - max_delay_s > inlet.host.prepared_s
        limit = inlet.arrivals.position_at(now_s - max_delay_s) if late else 0
        overdue = max(limit, waiting + MIN_SHED_SAMPLES) if limit > waiting else 0
    if session.needed_from < oldest:
        return min(max(oldest + OVERRUN_MARGIN_SAMPLES, overdue), session.now.received), "overrun"
    return (min(overdue, session.now.received), "overload") if overdue else None
