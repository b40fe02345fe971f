"""Where windows begin and what is kept of them, against openai-whisper's own loop, without any model.

Both are given the same made-up texts and words, window after window.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import whisper.decoding
from hypothesis import given, settings
from hypothesis import strategies as st

import streamer.whisper.decode.fallback
from streamer.constants import HOP_LENGTH, N_FRAMES, N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from streamer.offline import recording, texts, transcribe_segments
from streamer.offline.features import clip_frames
from streamer.whisper.decode.options import WindowTask
from streamer.whisper.decode.window import DecodedWindow
from streamer.whisper.decode.word_timestamps import SpokenSegment
from streamer.whisper.generation import default_generation
from streamer.whisper.result import TimedWord
from streamer.whisper.tokens.tokenizer import Tokenizer
from tests.unit.offline.as_whisper import as_whisper
from tests.unit.whisper.support import SIZES, Untyped
from tests.unit.whisper.tokens.published import MULTILINGUAL

DIMS = SIZES["tiny"]
TOKENIZER = Tokenizer.load(MULTILINGUAL.path, n_vocab=DIMS.n_vocab)
BEGIN = TOKENIZER.special.timestamp_begin
WORDS = TOKENIZER.encode(" and so it went on for a while, they said. No!")
SPACE = TOKENIZER.encode(" ")

# No time is a whole number of these from another: what equal times do is left to the last bit in the reference.
OFF_GRID_SAMPLES = 48

MAX_CALLS = 200


class EndlessScriptError(Exception):
    """The texts that were made up lead nowhere."""


@dataclass
class Script:
    """Texts and words that are made up from a seed, and what was asked for in front of each."""

    seed: int
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    last_speech_samples: list[int] = field(default_factory=list)

    def text(self, prompt: Sequence[int]) -> tuple[list[int], float, float]:
        """Return tokens, their mean log-probability, and the probability that nobody speaks."""
        self.prompts.append(tuple(prompt))
        if len(self.prompts) > MAX_CALLS:
            raise EndlessScriptError
        random = np.random.default_rng([self.seed, 1, len(self.prompts)])
        n_segments = int(random.choice([0, 1, 1, 2, 3, 5]))
        times = np.sort(random.choice(np.arange(25, 1501), 2 * n_segments, replace=False)).tolist()
        tokens: list[int] = []
        for i in range(n_segments):
            end = times[2 * i + 1]
            # Most segments begin where the one before ends; as the rules have it, no text is without a token.
            start = int(random.choice([times[2 * i], times[2 * i - 1] if i else 0]))
            text = random.choice([*WORDS, *SPACE], int(random.integers(1, 6))).tolist()
            tokens += [BEGIN + start, *(SPACE if random.random() < 0.2 else text), BEGIN + end]
        # A whole text, one that goes on, one that breaks off, and one that was never timed.
        ending = random.choice(["whole", "pair", "open", "no times"])
        if ending == "pair" and tokens:
            tokens.append(tokens[-1])
        elif ending == "open" and n_segments > 1:
            del tokens[-1]
        elif ending == "no times":
            tokens = [token for token in tokens if token < BEGIN]
        avg_logprob = float(random.choice([-0.3, -0.9, -1.3]))
        return tokens, avg_logprob, float(random.choice([0.01, 0.4, 0.8]))

    def words(self, n_segments: int, last_speech_samples: int) -> list[list[tuple[int, int, float]]]:
        """Return first and last sample in the window and probability of each segment's words."""
        self.last_speech_samples.append(last_speech_samples)
        random = np.random.default_rng([self.seed, 2, len(self.last_speech_samples)])
        lengths = random.choice([0, 1, 2, 5, 10], n_segments)
        bounds = np.sort(random.integers(10, 1480, 2 * lengths.sum())) * N_SAMPLES_PER_TOKEN + OFF_GRID_SAMPLES
        probabilities = random.choice([0.05, 0.5, 0.99], lengths.sum())
        words = iter(zip(*bounds.reshape(-1, 2).T.tolist(), probabilities.tolist(), strict=True))
        return [list(itertools.islice(words, int(length))) for length in lengths]


