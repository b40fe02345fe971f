"""The same tokens as openai-whisper's, on the same weights: windows and whole files, with all of its options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import whisper
import whisper.decoding

from streamer.constants import SAMPLE_RATE
from streamer.offline import transcribe_segments
from streamer.whisper.decode.fallback import compression_ratio
from streamer.whisper.decode.options import WindowTask
from streamer.whisper.decode.window import decode_window, detect_language
from streamer.whisper.model import WhisperModel
from tests.reference.standard import NANO_HEADS, openai_whisper, standard_nano, write_standard
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import ROOT, SAMPLE, SPEECH, Samples, Untyped, load_on_cpu, noise, read

# What is read with no other options; SPEECH is what all of those are tried on.
RECORDINGS = [path for path in (SAMPLE, ROOT.parent / "shared" / "audio" / "pauses.flac") if path.exists()]

N_BEAMS = 5

# What most options change is seen in the beginning of a text.
FEW = {"sample_len": 24}

# What a window is decoded with; openai-whisper's names.
WINDOW_OPTIONS: dict[str, dict[str, Any]] = {
    "to the end of the text": {},
    "patience and length penalty": {"beam_size": 3, "patience": 2.0, "length_penalty": 1.0},
    "without timestamps": {"without_timestamps": True, **FEW},
    "any first timestamp": {"max_initial_timestamp": None, **FEW},
    "early first timestamp": {"max_initial_timestamp": 0.2, **FEW},
    "impatience and a prompt": {"prompt": "President Kennedy", "beam_size": 4, "patience": 0.5, **FEW},
    "long prompt": {"prompt": "It is a capital mistake to theorise before one has data. " * 40, **FEW},
    "prefix, prompt and few tokens": {"prefix": "The law", "prompt": "Courts.", "sample_len": 30},
    "some tokens and symbols suppressed": {"suppress_tokens": "-1,13", **FEW},
    "no tokens suppressed, nor blanks": {"suppress_tokens": "", "suppress_blank": False, **FEW},
    "another language": {"language": "de", "task": "translate", **FEW},
}

# What whole files are transcribed with, greedily where nothing else is said. Where windows begin and which prompts they
# have is tried with many more options in tests/unit/offline/test_seeking.py.
FILE_OPTIONS: dict[str, dict[str, Any]] = {
    "no conditioning": {"condition_on_previous_text": False, "word_timestamps": True, **FEW},
    "carried prompt": {"initial_prompt": "The President.", "carry_initial_prompt": True, **FEW},
    "as the command": {"beam_size": 5, "best_of": 5, "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), **FEW},
    "clips and beams": {"clip_timestamps": [0.0, 4.0, 4.0, 9.5], "beam_size": 2, **FEW},
    "certain that nobody speaks": {
        "no_speech_threshold": 1e-6,
        "logprob_threshold": -0.6,
        "without_timestamps": True,
        **FEW,
    },
}


class Pair:
    """Our model and openai-whisper's of the same weights, and what both encoders made of the speech."""

    def __init__(self, ours: WhisperModel, theirs: Untyped) -> None:
        untyped: Untyped = whisper
        features = untyped.log_mel_spectrogram(untyped.pad_or_trim(read(SPEECH)))
        self.ours, self.theirs = ours, theirs
        # Whole files take the other buffer.
        self.encoded = ours.runtime.encode(features.numpy(), 1)
        self.hidden = theirs.embed_audio(features[None])[0]


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    standard = standard_nano()
    directory = write_standard(tmp_path_factory.mktemp("nano"), standard, NANO_HEADS)
    ours = load_on_cpu(directory, directory / "compiled", n_beams=N_BEAMS)
    return Pair(ours, openai_whisper(standard, NANO_HEADS))


