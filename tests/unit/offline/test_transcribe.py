"""Whole recordings of any length: all of it is transcribed, in any blocks and for both tasks."""

from typing import Any, Literal

import numpy as np
import pytest

from streamer.constants import N_SAMPLES, SAMPLE_RATE
from streamer.errors import ConfigError
from streamer.events import Final
from streamer.offline import texts, transcribe, transcribe_segments
from streamer.offline.segments import split_segments
from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.model import WhisperModel
from streamer.whisper.options import decode_options
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import SAMPLE, SPEECH, Untyped, noise, read

pytestmark = pytest.mark.slow

# All that is heard is text, in windows that do not depend on each other.
PLAIN: dict[str, Any] = {
    "language": "en",
    "temperature": (0.0,),
    "no_speech_threshold": None,
    "condition_on_previous_text": False,
    "sample_len": 448,
}


# Most tokens of a window, where the end of the text is no matter.
SHORT = {"sample_len": 40}


def plain(model: WhisperModel, **options: Any) -> DecodeOptions:  # noqa: ANN401 - any option
    return as_whisper(model, **{**PLAIN, **options})


def assert_well_formed(finals: list[Final], n_samples: int) -> None:
    """Check numbers, order and bounds of segments and words."""
    assert [final.segment for final in finals] == list(range(1, len(finals) + 1))
    segment_times = [time for final in finals for time in (final.start, final.end)]
    word_times = [time for final in finals for word in final.words for time in (word.start, word.end)]
    for times in (segment_times, word_times):
        bounded = [0.0, *times, round(n_samples / SAMPLE_RATE, 3)]
        assert bounded == sorted(bounded)
    for final in finals:
        assert "".join(word.word for word in final.words).strip() == final.text != ""
        assert all(final.start <= word.start <= word.end <= final.end for word in final.words)
        assert all(word.stable and 0 <= word.probability <= 1 for word in final.words)


@pytest.mark.parametrize("n_samples", [0, 159])
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


@pytest.mark.parametrize(("n_samples", "loudness"), [(160, 0), (16_000, 1), (479_999, 1), (480_001, 0)])
def test_any_length_is_read_to_its_end(model: WhisperModel, n_samples: int, loudness: int) -> None:
    done: list[int] = []
    samples = np.float32(loudness) * noise(n_samples)
    assert_well_formed(list(transcribe(model, samples, plain(model), on_progress=done.append)), n_samples)
    assert done == sorted(done)
    assert done[-1] == n_samples


def test_a_recording_that_is_read_in_blocks_gives_the_same(model: WhisperModel) -> None:
    samples = read(SAMPLE)[: 35 * SAMPLE_RATE]
    blocks = (samples[first : first + 12_345] for first in range(0, len(samples), 12_345))
    options = plain(model, word_timestamps=True)
    finals = list(transcribe(model, blocks, options))
    assert_well_formed(finals, len(samples))
    assert finals == list(transcribe(model, samples, options))


def test_a_language_that_is_not_known_is_refused_before_anything_is_computed(model: WhisperModel) -> None:
    progress: list[int] = []
    with pytest.raises(ConfigError):
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
    for task, expected in (("both", {"", "translate"}), ("translate", {""})):
        assert {final.task for final in transcribe(model, read(SPEECH), plain(model, task=task, **SHORT))} == expected


def test_tokens_are_named_with_their_probabilities_where_they_are_asked_for(model: WhisperModel) -> None:
    samples = read(SPEECH)
    segments = list(transcribe_segments(model, samples, plain(model, **SHORT)))
    finals = list(transcribe(model, samples, plain(model, **SHORT, token_probabilities=True)))
    tokens = [token for final in finals for word in final.words for token in word.tokens]
    end_of_text = model.tokenizer.special.end_of_text
    assert [token.id for token in tokens] == [t for s in segments for t in s.tokens if t < end_of_text]
    for final in finals:
        assert all("".join(token.text for token in word.tokens) == word.word for word in final.words)
        probabilities = [token.probability for word in final.words for token in word.tokens]
        assert 0 < min(probabilities) < max(probabilities) <= 1
    assert all(word.tokens == () for final in transcribe(model, samples, plain(model, **SHORT)) for word in final.words)


def test_what_is_drawn_depends_on_the_seed_alone(model: WhisperModel) -> None:
    samples = read(SPEECH)
    hot = {"temperature": (1.0,), "best_of": 2, **SHORT}
    texts = [
        [segment.tokens for segment in transcribe_segments(model, samples, plain(model, **hot, seed=seed))]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def windows_of(
    model: WhisperModel, monkeypatch: pytest.MonkeyPatch, said: list[str], *, failed: bool = False
) -> list[WindowTask]:
    """Have windows of 30 s say a text each; return what each is decoded to."""
    seen: list[WindowTask] = []
    begin = model.tokenizer.special.timestamp_begin

    def decode(
        decoder: Untyped, tokenizer: Untyped, options: Untyped, task: WindowTask, *_: Untyped, **__: Untyped
    ) -> DecodedWindow:
        tokens = [begin, *model.tokenizer.encode(said[len(seen)]), begin + 1500]
        seen.append(task)
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
        decoding = decode_options(
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
        list(transcribe_segments(model, noise(2 * N_SAMPLES), decode_options(always, model, words=False)))
        # openai-whisper looks at the temperature alone.
        assert bool(seen[1].prompt) == (not failed or keep == "last")


def test_text_that_a_fine_tune_has_added_behind_the_times_is_no_time() -> None:
    begin, step_samples = 1000, 320
    added = begin + 1501
    tokens = [begin, 1, added, begin + 500, begin + 500, added, added, begin + 600]
    found, frames = split_segments(tokens, begin, 3000)
    times = [(s.start_samples // step_samples, s.end_samples // step_samples) for s in found]
    assert (times, frames) == ([(0, 500), (500, 600)], 3000)
    ((only, *_), _) = split_segments([added, 1, added, added], begin, 3000)
    assert (only.start_samples, only.end_samples) == (0, 3000 * 160)
