"""What a corrector is, and what it is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamer.events import Word


@dataclass(frozen=True, slots=True)
class Draft:
    """A final on its way through the correctors."""

    # As the correctors before have left it.
    words: tuple[Word, ...]

    # Of the text, which is English if it is a translation.
    language: str

    # Texts of the newest finals before it, oldest first, corrected as far as they are.
    before: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return text_of(self.words)


class Corrector(Protocol):
    """Finds better words for a final. Called from one thread for all sessions."""

    # The `by` of its revisions.
    name: str

    # Whether it waits for an endpoint. Slow correctors run behind the others, in a thread of their own.
    slow: bool

    def correct(self, draft: Draft, left_s: float) -> Sequence[Word] | None:
        """Return the words as they are to be, which may be those it got; None if it did not try.

        left_s : seconds after which the answer is too late

        Raises StreamerError if it cannot work: then a slow one is left alone for a while; TimeoutError if its
        time is up.
        """


def text_of(words: Sequence[Word]) -> str:
    """Return the text that words spell."""
    return "".join(word.word for word in words).strip()
