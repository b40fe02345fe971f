"""Text made up over silence: words too long, too short or unlikely. Source: openai-whisper's `transcribe.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

from streamer.audio.constants import HOP_LENGTH, N_SAMPLES, SAMPLE_RATE
from streamer.settings.table import DecodingSettings
from streamer.transcribe.segments import Segment, last_end
from streamer.whisper.result import TimedWord

# As in the reference, whatever the settings say.
_PUNCTUATION = DecodingSettings().prepend_punctuations + DecodingSettings().append_punctuations

_FIRST_WORDS = 8  # at the beginning of a segment that are looked at
_LEAST_PROBABILITY = 0.15  # of a word that is likely
_SHORTEST_S = 0.133
_LONGEST_S = 2.0
_POINTS_FOR_SHORTNESS = 15.0  # for each second that a word is shorter than the shortest
_MOST_POINTS = 3.0  # of a segment that is made up, whatever its length
_NEAR_END_SAMPLES = 2 * SAMPLE_RATE  # from the window's ends, text counts as beside silence: nobody knows what follows


@dataclass(frozen=True, slots=True)
class HeardWindow:
    """Where a window lies in its recording; all in samples from the recording's start."""

    begin: int

    # Behind the audio that was heard.
    end: int

    # Behind the last word before it.
    last_speech: int
    recording_end: int


def pass_over(
    segments: list[Segment], window: HeardWindow, threshold_samples: int, *, ended: bool, seek: int
) -> tuple[list[Segment], int, bool]:
    """Drop the segments of a window that may be made up, with what follows them.

    ended : whether the window's text says itself that nothing follows it
    seek : frame at which the next window would begin

    Returns the segments that stay, the frame at which the next window begins, and whether the window counts as heard:
    where its first words may be made up, it is heard once more from there.
    """
    window_end = window.begin + N_SAMPLES
    end = last_end(segments)
    if not ended and end is not None and end > window.begin:
        seek = to_frames(end if window_end - end > threshold_samples else window.end)
    first = _next_with_words(segments)
    if first is not None and is_anomalous(first.words) and first.start_samples - window.begin > threshold_samples:
        return [], to_frames(first.start_samples), False
    previous_end = window.last_speech
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomalous(segment.words):
            following = _next_with_words(segments[i + 1 :])
            next_start = window.end if following is None else following.words[0].start_samples
            silence_before = (
                segment.start_samples - previous_end > threshold_samples
                or segment.start_samples < threshold_samples
                or segment.start_samples - window.begin < _NEAR_END_SAMPLES
            )
            silence_after = (
                next_start - segment.end_samples > threshold_samples
                or (following is not None and is_anomalous(following.words))
                or window_end - segment.end_samples < _NEAR_END_SAMPLES
            )
            if silence_before and silence_after:
                if window.recording_end - segment.end_samples < threshold_samples:
                    return segments[:i], to_frames(window.recording_end), True
                return segments[:i], to_frames(max(window.begin + SAMPLE_RATE, segment.start_samples)), True
        previous_end = segment.end_samples
    return segments, seek, True


def is_anomalous(words: Sequence[TimedWord]) -> bool:
    """Return whether words do not look like speech."""
    looked_at = [word for word in words if word.text not in _PUNCTUATION][:_FIRST_WORDS]
    points = sum(map(_points, looked_at))
    return bool(words) and (points >= _MOST_POINTS or points + 0.01 >= len(looked_at))


def to_frames(position_samples: int) -> int:
    """Return the frame that is nearest to a position."""
    return round(position_samples / HOP_LENGTH)


def _points(word: TimedWord) -> float:
    duration_s = (word.end_samples - word.start_samples) / SAMPLE_RATE
    points = 1.0 if word.probability < _LEAST_PROBABILITY else 0.0
    points += max(0.0, _SHORTEST_S - duration_s) * _POINTS_FOR_SHORTNESS
    return points + max(0.0, duration_s - _LONGEST_S)


def _next_with_words(segments: Sequence[Segment]) -> Segment | None:
    return next((segment for segment in segments if segment.words), None)
