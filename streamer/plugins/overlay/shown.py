"""What is to be seen: captions, a message, or nothing. Without I/O; the caller passes the time."""

from typing import Literal

from streamer.client.machine import State
from streamer.events import Event
from streamer.plugins.overlay.lines import Fits, Rolling, Row, wrapped

SAID_S = 2.5  # for which a message stands that says what was done
AWAY_S = 10.0  # for which it is said that the daemon is away, once it was there

AWAY = "No captions yet. To start them, type in a terminal: streamer run"
HOW_TO_MOVE = "Drag to move, edges to resize. Wheel: letters. Right click: done."

Mode = Literal["shown", "paused", "moving"]


class Shown:
    """Decides which lines are to be seen.

    Captions go away some time after their last word, and what is said then begins at the top. Until the daemon has been
    reached once, a message says how to start one.
    """

    def __init__(self, fits: Fits, fade_s: float) -> None:
        """Begin; `fade_s` 0: captions stay."""
        self.mode: Mode = "shown"
        self.state: State = "connecting"
        self._fits = fits
        self._fade_s = fade_s
        self._rolling = Rolling(fits)
        # A message, and when it is over; None: when something else is said. Time of the newest words.
        self._message = AWAY
        self._until_s: float | None = None
        self._words_s: float | None = None

    def handle(self, event: Event, now_s: float) -> None:
        """Take the next event."""
        self._pass(now_s)
        if self._rolling.handle(event):
            self._message, self._words_s = "", now_s

    def meet(self, state: State, now_s: float) -> None:
        """Take the state of the connection to the daemon."""
        before, self.state = self.state, state
        if state == "open" and before in ("connecting", "waiting"):
            self.say("Listening.", now_s)
        elif state == "waiting" and before == "open":
            self.say("The daemon is away.", now_s, AWAY_S)

    def say(self, message: str, now_s: float, time_s: float = SAID_S) -> None:
        """Show a message for a moment."""
        self._message, self._until_s = message, now_s + time_s

    def pause(self, now_s: float, *, on: bool) -> None:
        """Show no captions, or show them again."""
        self.mode = "paused" if on else "shown"
        self.say("Captions are paused." if on else "Captions go on.", now_s)

    def lay_again(self) -> None:
        """Lay the same words out again, because lines have another width."""
        self._rolling.lay_again()

    def rows(self, n_rows: int, now_s: float) -> list[Row]:
        """Return the lines that are to be seen; none if nothing is."""
        self._pass(now_s)
        if self.mode == "moving":
            return wrapped(HOW_TO_MOVE, self._fits)[:n_rows]
        if self._message and (self.mode == "shown" or self._until_s is not None):
            return wrapped(self._message, self._fits)[:n_rows]
        return self._rolling.rows(n_rows) if self.mode == "shown" else []

    def due_s(self) -> float | None:
        """Return when there will be other lines if nothing happens; None if never."""
        ends = [self._until_s if self._message else None]
        if self._fade_s and self._words_s is not None:
            ends.append(self._words_s + self._fade_s)
        return min((end for end in ends if end is not None), default=None)

    def _pass(self, now_s: float) -> None:
        """Let the time pass."""
        if self._until_s is not None and now_s >= self._until_s:
            self._message, self._until_s = "", None
        if self._fade_s and self._words_s is not None and now_s >= self._words_s + self._fade_s:
            self._rolling.clear()
            self._words_s = None
