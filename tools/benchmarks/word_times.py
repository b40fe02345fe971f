"""When the words of a known text are said in a recording: forced alignment by Whisper's cross-attention.

The model transcribes the recording first: the words of the text that it finds show roughly where the others are. Then
the text itself is forced on the decoder, in passages that fit its window, and its attention places every word, also
those that the model would have got wrong.
"""

import itertools
from collections.abc import Iterator, Sequence

from streamer.arrays import Float32Array
from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.offline import transcribe_segments
from streamer.offline.features import Features
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.word_timestamps import find_alignment, median_duration
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options
from streamer.whisper.result import has_words
from tools.benchmarks.recordings import SpokenWord
from tools.benchmarks.text import Normaliser, align

# First and last second of a word.
Times = tuple[float, float]

# Words that are forced at once take at most this many seconds, so that with what is around them they fit a window.
PASSAGE_S = 24.0

# Audio on both sides of a passage: where its words are is not known well yet.
AROUND_S = 0.5


def words_of(
    model: WhisperModel, audio: Float32Array, text: str, normalise: Normaliser, *, language: str
) -> list[SpokenWord]:
    """Return the words of `text.split()`, which is said in a recording, with their times.

    audio : 16 kHz mono, shape (n_samples,)
    language : that is spoken, or "auto"

    Source: openai-whisper's `timing.py`, with the text of the reference instead of the model's own.
    """
    decoding = decode_options(DecodingSettings(language=language, word_timestamps=True), model)
    segments = list(transcribe_segments(model, audio, decoding))
    found = [
        (word, (each.start_samples / SAMPLE_RATE, each.end_samples / SAMPLE_RATE))
        for segment in segments
        for each in segment.words
        for word in normalise(each.text).split()
    ]
    words = place_words(text.split(), found, len(audio) / SAMPLE_RATE, normalise)
    if not segments:
        return words
    return [word for passage in passages(words) for word in _force(model, audio, passage, segments[0].language)]


def place_words(
    words: Sequence[str], found: Sequence[tuple[str, Times]], audio_s: float, normalise: Normaliser
) -> list[SpokenWord]:
    """Give words the times of the normalised words that were found; others lie between their neighbours."""
    # A word as it is written may be several, or none, when it is normalised.
    parts = [(i, part) for i, word in enumerate(words) for part in normalise(word).split()]
    times: dict[int, Times] = {}
    for i, j in align([part for _, part in parts], [word for word, _ in found]).pairs:
        begin, end = found[j][1]
        first, last = times.get(parts[i][0], (begin, end))
        times[parts[i][0]] = min(first, begin), max(last, end)
    placed: list[SpokenWord] = []
    for i, word in enumerate(words):
        if i not in times:
            behind = next((k for k in range(i, len(words)) if k in times), len(words))
            start = placed[-1].end if placed else 0.0
            end = times[behind][0] if behind in times else audio_s
            times[i] = start, start + max(0.0, end - start) / (behind - i + 1)
        placed.append(SpokenWord(word, *times[i]))
    return placed


def passages(words: Sequence[SpokenWord]) -> Iterator[Sequence[SpokenWord]]:
    """Split words where the pauses between them are widest, so that all parts are at most `PASSAGE_S` long."""
    first = 0
    while first < len(words):
        end_s = words[first].start + PASSAGE_S
        behind = next((i for i in range(first + 1, len(words)) if words[i].end > end_s), len(words))
        if behind < len(words):
            middle = (first + behind) // 2 + 1
            behind = max(range(middle, behind + 1), key=lambda i: words[i].start - words[i - 1].end, default=behind)
        yield words[first:behind]
        first = behind


def _force(model: WhisperModel, audio: Float32Array, words: Sequence[SpokenWord], language: str) -> list[SpokenWord]:
    """Return words that follow each other with the times that the decoder's attention gives them."""
    begin = max(0, round((words[0].start - AROUND_S) * SAMPLE_RATE))
    piece = audio[begin : round((words[-1].end + AROUND_S) * SAMPLE_RATE)][:N_SAMPLES]
    mel = Features([piece], model.dims.n_mels).first_window()
    tokens = [model.tokenizer.encode(f" {word.word}") for word in words]
    found = model.run(
        lambda runtime: find_alignment(
            runtime.decoder_of(runtime.encode(mel, 0)),
            model.tokenizer,
            list(itertools.chain.from_iterable(tokens)),
            language=language,
            task="transcribe",
            n_samples=len(piece),
        )
    )
    # A pause belongs to the mark before it, or else to the word behind it: no word is longer than this.
    longest = 2 * median_duration(found)
    ends = list(itertools.accumulate(map(len, tokens)))
    times: list[Times | None] = [None] * len(words)
    n_tokens, index = 0, 0
    for each in found:
        while n_tokens >= ends[index]:
            index += 1
        n_tokens += len(each.tokens)
        if has_words(each.text):
            start = max(each.start_samples, each.end_samples - longest)
            first_s, end_s = ((begin + n) / SAMPLE_RATE for n in (start, each.end_samples))
            times[index] = (times[index] or (first_s, end_s))[0], end_s
    return [SpokenWord(word.word, *(at or (word.start, word.end))) for word, at in zip(words, times, strict=True)]
