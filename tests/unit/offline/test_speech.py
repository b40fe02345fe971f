"""Speech alone is transcribed: where it is, how it falls into windows, and where its words lie in the recording."""

import itertools
import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from streamer.check import check_options
from streamer.constants import HOP_LENGTH, N_FRAMES, SAMPLE_RATE
from streamer.errors import ConfigError
from streamer.events import Final
from streamer.offline import texts, transcribe
from streamer.offline.batches import decode_batch
from streamer.offline.segments import Segment, split_segments
from streamer.offline.speech import JoinedSpeech, SpeechFinder
from streamer.offline.texts import TaskText
from streamer.settings.table import DecodingSettings, Settings, SpeechSettings
from streamer.whisper.decode import fallback
from streamer.whisper.decode.options import DecodeOptions
from streamer.whisper.decode.window import decode_window, decode_windows
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options
from streamer.whisper.result import TimedWord
from tests.unit.whisper.support import NANO, ROOT, SPEECH, Samples, load_on_cpu, read

PEOPLE = ROOT.parent / "shared" / "audio" / "people"

# Frames of a recording in which somebody speaks, with 20 s of silence between the two.
SPANS = [(100, 400), (2400, 2600)]


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * SAMPLE_RATE), dtype=np.float32)


def decoding(model: WhisperModel, **options: Any) -> DecodeOptions:  # noqa: ANN401 - any option
    words = options.pop("words", True)
    # Short and without further attempts, since these take time.
    short = {"sample_len": 12, "temperature_increment_on_fallback": None, "allow_skips": True}
    return decode_options(DecodingSettings(without_timestamps=True, **{**short, **options}), model, words=words)


def said(finals: list[Final]) -> list[str]:
    return [word.word for final in finals for word in final.words]


def test_speech_is_found_while_a_recording_goes_by() -> None:
    finder = SpeechFinder(SpeechSettings())
    samples = np.concatenate([silence(5), read(SPEECH), silence(5)])
    for block in np.array_split(samples, 7):
        finder.process(block)
    n_frames = len(samples) // HOP_LENGTH
    spans = finder.finish(n_frames, [(0, n_frames)]).spans
    assert 400 < spans[0][0] < spans[-1][1] < n_frames - 400
    assert all(a < b for span in spans for a, b in [span])


@pytest.mark.skipif(not PEOPLE.exists(), reason="needs recordings of people")
def test_quiet_people_are_found_beside_loud_ones() -> None:
    """At -50 dB, from 21.5 to 26.8 s, the detector alone finds nothing; Whisper transcribes a sentence there."""
    samples = read(PEOPLE / "fleurs" / "fleurs-en.flac")[: 30 * SAMPLE_RATE]
    finder = SpeechFinder(SpeechSettings())
    finder.process(samples)
    spans = finder.finish(3000, [(0, 3000)]).spans
    assert sum(max(0, min(end, 2680) - max(begin, 1970)) for begin, end in spans) > 500


def test_of_clips_the_speech_in_them_is_heard() -> None:
    finder = SpeechFinder(SpeechSettings())
    finder.process(read(SPEECH))
    n_frames = len(read(SPEECH)) // HOP_LENGTH
    speech = finder.finish(n_frames, [(60, 90), (200, 230)])
    assert speech.spans == [(60, 90), (200, 230)]
    # No window crosses from one into the other, as in openai-whisper.
    assert (speech.clips, list(speech.windows())) == ([(0, 30), (30, 60)], [(0, 30), (30, 60)])


def test_a_window_ends_in_a_silence_where_there_is_one() -> None:
    speech = JoinedSpeech([[(0, 1400), (2000, 3000), (4000, 5500)]], [1.0] * 2000, 0.5)
    assert list(speech.windows()) == [(0, 2400), (2400, 3900)]
    # Half a window has none: it is full.
    speech = JoinedSpeech([[(0, 1400), (2000, 4000)]], [1.0] * 2000, 0.5)
    assert list(speech.windows()) == [(0, 1508), (1508, 3400)]


