"""Text hallucinated in silence: words too long, too short or unlikely. Source: openai-whisper's `transcribe.py`."""

from collections.abc import Sequence

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.offline.segments import RecordingWindow, Segment
from streamer.settings.table import DecodingSettings
from streamer.whisper.result import TimedWord

# As in the reference, whatever the settings say.
_PUNCTUATION = DecodingSettings().prepend_punctuations + DecodingSettings().append_punctuations

_FIRST_WORDS = 8  # at the beginning of a segment that are looked at
_LEAST_PROBABILITY = 0.15  # of a word that is likely
_SHORTEST_S = 0.133
_LONGEST_S = 2.0
_POINTS_FOR_SHORTNESS = 15.0  # for each second that a word is shorter than the shortest
_MOST_POINTS = 3.0  # of a segment that is hallucinated, whatever its length
_NEAR_END_SAMPLES = 2 * SAMPLE_RATE  # from the window's ends, text counts as beside silence: what follows is not known


def first_hallucination(
    segments: Sequence[Segment], window: RecordingWindow, last_speech: int, threshold_samples: int
) -> int | None:
    """Return the index of the first segment of a window that may be hallucinated, in silence; else None.

    last_speech : end of the last word before the window
    threshold_samples : shortest silence
    """
    window_end = window.begin_samples + N_SAMPLES
    for i, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomalous(segment.words):
            following = next((each for each in segments[i + 1 :] if each.words), None)
            next_start = window.end_samples if following is None else following.words[0].start_samples
            silence_before = (
                segment.start_samples - last_speech > threshold_samples
                or segment.start_samples < threshold_samples
                or segment.start_samples - window.begin_samples < _NEAR_END_SAMPLES
            )
            silence_after = (
                next_start - segment.end_samples > threshold_samples
                or (following is not None and is_anomalous(following.words))
                or window_end - segment.end_samples < _NEAR_END_SAMPLES
            )
            if silence_before and silence_after:
                return i
        last_speech = segment.end_samples
    return None


def is_anomalous(words: Sequence[TimedWord]) -> bool:
    """Return whether words do not look like speech."""
    looked_at = [word for word in words if word.text not in _PUNCTUATION][:_FIRST_WORDS]
    points = sum(map(_points, looked_at))
    return bool(words) and (points >= _MOST_POINTS or points + 0.01 >= len(looked_at))


def _points(word: TimedWord) -> float:
    duration_s = (word.end_samples - word.start_samples) / SAMPLE_RATE
    points = 1.0 if word.probability < _LEAST_PROBABILITY else 0.0
    points += max(0.0, _SHORTEST_S - duration_s) * _POINTS_FOR_SHORTNESS
    return points + max(0.0, duration_s - _LONGEST_S)
