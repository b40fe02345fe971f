"""What a session does when something in it fails: what it gives up, when it tries again, and when it is over.

Pure, with the time as an argument; called by `LiveSession`, under its lock.
"""

import math
from typing import Literal

from streamer.audio.vad import CHUNK_SAMPLES
from streamer.engine.follower import Logger
from streamer.errors import StreamerError
from streamer.events import Error, Event, GapReason
from streamer.session.session import Session
from streamer.session.task import Span

# Pause after the first failure; it doubles with each further one, up to the longest.
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 30.0

# Failures in a row after which a recording ends with an error. A live session then loses all audio with each further.
MAX_FAILURES = 3


Step = Literal["listen", "decide"]

LOST = "what was known of a session that failed is lost"


class Recovery:
    """The failures of a session since the last success; none to begin with."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        # Message of the last; whether it was in speech detection.
        self.reason, self.listening = "", False
        self._n_failures = 0
        self._pause_s, self._retry_at_s = 0.0, -math.inf

    @property
    def lasting(self) -> bool:
        """Whether there were too many failures in a row for the session to wait for a recovery."""
        return self._n_failures >= MAX_FAILURES

    def waits(self, now_s: float) -> bool:
        """Return whether it is too soon to try again."""
        return now_s < self._retry_at_s

    def hurry(self) -> None:
        """Try again at once: the audio is complete."""
        self._retry_at_s = -math.inf

    def fail(
        self, session: Session, error: Exception, where: Span | Step, now_s: float, *, head: int, recorded: bool
    ) -> tuple[list[Event], bool]:
        """Give up audio after a failure; return what to publish, and whether the session is over.

        where : the only audio that cannot be transcribed; or else the session itself has failed, in this step
        head : end of the audio so far
        recorded : whether the audio is a recording, which waits

        The failure is published, once until it is over. The audio that is lost is

        - where a window cannot be transcribed, its utterance; all that waits, if windows fail again and again;
        - where the session itself fails, all that waits and the chunk that may have caused it;
        - where speech detection failed before, all audio so far, which a recording reads again instead.

        A recording that fails again and again is over.
        """
        if isinstance(error, StreamerError):
            self._logger.error("%s", error)
        else:
            self._logger.error("a session failed", exc_info=error)
            error = StreamerError(f"a session failed ({type(error).__name__}): the log has more; it is opened again")
        first, again = not self.reason, self.listening and where == "listen"
        self.reason, self.listening = str(error), where == "listen"
        self._pause_s = min(2 * self._pause_s or FIRST_RETRY_S, LONGEST_RETRY_S)
        self._retry_at_s = now_s + self._pause_s
        self._n_failures += 1
        fatal = recorded and self.lasting
        events: list[Event] = [Error(code=error.code, message=str(error), fatal=fatal)] if first or fatal else []
        if fatal:
            return [*events, *self.cut_short(session, head, "device")], True
        all_lost = again and not recorded
        until = head if all_lost else min(session.now.received + CHUNK_SAMPLES, head)
        known = session.state
        try:
            events += self._given_up(session, where, until)
        except Exception:
            self._logger.exception(LOST)
            events += session.restart(until, known)
        if session.now.finished:
            events += session.recovered()
        return events, False

    def succeed(self, session: Session, *, listening: bool) -> list[Event]:
        """Note that speech detection, or a window, has succeeded: if it was that which failed, it works again."""
        if not self.reason or listening != self.listening:
            return []
        self._logger.info("%s: it works again", self.reason)
        self.reason, self.listening = "", False
        self._n_failures, self._pause_s, self._retry_at_s = 0, 0.0, -math.inf
        return session.recovered()

    def cut_short(self, session: Session, end: int, reason: GapReason) -> list[Event]:
        """Make final what is known, and return the rest of the audio as a gap."""
        known = session.state
        try:
            events = session.cut_short(end, reason)
        except Exception:
            self._logger.exception(LOST)
            events = session.restart(end, known)
        return [*events, *session.recovered()]

    def _given_up(self, session: Session, where: Span | Step, until: int) -> list[Event]:
        if isinstance(where, Span):
            return session.give_up(session.now.received) if self.lasting else session.fail(where)
        events = session.give_up(until)
        session.restart(until)
        return events
