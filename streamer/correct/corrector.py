"""What a corrector is, and what it is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamer.arrays import Float32Array
from streamer.events import Final, Word
from streamer.stream.settings import SessionSettings


@dataclass(frozen=True, slots=True)
class Heard:
    """A final on its way through the correctors."""

    # As it was published.
    final: Final

    # As the correctors before have left it.
    words: tuple[Word, ...]

    # Texts of the newest finals before it, oldest first, corrected as far as they are.
    before: tuple[str, ...]

    # Returns its audio, shape (n,) at 16 kHz, or None where it is no longer there.
    audio: Callable[[], Float32Array | None]

    # Of its session, as they were when it was told; None where nobody knows.
    settings: SessionSettings | None = None

    @property
    def text(self) -> str:
        return text_of(self.words)

    @property
    def language(self) -> str:
        """The language of its text, which a translation does not share with what was said."""
        translated = self.final.task or (self.settings.task if self.settings is not None else "")
        return "en" if translated == "translate" else self.final.language


class Corrector(Protocol):
    """Finds better words for a final. Called from one thread for all sessions."""

    # The `by` of its revisions.
    name: str

    # Whether it waits for a model or an endpoint. Those that do run behind the others, and in a thread of their own.
    slow: bool

    def correct(self, heard: Heard, left_s: float) -> Sequence[Word] | None:
        """Return the words as they are to be, which may be those it got; None if it did not try.

        left_s : seconds after which the answer is too late

        Raises StreamerError if it cannot work: then a slow one is left alone for a while; TimeoutError if its
        time is up.
        """


def text_of(words: Sequence[Word]) -> str:
    """Return the text that words spell."""
    return "".join(word.word for word in words).strip()
