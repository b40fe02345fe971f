"""When the words of a recording are said, if nobody has written that down.

A model transcribes the recording as a whole, with word times from its attention. Its words are aligned with those of
the reference by the fewest edits; a word without an opposite lies between its neighbours. So the times of words that
the model gets right are good to a tenth of a second or so, and of others to the length of a few words.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from streamer.audio.constants import SAMPLE_RATE
from streamer.bench.text import Normaliser, align
from streamer.settings.apply import resolve_decoding
from streamer.settings.table import DecodingSettings
from streamer.transcribe import transcribe_segments
from streamer.whisper.model import WhisperModel
from tools.benchmarks.corpus import Recording
from tools.benchmarks.passages import Word

# First and last second of a word.
Times = tuple[float, float]


def with_times(
    recordings: Sequence[Recording], load: Callable[[], WhisperModel], normalise: Normaliser
) -> list[Recording]:
    """Return recordings with the times of their words; those that have them, or in which nobody speaks, as they are."""
    if all(recording.words or not recording.text for recording in recordings):
        return list(recordings)
    model = load()
    decoding = resolve_decoding(DecodingSettings(language="en", word_timestamps=True), model)
    timed = []
    for recording in recordings:
        if recording.text and not recording.words:
            segments = transcribe_segments(model, recording.samples, decoding)
            heard = [
                (word, (each.start_samples / SAMPLE_RATE, each.end_samples / SAMPLE_RATE))
                for segment in segments
                for each in segment.words
                for word in normalise(each.text).split()
            ]
            recording = replace(recording, words=place_words(recording, heard, normalise))
        timed.append(recording)
    return timed


def place_words(recording: Recording, heard: Sequence[tuple[str, Times]], normalise: Normaliser) -> tuple[Word, ...]:
    """Give the words of a reference the times of those that were heard, which are normalised."""
    words = recording.text.split()
    # A word as it is written may be several, or none, when it is normalised.
    parts = [(i, part) for i, word in enumerate(words) for part in normalise(word).split()]
    found: dict[int, Times] = {}
    for i, j in align([part for _, part in parts], [word for word, _ in heard]).pairs:
        begin, end = heard[j][1]
        first, last = found.get(parts[i][0], (begin, end))
        found[parts[i][0]] = min(first, begin), max(last, end)
    placed: list[Word] = []
    for i, word in enumerate(words):
        if i not in found:
            behind = next((k for k in range(i, len(words)) if k in found), len(words))
            start = placed[-1].end if placed else 0.0
            end = found[behind][0] if behind in found else recording.audio_s
            found[i] = start, start + max(0.0, end - start) / (behind - i + 1)
        placed.append(Word(word, *found[i]))
    return tuple(placed)
