"""Finals as the captions of a YouTube live stream.

Source: YouTube Help, "Live caption vendor info" (closed captions over HTTP: POST with `seq`, a line with the time in
UTC and one with the text for each caption; the answer is YouTube's clock).
"""

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime

from streamer.events import Event, Final
from streamer.sinks.pieces import pieces
from streamer.sinks.post import PostingSink

MAX_LINE_BYTES = 84  # two rows of 42 characters
MAX_AHEAD_S = 86_400.0  # by which clocks may differ


class YouTube(PostingSink):
    """A sink that posts each final as lines with the times at which they were said, by YouTube's clock."""

    def __init__(self, url: str, said_at: Callable[[float], float]) -> None:
        """Prepare; `said_at` tells when (Unix time) a second of the session's audio was heard."""
        super().__init__(url, "outputs.youtube_url")
        self._said_at = said_at

        # Number of the next post. YouTube does not tell which was the last, and numbers must grow when the program
        # is started again: nobody says more than a final a second.
        self._next = int(time.time())

        # What YouTube's clock is ahead of ours, in seconds, as far as it told.
        self._ahead_s = 0.0

    def handle(self, event: Event) -> None:
        """Post a final. Raises PeerError."""
        if not isinstance(event, Final) or not event.text.strip():
            return
        lines = [
            f"{_time_text(self._said_at(start) + self._ahead_s)}\n{text}\n"
            for start, text in pieces(event, MAX_LINE_BYTES)
        ]
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        answer = self.post("".join(lines).encode("utf-8"), headers, f"seq={self._next}")
        self._next += 1
        with contextlib.suppress(ValueError, OverflowError):  # an answer that is no time, or none of today
            theirs = datetime.fromisoformat(answer.strip())
            found_s = theirs.replace(tzinfo=theirs.tzinfo or UTC).timestamp() - time.time()
            self._ahead_s = found_s if abs(found_s) < MAX_AHEAD_S else self._ahead_s


def _time_text(unix_s: float) -> str:
    """Return a time as YouTube writes it: UTC, to the millisecond, without a zone."""
    return datetime.fromtimestamp(unix_s, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
