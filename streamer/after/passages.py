"""Finals in passages: what is transcribed again, or translated, at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from streamer.events import Event, Final, Gap, Speech, seconds
from streamer.session.windows import MAX_SILENCE_SAMPLES
from streamer.session.words import SENTENCE_ENDS

# A passage does not reach over a longer silence, as no window of captions does.
MAX_SILENCE_S = seconds(MAX_SILENCE_SAMPLES)


@dataclass(frozen=True, slots=True)
class Passage:
    """Consecutive finals in one language, without lost audio between them."""

    finals: tuple[Final, ...]
    n_known: int = 0  # how many of them were part of an earlier passage: they are context

    @property
    def start_s(self) -> float:
        return self.finals[0].start

    @property
    def end_s(self) -> float:
        return self.finals[-1].end


class Passages:
    """Groups the finals of one session. Pure: who wants a passage to end with a pause keeps the time."""

    def __init__(self, longest_s: float, *, by_sentence: bool = False) -> None:
        """Let passages be up to `longest_s` long; a longer final is one of its own.

        by_sentence : each ends with a sentence, or with speech; else it grows as long as it may, and has as many finals
            of those before for context as fit
        """
        self.speaking = False
        self._longest_s, self._by_sentence = longest_s, by_sentence
        # The newest finals, oldest first, and how many of them were in a passage.
        self._finals: list[Final] = []
        self._n_known = 0
        # Times at which speech ended that is not final yet.
        self._ends_s: list[float] = []

    def take(self, event: Event) -> list[Passage]:
        """Take an event of the session, in order; return the passages that have ended."""
        ended: list[Passage] = []
        match event:
            case Speech():
                self.speaking = event.state == "start"
                if not self.speaking:
                    self._ends_s.append(event.time)
            case Gap():
                self._ends_s = [end_s for end_s in self._ends_s if end_s > event.end]
                if self._by_sentence or event.reason != "unclear":  # of such speech more may be understood with context
                    ended = self.close()
                    self._finals, self._n_known = [], 0
            case Final():
                n_before = len(self._ends_s)
                self._ends_s = [end_s for end_s in self._ends_s if end_s > event.end]
                if not self._fit([*self._finals[self._n_known :], event]):
                    ended = self.close()
                if event.text:
                    self._finals.append(event)
                if self._by_sentence and (event.text.endswith(SENTENCE_ENDS) or len(self._ends_s) < n_before):
                    ended += self.close()
        return ended

    def close(self) -> list[Passage]:
        """End the open passage; return it, if there is one."""
        first = n_finals = self._n_known
        if len(self._finals) == n_finals:
            return []
        while first and self._fit(self._finals[first - 1 :]):
            first -= 1
        passage = Passage(tuple(self._finals[first:]), n_finals - first)
        self._finals = [] if self._by_sentence else [*passage.finals]
        self._n_known = len(self._finals)
        return [passage]

    def _fit(self, finals: Sequence[Final]) -> bool:
        """Return whether finals can be one passage."""
        return len(finals) < 2 or (
            finals[-1].end - finals[0].start <= self._longest_s
            and all(
                later.start - earlier.end <= MAX_SILENCE_S and later.language == earlier.language
                for earlier, later in pairwise(finals)
            )
        )
