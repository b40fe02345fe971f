"""Words of segments against openai-whisper's, whatever they are; test_parity.py compares those of speech."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import whisper
import whisper.timing
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamer.constants import SAMPLE_RATE
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode import word_timestamps
from streamer.whisper.decode.options import WindowTask
from streamer.whisper.decode.word_timestamps import (
    MAX_MEDIAN_SAMPLES,
    SpokenSegment,
    add_word_timestamps,
    find_alignment,
    median_duration,
)
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.whisper.support import Samples, Untyped, noise
from tests.unit.whisper.tokens import published

# What belongs to the word behind it, and to the word before it.
PUNCTUATION = (DecodingSettings().prepend_punctuations, DecodingSettings().append_punctuations)


@dataclass(slots=True)
class Segment:
    start_samples: int
    end_samples: int
    tokens: tuple[int, ...]


def samples_of(time_s: float) -> int:
    return round(time_s * SAMPLE_RATE)


def spoken(part: Untyped) -> tuple[int, int]:
    """Return first and last sample of openai-whisper's segment or word."""
    return samples_of(part["start"]), samples_of(part["end"])


def placed(
    decoder: Untyped,
    tokenizer: Untyped,
    segments: list[Segment],
    begin: int = 0,
    n: int = 160_000,
    last_speech: int = 0,
) -> list[SpokenSegment]:
    """Return the segments with words; all positions are in samples."""
    return add_word_timestamps(
        decoder,
        tokenizer,
        segments,
        WindowTask(language="en"),
        begin_samples=begin,
        n_samples=n,
        last_speech_samples=last_speech,
        punctuation=PUNCTUATION,
    )


@pytest.mark.parametrize("n_samples", [0, 319, 16_000])
def test_text_that_was_not_said_has_times_in_the_audio(model: WhisperModel, n_samples: int) -> None:
    decoder, tokenizer = model.runtime.decoder, model.tokenizer
    decoder.use(model.runtime.encode(noise(80 * 3000).reshape(80, 3000), 0))
    # Longer than the decoder has room for.
    text = tokenizer.encode(' "Nobody" said this, or (that): never!' * 60)
    assert len(text) > decoder.capacity
    words = find_alignment(decoder, tokenizer, text, language="en", task="transcribe", n_samples=n_samples)
    assert [token for word in words for token in word.tokens] == text
    times = [time for word in words for time in (word.start_samples, word.end_samples)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= n_samples
    assert all(0 <= word.probability <= 1 for word in words)


def test_no_text_has_no_words(model: WhisperModel) -> None:
    decoder, tokenizer = model.runtime.decoder, model.tokenizer
    assert find_alignment(decoder, tokenizer, [], language="en", task="transcribe", n_samples=16_000) == []
    silent = [Segment(SAMPLE_RATE, 2 * SAMPLE_RATE, (tokenizer.special.timestamp_begin,))]
    found = placed(decoder, tokenizer, silent)
    assert found == [SpokenSegment(SAMPLE_RATE, 2 * SAMPLE_RATE, ())]


# On a grid on which floats are exact, openai-whisper's seconds and our samples can be compared at every limit.
GRID = SAMPLE_RATE // 4
MARKS = [".", "!", "?", ",", '"', "'", '."', "\"'", " ", "", "。", "！？", ":", "-", ")", "]", "—"]
TEXT = st.sampled_from([" so", " it", "goes", "-on", " (", ' "', " -", " “", " ", *MARKS])
LENGTH = st.sampled_from([0, 1, 1, 1, 1, 2, 2, 3, 4, 5, 9])  # most words are short, and some reach into a pause
WORDS = st.lists(st.tuples(TEXT, st.integers(0, 3), LENGTH), min_size=1, max_size=14)

Drawn = list[tuple[str, int, int]]


def timed(drawn: Drawn) -> tuple[list[TimedWord], Untyped]:
    """Return words one behind the other, ours and openai-whisper's: text, tokens and length of each are given."""
    ours, theirs, position, token = [], [], 0, 0
    for text, n_tokens, length in drawn:
        tokens = tuple(range(token, token + n_tokens))
        token += n_tokens
        ours.append(TimedWord(text, tokens, position * GRID, (position + length) * GRID, 0.5))
        theirs.append(whisper.timing.WordTiming(text, list(tokens), position / 4, (position + length) / 4, 0.5))
        position += length
    return ours, theirs


@settings(max_examples=100, deadline=None)
@given(
    drawn=WORDS,
    places=st.lists(st.tuples(st.integers(-4, 12), st.integers(0, 40)), min_size=1, max_size=4),
    begin=st.integers(0, 20),
    last_speech=st.integers(-20, 4),
    data=st.data(),
)
def test_words_are_fitted_to_segments_as_openai_whisper_does(
    drawn: Drawn, places: list[tuple[int, int]], begin: int, last_speech: int, data: st.DataObject
) -> None:
    ours, theirs = timed([(text, max(1, n_tokens), length) for text, n_tokens, length in drawn])
    # The longest median is no multiple of the grid.
    assume(median_duration(ours) < MAX_MEDIAN_SAMPLES)
    n_tokens = sum(len(word.tokens) for word in ours)
    cuts = sorted(data.draw(st.integers(0, n_tokens)) for _ in places[1:])
    tokens = [list(range(a, b)) for a, b in zip([0, *cuts], [*cuts, n_tokens], strict=True)]
    starts = [max(0, begin + start) for start, _ in places]
    segments: Untyped = [
        # The seek is counted in frames.
        {"seek": begin * 25, "start": start / 4, "end": (start + length) / 4, "tokens": inside}
        for start, (_, length), inside in zip(starts, places, tokens, strict=True)
    ]
    last = max(0, begin + last_speech)
    tokenizer: Untyped = SimpleNamespace(eot=1000, is_text=lambda token: token < 1000)
    mine = [Segment(*spoken(s), tuple(s["tokens"])) for s in segments]
    nothing: Untyped = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whisper.timing, "find_alignment", lambda *given, **options: theirs)
        patch.setattr(word_timestamps, "find_alignment", lambda *given, **options: ours)
        whisper.timing.add_word_timestamps(
            segments=segments,
            model=nothing,
            tokenizer=tokenizer,
            mel=nothing,
            num_frames=0,
            last_speech_timestamp=last / 4,
        )
        found = placed(nothing, tokenizer, mine, begin * GRID, 0, last * GRID)
    assert [
        (segment.start_samples, segment.end_samples, [(w.text, w.start_samples, w.end_samples) for w in segment.words])
        for segment in found
    ] == [(*spoken(segment), [(word["word"], *spoken(word)) for word in segment["words"]]) for segment in segments]


