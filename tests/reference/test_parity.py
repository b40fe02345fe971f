"""The same tokens as openai-whisper's, on the same weights: windows and whole files, with all of its options."""

import dataclasses
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper
import whisper.decoding

from streamer.arrays import FloatArray
from streamer.constants import SAMPLE_RATE
from streamer.offline import texts, transcribe_segments
from streamer.whisper.decode.fallback import compression_ratio
from streamer.whisper.decode.search import Draw
from streamer.whisper.decode.window import decode_window, detect_language
from streamer.whisper.device.windows import EncodedWindow
from streamer.whisper.model import WhisperModel
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.standard import NANO_HEADS, openai_whisper, random_tiny, write_standard
from tests.unit.whisper.standard_nano import standard_nano
from tests.unit.whisper.support import ROOT, SAMPLE, SPEECH, Samples, Untyped, load_on_cpu, noise, read

# What is read with no other options; SPEECH is what all of those are tried on.
AUDIO = ROOT.parent / "shared" / "audio"
RECORDINGS = [SAMPLE, *(path for path in (AUDIO / "pauses.flac",) if path.exists())]

N_BEAMS = 5

# Most tokens of a window, where nothing else is said.
MAX_TOKENS = 224

# Random weights do not end a text, and what most options change is seen in its beginning.
FEW = {"sample_len": 24}

# What a window is decoded with; openai-whisper's names.
WINDOW_OPTIONS: dict[str, dict[str, Any]] = {
    # To the end of the text.
    "greedy": {},
    "patience": {"beam_size": 5, "patience": 2.0},
    "length penalty": {"beam_size": 3, "length_penalty": 1.0, "without_timestamps": True},
    "prefix, prompt and few tokens": {"prefix": "The law", "prompt": "Courts.", "sample_len": 218},
    # Its beginning.
    "without timestamps": {"without_timestamps": True, **FEW},
    "any first timestamp": {"max_initial_timestamp": None, **FEW},
    "early first timestamp": {"max_initial_timestamp": 0.2, **FEW},
    "impatience": {"beam_size": 4, "patience": 0.5, **FEW},
    "long prompt": {"prompt": "It is a capital mistake to theorise before one has data. " * 40, **FEW},
    "prompt and beams": {"prompt": "President Kennedy", "beam_size": 2, **FEW},
    "prefix": {"prefix": "Federal law", **FEW},
    "few tokens and beams": {"sample_len": 9, "beam_size": 5},
    "some tokens and symbols suppressed": {"suppress_tokens": "-1,13", **FEW},
    "no tokens suppressed": {"suppress_tokens": "", **FEW},
    "blanks": {"suppress_blank": False, **FEW},
    "another language": {"language": "de", **FEW},
    "translate": {"task": "translate", **FEW},
}

# Those of them that random weights are decoded with.
RANDOM = ("greedy", "early first timestamp", "patience")

