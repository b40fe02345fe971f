"""Words of segments against openai-whisper's, on the same weights and on whatever words there could be."""

import copy
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import whisper
import whisper.timing
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamer.constants import HOP_LENGTH, SAMPLE_RATE
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode import word_timestamps
from streamer.whisper.decode.window import WindowOptions
from streamer.whisper.decode.word_timestamps import (
    MAX_MEDIAN_SAMPLES,
    SpokenSegment,
    add_word_timestamps,
    find_alignment,
    median_duration,
)
from streamer.whisper.model import WhisperModel
from streamer.whisper.result import TimedWord
from tests.unit.whisper.standard import NANO_HEADS, load_ours, openai_whisper, write_standard
from tests.unit.whisper.standard_nano import standard_nano
from tests.unit.whisper.support import ROOT, SAMPLE, Samples, Untyped, noise, read
from tests.unit.whisper.tokens import published

RECORDINGS = [SAMPLE, ROOT.parent / "shared" / "audio" / "pauses.flac"]

# `whisper.transcribe` is the function of this name.
transcribe: Untyped = importlib.import_module("whisper.transcribe")

# What belongs to the word behind it, and to the word before it.
PUNCTUATION = (DecodingSettings().prepend_punctuations, DecodingSettings().append_punctuations)


@dataclass(slots=True)
class Segment:
    start_samples: int
    end_samples: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of openai-whisper's `add_word_timestamps`: what it was given, and what it made of the segments."""

    before: Untyped
    after: Untyped
    mel: Samples
    n_frames: int
    last_speech_s: float


def seconds(samples: int) -> float:
    return samples / SAMPLE_RATE


def samples_of(time_s: float) -> int:
    return round(time_s * SAMPLE_RATE)


def segments_of(segments: Untyped) -> list[Segment]:
    return [Segment(samples_of(s["start"]), samples_of(s["end"]), tuple(s["tokens"])) for s in segments]


def assert_equal(ours: list[SpokenSegment], theirs: Untyped) -> None:
    """Compare all words and times; they are exact but for what seconds as floats cannot hold."""
    assert len(ours) == len(theirs)
    for mine, segment in zip(ours, theirs, strict=True):
        assert [word.text for word in mine.words] == [word["word"] for word in segment["words"]]
        assert (seconds(mine.start_samples), seconds(mine.end_samples)) == pytest.approx(
            (segment["start"], segment["end"]), abs=1e-6
        )
        for word, expected in zip(mine.words, segment["words"], strict=True):
            found = (seconds(word.start_samples), seconds(word.end_samples))
            assert found == pytest.approx((expected["start"], expected["end"]), abs=1e-6)
            assert word.probability == pytest.approx(expected["probability"], abs=1e-3)