@pytest.mark.parametrize("name", WINDOW_OPTIONS)
def test_a_window(nano: Pair, name: str) -> None:
    known = {"language": "en", **WINDOW_OPTIONS[name]}
    decoding: Untyped = whisper.decoding
    expected = nano.theirs.decode(nano.hidden, decoding.DecodingOptions(fp16=False, **known))

    model, tokenizer = nano.ours, nano.ours.tokenizer
    ours = as_whisper(model, **{key: value for key, value in known.items() if key != "prompt"})
    prompt = tuple(tokenizer.encode(f" {known['prompt'].strip()}")) if "prompt" in known else ()
    most = ours.settings.sample_len or model.dims.n_text_ctx // 2
    task = WindowTask(language=ours.settings.language, task=ours.settings.task, prompt=prompt, max_tokens=most)
    model.runtime.decoder.use(nano.encoded)
    actual = decode_window(model.runtime.decoder, tokenizer, ours, task)
    assert actual.tokens == expected.tokens
    assert actual.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-4)
    assert actual.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-4)
    text = tokenizer.decode(actual.tokens).strip()
    assert text == expected.text
    assert compression_ratio(text) == pytest.approx(expected.compression_ratio)


def test_the_language_and_its_probabilities(nano: Pair) -> None:
    _, expected = nano.theirs.detect_language(nano.hidden)
    nano.ours.runtime.decoder.use(nano.encoded)
    language, probabilities = detect_language(nano.ours.runtime.decoder, nano.ours.tokenizer)
    assert language == max(expected, key=expected.get)
    assert probabilities == pytest.approx(expected, abs=1e-4)


def assert_file_equal(nano: Pair, samples: Samples, options: dict[str, Any]) -> None:
    """Compare segments and words; `temperature` is 0 unless the options name some."""
    untyped: Untyped = whisper
    expected = untyped.transcribe(nano.theirs, samples, fp16=False, **{"temperature": 0.0, **options})
    found: list[str] = []
    segments = transcribe_segments(
        nano.ours,
        samples,
        as_whisper(nano.ours, **{"temperature": (0.0,), **options}),
        on_language=lambda language, probabilities: found.append(language),
    )
    ours = list(segments)
    theirs = [segment for segment in expected["segments"] if segment["text"]]
    assert [list(segment.tokens) for segment in ours] == [segment["tokens"] for segment in theirs]
    assert "".join(segment.text for segment in ours) == "".join(segment["text"] for segment in theirs)
    assert {*found, *(segment.language for segment in ours)} <= {expected["language"]}
    # We end with the recording; the reference may go on to the end of the window.
    end_s = len(samples) / SAMPLE_RATE
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.start_samples / SAMPLE_RATE == pytest.approx(min(other["start"], end_s), abs=1e-6)
        assert mine.end_samples / SAMPLE_RATE == pytest.approx(min(other["end"], end_s), abs=1e-6)
        assert mine.temperature == other["temperature"]
        for name in ("avg_logprob", "no_speech_prob", "compression_ratio"):
            assert getattr(mine, name) == pytest.approx(other[name], abs=1e-4), name
        if options.get("word_timestamps"):
            assert [word.text for word in mine.words] == [word["word"] for word in other["words"]]
            for word, known in zip(mine.words, other["words"], strict=True):
                assert word.start_samples / SAMPLE_RATE == pytest.approx(known["start"], abs=1e-3)
                assert word.end_samples / SAMPLE_RATE == pytest.approx(known["end"], abs=1e-3)
                assert word.probability == pytest.approx(known["probability"], abs=1e-3)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: str(path.stem))
def test_every_recording(nano: Pair, path: Path) -> None:
    assert_file_equal(nano, read(path)[: 35 * SAMPLE_RATE], {})


@pytest.mark.parametrize("name", FILE_OPTIONS)
def test_a_file(nano: Pair, name: str) -> None:
    assert_file_equal(nano, read(SPEECH), FILE_OPTIONS[name])


@pytest.mark.parametrize(("kind", "n_samples"), [("silence", 20 * SAMPLE_RATE), ("noise", 35 * SAMPLE_RATE)])
def test_what_is_no_speech(nano: Pair, kind: str, n_samples: int) -> None:
    samples = noise(n_samples) * np.float32(kind == "noise")
    # Heard all the same: there is nothing else to compare.
    assert_file_equal(nano, samples, {"no_speech_threshold": None, "word_timestamps": True, **FEW})


def test_speech_with_silence_around_it(nano: Pair) -> None:
    """A long silence is passed over in the same way, and the same words are heard beside it."""
    silence = np.zeros(12 * SAMPLE_RATE, dtype=np.float32)
    samples = np.concatenate([silence, read(SPEECH), silence, read(SPEECH)[: 5 * SAMPLE_RATE]])
    assert_file_equal(nano, samples, {"word_timestamps": True, "hallucination_silence_threshold": 0.5})