def test_the_usual_length_of_a_word_counts_those_that_have_one() -> None:
    assert median_duration(timed([(" a", 1, 0), (" b", 1, 0)])[0]) == 0
    assert median_duration(timed([(" a", 1, 0), (" b", 1, 1), (" c", 1, 2)])[0]) == GRID * 3 // 2
    assert median_duration(timed([(" a", 1, 9)] * 3)[0]) == 0.7 * SAMPLE_RATE


class Fed:
    """A decoder that answers each row of tokens by a rule, and attends to everything alike."""

    capacity = 448

    def __init__(self, answer: Callable[[list[int]], Samples]) -> None:
        self._answer = answer

    def begin(self) -> None:
        """Forget nothing: each call is a sequence of its own."""

    def feed(self, tokens: list[int], n_silent: int = 0) -> tuple[Samples, Samples]:
        attention = np.full((1, 1, len(tokens), 1500), 1 / 1500, dtype=np.float32)
        return self._answer(tokens)[np.newaxis], attention


def words_by(answer: Callable[[list[int]], Samples], tokenizer: Tokenizer, text: str) -> list[TimedWord]:
    decoder: Untyped = Fed(answer)
    tokens = tokenizer.encode(text)
    return find_alignment(decoder, tokenizer, tokens, language="en", task="transcribe", n_samples=16_000)


def test_the_probability_is_the_mean_of_the_tokens_among_text() -> None:
    """Where a word's tokens are sure and unsure, openai-whisper takes the arithmetic mean."""

    def answer(tokens: list[int]) -> Samples:
        logits = np.full((len(tokens), 51_865), -np.inf, dtype=np.float32)
        for row, token in enumerate(tokens[1:]):
            logits[row, [token, 0 if token else 1]] = np.log((0.9, 0.1) if row % 2 else (0.4, 0.6))
        logits[:, 51_000] = 20.0  # a timestamp
        return logits

    tokenizer = published.load(published.MULTILINGUAL)
    (word,) = words_by(answer, tokenizer, " Kennedyship")
    first = len(tokenizer.start_sequence("en", "transcribe"))
    assert len(word.tokens) >= 2
    expected = [0.9 if (first + i) % 2 else 0.4 for i in range(len(word.tokens))]
    assert word.probability == pytest.approx(np.mean(expected), abs=1e-5)


def test_a_word_that_a_fine_tune_has_added_has_a_probability_among_all_text(tmp_path: Path) -> None:
    tokenizer = published.with_added(tmp_path, {"[UM]": 2022}, 2023)
    found = words_by(lambda tokens: np.zeros((len(tokens), 2023), dtype=np.float32), tokenizer, " so [UM] yes")
    assert [word.text for word in found] == [" so", " [UM]", " yes"]
    assert [word.probability for word in found] == pytest.approx([1 / 513] * 3)