@pytest.fixture(scope="module")
def reference() -> Untyped:
    return openai_whisper(standard_nano(), NANO_HEADS)


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> WhisperModel:
    return load_ours(write_standard(tmp_path_factory.mktemp("standard"), standard_nano(), NANO_HEADS))


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: path.stem)
def calls(request: pytest.FixtureRequest, reference: Untyped) -> list[Call]:
    path: Path = request.param
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found: list[Call] = []
    theirs = transcribe.add_word_timestamps

    def note(**given: Untyped) -> None:
        before = copy.deepcopy(given["segments"])
        theirs(**given)
        after = copy.deepcopy(given["segments"])
        found.append(Call(before, after, given["mel"].numpy(), given["num_frames"], given["last_speech_timestamp"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transcribe, "add_word_timestamps", note)
        options = {"temperature": 0, "fp16": False, "condition_on_previous_text": False, "sample_len": 100}
        whisper.transcribe(reference, read(path)[: 35 * SAMPLE_RATE], language="en", word_timestamps=True, **options)
    return found


def test_words_and_segments_equal_openai_whispers(calls: list[Call], standard: WhisperModel) -> None:
    assert sum(len(segment["words"]) for call in calls for segment in call.after) > 25
    for call in calls:
        standard.runtime.decoder.use(standard.runtime.encode(call.mel, 0))
        found = add_word_timestamps(
            standard.runtime.decoder,
            standard.tokenizer,
            segments_of(call.before),
            WindowOptions(language="en"),
            begin_samples=call.before[0]["seek"] * HOP_LENGTH,
            n_samples=call.n_frames * HOP_LENGTH,
            last_speech_samples=samples_of(call.last_speech_s),
            punctuation=PUNCTUATION,
        )
        assert_equal(found, call.after)


@pytest.mark.parametrize("n_samples", [0, 1, 319, 320, 16_000, 480_000])
def test_text_that_was_not_said_has_times_in_the_audio(standard: WhisperModel, n_samples: int) -> None:
    decoder, tokenizer = standard.runtime.decoder, standard.tokenizer
    decoder.use(standard.runtime.encode(noise(80 * 3000).reshape(80, 3000), 0))
    # Longer than the decoder has room for.
    text = tokenizer.encode(' "Nobody" said this, or (that): never!' * 60)
    assert len(text) > decoder.capacity
    words = find_alignment(decoder, tokenizer, text, language="en", task="transcribe", n_samples=n_samples)
    assert [token for word in words for token in word.tokens] == text
    times = [time for word in words for time in (word.start_samples, word.end_samples)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= n_samples
    assert all(0 <= word.probability <= 1 for word in words)


def test_no_text_has_no_words(standard: WhisperModel) -> None:
    decoder, tokenizer = standard.runtime.decoder, standard.tokenizer
    assert find_alignment(decoder, tokenizer, [], language="en", task="transcribe", n_samples=16_000) == []
    silent = [Segment(SAMPLE_RATE, 2 * SAMPLE_RATE, (tokenizer.special.timestamp_begin,))]
    found = add_word_timestamps(
        decoder,
        tokenizer,
        silent,
        WindowOptions(language="en"),
        begin_samples=0,
        n_samples=160_000,
        last_speech_samples=0,
        punctuation=PUNCTUATION,
    )
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
    segments = [
        # The seek is counted in frames.
        {"seek": begin * 25, "start": start / 4, "end": (start + length) / 4, "tokens": inside}
        for start, (_, length), inside in zip(starts, places, tokens, strict=True)
    ]
    last = max(0, begin + last_speech)
    tokenizer: Untyped = SimpleNamespace(eot=1000, is_text=lambda token: token < 1000)
    mine = segments_of(segments)
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
        found = add_word_timestamps(
            nothing,
            tokenizer,
            mine,
            WindowOptions(language="en"),
            begin_samples=begin * GRID,
            n_samples=0,
            last_speech_samples=last * GRID,
            punctuation=PUNCTUATION,
        )
    assert_equal(found, segments)


def test_the_usual_length_of_a_word_counts_those_that_have_one() -> None:
    assert median_duration(timed([(" a", 1, 0), (" b", 1, 0)])[0]) == 0
    assert median_duration(timed([(" a", 1, 0), (" b", 1, 1), (" c", 1, 2)])[0]) == GRID * 3 // 2
    assert median_duration(timed([(" a", 1, 9)] * 3)[0]) == 0.7 * SAMPLE_RATE


def test_the_probability_is_the_mean_of_the_tokens_among_text() -> None:
    """Where a word's tokens are sure and unsure, openai-whisper takes the arithmetic mean."""

    class Decoder:
        capacity = 20

        def begin(self) -> None:
            pass

        def feed(self, tokens: list[int], n_silent: int = 0) -> tuple[np.ndarray, np.ndarray]:
            logits = np.full((len(tokens), 51_865), -np.inf, dtype=np.float32)
            for row, token in enumerate(tokens[1:]):
                logits[row, [token, 0 if token else 1]] = np.log((0.9, 0.1) if row % 2 else (0.4, 0.6))
            logits[:, 51_000] = 20.0  # a timestamp
            return logits[np.newaxis], np.full((1, 1, len(tokens), 1500), 1 / 1500, dtype=np.float32)

    tokenizer = published.load(published.MULTILINGUAL)
    decoder: Untyped = Decoder()
    text = tokenizer.encode(" Kennedyship")
    assert len(text) >= 2
    (word,) = find_alignment(decoder, tokenizer, text, language="en", task="transcribe", n_samples=16_000)
    first = len(tokenizer.start_sequence("en", "transcribe"))
    expected = [0.9 if (first + i) % 2 else 0.4 for i in range(len(text))]
    assert word.probability == pytest.approx(np.mean(expected), abs=1e-5)


def test_a_word_that_a_fine_tune_has_added_has_a_probability_among_all_text(tmp_path: Path) -> None:
    tokenizer = published.with_added(tmp_path, {"[UM]": 2022}, 2023)

    class Undecided:
        capacity = 448

        def begin(self) -> None:
            pass

        def feed(self, tokens: list[int], n_silent: int = 0) -> tuple[Samples, Samples]:
            n = len(tokens)
            return np.zeros((1, n, 2023), dtype=np.float32), np.ones((1, 1, n, 1500), dtype=np.float32)

    decoder: Untyped = Undecided()
    text = tokenizer.encode(" so [UM] yes")
    words = find_alignment(decoder, tokenizer, text, language="en", task="transcribe", n_samples=16000)
    assert [word.text for word in words] == [" so", " [UM]", " yes"]
    assert [word.probability for word in words] == pytest.approx([1 / 513] * 3)
