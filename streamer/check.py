"""Checks of all settings before a model is loaded: each room checks its own, and here is what concerns several."""

from pathlib import Path

from streamer.after.correct.glossary import read_terms
from streamer.after.speakers.enrolled import enrolled_folder, read_enrolled
from streamer.constants import CHUNK_LENGTH_S
from streamer.errors import ConfigError
from streamer.extras import requires
from streamer.packed_models import SPEAKERS
from streamer.settings.table import Settings
from streamer.whisper.option_checks import check_decoding


def check_options(settings: Settings, *, streaming: bool) -> None:
    """Refuse settings that contradict each other or are invalid, as far as no model is needed to see that.

    streaming : whether they are for live captions, which begin at temperature 0 whatever is set

    Raises ConfigError.
    """
    if streaming:
        _check_delay(settings)
    if settings.speakers.enabled:
        SPEAKERS.find()
        read_enrolled(enrolled_folder(settings.speakers.enrolled))
    check_decoding(settings, streaming=streaming)
    if settings.correction.glossary:
        for module in ("doublemetaphone", "rapidfuzz"):
            requires(module, extra="glossary", purpose="--glossary")
        read_terms(Path(settings.correction.glossary))
    for part in settings.plugins:
        if callable(check := getattr(part, "check", None)):
            check()
    lines = settings.output
    if lines.max_words_per_line and lines.max_line_width and lines.max_line_count:
        raise ConfigError(
            "max_words_per_line has no effect beside max_line_width and max_line_count: leave out one of the three"
        )


def _check_delay(settings: Settings) -> None:
    """Hold the stream's times against each other."""
    stream, most = settings.stream, settings.input.buffer_s - CHUNK_LENGTH_S
    if stream.max_delay_s > most:
        raise ConfigError(
            f"stream.max_delay_s is {stream.max_delay_s:g} with input.buffer_s {settings.input.buffer_s:g}: expected at"
            f" most {most:g}, as a window of {CHUNK_LENGTH_S} s has to be in the buffer, too; raise input.buffer_s"
        )
    if stream.max_pace_s < stream.pace_s:
        raise ConfigError(
            f"stream.max_pace_s is {stream.max_pace_s:g}: expected at least stream.pace_s, which is {stream.pace_s:g}"
        )
