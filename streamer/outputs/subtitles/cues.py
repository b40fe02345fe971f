"""Cues of subtitles, the words in them, and the options of transcripts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from unicodedata import east_asian_width

import msgspec

from streamer.events import Final, Word
from streamer.settings.table import OutputSettings, Settings

# Characters that end a line, control a terminal, cannot be encoded, or reorder the text after them: control characters,
# line and paragraph separators, lone surrogates, bidirectional embeddings and isolates, byte order marks. Joiners and
# direction marks are kept: Persian words and emoji of families need them.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")

# Speed of speech in characters a second, for words without a duration.
_SPOKEN_CHARS_PER_S = 15


class SubtitleOptions(OutputSettings, frozen=True, kw_only=True):
    """How a transcript is divided and marked: the settings `output`, and those of `decoding` about segments."""

    # Characters of a segment, including the spaces before its words; 0 is no limit.
    max_len: int = 0
    split_on_word: bool = False

    @property
    def as_whisper(self) -> bool:
        """Whether cues are openai-whisper's: by the style, or because one of its limits is set."""
        limits = (self.max_line_width, self.max_line_count, self.max_words_per_line)
        is_limited = self.max_len > 0 or any(limit is not None for limit in limits)
        return is_limited or self.subtitle_style == "whisper"


def subtitle_options(settings: Settings) -> SubtitleOptions:
    """Return the options of transcripts in the settings."""
    options, decoding = msgspec.convert(settings.output, SubtitleOptions, from_attributes=True), settings.decoding
    return msgspec.structs.replace(options, max_len=decoding.max_len, split_on_word=decoding.split_on_word)


def file_line(text: str) -> str:
    """Return text as one line that is safe in a file: single spaces, none at its ends."""
    return " ".join(_UNSAFE.sub(" ", text).split())


def milliseconds(time_s: float) -> int:
    """Return a time in whole milliseconds, never negative."""
    return max(0, round(time_s * 1000))


def columns(text: str) -> int:
    """Return the width of a text in columns: wide East Asian characters have two."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(char) in "WF") for char in text)


@dataclass(frozen=True, slots=True)
class CueWord:
    """A word with the space, or the line break, before it, if there is one."""

    text: str
    start_ms: int
    end_ms: int

    # None: unknown.
    speaker: str | None = None


@dataclass(frozen=True, slots=True)
class Cue:
    """Text that is shown at once. Times may overlap, or end before they start, as in the final."""

    words: tuple[CueWord, ...]

    # Whether the words' times are the final's own, not guessed from the segment's.
    timed: bool

    start_ms: int
    end_ms: int

    @property
    def n_lines(self) -> int:
        """Number of lines."""
        return 1 + sum(word.text.startswith("\n") for word in self.words)


def has_words(final: Final) -> bool:
    """Return whether any word of a final has text."""
    return any(file_line(word.word) for word in final.words)


def spoken_words(final: Final) -> Iterator[Word]:
    """Yield the words of a final that have text, without unsafe characters; spread over its time if it has no words.

    A word includes the space before it, and never ends with one.
    """
    spaced = False
    for word in final.words or evenly(final.text, final.start, final.end):
        raw = _UNSAFE.sub(" ", word.word)
        spaced = spaced or raw[:1].isspace()
        if text := " ".join(raw.split()):
            yield msgspec.structs.replace(word, word=f" {text}" if spaced else text)
            spaced = raw[-1:].isspace()


def timed_words(final: Final) -> list[Word]:
    """Return the spoken words of a final; words without a duration get some of the time between their neighbours.

    If no word has a duration, they share the segment's. If no time is left between, they share their neighbour's.
    """
    words = list(spoken_words(final))
    first = last = 0
    while first < len(words):
        while last < len(words) and words[last].end <= words[last].start:
            last += 1
        if last > first:
            begin = words[first - 1].end if first else final.start
            end = words[last].start if last < len(words) else final.end
            if end > begin and last - first < len(words):
                length_s = sum(columns(word.word) for word in words[first:last]) / _SPOKEN_CHARS_PER_S
                begin = max(begin, min(words[first].start, end - length_s))
                end = min(end, begin + length_s)
            elif end <= begin and last < len(words):
                end, last = words[last].end, last + 1
            elif end <= begin and first:
                first -= 1
                begin = words[first].start
            words[first:last] = _spread(words[first:last], begin, max(begin, end))
        else:
            last += 1
        first = last
    return words


def _spread(words: list[Word], begin: float, end: float) -> Iterator[Word]:
    """Yield words one after another, with durations in proportion to their lengths."""
    step = (end - begin) / max(1, sum(columns(word.word) for word in words))
    for word in words:
        end = begin + step * columns(word.word)
        yield msgspec.structs.replace(word, start=begin, end=end)
        begin = end


def evenly(text: str, start: float, end: float) -> Iterator[Word]:
    """Yield the words of a text without word times, spread over its time."""
    words = [f" {word}" for word in file_line(text).split()]
    return _spread([Word(word=word, start=start, end=end, probability=0.0, stable=True) for word in words], start, end)