# What whole files are transcribed with, greedily where nothing else is said. Where windows begin and which prompts they
# have is tried with many more options in tests/unit/offline/test_seeking.py.
FILE_OPTIONS: dict[str, tuple[Path, dict[str, Any]]] = {
    "no conditioning": (SPEECH, {"condition_on_previous_text": False, "word_timestamps": True, **FEW}),
    "carried prompt": (SPEECH, {"initial_prompt": "The President.", "carry_initial_prompt": True}),
    "as the command": (SPEECH, {"beam_size": 5, "best_of": 5, "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)}),
    "clips and beams": (SPEECH, {"clip_timestamps": [0.0, 4.0, 4.0, 9.5], "beam_size": 2, **FEW}),
    "no timestamps": (SPEECH, {"without_timestamps": True, "sample_len": 60}),
    "certain that nobody speaks": (SPEECH, {"no_speech_threshold": 1e-6, "logprob_threshold": -0.6, **FEW}),
}


class Pair:
    """Our model and openai-whisper's of the same weights, and what both made of a recording's first 30 s."""

    def __init__(self, ours: WhisperModel, theirs: Untyped) -> None:
        self.ours = ours
        self.theirs = theirs
        self._hidden: dict[Path, Untyped] = {}
        self._encoded: tuple[Path, EncodedWindow] | None = None

    def hidden(self, path: Path) -> Untyped:
        """Return what openai-whisper's encoder gives, shape (1500, n_audio_state)."""
        if path not in self._hidden:
            self._hidden[path] = self.theirs.embed_audio(first_window(path)[None])[0]
        return self._hidden[path]

    def encoded(self, path: Path) -> EncodedWindow:
        """Return what ours gives; of one recording at a time."""
        if self._encoded is None or self._encoded[0] != path:
            # Whole files take the other buffer.
            self._encoded = path, self.ours.runtime.encode(first_window(path).numpy(), 1)
        return self._encoded[1]


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    checkpoint = standard_nano()
    directory = write_standard(tmp_path_factory.mktemp("nano"), checkpoint, NANO_HEADS)
    return Pair(load(directory), openai_whisper(checkpoint, NANO_HEADS))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    checkpoint = random_tiny()
    ours = load(write_standard(tmp_path_factory.mktemp("tiny"), checkpoint))
    # By its dimensions we take it for the published tiny, whose heads the reference knows by name alone.
    return Pair(ours, openai_whisper(checkpoint, ours.generation.alignment_heads))


def load(directory: Path) -> WhisperModel:
    cache_dir = str(directory / "compiled")
    return load_on_cpu(directory, cache_dir, n_beams=N_BEAMS)


@cache
def first_window(path: Path) -> Untyped:
    """Return openai-whisper's features of a recording's first 30 s, shape (80, 3000)."""
    untyped: Untyped = whisper
    return untyped.log_mel_spectrogram(untyped.pad_or_trim(read(path)))


def assert_window_equal(pair: Pair, path: Path, options: dict[str, Any], draw: Draw | None = None) -> None:
    known = {"language": "en", **options}
    decoding: Untyped = whisper.decoding
    expected = pair.theirs.decode(pair.hidden(path), decoding.DecodingOptions(fp16=False, **known))

    model, tokenizer = pair.ours, pair.ours.tokenizer
    ours = as_whisper(model, **{key: value for key, value in known.items() if key not in ("prompt", "temperature")})
    prompt = tuple(tokenizer.encode(f" {known['prompt'].strip()}")) if "prompt" in known else ()
    window_options = dataclasses.replace(
        ours.window, prompt=prompt, task=ours.settings.task, temperature=known.get("temperature", 0.0)
    )
    model.runtime.decoder.use(pair.encoded(path))
    actual = decode_window(model.runtime.decoder, tokenizer, ours.generation, window_options, draw=draw)
    assert actual.tokens == expected.tokens
    assert actual.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-4)
    assert actual.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-4)
    text = tokenizer.decode(actual.tokens).strip()
    assert text == expected.text
    assert compression_ratio(text) == pytest.approx(expected.compression_ratio)


@pytest.mark.parametrize("name", WINDOW_OPTIONS)
def test_a_window_of_nano(nano: Pair, name: str) -> None:
    assert_window_equal(nano, SPEECH, WINDOW_OPTIONS[name])


@pytest.mark.parametrize("name", RANDOM)
def test_a_window_of_random_weights(tiny: Pair, name: str) -> None:
    assert_window_equal(tiny, SPEECH, {**FEW, **WINDOW_OPTIONS[name]})


@pytest.mark.parametrize("path", [SPEECH, SAMPLE], ids=lambda path: str(path.stem))
def test_the_language_and_its_probabilities(nano: Pair, tiny: Pair, path: Path) -> None:
    for pair in (nano, tiny):
        _, expected = pair.theirs.detect_language(pair.hidden(path))
        decoder = pair.ours.runtime.decoder
        decoder.use(pair.encoded(path))
        language, probabilities = detect_language(decoder, pair.ours.tokenizer)
        assert language == max(expected, key=expected.get)
        assert probabilities == pytest.approx(expected, abs=1e-4)


# No token for a language in the middle of a text: the reference counts its name as text in the compression ratio.
TEXT_ONLY = {"suppress_tokens": ",".join(map(str, [-1, *range(50259, 50358)]))}


class Dice:
    """Throws for each step of each text of each attempt above temperature 0; both decoders ask in their own order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.n_attempts = self.n_their_attempts = 0

    def choose(self, probabilities: FloatArray, attempt: int, text: int, step: int) -> int:
        """Draw a token: the first to come, each at a time that is spread exponentially.

        Not by a place among the sums of all probabilities, at which rounding errors of 50000 of them meet.
        """
        times = np.random.default_rng([self.seed, attempt, text, step]).standard_exponential(len(probabilities))
        with np.errstate(divide="ignore"):
            return int((times / probabilities).argmin())

    def one_text_after_another(self, end_of_text: int, n_texts: int, max_tokens: int = MAX_TOKENS) -> Draw:
        """Return what draws whole texts, `n_texts` an attempt, each to its end."""
        attempt = text = step = 0

        def draw(probabilities: FloatArray) -> int:
            nonlocal attempt, text, step
            token = self.choose(probabilities, attempt, text, step)
            step += 1
            if token == end_of_text or step == max_tokens:
                text, step = text + 1, 0
            if text == n_texts:
                attempt, text = attempt + 1, 0
            self.n_attempts = attempt
            return token

        return draw

    def all_texts_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have openai-whisper draw the next token of all texts of an attempt."""
        dice, decoding = self, whisper.decoding
        attempt, steps = -1, itertools.count()

        class Counted(decoding.GreedyDecoder):  # type: ignore[name-defined,misc]
            def __init__(self, temperature: float, end_of_text: int) -> None:
                nonlocal attempt, steps
                super().__init__(temperature, end_of_text)
                if temperature > 0:
                    attempt, steps = attempt + 1, itertools.count()
                    dice.n_their_attempts = attempt + 1

        class Categorical:
            def __init__(self, logits: Untyped) -> None:
                self.probabilities = logits.double().softmax(-1).numpy()

            def sample(self) -> Untyped:
                step = next(steps)
                return torch.tensor([dice.choose(row, attempt, i, step) for i, row in enumerate(self.probabilities)])

        monkeypatch.setattr(decoding, "GreedyDecoder", Counted)
        monkeypatch.setattr(decoding, "Categorical", Categorical)