def theirs(script: Script, n_frames: int, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what openai-whisper makes of a script: start, end, text, tokens and temperature of each segment.

    No time is behind the clip, where the reference may go on to the end of the window.
    """
    untyped: Untyped = whisper
    module: Untyped = sys.modules["whisper.transcribe"]

    def decode(mel: Untyped, decoding: Untyped) -> Untyped:
        tokens, avg_logprob, no_speech_prob = script.text(decoding.prompt)
        return whisper.decoding.DecodingResult(
            audio_features=mel,
            language="en",
            tokens=tokens,
            avg_logprob=avg_logprob,
            no_speech_prob=no_speech_prob,
            temperature=decoding.temperature,
            compression_ratio=1.0,
        )

    def add_words(*, segments: list[dict[str, Any]], last_speech_timestamp: float, **_: object) -> None:
        found = script.words(len(segments), round(last_speech_timestamp * SAMPLE_RATE))
        for segment, words in zip(segments, found, strict=True):
            offset = segment["seek"] * HOP_LENGTH / SAMPLE_RATE
            segment["words"] = [
                {"word": " word", "start": offset + a / SAMPLE_RATE, "end": offset + b / SAMPLE_RATE, "probability": p}
                for a, b, p in words
            ]
            if words:
                segment["start"], segment["end"] = segment["words"][0]["start"], segment["words"][-1]["end"]

    model = SimpleNamespace(
        dims=DIMS, device=torch.device("cpu"), is_multilingual=True, num_languages=99, decode=decode
    )
    mel = torch.zeros(DIMS.n_mels, n_frames + N_FRAMES)
    with (
        patch.object(module, "log_mel_spectrogram", lambda *_args, **_keywords: mel),
        patch.object(module, "add_word_timestamps", add_words),
    ):
        result = untyped.transcribe(model, np.empty(0), fp16=False, language="en", **options)
    clips = list(clip_frames(options.get("clip_timestamps", ()), n_frames))

    def position(time: float, seek: int) -> int:
        end = next(end for start, end in clips if start <= seek < end)
        return min(round(time * SAMPLE_RATE), end * HOP_LENGTH)

    return [
        (position(s["start"], s["seek"]), position(s["end"], s["seek"]), s["text"], s["tokens"], s["temperature"])
        for s in result["segments"]
        if s["text"]
    ]


def ours(script: Script, n_frames: int, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return what we make of a script."""

    def decode(_decoder: object, _tokenizer: object, _options: object, task: WindowTask, *_: object) -> DecodedWindow:
        tokens, avg_logprob, no_speech_prob = script.text(task.prompt)
        return DecodedWindow(
            tokens=tokens,
            log_probs=[0.0] * len(tokens),
            no_speech_prob=no_speech_prob,
            avg_logprob=avg_logprob,
            attention=np.empty((0, 0, 0)),
            n_start=0,
            temperature=task.temperature,
        )

    def add_words(
        _1: object,
        _2: object,
        segments: Sequence[Any],
        _4: object,
        *,
        begin_samples: int,
        last_speech_samples: int,
        **_: object,
    ) -> list[SpokenSegment]:
        if not options.get("word_timestamps"):
            return [SpokenSegment(s.start_samples, s.end_samples, ()) for s in segments]
        found = script.words(len(segments), last_speech_samples)
        spoken = []
        for segment, words in zip(segments, found, strict=True):
            timed = tuple(TimedWord(" word", (), begin_samples + a, begin_samples + b, p) for a, b, p in words)
            start = timed[0].start_samples if timed else segment.start_samples
            end = timed[-1].end_samples if timed else segment.end_samples
            spoken.append(SpokenSegment(start, end, timed))
        return spoken

    class NoFeatures:
        n_samples = n_frames * HOP_LENGTH
        speech = None

        def __init__(self, *_: object, clips: Sequence[float], **__: object) -> None:
            self.n_frames = n_frames
            self.clips = list(clip_frames(clips, n_frames))

        def window(self, begin: int, length: int) -> None:
            assert begin >= 0
            assert 0 < length <= N_FRAMES
            assert begin + length <= n_frames

        def close(self) -> None:
            """Nothing is open."""

    runtime = SimpleNamespace(decoder_of=lambda window: None, encode=lambda mel, buffer: None)
    model: Untyped = SimpleNamespace(
        dims=DIMS,
        tokenizer=TOKENIZER,
        generation=default_generation(TOKENIZER, DIMS),
        n_beams=1,
        choose_language=TOKENIZER.choose_language,
        run=lambda compute: compute(runtime),
    )
    decoding = as_whisper(model, language="en", **options)
    with (
        patch.object(recording, "Features", NoFeatures),
        patch.object(streamer.whisper.decode.fallback, "decode_window", decode),
        patch.object(texts, "add_word_timestamps", add_words),
    ):
        segments = list(transcribe_segments(model, np.empty(0, np.float32), decoding))
    return [(s.start_samples, s.end_samples, s.text, list(s.tokens), s.temperature) for s in segments]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([(0.0,), (0.0, 0.4, 0.8), (0.6,)]),
        "logprob_threshold": st.sampled_from([None, -1.0]),
        "no_speech_threshold": st.sampled_from([None, 0.6]),
        "condition_on_previous_text": st.booleans(),
        "initial_prompt": st.sampled_from(["It began.", "On and on. " * 90]),
        "carry_initial_prompt": st.booleans(),
        "word_timestamps": st.booleans(),
        "hallucination_silence_threshold": st.sampled_from([0.333, 1.013, 2.345]),
        "clip_timestamps": st.sampled_from([[], [0.0], [3.3], [3.3, 40.1, 41.0, 95.0], [10.0, 20.0], [200.0]]),
    },
)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), n_frames=st.sampled_from([0, 1, 700, 3000, 3001, 9700, 20_000]), options=OPTIONS)
def test_windows_segments_and_prompts_are_openai_whispers(seed: int, n_frames: int, options: dict[str, Any]) -> None:
    if "hallucination_silence_threshold" in options:
        options["word_timestamps"] = True
    if options.get("clip_timestamps") and len(options["clip_timestamps"]) % 2 == 0:
        # The reference goes round for ever where a clip ends behind the recording.
        ends = [min(time, n_frames / 100) for time in options["clip_timestamps"]]
        clips = [clip for clip in zip(ends[::2], ends[1::2], strict=True) if clip[0] < clip[1]]
        options["clip_timestamps"] = [time for clip in clips for time in clip]
    script, same_script = Script(seed), Script(seed)
    try:
        expected = theirs(script, n_frames, options)
    except EndlessScriptError:
        return
    actual = ours(same_script, n_frames, options)
    assert same_script.prompts == script.prompts
    assert same_script.last_speech_samples == script.last_speech_samples
    assert actual == expected
