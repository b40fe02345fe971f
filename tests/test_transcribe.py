"""Whole recordings against transformers' long-form generation on the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from streamer.audio.constants import N_SAMPLES, SAMPLE_RATE
from streamer.audio.mel import log_mel_recording
from streamer.errors import ConfigError
from streamer.events import Final
from streamer.transcribe import Segment, split_segments, transcribe
from streamer.whisper.model import WhisperModel
from tests.whisper.conftest import cache_dir, few_threads, model, processor, reference
from tests.whisper.support import ROOT, SAMPLE, SPEECH, Samples, Untyped, noise, read

__all__ = ["cache_dir", "few_threads", "model", "processor", "reference"]

AUDIO = ROOT.parent / "shared" / "audio"

BEGIN = 1000
STEP = 320  # samples of one timestamp


def generate(reference: Untyped, processor: Untyped, samples: Samples) -> list[dict[str, Any]]:
    """Return the segments of transformers' own long-form transcription."""
    long = {"truncation": False, "padding": "longest"} if len(samples) > N_SAMPLES else {"padding": "max_length"}
    inputs = processor(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt", return_attention_mask=True, **long)
    output = reference.generate(
        inputs.input_features,
        attention_mask=inputs.attention_mask,
        return_timestamps=True,
        return_segments=True,
        language="en",
        task="transcribe",
    )
    segments: list[dict[str, Any]] = output["segments"][0]
    return segments


def words_of(finals: list[Final]) -> list[str]:
    """Return the words, joined as the tokens join: a segment may begin in the middle of one."""
    return "".join(word.word for final in finals for word in final.words).split()


def assert_well_formed(finals: list[Final], n_samples: int) -> None:
    """Check numbers, order and bounds of segments and words."""
    assert [final.segment for final in finals] == list(range(1, len(finals) + 1))
    end_s = round(n_samples / SAMPLE_RATE, 3)
    segment_times = [time for final in finals for time in (final.start, final.end)]
    assert segment_times == sorted(segment_times)
    word_times = [time for final in finals for word in final.words for time in (word.start, word.end)]
    assert word_times == sorted(word_times)
    for times in (segment_times, word_times):
        assert all(0 <= time <= end_s for time in times)
    for final in finals:
        assert "".join(word.word for word in final.words).strip() == final.text != ""
        assert all(final.start <= word.start <= word.end <= final.end for word in final.words)
        assert all(word.stable and 0 <= word.probability <= 1 for word in final.words)


def assert_equals_transformers(model: WhisperModel, reference: Untyped, processor: Untyped, samples: Samples) -> None:
    finals = list(transcribe(model, samples, language="en"))
    assert_well_formed(finals, len(samples))
    # A short recording is padded to 30 s; transformers goes on to read the padding, we do not.
    heard = [s for s in generate(reference, processor, samples) if float(s["start"]) * SAMPLE_RATE < len(samples)]
    expected = processor.decode([int(t) for s in heard for t in s["tokens"]], skip_special_tokens=True)
    assert words_of(finals) == expected.split()
    assert len(expected.split()) > 10


@pytest.mark.parametrize("path", [SAMPLE, SPEECH], ids=lambda path: str(path.stem))
def test_word_for_word_what_transformers_gives(
    model: WhisperModel, reference: Untyped, processor: Untyped, path: Path
) -> None:
    assert_equals_transformers(model, reference, processor, read(path))


RECORDINGS = sorted(AUDIO.glob("*.flac")) if AUDIO.is_dir() else []


@pytest.mark.skipif(not RECORDINGS, reason=f"no recordings in {AUDIO.name}/ beside the repository")
@pytest.mark.parametrize("path", RECORDINGS or [AUDIO], ids=lambda path: str(path.stem))
def test_word_for_word_on_longer_recordings(
    model: WhisperModel, reference: Untyped, processor: Untyped, path: Path
) -> None:
    assert_equals_transformers(model, reference, processor, read(path))


@pytest.mark.parametrize("n_mels", [80, 128])
def test_the_mel_of_a_whole_recording_equals_transformers(n_mels: int) -> None:
    samples = np.concatenate([read(SAMPLE), noise(SAMPLE_RATE), np.zeros(12_345, dtype=np.float32)])
    assert len(samples) > N_SAMPLES
    extractor = transformers.WhisperFeatureExtractor(feature_size=n_mels)  # type: ignore[no-untyped-call]
    actual = log_mel_recording(samples, n_mels)
    # In float64 both agree; in float32 transformers rounds quiet bins beside loud ones.
    expected = extractor._np_extract_fbank_features(samples[None].astype(np.float64), "cpu")[0]
    assert actual.shape == expected.shape == (n_mels, len(samples) // 160)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    features = extractor(
        samples, sampling_rate=SAMPLE_RATE, return_tensors="np", truncation=False, padding="longest"
    ).input_features[0]
    np.testing.assert_allclose(actual, features[:, : actual.shape[1]], rtol=0, atol=1e-4)


def test_no_sample_is_no_text(model: WhisperModel) -> None:
    assert list(transcribe(model, np.empty(0, dtype=np.float32))) == []


@pytest.mark.parametrize("n_samples", [1, 100, 16_000, 479_999, 480_000, 480_001])
@pytest.mark.parametrize("kind", ["silence", "noise"])
def test_any_length_is_read_to_its_end(model: WhisperModel, n_samples: int, kind: str) -> None:
    samples = noise(n_samples) if kind == "noise" else np.zeros(n_samples, dtype=np.float32)
    done: list[int] = []
    finals = list(transcribe(model, samples, on_progress=done.append))
    assert_well_formed(finals, n_samples)
    assert done == sorted(done)
    assert done[-1] == n_samples // 160 * 160 if n_samples > N_SAMPLES else done[-1] == n_samples


def test_the_language_is_found_and_named(model: WhisperModel) -> None:
    finals = list(transcribe(model, read(SPEECH)))
    assert {final.language for final in finals} == {"en"}
    assert finals == list(transcribe(model, read(SPEECH), language="en"))


def test_a_language_that_is_not_known_is_refused_before_anything_is_computed(model: WhisperModel) -> None:
    progress: list[int] = []
    with pytest.raises(ConfigError, match="does not know the language 'xx'"):
        list(transcribe(model, read(SPEECH), language="xx", on_progress=progress.append))
    assert progress == []


def at(step: int) -> int:
    return BEGIN + step


@pytest.mark.parametrize(
    ("tokens", "segments", "advance"),
    [
        # Nothing at all: the window is done.
        ([], [(0, 3000 * 160, [])], 3000),
        # Text without times.
        ([1, 2], [(0, 3000 * 160, [1, 2])], 3000),
        # One beginning and no end: to the window's end.
        ([at(50), 1, 2], [(50 * STEP, 3000 * 160, [at(50), 1, 2])], 3000),
        # One segment with both; nothing is said after it.
        ([at(0), 1, at(500)], [(0, 500 * STEP, [at(0), 1, at(500)])], 3000),
        # Two segments, the second cut off without text: on from its beginning.
        (
            [at(0), 1, at(500), at(600), 2, at(900), at(900)],
            [(0, 500 * STEP, [at(0), 1, at(500)]), (600 * STEP, 900 * STEP, [at(600), 2, at(900)])],
            1800,
        ),
        # The same with words that are thrown away: they are heard again.
        (
            [at(0), 1, at(500), at(600), 2],
            [(0, 500 * STEP, [at(0), 1, at(500)])],
            1000,
        ),
        # A last segment that is whole: the rest of the window is silence.
        (
            [at(0), 1, at(500), at(600), 2, at(900)],
            [(0, 500 * STEP, [at(0), 1, at(500)]), (600 * STEP, 900 * STEP, [at(600), 2, at(900)])],
            3000,
        ),
        # A pair at the end.
        ([at(10), 1, at(500), at(500)], [(10 * STEP, 500 * STEP, [at(10), 1, at(500)])], 1000),
    ],
)
def test_tokens_are_split_at_their_times(
    tokens: list[int], segments: list[tuple[int, int, list[int]]], advance: int
) -> None:
    expected = [Segment(start, end, tuple(inside)) for start, end, inside in segments]
    assert split_segments(tokens, BEGIN, 3000) == (expected, advance)


def test_a_short_last_window_ends_with_the_recording() -> None:
    assert split_segments([at(0), 1], BEGIN, 700) == ([Segment(0, 700 * 160, (at(0), 1))], 700)