@pytest.mark.parametrize(("temperature", "best_of"), [(0.2, 1), (1.0, 2)])
def test_the_same_draws_give_the_same_texts(
    nano: Pair, monkeypatch: pytest.MonkeyPatch, temperature: float, best_of: int
) -> None:
    dice = Dice(seed=int(10 * temperature) + best_of)
    dice.all_texts_at_once(monkeypatch)
    draw = dice.one_text_after_another(nano.ours.tokenizer.special.end_of_text, best_of)
    assert_window_equal(nano, SPEECH, {"temperature": temperature, "best_of": best_of, **TEXT_ONLY}, draw)


def assert_file_equal(pair: Pair, samples: Samples, options: dict[str, Any]) -> None:
    """Compare segments and words; `temperature` is 0 unless the options name some."""
    untyped: Untyped = whisper
    expected = untyped.transcribe(pair.theirs, samples, fp16=False, **{"temperature": 0.0, **options})
    found: list[str] = []
    segments = transcribe_segments(
        pair.ours,
        samples,
        as_whisper(pair.ours, **{"temperature": (0.0,), **options}),
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
                assert word.start_samples / SAMPLE_RATE == pytest.approx(known["start"], abs=0.02)
                assert word.end_samples / SAMPLE_RATE == pytest.approx(known["end"], abs=0.02)
                assert word.probability == pytest.approx(known["probability"], abs=1e-3)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: str(path.stem))
def test_every_recording(nano: Pair, path: Path) -> None:
    assert_file_equal(nano, read(path), {})


@pytest.mark.parametrize("name", FILE_OPTIONS)
def test_a_file(nano: Pair, name: str) -> None:
    path, options = FILE_OPTIONS[name]
    assert_file_equal(nano, read(path), options)


def test_a_file_of_random_weights(tiny: Pair) -> None:
    options = {**FEW, "word_timestamps": True, "no_speech_threshold": None}
    assert_file_equal(tiny, read(SPEECH)[: 5 * SAMPLE_RATE], options)


@pytest.mark.parametrize("kind", ["silence", "noise", "nearly nothing"])
def test_what_is_no_speech(nano: Pair, kind: str) -> None:
    samples = {
        "silence": np.zeros(20 * SAMPLE_RATE, dtype=np.float32),
        "noise": noise(35 * SAMPLE_RATE),
        "nearly nothing": noise(200),
    }[kind]
    # Heard all the same: there is nothing else to compare.
    assert_file_equal(nano, samples, {"no_speech_threshold": None, "word_timestamps": True, **FEW})


def test_speech_with_silence_around_it(nano: Pair) -> None:
    """A long silence is passed over in the same way, and the same words are heard beside it."""
    silence = np.zeros(12 * SAMPLE_RATE, dtype=np.float32)
    samples = np.concatenate([silence, read(SPEECH), silence, read(SPEECH)[: 5 * SAMPLE_RATE]])
    assert_file_equal(nano, samples, {"word_timestamps": True, "hallucination_silence_threshold": 0.5})


@pytest.mark.parametrize("options", [{}, {"beam_size": 5, "best_of": 5}], ids=["greedy", "five beams, best of five"])
def test_the_same_temperatures_are_tried(nano: Pair, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """With thresholds that nano.en seldom meets, both try the same temperatures, and forget what was too random.

    Both draw with the same dice: their own random numbers differ.
    """
    dice = Dice(seed=3)
    draw = dice.one_text_after_another(
        nano.ours.tokenizer.special.end_of_text, options.get("best_of", 1), FEW["sample_len"]
    )
    dice.all_texts_at_once(monkeypatch)
    monkeypatch.setattr(texts, "drawer", lambda seed: draw)
    strict = {"temperature": (0.0, 0.3, 0.6), "logprob_threshold": -0.05, "compression_ratio_threshold": 1.3, **FEW}
    assert_file_equal(nano, read(SPEECH), {**options, **strict, **TEXT_ONLY})
    assert dice.n_attempts == dice.n_their_attempts > 0