def test_without_a_silence_a_window_ends_where_speech_is_least_likely() -> None:
    probabilities = [1.0] * 2000
    # 25 to 25.1 s.
    probabilities[781:784] = [0.2] * 3
    (_, first), *_ = JoinedSpeech([[(0, 6000)]], probabilities, 0.5).windows()
    assert 2490 < first < 2520


def test_no_window_is_a_scrap_of_speech() -> None:
    # What is cut off at a silence, and where speech is least likely.
    for span, quiet in (([(0, 2980), (4000, 4030)], []), ([(0, 3010)], [(2995, 3000)])):
        probabilities = [1.0] * 3000
        for begin, end in quiet:
            probabilities[begin * HOP_LENGTH // 512 : end * HOP_LENGTH // 512] = [0.0] * 2
        windows = list(JoinedSpeech([span], probabilities, 0.5).windows())
        assert min(end - begin for begin, end in windows) >= 50


def test_windows_are_all_of_the_speech_and_no_longer_than_one_may_be() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        points = np.cumsum(random.integers(1, 4000, 2 * random.integers(0, 8))).tolist()
        spans = list(zip(points[::2], points[1::2], strict=True))
        speech = JoinedSpeech([spans], random.random(20_000).tolist(), 0.5)
        windows = list(speech.windows())
        assert [end for _, end in windows][:-1] == [begin for begin, _ in windows][1:]
        assert sum(end - begin for begin, end in windows) == speech.n_frames
        assert all(0 < end - begin <= N_FRAMES for begin, end in windows)
        pieces = [piece for window in windows for piece in speech.pieces(*window)]
        frames = [frame for piece in pieces for frame in range(*piece)]
        assert frames == [frame for span in speech.spans for frame in range(*span)]


def test_words_lie_where_they_were_said() -> None:
    def word(start: int, end: int) -> TimedWord:
        return TimedWord("x", (1,), start * HOP_LENGTH, end * HOP_LENGTH, 1.0)

    # The second reaches over the silence by a little.
    segment = Segment(
        start_samples=0, end_samples=500 * HOP_LENGTH, tokens=(), words=(word(10, 60), word(290, 380), word(380, 480))
    )
    JoinedSpeech([SPANS], [1.0] * 1000, 0.5).place(segment)
    frames = [(word.start_samples // HOP_LENGTH, word.end_samples // HOP_LENGTH) for word in segment.words]
    assert frames == [(110, 160), (2400, 2480), (2480, 2580)]
    assert (segment.start_samples, segment.end_samples) == (100 * HOP_LENGTH, 2600 * HOP_LENGTH)


def test_a_segment_that_ends_at_a_silence_ends_before_it() -> None:
    before = Segment(start_samples=0, end_samples=300 * HOP_LENGTH, tokens=())
    behind = Segment(start_samples=300 * HOP_LENGTH, end_samples=400 * HOP_LENGTH, tokens=())
    for segment in (before, behind):
        JoinedSpeech([SPANS], [1.0] * 1000, 0.5).place(segment)
    assert (before.start_samples, before.end_samples) == (100 * HOP_LENGTH, 400 * HOP_LENGTH)
    assert (behind.start_samples, behind.end_samples) == (2400 * HOP_LENGTH, 2500 * HOP_LENGTH)


def test_a_window_alone_keeps_what_has_no_end() -> None:
    begin = 100
    tokens = [begin, 5, begin + 50, begin + 50, 6]
    segments, advance = split_segments(tokens, begin, 2000, alone=True)
    assert [list(segment.tokens) for segment in segments] == [tokens[:3], tokens[3:]]
    assert (segments[-1].end_samples, advance) == (2000 * HOP_LENGTH, 2000)
    assert split_segments(tokens, begin, 2000)[1] == 100


@pytest.mark.parametrize("batch_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_long_silences_change_no_word_and_no_place(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    n_encoded = 0
    encode = Runtime.encode

    def counted(*args: Any) -> Any:  # noqa: ANN401 - as it is
        nonlocal n_encoded
        n_encoded += 1
        return encode(*args)

    monkeypatch.setattr(Runtime, "encode", counted)
    plain = list(transcribe(model, read(SPEECH), decoding(model)))
    n_plain, n_encoded = n_encoded, 0
    samples = np.concatenate([silence(40), read(SPEECH), silence(65)])
    done: list[int] = []
    options = decoding(model, batch_size=batch_size)
    finals = list(transcribe(model, np.array_split(samples, 9), options, on_progress=done.append))
    assert said(finals) == said(plain) != []
    assert n_encoded == n_plain
    words = [(word.start - 40, word.end - 40) for final in finals for word in final.words]
    expected = [(word.start, word.end) for final in plain for word in final.words]
    # The last goes on to the end of what is heard, which is silence here.
    np.testing.assert_allclose(words[:-1], expected[:-1], atol=0.05)
    assert (done == sorted(done), done[-1]) == (True, len(samples))


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}])
def test_without_speech_nothing_is_computed(model: WhisperModel, options: dict[str, Any]) -> None:
    def no_call() -> None:
        raise AssertionError

    quiet = model.fork()
    quiet.call_before(no_call)
    assert list(transcribe(quiet, silence(70), decoding(model, **options))) == []


@pytest.mark.slow
def test_a_window_that_failed_climbs_the_ladder_alone(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []
    attempt = decode_window

    def decode(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - as it is
        tried.append(args[3].temperature)
        return attempt(*args, **options)

    monkeypatch.setattr(fallback, "decode_window", decode)
    samples = np.concatenate([*itertools.repeat(np.concatenate([read(SPEECH), silence(2)]), 4)])
    options = {"batch_size": 2, "temperature_increment_on_fallback": 0.5, "sample_len": 5}
    list(transcribe(model, samples, decoding(model, **options, logprob_threshold=-100.0)))
    assert tried == []
    list(transcribe(model, samples, decoding(model, **options, logprob_threshold=0.0)))
    assert len(tried) > 2
    assert set(tried) == {0.5, 1.0}


@pytest.mark.slow
def test_a_window_of_a_batch_gets_the_text_of_five_beams_in_any_company_and_alone(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_on_cpu(NANO, cache_dir, n_beams=None, live=False)
    samples = np.concatenate([*itertools.repeat(np.concatenate([read(SPEECH), silence(2)]), 6)])
    options: list[DecodeOptions] = []
    attempt = decode_windows

    def decode(*args: Any, **others: Any) -> Any:  # noqa: ANN401 - as it is
        options.append(args[2])
        return attempt(*args, **others)

    monkeypatch.setattr(texts, "decode_windows", decode)
    # The last batch of two is smaller than the others.
    two, four = (list(transcribe(model, samples, decoding(model, words=False, batch_size=size))) for size in (2, 4))
    assert ({window.n_beams for window in options}, len(two)) == ({5}, 3)
    monkeypatch.setattr(Decoder, "takes_batches", False)
    with caplog.at_level(logging.INFO):
        assert list(transcribe(model, samples, decoding(model, words=False, batch_size=2))) == two == four
    assert caplog.text.count("takes one window at a time") == 1


def test_where_no_word_is_asked_for_none_is_looked_for(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = " ".join(final.text for final in transcribe(model, read(SPEECH), decoding(model)))
    monkeypatch.delattr(texts, "add_word_timestamps")
    finals = list(transcribe(model, read(SPEECH), decoding(model, words=False)))
    assert " ".join(final.text for final in finals) == expected != ""
    assert {final.words for final in finals} == {()}


def test_who_hears_no_silence_cannot_skip_any() -> None:
    options = DecodingSettings(batch_size=2, word_timestamps=True, hallucination_silence_threshold=2.0)
    with pytest.raises(ConfigError):
        check_options(Settings(decoding=options), streaming=False)


class ShortText:
    """A text that ends in the first window first."""

    def begin_to_decode(self, decoder: Decoder) -> list[None]:
        decoder.drop(0)
        return [None] * 3


def test_the_first_window_of_a_batch_ends_in_the_first_row(model: WhisperModel) -> None:
    """What it skips is encoded there, before the others are decoded any further."""
    mels = [np.full((model.dims.n_mels, 3000), level, np.float32) for level in (0.0, 0.5, 1.0)]
    decoded = decode_batch(model, mels, [cast(TaskText, ShortText())])
    assert decoded is not None
    assert [window.row for window, _ in decoded] == [0, 1, 2]
