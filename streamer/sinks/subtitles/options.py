"""What can be chosen about a transcript's segments, lines and marks.

The names are those of openai-whisper's writers (`whisper/utils.py`); `max_len` and `split_on_word` are whisper.cpp's,
`karaoke` is our own.
"""

from dataclasses import dataclass

from streamer.errors import UsageError

# More than any screen, page or recording has, so that a slip of a finger is told from a wish.
_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleOptions:
    """How a transcript is divided and marked. Raises UsageError where a value cannot be, or two contradict.

    Where none of the first four is given, cues are laid out as broadcasters ask: at most two lines of 42 characters.
    Where one is, they are laid out as openai-whisper does with the same options, and what is not given has no limit.
    """

    # Characters a line; 0 is no limit.
    max_line_width: int | None = None

    # Lines a cue; 0 is no limit. Together with `max_line_width` cues go on from one segment to the next.
    max_line_count: int | None = None

    # Words a cue; 0 is no limit. No effect where the two above are given together.
    max_words_per_line: int | None = None

    # Characters a segment, the spaces before its words included; 0 is no limit. A word is never divided.
    max_len: int = 0

    # Whether `max_len` divides before spaces only, and not between words that are written without one.
    split_on_word: bool = False

    # Underline each word while it is spoken, in a cue of its own (srt, vtt).
    highlight_words: bool = False

    # Tag each word with its time (vtt, lrc).
    karaoke: bool = False

    def __post_init__(self) -> None:
        for name in ("max_line_width", "max_line_count", "max_words_per_line", "max_len"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _MAX:
                raise UsageError(f"{name} is {value!r:.60}: expected 0 (no limit) to {_MAX}")
        if self.highlight_words and self.karaoke:
            raise UsageError("highlight_words underlines words and karaoke tags them with their times: choose one")

    @property
    def as_whisper(self) -> bool:
        """Whether cues are laid out as openai-whisper does."""
        given = (self.max_line_width, self.max_line_count, self.max_words_per_line)
        return self.max_len > 0 or any(value is not None for value in given)
