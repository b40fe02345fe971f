"""What stands on a screen at once, what cues are made of, and what can be chosen of both."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from streamer.events import Final, Word
from streamer.settings.table import OutputSettings, Settings

# What ends a line somewhere, steers a terminal, cannot be encoded, or reorders all that follows it: control characters,
# line and paragraph separators, lone surrogates, bidirectional embeddings and isolates, byte order marks. Joiners and
# direction marks stay, or Persian words and families of emoji would fall apart.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleOptions(OutputSettings):
    """How a transcript is divided and marked: `output` of the settings, and what `decoding` says of segments.

    Where no length is given, cues are laid out as broadcasters ask: at most two lines of 42 characters. Where one is,
    they are laid out as openai-whisper does with the same options, and what is not given has no limit.
    """

    # Characters a segment, the spaces before its words included; 0 is no limit.
    max_len: int = 0
    split_on_word: bool = False

    @property
    def as_whisper(self) -> bool:
        """Whether cues are laid out as openai-whisper does."""
        given = (self.max_line_width, self.max_line_count, self.max_words_per_line)
        return self.max_len > 0 or any(value is not None for value in given)


def subtitle_options(settings: Settings) -> SubtitleOptions:
    """Return how the settings want a transcript divided and marked."""
    output, decoding = dataclasses.asdict(settings.output), settings.decoding
    return SubtitleOptions(**output, max_len=decoding.max_len, split_on_word=decoding.split_on_word)


def file_line(text: str) -> str:
    """Return text as one line that is safe in a file: single spaces, none at its ends."""
    return " ".join(_UNSAFE.sub(" ", text).split())


def milliseconds(time_s: float) -> int:
    """Return a time in whole milliseconds, never negative."""
    return max(0, round(time_s * 1000))


@dataclass(frozen=True, slots=True)
class CueWord:
    """A word in its place: after a space, or a line break where it begins a line, or neither."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Cue:
    """What stands on the screen at once. Times are as they were told: they may overlap or run backwards."""

    words: tuple[CueWord, ...]

    # Whether the words' times were told; otherwise they are guessed from the segment's.
    timed: bool

    start_ms: int
    end_ms: int

    @property
    def lines(self) -> list[list[CueWord]]:
        """The words of each line, the first without its line break."""
        lines: list[list[CueWord]] = [[]]
        for word in self.words:
            if word.text.startswith("\n"):
                lines.append([])
            lines[-1].append(dataclasses.replace(word, text=word.text.removeprefix("\n")))
        return lines


def has_words(final: Final) -> bool:
    """Return whether a final tells its words, and any of them has text."""
    return any(file_line(word.word) for word in final.words)


def spoken_words(final: Final) -> Iterator[Word]:
    """Yield the words of a final, cleaned, those without text left out; spread over its time where it tells none.

    A word begins with a space where one stands before it, and never ends with one.
    """
    spaced = False
    for word in final.words or evenly(final.text, final.start, final.end):
        raw = _UNSAFE.sub(" ", word.word)
        spaced = spaced or raw[:1].isspace()
        if text := " ".join(raw.split()):
            yield msgspec.structs.replace(word, word=f" {text}" if spaced else text)
            spaced = raw[-1:].isspace()


def evenly(text: str, start: float, end: float) -> Iterator[Word]:
    """Yield the words of a text without word times, spread over its time."""
    words = file_line(text).split()
    step = (end - start) / max(1, len(words))
    for i, word in enumerate(words):
        yield Word(word=f" {word}", start=start + i * step, end=start + (i + 1) * step, probability=0.0, stable=True)
