"""What a session's events tell the metrics page and the program's log."""

import logging

from streamer.engine.host import EngineStats
from streamer.events import Event, Final, Gap, Partial
from streamer.languages import name_of
from streamer.session.settings import SessionSettings


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
