"""Transcripts and subtitles as files: text, JSON, JSON Lines, SubRip, WebVTT and tab-separated values."""

import math
from collections.abc import Callable
from typing import TextIO

from streamer.errors import UsageError
from streamer.outputs.subtitles.cues import SubtitleOptions, subtitle_options
from streamer.outputs.subtitles.timed import SrtWriter, VttWriter
from streamer.outputs.subtitles.transcripts import JsonLinesWriter, JsonWriter, TextWriter, TsvWriter, Writer

__all__ = ["FORMATS", "SubtitleOptions", "Writer", "open_writer", "subtitle_options"]

_WRITERS: dict[str, Callable[[TextIO, SubtitleOptions], Writer]] = {
    "text": TextWriter,
    "json": JsonWriter,
    "jsonl": JsonLinesWriter,
    "srt": SrtWriter,
    "vtt": VttWriter,
    "tsv": TsvWriter,
}

FORMATS = tuple(_WRITERS)


def open_writer(format: str, stream: TextIO, options: SubtitleOptions | None = None, *, n_waiting: int = 0) -> Writer:
    """Return a writer of one of FORMATS to a text stream, which stays the caller's to close.

    n_waiting : number of finals that wait for their revisions; 0: revisions are ignored. `jsonl` writes both at once

    Each final is written as it arrives, except in `json`, and except for the last cue of `srt` and `vtt`, which may end
    at the start of the next one or continue in the next final. Raises UsageError for another format.
    """
    if format not in _WRITERS:
        raise UsageError(f"format {format!r:.40} is unknown: expected one of {', '.join(FORMATS)}")
    writer = _WRITERS[format](stream, options or SubtitleOptions())
    writer.n_waiting = math.inf if n_waiting and format == "json" else n_waiting
    return writer
