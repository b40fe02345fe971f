"""Dictation: decides which text is typed into a window. Without I/O."""

from collections import deque

from streamer.events import Event, Final, Flushed, Partial, Ready
from streamer.outside import printable

# Joiners, which shape letters and emoji.
_JOINERS = "\u200c\u200d"


def typeable(text: str) -> str:
    """Return text of the same length without line breaks and control characters: a window takes these for commands."""
    return "".join(char if char in _JOINERS else printable(char) for char in text)


class Dictation:
    """Turns a session's events into pieces of text that are never taken back.

    The speaker begins and ends with a `flush`. Its `flushed` divides what was said before from what was said after, so
    no clock is needed.
    """

    def __init__(self, *, finals: bool) -> None:
        """Begin without typing; with `finals` only whole segments are typed, else stable text."""
        self._finals = finals
        self._on = False
        # What the next `flushed` events begin (True) or end, oldest first.
        self._expected: deque[bool] = deque()
        # The newest segment, and how many characters of it were typed, or are not to be.
        self._segment = self._n_done = 0
        # Whether something was typed since the beginning; whether its words have spaces between them.
        self._typed = self._spaced = False

    def expect(self, *, on: bool) -> None:
        """Begin or end at the answer to a `flush` that is sent now."""
        self._expected.append(on)

    def handle(self, event: Event) -> str:
        """Handle the next event. Returns the text to type next, which may be empty."""
        match event:
            case Ready():  # of another session, which answers no earlier flush; its segments count from 1
                self._segment = self._n_done = 0
                return self.settle()
            case Flushed() if self._expected:
                return self._switch(on=self._expected.popleft())
            case Partial() if not self._finals:
                return self._next(event, event.stable)
            case Final(task=""):
                return self._next(event, len(event.text))
        return ""

    def settle(self) -> str:
        """Begin or end now, without waiting for answers. Returns the text to type next."""
        on = self._expected[-1] if self._expected else self._on
        self._expected.clear()
        return self._switch(on=on)

    def _switch(self, *, on: bool) -> str:
        # What is dictated next may stand behind it.
        space = " " if self._on and not on and self._typed and self._spaced else ""
        self._typed = self._typed and on
        self._on = on
        return space

    def _next(self, event: Partial | Final, n_chars: int) -> str:
        """Return what is new within the first characters of a segment's text, behind the space that it needs."""
        if event.segment != self._segment:
            self._segment, self._n_done = event.segment, 0
        n_done, self._n_done = self._n_done, max(n_chars, self._n_done)
        text = typeable(event.text[n_done:n_chars])
        if not self._on or not text:
            return ""
        if n_done == 0:
            self._spaced = not event.words or event.words[0].word.startswith(" ")
            text = " " * (self._typed and self._spaced) + text
        text, self._typed = text if self._typed else text.lstrip(), True
        return text
