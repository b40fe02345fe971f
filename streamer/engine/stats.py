"""What an engine counts for the metrics page."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from streamer.events import Event, Final, Gap, GapReason, Partial
from streamer.languages import name_of
from streamer.session.settings import SessionSettings
from streamer.whisper.result import Hypothesis


@dataclass(slots=True)
class EngineStats:
    """What the engine has done, for the metrics page."""

    encodes: int = 0
    decodes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    # Calls of the decoder; tokens found; tokens given before these, and those of them that are of stable words.
    decoder_calls: int = 0
    decoder_tokens: int = 0
    given_tokens: int = 0
    settled_tokens: int = 0
    windows_replaced: int = 0
    failures: int = 0
    # Seconds of audio published as gaps, by reason; that came in, lost or not, by source.
    gap_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(get_args(GapReason), 0.0))
    audio_s: dict[str, float] = field(default_factory=lambda: {"own": 0.0, "client": 0.0})
    # Called with the seconds that a pass took; with the event that first shows live audio, and its age.
    on_encode: Callable[[float], object] = lambda cost_s: None
    on_decode: Callable[[float], object] = lambda cost_s: None
    on_delay: Callable[[str, float], object] = lambda event_type, delay_s: None

    def count_encoded(self, cost_s: float) -> None:
        self.encodes += 1
        self.encode_s += cost_s
        self.on_encode(cost_s)

    def count_decoded(self, hypothesis: Hypothesis, cost_s: float) -> None:
        self.decodes += 1
        self.decode_s += cost_s
        self.decoder_calls += hypothesis.n_calls
        self.decoder_tokens += hypothesis.n_sampled
        self.given_tokens += hypothesis.n_given
        self.settled_tokens += hypothesis.n_begins_with
        self.on_decode(cost_s)


class Tally:
    """Counts the events of one session, and says in the log which languages are spoken."""

    def __init__(self, logger: "logging.LoggerAdapter[logging.Logger]") -> None:
        self._logger = logger
        # Time in the audio up to which partials have shown words.
        self._shown_s = 0.0
        # Of the newest final; languages that are not allowed and that the log has warned of.
        self._language = ""
        self._outside: set[str] = set()

    def shown(self, event: Event) -> float | None:
        """Return up to which time an event shows words, if those before did not, or it shows them for good."""
        if not isinstance(event, Partial | Final) or not event.words:
            return None
        shown_s, end_s = self._shown_s, event.words[-1].end
        self._shown_s = max(shown_s, end_s)
        return end_s if isinstance(event, Final) or end_s > shown_s else None

    def count(self, event: Event, stats: EngineStats, settings: SessionSettings) -> None:
        """Count an event, and log a new language."""
        if isinstance(event, Gap):
            stats.gap_s[event.reason] += event.end - event.start
        if isinstance(event, Final) and event.text and event.language != self._language:
            self._language = event.language
            if settings.language == "auto":
                self._logger.info("language: %s", name_of(event.language))

    def warn_of_language(self, language: str, settings: SessionSettings) -> None:
        """Say once in the log that a language is spoken which the session does not allow: its text will be wrong."""
        if language and language not in self._outside:
            self._outside.add(language)
            self._logger.warning(
                "%s is spoken, which the session does not allow (only %s): its text is wrong; add %s to `languages`",
                name_of(language),
                ", ".join(settings.languages),
                language,
            )
