"""Turns the events of a session into a timeline of what a person sees."""

from typing import Any

from streamer.events import Event, Final, Gap, Partial, Speech
from streamer.events import Revision as Correction
from tools.benchmarks.timeline import Revision, Timeline


class Recorder:
    """Follows a session: the text on screen is its finals and the newest partial."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s` is the silence that the session hears before it says that speech has ended."""
        self._wait_s = wait_s
        self._revisions: list[Revision] = []
        self._speech: list[tuple[float, str, float]] = []
        self._gaps: list[tuple[float, float]] = []
        self._finals: list[tuple[float, float]] = []

        # Words of all finals so far, as they are shown.
        self._final_text: tuple[str, ...] = ()
        # Texts of the finals by their numbers, as corrected later.
        self._corrected: dict[int, str] = {}

        # Position in the audio up to which the session has heard, as far as its events tell.
        self._heard_s = 0.0

    def take(self, event: Event, wall_s: float) -> None:
        """Take an event that came `wall_s` seconds after the first audio was sent."""
        match event:
            case Speech():
                self._speech.append((wall_s, event.state, event.time))
                self._heard_s = max(self._heard_s, event.time + (self._wait_s if event.state == "end" else 0.0))
            case Gap():
                self._gaps.append((event.start, event.end))
                self._heard_s = max(self._heard_s, event.end)
            case Partial():
                self._heard_s = max(self._heard_s, event.end)
                words = event.text.split()
                n_stable = len(self._final_text) + _n_whole(event.text, event.stable)
                self._revisions.append(Revision(wall_s, self._heard_s, (*self._final_text, *words), n_stable))
            case Final():
                self._heard_s = max(self._heard_s, event.end)
                self._corrected[event.seq] = event.text
                self._final_text = (*self._final_text, *event.text.split())
                self._finals.append((event.start, event.end))
                self._revisions.append(Revision(wall_s, self._heard_s, self._final_text, len(self._final_text)))
            case Correction():
                self._corrected[event.of] = event.text

    def timeline(self, system: str, recording: str, audio_s: float, **cost: Any) -> Timeline:  # noqa: ANN401
        """Return what was shown of a recording of `audio_s` seconds, with what it cost, as `Timeline` has it."""
        return Timeline(
            system=system,
            recording=recording,
            audio_s=audio_s,
            # At the end of the audio nobody waits for silence.
            revisions=[
                Revision(r.wall_s, None if r.audio_s is None else min(r.audio_s, audio_s), r.words, r.n_stable)
                for r in self._revisions
            ],
            speech=self._speech,
            gaps=self._gaps,
            finals=self._finals,
            corrected=" ".join(self._corrected.values()),
            **cost,
        )


def _n_whole(text: str, n_characters: int) -> int:
    """Return how many words of a text lie within its first characters as a whole."""
    n_words = len(text[:n_characters].split())
    within_word = (
        0 < n_characters < len(text) and not text[n_characters].isspace() and not text[n_characters - 1].isspace()
    )
    return n_words - within_word
