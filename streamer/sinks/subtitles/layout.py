"""Where lines and cues begin.

Broadcasters ask for lines of 42 characters, two to a cue (Netflix Timed Text Style Guide; EBU-TT-D leaves room for as
many). The other layout is that of openai-whisper's `SubtitlesWriter`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from streamer.events import Final, Word
from streamer.sinks.subtitles.cues import Cue, CueWord, SubtitleOptions, file_line, milliseconds, spoken_words

MAX_LINE_CHARS = 42
MAX_CUE_LINES = 2
MAX_PAUSE_MS = 1000  # a longer pause between two words begins a new cue: a text must not stand while nobody speaks

# In openai-whisper no limit is one of so many characters or words, and a pause is so long, from start to start. As many
# lines are more than a cue of as many words can have.
_WHISPER_NO_LIMIT = 1000
_WHISPER_PAUSE_S = 3.0


class Layout(Protocol):
    """Turns finals into cues."""

    def add(self, final: Final) -> Iterator[Cue]:
        """Yield the cues that the next final completes."""
        ...

    def close(self) -> Iterator[Cue]:
        """Yield what is still held back."""
        ...


def make_layout(options: SubtitleOptions) -> Layout:
    """Return the layout that the options ask for."""
    return WhisperLayout(options) if options.as_whisper else BroadcastLayout()


class BroadcastLayout:
    """Lines of at most 42 characters, two a cue. A cue ends with its segment and where a pause begins.

    Words that are written without a space between them stay on one line; one longer than a line is divided.
    """

    def add(self, final: Final) -> Iterator[Cue]:
        cue: list[CueWord] = []
        n_lines = line_chars = 0
        for piece in _pieces(final):
            n_chars = sum(len(word.text) for word in piece)
            goes_on = cue and not _is_pause(cue[-1], piece[0])
            if goes_on and line_chars + n_chars <= MAX_LINE_CHARS:
                line_chars += n_chars
                cue += piece
                continue
            line_break = ""
            if goes_on and n_lines < MAX_CUE_LINES:
                n_lines += 1
                line_break = "\n"
            else:
                if cue:
                    yield _cue(cue, final)
                cue, n_lines = [], 1
            first = piece[0].text.removeprefix(" ")
            line_chars = n_chars - len(piece[0].text) + len(first)
            cue += [dataclasses.replace(piece[0], text=line_break + first), *piece[1:]]
        if cue:
            yield _cue(cue, final)

    def close(self) -> Iterator[Cue]:
        return iter(())


def _pieces(final: Final) -> Iterator[list[CueWord]]:
    """Yield words that no line break may stand between: those without spaces between them, as far as a line holds."""
    piece: list[CueWord] = []
    n_chars = 0
    for word in spoken_words(final):
        for part in _divided(word):
            joined = piece and not part.text.startswith(" ") and not _is_pause(piece[-1], part)
            if not joined or n_chars + len(part.text) > MAX_LINE_CHARS:
                if piece:
                    yield piece
                piece, n_chars = [], 0
            piece.append(part)
            n_chars += len(part.text.removeprefix(" "))
    if piece:
        yield piece


def _divided(word: Word) -> list[CueWord]:
    """Divide a word at its spaces, if it has any within, and where a line is full; the parts share its time."""
    texts = [
        (" " if first == 0 else "") + part[first : first + MAX_LINE_CHARS]
        for part in word.word.removeprefix(" ").split(" ")
        for first in range(0, len(part), MAX_LINE_CHARS)
    ]
    if not word.word.startswith(" "):
        texts[0] = texts[0].removeprefix(" ")
    step = (word.end - word.start) / len(texts)
    return [
        CueWord(text, milliseconds(word.start + i * step), milliseconds(word.start + (i + 1) * step))
        for i, text in enumerate(texts)
    ]


def _is_pause(last: CueWord, word: CueWord) -> bool:
    return word.start_ms - last.end_ms > MAX_PAUSE_MS


def _cue(words: list[CueWord], final: Final) -> Cue:
    return Cue(tuple(words), bool(final.words), words[0].start_ms, max(word.end_ms for word in words))


class WhisperLayout:
    """The same lines and cues as openai-whisper's, for the same segments and options.

    Segments without word times become one cue each, on one line.
    """

    def __init__(self, options: SubtitleOptions) -> None:
        self._max_line_chars = options.max_line_width or _WHISPER_NO_LIMIT
        self._max_words = options.max_words_per_line or _WHISPER_NO_LIMIT
        self._max_lines = options.max_line_count or _WHISPER_NO_LIMIT

        # Whether a cue may go on in the next segment.
        self._flows = bool(options.max_line_width and options.max_line_count)

        # The cue so far, its lines, and the characters of the last one.
        self._cue: list[CueWord] = []
        self._n_lines = 1
        self._line_chars = 0

        # Where the last word began.
        self._last_start: float | None = None

    def add(self, final: Final) -> Iterator[Cue]:
        if not final.words:
            yield from self.close()
            start_ms, end_ms = milliseconds(final.start), milliseconds(final.end)
            yield Cue((CueWord(file_line(final.text), start_ms, end_ms),), False, start_ms, end_ms)
            return
        for i, word in enumerate(spoken_words(final)):
            text = word.word
            paused = self._flows and self._last_start is not None and word.start - self._last_start > _WHISPER_PAUSE_S
            self._last_start = word.start
            begins_cue = paused or (not self._flows and i % self._max_words == 0)
            if self._cue and not begins_cue and self._line_chars + len(text) <= self._max_line_chars:
                self._line_chars += len(text)
            else:
                text = text.removeprefix(" ")
                self._line_chars = len(text)
                if begins_cue or self._n_lines >= self._max_lines:
                    yield from self.close()
                elif self._cue:
                    self._n_lines += 1
                    text = "\n" + text
            self._cue.append(CueWord(text, milliseconds(word.start), milliseconds(word.end)))
        if not self._flows:
            yield from self.close()

    def close(self) -> Iterator[Cue]:
        if self._cue:
            cue, self._cue, self._n_lines = self._cue, [], 1
            yield Cue(tuple(cue), True, cue[0].start_ms, cue[-1].end_ms)
