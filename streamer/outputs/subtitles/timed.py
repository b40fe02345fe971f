"""Subtitles: SubRip, which has no standard, and WebVTT, W3C's "WebVTT: The Web Video Text Tracks Format".

Cues never overlap, and last at least a millisecond, whatever the times of the words. No text can end its cue, begin
another, or become a tag.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TextIO

import msgspec

from streamer.events import End, Event, Final
from streamer.outputs.subtitles.cues import Cue, SubtitleOptions, file_line, has_words, milliseconds
from streamer.outputs.subtitles.layout import ReadableLayout, WhisperLayout
from streamer.outputs.subtitles.transcripts import Writer


class CueWriter(Writer):
    """Base of subtitle formats: cues in order that do not overlap."""

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)
        self._layout = WhisperLayout(options) if options.as_whisper else ReadableLayout()
        # End of the last cue, and of the recording if it is known.
        self._last_ms = 0
        self._until_ms = math.inf

    def handle(self, event: Event) -> None:
        if isinstance(event, End) and event.time:
            self._until_ms = milliseconds(event.time)
        super().handle(event)

    def close(self) -> None:
        super().close()
        for cue in self._layout.close():
            self._cue(cue)

    def _final(self, final: Final) -> None:
        if not has_words(final):
            final = msgspec.structs.replace(final, words=())  # its text is used instead
        for cue in self._layout.add(final):
            self._cue(cue)

    def _cue(self, cue: Cue) -> None:
        start_ms = max(cue.start_ms, self._last_ms)
        end_ms = max(int(min(cue.end_ms, self._until_ms)), start_ms + 1)
        if self._options.highlight_words and cue.timed:
            self._highlight(cue, start_ms)
            if not self._options.as_whisper and self._last_ms < end_ms:
                self._place(self._last_ms, end_ms, self._text(cue))
        else:
            self._place(start_ms, end_ms, self._text(cue))

    def _highlight(self, cue: Cue, start_ms: int) -> None:
        """Write a cue for each word, in which it is underlined, and the plain text for the time between two words."""
        texts = [self._escaped(word.text) for word in cue.words]
        self._last_ms = start_ms
        for i, (word, text) in enumerate(zip(cue.words, texts, strict=True)):
            if word.start_ms > self._last_ms:
                self._place(self._last_ms, word.start_ms, self._joined(cue, texts))
            place = text[: len(text) - len(text.lstrip())]
            underlined = f"{place}<u>{text[len(place) :]}</u>"
            self._place(word.start_ms, word.end_ms, self._joined(cue, [*texts[:i], underlined, *texts[i + 1 :]]))

    def _place(self, start_ms: int, end_ms: int, text: str) -> None:
        start_ms = max(start_ms, self._last_ms)
        self._last_ms = max(end_ms, start_ms + 1)
        self._show(start_ms, self._last_ms, text)

    def _text(self, cue: Cue) -> str:
        return self._joined(cue, [self._escaped(word.text) for word in cue.words])

    def _joined(self, cue: Cue, texts: Sequence[str]) -> str:
        return "".join(texts)

    def _escaped(self, text: str) -> str:
        raise NotImplementedError

    def _show(self, start_ms: int, end_ms: int, text: str) -> None:
        raise NotImplementedError


class SrtWriter(CueWriter):
    """SubRip."""

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)

        # Number of the last cue.
        self._number = 0

    def _escaped(self, text: str) -> str:
        return text

    def _show(self, start_ms: int, end_ms: int, text: str) -> None:
        self._number += 1
        # An arrow could be parsed as a line of times; several words may form one.
        text = text.replace("-->", "→")
        self._write(f"{self._number}\n{_clock(start_ms, ',')} --> {_clock(end_ms, ',')}\n{text}\n\n")


class VttWriter(CueWriter):
    """WebVTT. Voice spans name the speakers."""

    names_speakers = False

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)
        self._write("WEBVTT\n\n")

    def _joined(self, cue: Cue, texts: Sequence[str]) -> str:
        joined = ""
        for speaker, group in itertools.groupby(zip(cue.words, texts, strict=True), key=lambda pair: pair[0].speaker):
            text = "".join(part for _, part in group)
            line_break = "\n" if text.startswith("\n") else ""
            name = self._escaped(file_line(speaker or ""))
            joined += f"{line_break}<v {name}>{text.removeprefix(line_break)}</v>" if name else text
        return joined

    def _escaped(self, text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    def _show(self, start_ms: int, end_ms: int, text: str) -> None:
        self._write(f"{self._time(start_ms)} --> {self._time(end_ms)}\n{text}\n\n")

    def _time(self, time_ms: int) -> str:
        clock = _clock(time_ms, ".")
        # The standard allows to omit hours of 00, as openai-whisper does.
        return clock.removeprefix("00:") if self._options.as_whisper else clock


def _clock(time_ms: int, point: str) -> str:
    minutes, rest_ms = divmod(time_ms, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest_ms // 1000:02}{point}{rest_ms % 1000:03}"
