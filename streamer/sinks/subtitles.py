"""Transcripts and subtitles as files: text, JSON, JSON Lines, SubRip, WebVTT and tab-separated values.

SubRip has no standard; WebVTT is W3C's "WebVTT: The Web Video Text Tracks Format". Lines of 42 characters, two to a
cue, are what broadcasters ask for (Netflix Timed Text Style Guide; EBU-TT-D leaves room for as many). The
tab-separated format is openai-whisper's: start and end in whole milliseconds, and the text.
"""

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from streamer.errors import UsageError
from streamer.events import Event, Final, Gap, Ready, Word
from streamer.sinks.base import Sink, one_line, printable

MAX_LINE_CHARS = 42
MAX_CUE_LINES = 2
MAX_PAUSE_S = 1.0  # a longer pause between two words begins a new cue: a text must not stand while nobody speaks


def open_writer(format: str, stream: TextIO) -> Sink:
    """Return a writer of one of FORMATS to a text stream, which stays the caller's to close.

    All but `json` write each final as it comes. Raises UsageError for another format.
    """
    if format not in _WRITERS:
        raise UsageError(f"format {format!r:.40} is unknown: expected one of {', '.join(FORMATS)}")
    return _WRITERS[format](stream)


class _Writer:
    """What the writers share: a stream that is flushed after each event, so that a pipe sees it at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def handle(self, event: Event) -> None:
        if isinstance(event, Final) and one_line(event.text):
            self._final(event)

    def close(self) -> None:
        self._stream.flush()

    def _final(self, final: Final) -> None:
        raise NotImplementedError

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class TextWriter(_Writer):
    """One final a line."""

    def _final(self, final: Final) -> None:
        self._write(one_line(final.text) + "\n")


class JsonLinesWriter(_Writer):
    """Every event as it is, one a line."""

    def handle(self, event: Event) -> None:
        self._write(event.to_json() + "\n")


class JsonWriter(_Writer):
    """One object, written at close: the text, its segments, and what was not transcribed."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)

        # Everything final so far; a transcript cannot be written as one object before it is complete.
        self._segments: list[Final] = []
        self._gaps: list[Gap] = []

        # From `ready`.
        self._model = ""

        # Whether the object has been written.
        self._closed = False

    def handle(self, event: Event) -> None:
        match event:
            case Ready():
                self._model = event.model
            case Final():
                self._segments.append(event)
            case Gap():
                self._gaps.append(event)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        texts = (one_line(final.text) for final in self._segments)
        transcript: dict[str, Any] = {
            "text": " ".join(text for text in texts if text),
            "language": self._segments[0].language if self._segments else "",
            "model": self._model,
            "segments": [_without_envelope(final) for final in self._segments],
            "gaps": [_without_envelope(gap) for gap in self._gaps],
        }
        json.dump(transcript, self._stream, ensure_ascii=False, indent=2)
        self._write("\n")


class TsvWriter(_Writer):
    """Start and end in milliseconds and text, separated by tabs, below a line that names them."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._write("start\tend\ttext\n")

    def _final(self, final: Final) -> None:
        # A tab in the text has become a space with all other white space.
        self._write(f"{_milliseconds(final.start)}\t{_milliseconds(final.end)}\t{one_line(final.text)}\n")


class _CueWriter(_Writer):
    """What subtitle formats share: numbered cues in order, none over another."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)

        # Number of the last cue, and where it ends.
        self._number = 0
        self._end_ms = 0

    def _final(self, final: Final) -> None:
        for cue in cues(final):
            # Times come from a model, or from another machine: whatever they are, a cue begins after the one
            # before it and is there for a moment.
            start_ms = max(cue.start_ms, self._end_ms)
            end_ms = max(cue.end_ms, start_ms + 1)
            self._number += 1
            self._end_ms = end_ms
            self._cue(self._number, start_ms, end_ms, cue.lines)

    def _cue(self, number: int, start_ms: int, end_ms: int, lines: tuple[str, ...]) -> None:
        raise NotImplementedError


class SrtWriter(_CueWriter):
    """SubRip."""

    def _cue(self, number: int, start_ms: int, end_ms: int, lines: tuple[str, ...]) -> None:
        # An arrow could be taken for a line of times.
        text = "\n".join(line.replace("-->", "→") for line in lines)
        self._write(f"{number}\n{_clock(start_ms, ',')} --> {_clock(end_ms, ',')}\n{text}\n\n")


