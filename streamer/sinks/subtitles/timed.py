"""Subtitles and lyrics: SubRip, WebVTT and LRC.

WebVTT is W3C's "WebVTT: The Web Video Text Tracks Format"; its karaoke style is that of cue timestamps. SubRip and LRC
have no standard: LRC is a line of text behind `[mm:ss.xx]`, and in the form that A2 Media Player brought up, each word
behind its `<mm:ss.xx>`, the last one before another.

Whatever times a model or another machine tells, a cue begins after the one before it and is there for a moment; and
whatever text, it cannot end its cue, begin another, or become a tag.
"""

import itertools
import re
from collections.abc import Sequence
from typing import TextIO

import msgspec

from streamer.events import Final
from streamer.sinks.subtitles.cues import Cue, CueWord, SubtitleOptions, file_line, has_words
from streamer.sinks.subtitles.layout import BroadcastLayout, CueTimes, WhisperLayout
from streamer.sinks.subtitles.transcripts import Writer

# What a reader of lyrics could take for a tag: a bracket, digits or a name, and a colon.
_LRC_TAG = re.compile(r"[\[<](?=\s*[\w#]+\s*:)")


class _LayoutWriter(Writer):
    """What is written cue by cue."""

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)
        self._layout = BroadcastLayout(options.style) if options.style else WhisperLayout(options)

        # Where the last cue ends, or the last line of lyrics begins.
        self._last_ms = 0

    def close(self) -> None:
        for cue in self._layout.close():
            self._cue(cue)
        super().close()

    def _final(self, final: Final) -> None:
        if not has_words(final):
            final = msgspec.structs.replace(final, words=())  # its text is shown all the same
        for cue in self._layout.add(final):
            self._cue(cue)

    def _cue(self, cue: Cue) -> None:
        raise NotImplementedError


class CueWriter(_LayoutWriter):
    """What subtitle formats share: cues in order, none over another, for as long as the style wants them to stand."""

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)
        self._times = CueTimes(options.style) if options.style else None

    def close(self) -> None:
        super().close()
        for cue in self._times.close() if self._times else ():
            self._timed(cue)

    def _cue(self, cue: Cue) -> None:
        for timed in self._times.add(cue) if self._times else (cue,):
            self._timed(timed)

    def _timed(self, cue: Cue) -> None:
        start_ms = max(cue.start_ms, self._last_ms)
        end_ms = max(cue.end_ms, start_ms + 1)
        if self._options.highlight_words and cue.timed:
            self._highlight(cue, start_ms)
            if self._times and self._last_ms < end_ms:
                self._place(self._last_ms, end_ms, self._text(cue, start_ms, end_ms))
        else:
            self._place(start_ms, end_ms, self._text(cue, start_ms, end_ms))

    def _highlight(self, cue: Cue, start_ms: int) -> None:
        """Show a cue for each word, with that word underlined, and the plain text in the time between two."""
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

    def _text(self, cue: Cue, start_ms: int, end_ms: int) -> str:
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
        # An arrow could be taken for a line of times, also one that several words make.
        text = text.replace("-->", "→")
        self._write(f"{self._number}\n{_clock(start_ms, ',')} --> {_clock(end_ms, ',')}\n{text}\n\n")


class VttWriter(CueWriter):
    """WebVTT. Who speaks is said by voice spans."""

    names_speakers = False

    def __init__(self, stream: TextIO, options: SubtitleOptions) -> None:
        super().__init__(stream, options)
        self._write("WEBVTT\n\n")

    def _text(self, cue: Cue, start_ms: int, end_ms: int) -> str:
        if not (self._options.karaoke and cue.timed):
            return super()._text(cue, start_ms, end_ms)
        texts = []
        tagged_ms = start_ms
        for i, word in enumerate(cue.words):
            escaped = self._escaped(word.text)
            # The standard wants times that grow and lie within the cue; a word without one is shown with the last.
            if i > 0 and tagged_ms < word.start_ms < end_ms:
                tagged_ms = word.start_ms
                line_break = "\n" if escaped.startswith("\n") else ""
                escaped = f"{line_break}<{self._time(tagged_ms)}><c>{escaped.removeprefix(line_break)}</c>"
            texts.append(escaped)
        return self._joined(cue, texts)

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
        # The standard lets hours be left out where there are none; so does openai-whisper.
        return clock.removeprefix("00:") if self._options.style is None else clock


class LrcWriter(_LayoutWriter):
    """LRC: each line of a cue with the time at which it begins."""

    def _cue(self, cue: Cue) -> None:
        for line in cue.lines:
            self._last_ms = max(self._last_ms, line[0].start_ms)
            text = _LRC_TAG.sub("(", "".join(word.text for word in line))
            if self._options.karaoke and cue.timed:
                text = self._tagged(line)
            self._write(f"[{_lrc_time(self._last_ms)}]{text}\n")

    def _tagged(self, line: list[CueWord]) -> str:
        text = ""
        tagged_ms = self._last_ms
        for word in line:
            tagged_ms = max(tagged_ms, word.start_ms)
            space = " " if word.text.startswith(" ") else ""
            text += f"{space}<{_lrc_time(tagged_ms)}>{_LRC_TAG.sub('(', word.text[len(space) :])}"
        return f"{text}<{_lrc_time(max(tagged_ms, line[-1].end_ms))}>"


def _clock(time_ms: int, point: str) -> str:
    minutes, rest_ms = divmod(time_ms, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest_ms // 1000:02}{point}{rest_ms % 1000:03}"


def _lrc_time(time_ms: int) -> str:
    """Return minutes, which go on beyond 99 for there are no hours, seconds and hundredths."""
    hundredths = (time_ms + 5) // 10
    return f"{hundredths // 6000:02}:{hundredths // 100 % 60:02}.{hundredths % 100:02}"
