"""What a corrector is, and what it is given."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

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

    def correct(self, heard: Heard, left_s: float) -> Sequence[Word]:
        """Return the words as they are to be: those it got, where it has nothing to say.

        left_s : seconds after which nobody wants the answer any more

        Raises StreamerError where it cannot work, which is told once, until it works again; TimeoutError where its time
        is up.
        """


class RecordingCorrector:
    """Quick correctors at work on the finals of one recording, before anybody has seen these."""

    def __init__(self, correctors: Sequence[Corrector], task: str) -> None:
        self._correctors = correctors
        self._task = task
        # The texts before: of the transcript, and of its translation.
        self._before: dict[str, tuple[str, ...]] = {}

    def corrected(self, final: Final) -> Final:
        """Return the next final as it is to be told."""
        of_task = msgspec.structs.replace(final, task=final.task or self._task)
        heard = Heard(of_task, final.words, self._before.get(final.task, ()), lambda: None)
        for corrector in self._correctors:
            heard = dataclasses.replace(heard, words=tuple(corrector.correct(heard, math.inf)))
        self._before[final.task] = (heard.text,)
        if heard.words == final.words:
            return final
        return msgspec.structs.replace(final, words=heard.words, text=heard.text)


def text_of(words: Sequence[Word]) -> str:
    """Return the text that words spell."""
    return "".join(word.word for word in words).strip()
