"""What a session's events tell the metrics page and the program's log."""

from streamer.engine.follower import Logger
from streamer.engine.inlet import Inlet
from streamer.events import Event, Final, Gap, Partial
from streamer.languages import name_of
from streamer.session.settings import SessionSettings


class Tally:
    """Counts the events of one session, and says in the log which languages are spoken."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        # Time in the audio up to which partials have shown words.
        self._shown_s = 0.0
        # Of the newest final; languages that are not allowed and that the log has warned of.
        self._language = ""
        self._outside: set[str] = set()

    def count(self, event: Event, inlet: Inlet) -> None:
        """Count an event of a session, and log a new language."""
        if isinstance(event, Gap):
            inlet.host.stats.gap_s[event.reason] += event.end - event.start
        if isinstance(event, Partial | Final) and event.words:
            end_s = event.words[-1].end
            # Of a partial only if it shows more than those before.
            if (isinstance(event, Final) or end_s > self._shown_s) and (age_s := inlet.age_s(end_s)) is not None:
                inlet.host.stats.on_delay(event.type, age_s)
            self._shown_s = max(self._shown_s, end_s)
        if isinstance(event, Final) and event.text and event.language != self._language:
            self._language = event.language
            if inlet.settings.language == "auto":
                self._logger.info("language: %s", name_of(event.language))

    def warn_of_language(self, language: str, settings: SessionSettings) -> None:
        """Say once in the log that a language is spoken which the session does not allow: it becomes a gap."""
        if language and language not in self._outside:
            self._outside.add(language)
            self._logger.warning(
                "%s is spoken, which the session does not allow (only %s): it becomes a gap; add %s to `languages`",
                name_of(language),
                ", ".join(settings.languages),
                language,
            )
