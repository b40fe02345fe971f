"""Turns the events of a session into a timeline of what a person sees."""

from typing import Any

from streamer.events import Event, Final, Gap, Partial
from streamer.events import Revision as Correction
from tools.benchmarks.timeline import Revision, Timeline


class Recorder:
    """Follows a session: the text on screen is its finals and the newest partial."""

    def __init__(self) -> None:
        self._revisions: list[Revision] = []
        self._gaps: list[tuple[float, float]] = []
        self._words: list[tuple[float, float]] = []

        # Words of all finals so far, as they are displayed.
        self._final_words: tuple[str, ...] = ()

        # Texts of the finals by their numbers, as corrected later.
        self._corrected: dict[int, str] = {}

    def add(self, event: Event, wall_s: float) -> None:
        """Add an event that came `wall_s` seconds after the first audio was sent."""
        match event:
            case Gap():
                self._gaps.append((event.start, event.end))
            case Partial():
                words = (*self._final_words, *event.text.split())
                n_stable = len(self._final_words) + _n_whole(event.text, event.stable)
                self._revisions.append(Revision(wall_s, words, n_stable))
            case Final():
                self._corrected[event.seq] = event.text
                self._words += [(word.start, word.end) for word in event.words]
                self._final_words = (*self._final_words, *event.text.split())
                self._revisions.append(Revision(wall_s, self._final_words, len(self._final_words)))
            case Correction():
                self._corrected[event.of] = event.text

    def timeline(self, system: str, recording: str, audio_s: float, **cost: Any) -> Timeline:  # noqa: ANN401
        """Return the timeline of a recording of `audio_s` seconds, with its cost as `Timeline` has it."""
        corrected = " ".join(self._corrected.values())
        more = {"corrected": corrected, "gaps": self._gaps, "words": self._words, **cost}
        return Timeline(system, recording, audio_s, self._revisions, **more)


def _n_whole(text: str, n_characters: int) -> int:
    """Return how many words of a text are whole within its first characters."""
    n_words = len(text[:n_characters].split())
    within_word = (
        0 < n_characters < len(text) and not text[n_characters].isspace() and not text[n_characters - 1].isspace()
    )
    return n_words - within_word
