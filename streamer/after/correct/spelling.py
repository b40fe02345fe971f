"""Spells terms as the glossary says: in texts before they are published, and in finals if that was too late."""

import logging
import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import msgspec

from streamer.after.correct.corrector import Draft, text_of
from streamer.after.correct.glossary import read_terms
from streamer.after.correct.terms import IsUsual, Replacement, TermIndex, rewritten
from streamer.engine.follower import Follower
from streamer.errors import ConfigError
from streamer.events import Event, Final, Partial, Word

logger = logging.getLogger(__name__)

_Text = TypeVar("_Text", bound=Partial | Final)


class Glossary:
    """The terms of a file, and the corrector of finals of which a part was stable before a term was complete."""

    name = "glossary"
    slow = False

    def __init__(self, path: Path, is_usual: IsUsual) -> None:
        """Read a file. Raises ConfigError if it is missing or is no glossary."""
        self._path, self._is_usual = path, is_usual
        # By language; and the terms themselves, for correctors that work by other means.
        self._indexes, self.texts = self._read()

    def reread(self) -> Callable[[], None]:
        """Read the file again, and return what takes it into use. Raises ConfigError."""
        read = self._read()

        def take() -> None:
            self._indexes, self.texts = read

        return take

    def index(self, language: str) -> TermIndex:
        """Return the terms for a language, or for those that no term names."""
        return self._indexes.get(language, self._indexes[""])

    def correct(self, draft: Draft, left_s: float) -> Sequence[Word]:
        return rewritten(draft.words, self.index(draft.language).replacements(draft.words))

    def spelled(self, final: Final, task: str) -> Final:
        """Return a final of a recording with its terms, before it is published.

        task : of the recording, which is the final's unless it names another
        """
        language = "en" if (final.task or task) == "translate" else final.language
        words = tuple(self.correct(Draft(final.words, language), math.inf))
        return final if words == final.words else msgspec.structs.replace(final, words=words, text=text_of(words))

    def _read(self) -> tuple[dict[str, TermIndex], list[str]]:
        terms = read_terms(self._path)
        try:
            indexes = {
                code: TermIndex([term for term in terms if term.language in ("", code)], self._is_usual)
                for code in {"", *(term.language for term in terms)}
            }
        except ValueError as error:
            raise ConfigError(f"{self._path}: {error}") from None
        return indexes, [term.text for term in terms if term.text]


class Spelling(Follower):
    """The texts of one session on their way out. What was published as stable stays as it is."""

    def __init__(self, glossary: Glossary, language: str = "") -> None:
        """`language` is the session's, if it is known."""
        self._glossary = glossary
        self._language = language
        self._segment = 0
        # How many words of the segment, as they were decoded, are published as stable; what became of some of them, and
        # how the last word of each of these read then: the model may still write on at it.
        self._n_stable = 0
        self._replaced: list[tuple[Replacement, str]] = []

    def label(self, event: Event) -> Event:
        """Return a text with its terms; any other event as it is.

        If that fails, the text has the terms that were published as stable, and no others.
        """
        if not isinstance(event, Partial | Final) or (isinstance(event, Final) and event.task):
            return event
        try:
            return self.spelled(event)
        except Exception:
            logger.exception("the terms of a %s event could not be found", event.type)
            return self.spelled(event, find=False)

    def spelled(self, event: _Text, *, find: bool = True) -> _Text:
        """Return a text with its terms; without `find` only with those of its stable prefix."""
        if event.segment != self._segment:
            self._segment, self._n_stable, self._replaced = event.segment, 0, []
        if isinstance(event, Final):
            self._language = event.language
        words = event.words
        n_stable = max(self._n_stable, sum(1 for _ in takewhile(lambda word: word.stable, words)))
        new: list[Replacement] = []
        if find:
            index = self._glossary.index(self._language)
            new = [
                each._replace(first=each.first + self._n_stable, end=each.end + self._n_stable)
                for each in index.replacements(words[self._n_stable :])
            ]
            # A term is stable when all of its words are.
            n_stable = min([n_stable, *(each.first for each in new if each.end > n_stable)])
            if isinstance(event, Partial):
                begun = (i for i in range(self._n_stable, n_stable) if index.begins(words[i:]))
                n_stable = next(begun, n_stable)
        old = [_written_on(each, last, words) for each, last in self._replaced]
        if old or new or any(word.stable != (i < n_stable) for i, word in enumerate(words)):
            marked = [msgspec.structs.replace(word, stable=i < n_stable) for i, word in enumerate(words)]
            spelled = rewritten(marked, [*old, *new])
            event = msgspec.structs.replace(event, words=tuple(spelled), text=text_of(spelled))
            if isinstance(event, Partial):
                stable = len(text_of([word for word in spelled if word.stable]))
                event = msgspec.structs.replace(event, stable=stable)
        # Not before: if something fails, nothing of this is published.
        self._replaced += [(each, words[each.end - 1].word) for each in new if each.end <= n_stable]
        self._n_stable = n_stable
        return event


def _written_on(replaced: Replacement, last: str, words: Sequence[Word]) -> Replacement:
    """Return a replacement with what the model has written on at its last word since."""
    more = words[replaced.end - 1].word.removeprefix(last)
    return replaced._replace(pieces=(*replaced.pieces[:-1], replaced.pieces[-1] + more)) if more else replaced
