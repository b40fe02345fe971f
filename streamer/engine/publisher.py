"""Publishes the events of a session, under its lock."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from streamer.engine.host import EngineStats
from streamer.events import Event, Final, Gap, Partial
from streamer.languages import name_of
from streamer.session.settings import SessionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutput:
    """Who receives a session's events. They are called under its lock, from the engine's threads: they return at once.

    on_event : is called with each event
    on_finished : is called when everything is final
    on_turn : is called with start and end of a turn that may be over; returns whether `SessionRunner.judge` will follow
    labels : each returns an event as it is to be published; they see the words of a text even if these are not
        published. An event is published without the label that fails
    name : of the session, for the log
    """

    on_event: Callable[[Event], object]
    on_finished: Callable[[], object] = lambda: None
    on_turn: Callable[[int, int], bool] = lambda start, end: False
    labels: Sequence[Callable[[Event], Event]] = ()
    name: str = ""


class Publisher:
    """Publishes events, counts what the metrics need, and logs languages."""

    def __init__(self, output: SessionOutput, logger: "logging.LoggerAdapter[logging.Logger]") -> None:
        self._output, self._logger = output, logger
        # Time in the audio up to which partials have shown words.
        self._shown_s = 0.0
        # Of the newest final; languages that are not allowed and that the log has warned of.
        self._language = ""
        self._outside: set[str] = set()

    def publish(
        self,
        events: Iterable[Event],
        settings: SessionSettings,
        stats: EngineStats,
        age_s: Callable[[float], float | None],
    ) -> None:
        """Publish events, whatever fails on their way.

        age_s : returns how long ago live audio came, by its time in the session; None if that is not known
        """
        for event in events:
            with self._surviving("a %s event is not counted", event.type):
                self._count(event, settings, stats, age_s)
            for label in self._output.labels:
                with self._surviving("a %s event is published without a label", event.type):
                    event = label(event)
            if isinstance(event, Partial | Final) and not settings.words:
                event = msgspec.structs.replace(event, words=())
            with self._surviving("a %s event is lost", event.type):
                self._output.on_event(event)

    def asks(self, start: int, end: int) -> bool:
        """Have a turn judged; return whether that will be done."""
        with self._surviving("a turn is not judged"):
            return self._output.on_turn(start, end)
        return False

    def finish(self) -> None:
        with self._surviving("the end of a session is lost"):
            self._output.on_finished()

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

    def _count(
        self,
        event: Event,
        settings: SessionSettings,
        stats: EngineStats,
        age_s: Callable[[float], float | None],
    ) -> None:
        """Count an event for the metrics, and log a new language."""
        if isinstance(event, Gap):
            stats.gap_s[event.reason] += event.end - event.start
        if isinstance(event, Partial | Final) and event.words:
            end_s = event.words[-1].end
            # Of a partial only if it shows more than those before.
            if (isinstance(event, Final) or end_s > self._shown_s) and (event_age_s := age_s(end_s)) is not None:
                stats.on_delay(event.type, event_age_s)
            self._shown_s = max(self._shown_s, end_s)
        if isinstance(event, Final) and event.text and event.language != self._language:
            self._language = event.language
            if settings.language == "auto":
                self._logger.info("language: %s", name_of(event.language))

    @contextmanager
    def _surviving(self, message: str, *values: object) -> Iterator[None]:
        """Log what a block raises: what follows a session's events costs the session nothing when it fails."""
        try:
            yield
        except Exception:
            self._logger.exception(message, *values)
