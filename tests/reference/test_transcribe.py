"""Whole recordings against transformers' long-form generation on the same weights."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from streamer.constants import HOP_LENGTH, N_FRAMES, N_SAMPLES, SAMPLE_RATE
from streamer.errors import ConfigError
from streamer.events import Final
from streamer.offline import texts, transcribe, transcribe_segments
from streamer.offline.segments import split_segments
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.window import DecodedWindow, WindowOptions
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import ResolvedDecoding, resolve_decoding
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.conftest import processor, reference
from tests.unit.whisper.support import ROOT, SAMPLE, SPEECH, Samples, Untyped, noise, read

__all__ = ["processor", "reference"]

AUDIO = ROOT.parent / "shared" / "audio"

BEGIN = 1000
STEP = 320  # samples of one timestamp


# What transformers does where it is asked for nothing else; its text may be as long as the context.
PLAIN: dict[str, Any] = {
    "language": "en",
    "temperature": (0.0,),
    "no_speech_threshold": None,
    "condition_on_previous_text": False,
    "sample_len": 448,
}


def plain(model: WhisperModel, **options: Any) -> ResolvedDecoding:  # noqa: ANN401 - any option
    return as_whisper(model, **{**PLAIN, **options})


def generate(reference: Untyped, processor: Untyped, samples: Samples) -> list[dict[str, Any]]:
    """Return the segments of transformers' own long-form transcription.

    It is given what openai-whisper gives its encoder: silence behind the recording, and zeros behind that.
    """
    padded = np.concatenate([samples, np.zeros(N_SAMPLES, dtype=np.float32)])
    inputs = processor(padded, sampling_rate=SAMPLE_RATE, return_tensors="pt", truncation=False, padding="longest")
    n_frames = len(samples) // HOP_LENGTH
    features = inputs.input_features[:, :, :n_frames]
    features = torch.nn.functional.pad(features, (0, max(0, N_FRAMES - n_frames)))
    output = reference.generate(
        features,
        attention_mask=torch.ones(1, features.shape[-1], dtype=torch.long),
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
    finals = list(transcribe(model, samples, plain(model)))
    assert_well_formed(finals, len(samples))
    # transformers goes on to read the padding of a short recording, we do not.
    heard = [s for s in generate(reference, processor, samples) if float(s["start"]) * SAMPLE_RATE < len(samples)]
    expected = processor.decode([int(t) for s in heard for t in s["tokens"]], skip_special_tokens=True)
    assert words_of(finals) == expected.split()
    assert len(expected.split()) > 10


# One window, and several: of somebody who does not stop to breathe, where there are such recordings.
BREATHLESS = AUDIO / "breathless.flac"


@pytest.mark.parametrize("path", [SPEECH, BREATHLESS if BREATHLESS.exists() else SAMPLE], ids=lambda path: path.stem)
def test_word_for_word_what_transformers_gives(
    model: WhisperModel, reference: Untyped, processor: Untyped, path: Path
) -> None:
    # Behind the sample's first sentences, of which one word is written otherwise on some processors.
    start = 13 * SAMPLE_RATE if path == SAMPLE else 0
    assert_equals_transformers(model, reference, processor, read(path)[start:][: 35 * SAMPLE_RATE])


@pytest.mark.parametrize("n_samples", [0, 1, 159])
def test_less_than_a_frame_is_no_text(model: WhisperModel, n_samples: int) -> None:
    done: list[int] = []
    languages: list[str] = []
    finals = transcribe(
        model,
        noise(n_samples),
        as_whisper(model),
        on_progress=done.append,
        on_language=lambda language, _: languages.append(language),
    )
    assert (list(finals), done, languages) == ([], [n_samples], [])


@pytest.mark.parametrize("n_samples", [160, 16_000, 479_999, 480_000, 480_001])
@pytest.mark.parametrize("kind", ["silence", "noise"])
def test_any_length_is_read_to_its_end(model: WhisperModel, n_samples: int, kind: str) -> None:
    samples = noise(n_samples) if kind == "noise" else np.zeros(n_samples, dtype=np.float32)
    done: list[int] = []
    finals = list(transcribe(model, samples, plain(model), on_progress=done.append))
    assert_well_formed(finals, n_samples)
    assert done == sorted(done)
    assert done[-1] == n_samples


@pytest.mark.parametrize("word_timestamps", [False, True])
def test_a_recording_that_is_read_in_blocks_gives_the_same(model: WhisperModel, word_timestamps: bool) -> None:
    samples = read(SAMPLE)[: 35 * SAMPLE_RATE]
    blocks = (samples[first : first + 12_345] for first in range(0, len(samples), 12_345))
    options = plain(model, word_timestamps=word_timestamps)
    finals = list(transcribe(model, blocks, options))
    assert_well_formed(finals, len(samples))
    assert finals == list(transcribe(model, samples, options))


def test_a_language_that_is_not_known_is_refused_before_anything_is_computed(model: WhisperModel) -> None:
    progress: list[int] = []
    with pytest.raises(ConfigError, match="does not know the language 'xx'"):
        list(transcribe(model, read(SPEECH), as_whisper(model, language="xx"), on_progress=progress.append))
    assert progress == []


def test_both_tasks_take_turns_over_what_was_heard(model: WhisperModel) -> None:
    """nano.en cannot translate, and its vocabulary has the token all the same."""
    samples = read(SAMPLE)[: 35 * SAMPLE_RATE]
    both = list(transcribe_segments(model, samples, plain(model, task="both")))
    transcribed = [segment for segment in both if segment.task == "transcribe"]
    translated = [segment for segment in both if segment.task == "translate"]
    # The translation takes nothing away from the transcription.
    assert transcribed == list(transcribe_segments(model, samples, plain(model)))
    assert translated
    starts = [segment.start_samples for segment in translated]
    assert starts == sorted(starts)
    # Of a window that was heard to 28 s, nothing behind that is translated twice.
    assert len(set(starts)) == len(starts)


def test_a_translation_beside_the_transcript_says_so(model: WhisperModel) -> None:
    samples = read(SPEECH)
    tasks = [final.task for final in transcribe(model, samples, plain(model, task="both"))]
    assert set(tasks) == {"", "translate"}
    assert {f.task for f in transcribe(model, samples, plain(model, task="translate"))} == {""}


def test_tokens_are_named_with_their_probabilities_where_they_are_asked_for(model: WhisperModel) -> None:
    samples = read(SPEECH)
    segments = list(transcribe_segments(model, samples, plain(model)))
    finals = list(transcribe(model, samples, plain(model, token_probabilities=True)))
    tokens = [token for final in finals for word in final.words for token in word.tokens]
    end_of_text = model.tokenizer.special.end_of_text
    assert [token.id for token in tokens] == [t for s in segments for t in s.tokens if t < end_of_text]
    for final in finals:
        assert all("".join(token.text for token in word.tokens) == word.word for word in final.words)
        probabilities = [token.probability for word in final.words for token in word.tokens]
        assert 0 < min(probabilities) < max(probabilities) <= 1
    assert all(word.tokens == () for final in transcribe(model, samples, plain(model)) for word in final.words)


def test_what_is_drawn_depends_on_the_seed_alone(model: WhisperModel) -> None:
    samples = read(SPEECH)
    hot = {"temperature": (1.0,), "best_of": 2}
    texts = [
        [segment.tokens for segment in transcribe_segments(model, samples, plain(model, **hot, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def windows_of(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, said: list[str], *, failed: bool = False
) -> list[WindowOptions]:
    """Have windows of 30 s say a text each; return the options that each is decoded with."""
    seen: list[WindowOptions] = []
    begin = model.tokenizer.special.timestamp_begin

    def decode(
        decoder: Untyped, tokenizer: Untyped, config: Untyped, options: WindowOptions, *_: Untyped, **__: Untyped
    ) -> DecodedWindow:
        tokens = [begin, *model.tokenizer.encode(said[len(seen)]), begin + 1500]
        seen.append(options)
        return DecodedWindow(
            tokens=tokens,
            log_probs=[-0.1] * len(tokens),
            no_speech_prob=0.0,
            avg_logprob=-0.1,
            attention=np.empty((0, 0, 0), dtype=np.float32),
            n_start=3,
            failed=failed,
        )

    monkeypatch.setattr(texts, "decode_with_fallback", decode)
    return seen


def test_segments_without_a_word_are_left_out_where_they_are_not_asked_for(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [" ...", " Fifty.", " [Music]", " C++"]
    for keep_notes, expected in ((False, [" Fifty.", " C++"]), (True, said)):
        windows_of(model, monkeypatch, said)
        decoding = resolve_decoding(
            DecodingSettings(language="en", keep_notes=keep_notes, vad_filter=False), model, words=False
        )
        segments = list(transcribe_segments(model, noise(len(said) * N_SAMPLES), decoding))
        assert [segment.text for segment in segments] == expected
        assert segments[-1].end_samples == len(said) * N_SAMPLES


def test_a_text_that_failed_is_no_prompt(model: WhisperModel, monkeypatch: pytest.MonkeyPatch) -> None:
    keeps: list[tuple[bool, Literal["best", "last"]]] = [(False, "best"), (True, "best"), (True, "last")]
    for failed, keep in keeps:
        seen = windows_of(model, monkeypatch, [" One.", " Two."], failed=failed)
        always = DecodingSettings(
            language="en", condition_on_previous_text="always", keep_failed=keep, vad_filter=False
        )
        list(transcribe_segments(model, noise(2 * N_SAMPLES), resolve_decoding(always, model, words=False)))
        # openai-whisper looks at the temperature alone.
        assert bool(seen[1].prompt) == (not failed or keep == "last")


def at(step: int) -> int:
    return BEGIN + step


def test_text_that_a_fine_tune_has_added_behind_the_times_is_no_time() -> None:
    added = BEGIN + 1501
    found, frames = split_segments([at(0), 1, added, at(500), at(500), added, added, at(600)], BEGIN, 3000)
    assert [(s.start_samples, s.end_samples) for s in found] == [(0, 500 * STEP), (500 * STEP, 600 * STEP)]
    assert frames == 3000
    ((only, *_), _) = split_segments([added, 1, added, added], BEGIN, 3000)
    assert (only.start_samples, only.end_samples) == (0, 3000 * 160)