class VttWriter(_CueWriter):
    """WebVTT."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._write("WEBVTT\n\n")

    def _cue(self, number: int, start_ms: int, end_ms: int, lines: tuple[str, ...]) -> None:
        text = "\n".join(line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in lines)
        self._write(f"{_clock(start_ms, '.')} --> {_clock(end_ms, '.')}\n{text}\n\n")


_WRITERS: dict[str, Callable[[TextIO], _Writer]] = {
    "text": TextWriter,
    "json": JsonWriter,
    "jsonl": JsonLinesWriter,
    "srt": SrtWriter,
    "vtt": VttWriter,
    "tsv": TsvWriter,
}

FORMATS = tuple(_WRITERS)


@dataclass(frozen=True, slots=True)
class Cue:
    """What stands on the screen at once."""

    start_ms: int
    end_ms: int

    # One or two lines of at most 42 characters, none empty.
    lines: tuple[str, ...]


def cues(final: Final) -> list[Cue]:
    """Divide a final into cues, by its words' times."""
    made: list[Cue] = []
    pieces: list[_Piece] = []
    lines: list[str] = []
    for piece in _pieces(final):
        paused = pieces and piece.start - pieces[-1].end > MAX_PAUSE_S
        if paused or not _fitted(lines, piece):
            made.append(_cue(pieces, lines))
            pieces, lines = [], []
            _fitted(lines, piece)
        pieces.append(piece)
    if pieces:
        made.append(_cue(pieces, lines))
    return made


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is never divided by a line break: a word, or text without spaces that fits a line."""

    text: str
    spaced: bool
    start: float
    end: float


def _pieces(final: Final) -> list[_Piece]:
    pieces: list[_Piece] = []
    spaced = True
    for word in final.words or _evenly(final.text, final.start, final.end):
        raw = printable(word.word)
        spaced = spaced or raw.startswith(" ")
        texts = textwrap.wrap(one_line(raw), MAX_LINE_CHARS, break_on_hyphens=False)
        for i, text in enumerate(texts):
            step = (word.end - word.start) / len(texts)
            piece = _Piece(text, spaced or i > 0, word.start + i * step, word.start + (i + 1) * step)
            if pieces and _belong_together(pieces[-1], piece):
                last = pieces.pop()
                piece = _Piece(last.text + text, last.spaced, last.start, max(last.end, piece.end))
            pieces.append(piece)
            spaced = False
        spaced = spaced or raw.endswith(" ")
    return pieces


def _evenly(text: str, start: float, end: float) -> Iterator[Word]:
    """Yield the words of a text without word times, spread over its time."""
    words = one_line(text).split()
    step = (end - start) / max(1, len(words))
    for i, word in enumerate(words):
        yield Word(word=f" {word}", start=start + i * step, end=start + (i + 1) * step, probability=0.0, stable=True)


def _belong_together(last: _Piece, piece: _Piece) -> bool:
    return (
        not piece.spaced
        and piece.start - last.end <= MAX_PAUSE_S
        and len(last.text) + len(piece.text) <= MAX_LINE_CHARS
    )


def _fitted(lines: list[str], piece: _Piece) -> bool:
    """Add a piece to the lines of a cue, and say whether there was room."""
    text = " " + piece.text if piece.spaced else piece.text
    if lines and len(lines[-1]) + len(text) <= MAX_LINE_CHARS:
        lines[-1] += text
    elif len(lines) < MAX_CUE_LINES:
        lines.append(piece.text)
    else:
        return False
    return True


def _cue(pieces: list[_Piece], lines: list[str]) -> Cue:
    return Cue(_milliseconds(pieces[0].start), _milliseconds(max(piece.end for piece in pieces)), tuple(lines))


def _milliseconds(time_s: float) -> int:
    return max(0, round(time_s * 1000))


def _clock(time_ms: int, point: str) -> str:
    minutes, rest_ms = divmod(time_ms, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest_ms // 1000:02}{point}{rest_ms % 1000:03}"


def _without_envelope(event: Event) -> dict[str, Any]:
    return {key: value for key, value in event.to_dict().items() if key not in ("type", "seq", "session")}
