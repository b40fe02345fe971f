"""The segments of a window: what its tokens say between two timestamps, as openai-whisper's `transcribe.py` has it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from streamer.constants import HOP_LENGTH, N_SAMPLES_PER_TOKEN
from streamer.whisper.result import TimedWord
from streamer.whisper.tokens.special import N_TIMESTAMPS


@dataclass(frozen=True, slots=True)
class RecordingWindow:
    """Frames of the recording that are decoded at once."""

    begin: int
    length: int

    @property
    def end(self) -> int:
        return self.begin + self.length

    @property
    def begin_samples(self) -> int:
        return self.begin * HOP_LENGTH

    @property
    def end_samples(self) -> int:
        return self.end * HOP_LENGTH


@dataclass(slots=True, kw_only=True)
class Segment:
    """Text between two timestamps of a window."""

    # Positions in the recording; in its window until that is decoded.
    start_samples: int
    end_samples: int

    # Timestamps included.
    tokens: tuple[int, ...]
    text: str = ""
    words: tuple[TimedWord, ...] = ()
    # Whether words were looked for.
    timed: bool = False
    # For each word, of each of its tokens.
    token_probabilities: tuple[tuple[float, ...], ...] = ()
    language: str = ""
    task: str = "transcribe"

    # Of the whole window; its first frame first.
    seek: int = 0
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0

    def cut(self, first: int, last: int) -> None:
        """Clamp all positions to a span of samples."""
        self.start_samples = min(max(self.start_samples, first), last)
        self.end_samples = min(max(self.end_samples, first), last)
        self.words = tuple(
            dataclasses.replace(
                word,
                start_samples=min(max(word.start_samples, first), last),
                end_samples=min(max(word.end_samples, first), last),
            )
            for word in self.words
        )


def split_segments(
    tokens: Sequence[int], timestamp_begin: int, length_frames: int, *, alone: bool = False
) -> tuple[list[Segment], int]:
    """Split the tokens of a window of `length_frames` at its timestamps.

    alone : whether no other window has its end, so that a segment without an end is kept

    Returns the segments, their positions counted from the start of the window, and how many frames to go on by: to the
    last timestamp if the window was cut off in the middle of a segment, else past all of the window.

    As in openai-whisper, a single segment begins with the window, whatever its first timestamp says.
    """
    is_time = [token in _times(timestamp_begin) for token in tokens]
    cuts = [i for i in range(1, len(tokens)) if is_time[i - 1] and is_time[i]]

    def position(index: int) -> int:
        # A text without a time before it begins with the window.
        return (tokens[index] - timestamp_begin) * N_SAMPLES_PER_TOKEN if is_time[index] else 0

    if not cuts:
        last = max((i for i in range(len(tokens)) if is_time[i]), default=None)
        end = position(last) if last is not None else 0
        whole = Segment(start_samples=0, end_samples=end or length_frames * HOP_LENGTH, tokens=tuple(tokens))
        return [whole], length_frames
    ended = ends_with_one_time(tokens, timestamp_begin)
    open_end = alone and not is_time[-1]
    # The last cut ends the last whole segment, unless the text goes on to a timestamp of its own.
    ends = [*cuts, len(tokens)] if ended or open_end else cuts
    segments = [
        Segment(start_samples=position(begin), end_samples=position(end - 1), tokens=tuple(tokens[begin:end]))
        for begin, end in zip([0, *ends[:-1]], ends, strict=True)
    ]
    if open_end:
        segments[-1].end_samples = length_frames * HOP_LENGTH
    return segments, length_frames if ended or open_end else position(cuts[-1] - 1) // HOP_LENGTH


def ends_with_one_time(tokens: Sequence[int], timestamp_begin: int) -> bool:
    """Return whether text is followed by one timestamp at the end: nothing is said after it."""
    times = _times(timestamp_begin)
    return len(tokens) > 1 and tokens[-2] not in times and tokens[-1] in times


def _times(timestamp_begin: int) -> range:
    """Return the tokens that are timestamps; text that a fine-tune has added comes behind them."""
    return range(timestamp_begin, timestamp_begin + N_TIMESTAMPS)


def to_frames(position_samples: int) -> int:
    """Return the frame that is nearest to a position."""
    return round(position_samples / HOP_LENGTH)


def last_end(segments: Sequence[Segment]) -> int | None:
    """Return the end of the last word, else of the last segment; None without a segment."""
    if not segments:
        return None
    return next((s.words[-1].end_samples for s in reversed(segments) if s.words), segments[-1].end_samples)
