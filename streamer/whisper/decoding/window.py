"""Decoding of one window.

Source: openai-whisper's `decoding.py`; generation settings from the model's own `generation_config.json`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import N_SAMPLES_PER_TOKEN
from streamer.whisper.decoding.filters import N_TIMESTAMPS, LogitFilter, SuppressAtBegin, SuppressTokens, TimestampRules
from streamer.whisper.decoding.loops import loop_length, loop_repeats
from streamer.whisper.decoding.probabilities import log_prob, log_softmax
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.tokenizer import Tokenizer

FloatArray = NDArray[np.floating]


class TokenDecoder(Protocol):
    """The decoder's forward pass over a growing sequence (see `runtime.DecoderRuntime`)."""

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""

    def begin(self) -> None:
        """Forget the sequence and start a new one."""

    def feed(self, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Append tokens; return logits (n, n_vocab) and alignment heads' attention (n_heads, n, n_audio_ctx)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How to decode one window."""

    language: str
    task: str = "transcribe"
    timestamps: bool = False

    # Text that came before, as tokens; never part of the result.
    prompt: tuple[int, ...] = ()

    # Text that the result begins with.
    prefix: tuple[int, ...] = ()

    # Most tokens to sample.
    max_tokens: int = 10_000

    # Whether to stop at a loop.
    stop_at_loop: bool = False


@dataclass(slots=True, kw_only=True)
class DecodedWindow:
    """The tokens of one window and what was seen on the way."""

    # Prefix and sampled tokens, without the end of text.
    tokens: list[int]

    # Log-probability of each token after filtering; for those of the prefix, after suppression.
    log_probs: list[float]
    no_speech_prob: float

    # Mean log-probability of the sampled tokens, the end of text included.
    avg_logprob: float

    # Alignment heads' attention from the start of the transcript on, shape (n_heads, n_rows, n_audio_ctx).
    attention: FloatArray

    # Rows of `attention` before the first text token.
    n_start: int
    looped: bool = False

    # Calls of the decoder.
    calls: int = 0


def decode_window(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    options: WindowOptions,
    cancelled: Callable[[], bool] = lambda: False,
) -> DecodedWindow:
    """Decode the window whose cross-attention keys and values the decoder holds, greedily.

    Stops at the end of text, after `max_tokens`, when the sequence is full, at a loop, or when `cancelled` says so.
    """
    special = tokenizer.special
    start = tokenizer.start_sequence(options.language, options.task)
    if not options.timestamps:
        start = [*start, special.no_timestamps]
    room = decoder.capacity - len(start) - len(options.prefix) - 1
    # As in openai-whisper, half of the room is for the prompt, its newest part, and half for what is said next.
    n_prompt = max(0, min(len(options.prompt), room // 2))
    prompt = [special.start_of_previous, *options.prompt[len(options.prompt) - n_prompt :]] if n_prompt else []

    decoder.begin()
    logits, attention = decoder.feed([*prompt, *start, *options.prefix])
    rows = [attention[:, len(prompt) :]]
    no_speech_prob = math.exp(log_prob(logits[len(prompt)], special.no_speech))

    suppress, *others = _filters(tokenizer, config, options, logits.shape[-1])
    # What the prefix was sampled from; the other rules depend on where a text began, which may have been elsewhere.
    before_prefix = len(prompt) + len(start) - 1
    log_probs = []
    for row, token in zip(logits[before_prefix:], options.prefix, strict=False):
        scored = row.copy()
        suppress.apply(scored, ())
        log_probs.append(log_prob(scored, token))
    tokens = list(options.prefix)
    sampled: list[float] = []
    looped = False
    most = min(options.max_tokens, decoder.capacity - len(prompt) - len(start) - len(tokens))
    while len(sampled) < most and not cancelled():
        last = logits[-1]
        for rule in (suppress, *others):
            rule.apply(last, tokens)
        token = int(last.argmax())
        sampled.append(log_prob(last, token))
        if token == special.end_of_text:
            break
        tokens.append(token)
        log_probs.append(sampled[-1])
        if options.stop_at_loop and (length := loop_length(tokens)):
            looped = True
            # Keep the first round of the loop, and never less than the prefix.
            tokens = tokens[: max(len(options.prefix), len(tokens) - length * (loop_repeats(length) - 1))]
            log_probs = log_probs[: len(tokens)]
            break
        if len(sampled) == most:
            break
        logits, attention = decoder.feed([token])
        rows.append(attention)
    return DecodedWindow(
        tokens=tokens,
        log_probs=log_probs,
        no_speech_prob=no_speech_prob,
        avg_logprob=sum(sampled) / len(sampled) if sampled else 0.0,
        attention=np.concatenate(rows, axis=1),
        n_start=len(start),
        looped=looped,
        calls=len(rows),
    )


def detect_language(decoder: TokenDecoder, tokenizer: Tokenizer) -> tuple[str, Mapping[str, float]]:
    """Find the language of the window that the decoder holds, with the probability of each."""
    decoder.begin()
    logits, _ = decoder.feed([tokenizer.special.start_of_transcript])
    codes = list(tokenizer.languages)
    log_probs = log_softmax(logits[-1][[tokenizer.languages[code] for code in codes]])
    probabilities = dict(zip(codes, np.exp(log_probs).tolist(), strict=True))
    return max(probabilities, key=probabilities.__getitem__), probabilities


def max_tokens_for(n_samples: int) -> int:
    """Return the most tokens that speech of this length can have: one for each encoder position, and a few."""
    return 16 + n_samples // N_SAMPLES_PER_TOKEN


def _filters(tokenizer: Tokenizer, config: GenerationConfig, options: WindowOptions, n_vocab: int) -> list[LogitFilter]:
    special = tokenizer.special
    # Besides what the model's settings list: no special token belongs into a text, nor does padding of the vocabulary.
    suppressed = {*config.suppress_tokens, *range(special.end_of_text + 1, special.timestamp_begin)}
    n_times = N_TIMESTAMPS if options.timestamps else 0
    suppressed.update(range(special.timestamp_begin + n_times, n_vocab))
    filters: list[LogitFilter] = [
        SuppressTokens(sorted(suppressed), n_vocab),
        SuppressAtBegin(config.begin_suppress_tokens),
    ]
    if options.timestamps:
        filters.append(
            TimestampRules(
                special.end_of_text, special.no_timestamps, special.timestamp_begin, config.max_initial_timestamp_index
            )
        )
    return filters
