"""How far a session's worker is known to be, and whether another should have it. No I/O; times are seconds."""

import math

from streamer.constants import SAMPLE_RATE
from streamer.plugins.cluster.messages import SessionCheckpoint, SessionUpdate

# A session leaves its worker if another has room, the worker is this far behind, and for STUCK_S it transcribes at less
# than this share of the pace of speech.
SLOW_SAMPLES = 2 * SAMPLE_RATE
STUCK_S = 5.0
LEAST_PACE = 0.5

QUIET_S = 2.0  # within which a worker reports on each session while NATS stores records
SILENT_S = 10.0  # without a report a session moves: longer than NATS takes to elect a leader, when nothing is stored
MISSED_S = 0.2  # after which what the worker misses is sent again
RESEND_S = 2.0  # the same for what has not arrived there, as far as is known
WAIT_S = 5.0  # without a report a client is warned


class WorkerProgress:
    """What a worker has reported of a session, and since when."""

    def __init__(self, now_s: float) -> None:
        # When the worker reported last, or could not be expected to; when it did, or the client was warned.
        self.reported_s = self._served_s = now_s
        # Position up to which it had transcribed, and when it last kept pace with speech.
        self._read, self._kept_pace_s = 0, now_s
        # For how long it may be slow: longer after each move for slowness, until a worker keeps pace.
        self._stuck_s = STUCK_S
        # Position and command that had arrived there, and since when; when anything was sent again.
        self.arrived = (0, 0)
        self._arrived_s = self.resent_s = now_s
        # Why the session moved, and when its former worker reported last; None once the new one makes progress.
        self.stall: tuple[str, float] | None = None
        # Number of the newest event and end of the processed audio when the worker took the session over.
        self._began = (0, 0)

    def begin(self, checkpoint: SessionCheckpoint, now_s: float) -> None:
        """Note that a worker takes the session over at a checkpoint."""
        state = checkpoint.state
        self.reported_s = self._kept_pace_s = self._arrived_s = self.resent_s = now_s
        self._began, self._read = (checkpoint.seq, state.received), state.read
        self._stuck_s *= 2 if self.stall is not None and self.stall[0] == "slow" else 1
        self.arrived = state.needed_from, checkpoint.command

    def note(self, update: SessionUpdate, head: int, now_s: float) -> None:
        """Note what a worker reports; `head` is the end of the audio at the gateway."""
        self.reported_s = self._served_s = now_s
        state = update.checkpoint.state
        keeps_pace = state.read - self._read >= LEAST_PACE * SAMPLE_RATE * (now_s - self._kept_pace_s)
        if keeps_pace or head - state.read <= SLOW_SAMPLES:
            self._read, self._kept_pace_s, self._stuck_s = state.read, now_s, STUCK_S
        if (update.head, update.command) != self.arrived:
            self.arrived, self._arrived_s = (update.head, update.command), now_s

    def ended_stall(self, update: SessionUpdate, head: int) -> tuple[str, float] | None:
        """Return the stall that ends as the new worker has published something, or has nothing left to do."""
        processed = update.checkpoint.state.received
        if (update.checkpoint.seq, processed) == self._began and processed < head - SAMPLE_RATE // 10:
            return None
        stall, self.stall = self.stall, None
        return stall

    def excuse(self, now_s: float) -> None:
        """Expect no report before now: this gateway was cut off from all workers."""
        self.reported_s = self._kept_pace_s = now_s

    def fault(self, head: int, now_s: float) -> str:
        """Return why another worker should take the session over; empty if none should."""
        silent_s = now_s - self.reported_s
        if silent_s > SILENT_S:
            return "silent"
        # While NATS stores nothing, no worker reports, and a move would take longer than the wait.
        is_slow = now_s - self._kept_pace_s > self._stuck_s and head - self._read > SLOW_SAMPLES
        return "slow" if is_slow and silent_s <= QUIET_S else ""

    def must_resend(self, missing: bool, sent: tuple[int, int], now_s: float) -> bool:
        """Whether what was sent seems lost; `missing`: the worker reports so."""
        waited_s = now_s - max(self.resent_s, 0.0 if missing else self._arrived_s)
        return waited_s > (MISSED_S if missing else RESEND_S) and self.arrived < sent

    def must_warn(self, now_s: float) -> bool:
        """Whether to warn the client that no worker serves it: once, until one does again."""
        if now_s - self._served_s < WAIT_S:
            return False
        self._served_s = math.inf
        return True
