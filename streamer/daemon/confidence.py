"""Warns in the log, once for each language of a session, that the model recognizes it badly.

That follows from the probabilities of the words, not from a table, as a fine-tune may know other languages: the share
of wrong words is about 1 minus the mean probability.
"""

from collections.abc import Callable
from dataclasses import dataclass

from streamer.engine.follower import Follower
from streamer.events import Event, Final
from streamer.languages import name_of
from streamer.whisper.model import WhisperModel

# Least span, in seconds, and number of the words that are judged at a time. Fewer are often noise.
SPAN_S = 20.0
N_WORDS = 20

# Mean probability below which the log has a warning. In 20 s of a language that the model knows it is at least 0.59,
# even on the telephone and at meetings; if people speak other languages to tiny.en it is 0.49 at most.
LEAST_PROBABILITY = 0.55


@dataclass(slots=True)
class _Words:
    """Words of one language that are not judged yet."""

    span_s: float = 0.0
    probability: float = 0.0
    n: int = 0


class Confidence(Follower):
    """Follows the finals of one session."""

    def __init__(self, model: WhisperModel, warn: Callable[[str], object]) -> None:
        self._model, self._warn = model, warn
        # By language; None if the log has warned of it.
        self._words: dict[str, _Words | None] = {}

    def see(self, event: Event) -> None:
        if not isinstance(event, Final) or not event.words:
            return
        words = self._words.setdefault(event.language, _Words())
        if words is None:
            return
        words.span_s += event.words[-1].end - event.words[0].start
        words.probability += sum(word.probability for word in event.words)
        words.n += len(event.words)
        if words.span_s < SPAN_S or words.n < N_WORDS:
            return
        unsure = words.probability < LEAST_PROBABILITY * words.n
        self._words[event.language] = None if unsure else _Words()
        if unsure:
            self._warn(self._message(event.language))

    def _message(self, language: str) -> str:
        if self._model.tokenizer.known_languages == ["en"]:
            return (
                f"half of the words or more are probably wrong: {self._model.name} knows English only. If another"
                " language is spoken, choose a multilingual model (--model base)"
            )
        return (
            f"half of the words or more in {name_of(language)} are probably wrong: {self._model.name} is not sure of"
            " them. A larger model may recognize it better (--model small); if another language is spoken, name it"
            " (--language)"
        )
