"""Greedy decoding of one window, with Whisper's rules on which tokens may come next.

Source: openai-whisper's `decoding.py` (the logit filters and the timestamp rules), generation settings from the
model's own `generation_config.json`.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import N_SAMPLES_PER_TOKEN
from streamer.errors import InferenceError
from streamer.whisper.result import Hypothesis, TimedWord
from streamer.whisper.timing import word_spans
from streamer.whisper.tokenizer import Tokenizer

FloatArray = NDArray[np.floating]

# A word and the tokens that spell it.
Spelling = tuple[str, tuple[int, ...]]

N_TIMESTAMPS = 1501  # <|0.00|> to <|30.00|>; what a fine-tune has added behind them is no time

# A run of tokens that comes this often in a row, and so fills this many tokens, is a loop. People do say "no, no, no,
# no": a short run has to go on for longer.
LOOP_REPEATS = 4
LOOP_TOKENS = 16
LOOP_LONGEST_TOKENS = 24  # of one run


class TokenDecoder(Protocol):
    """The decoder's forward pass over a growing sequence (see `runtime.DecoderRuntime`)."""

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can hold."""

    def begin(self) -> None:
        """Forget the sequence and start a new one."""

    def feed(self, tokens: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Append tokens; return logits (n, n_vocab) and alignment heads' attention (n_heads, n, n_audio_ctx)."""


class LogitFilter(Protocol):
    """A rule on which tokens may come next."""

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """Set the logits (n_vocab,) of the forbidden tokens to -inf, given the tokens sampled so far."""


class SuppressTokens:
    """Tokens that never come."""

    def __init__(self, suppressed: Sequence[int], n_vocab: int) -> None:
        # Added to the logits: much cheaper than to set 1500 timestamps one by one at each step.
        self._bias = np.zeros(n_vocab, dtype=np.float32)
        self._bias[list(suppressed)] = -np.inf

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """See LogitFilter."""
        logits += self._bias


@dataclass(frozen=True, slots=True)
class SuppressAtBegin:
    """Tokens that never come first: a blank, and the end of the text."""

    suppressed: tuple[int, ...]

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """See LogitFilter."""
        if not tokens:
            logits[list(self.suppressed)] = -np.inf


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """Timestamps come in pairs, never decrease, begin the text, and come where they are likelier than any text."""

    end_of_text: int
    no_timestamps: int
    timestamp_begin: int

    # Latest time at which the text may begin, in steps of 20 ms.
    max_initial: int | None

    def apply(self, logits: FloatArray, tokens: Sequence[int]) -> None:
        """See LogitFilter."""
        begin = self.timestamp_begin
        logits[self.no_timestamps] = -np.inf
        last_is_time = len(tokens) >= 1 and tokens[-1] >= begin
        second_last_is_time = len(tokens) < 2 or tokens[-2] >= begin
        if last_is_time:
            if second_last_is_time:
                logits[begin:] = -np.inf
            else:
                logits[: self.end_of_text] = -np.inf
        last_time = next((token for token in reversed(tokens) if token >= begin), None)
        if last_time is not None:
            # A segment has a length: its end may not be its beginning, the next beginning may be this end.
            logits[begin : last_time + (0 if last_is_time and not second_last_is_time else 1)] = -np.inf
        if not tokens:
            logits[:begin] = -np.inf
            if self.max_initial is not None:
                logits[begin + self.max_initial + 1 :] = -np.inf
        # Timestamps as a whole against the likeliest text; what both would be divided by makes no difference.
        if _log_sum_exp(logits[begin:]) > logits[:begin].max():
            logits[:begin] = -np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """What a model's `generation_config.json` says."""

    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    max_initial_timestamp_index: int | None

    # Layer and head of the cross-attention heads that follow the audio.
    alignment_heads: tuple[tuple[int, int], ...]
    multilingual: bool

    # Whether the model was trained to continue the text that came before a window.
    prompted: bool = True


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
    no_speech_prob = math.exp(_log_prob(logits[len(prompt)], special.no_speech))

    suppress, *others = _filters(tokenizer, config, options, logits.shape[-1])
    # What the prefix was sampled from; the other rules depend on where a text began, which may have been elsewhere.
    before_prefix = len(prompt) + len(start) - 1
    log_probs = []
    for row, token in zip(logits[before_prefix:], options.prefix, strict=False):
        scored = row.copy()
        suppress.apply(scored, ())
        log_probs.append(_log_prob(scored, token))
    tokens = list(options.prefix)
    sampled: list[float] = []
    looped = False
    most = min(options.max_tokens, decoder.capacity - len(prompt) - len(start) - len(tokens))
    while len(sampled) < most and not cancelled():
        last = logits[-1]
        for rule in (suppress, *others):
            rule.apply(last, tokens)
        token = int(last.argmax())
        sampled.append(_log_prob(last, token))
        if token == special.end_of_text:
            break
        tokens.append(token)
        log_probs.append(sampled[-1])
        if options.stop_at_loop and (length := loop_length(tokens)):
            looped = True
            # Keep the first round of the loop, and never less than the prefix.
            tokens = tokens[: max(len(options.prefix), len(tokens) - length * (_loop_repeats(length) - 1))]
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
    log_probs = _log_softmax(logits[-1][[tokenizer.languages[code] for code in codes]])
    probabilities = dict(zip(codes, np.exp(log_probs).tolist(), strict=True))
    return max(probabilities, key=probabilities.__getitem__), probabilities


def align(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    words: Sequence[Spelling],
    options: WindowOptions,
    n_samples: int,
) -> list[TimedWord]:
    """Find the times of known words in the window that the decoder holds, by feeding them once more."""
    capacity = decoder.capacity - len(tokenizer.start_sequence(options.language, options.task)) - 1
    text = tuple(token for _, tokens in words for token in tokens)[:capacity]
    window = decode_window(
        decoder,
        tokenizer,
        config,
        WindowOptions(language=options.language, task=options.task, prefix=text, max_tokens=0),
    )
    return time_words(window, words, n_samples)


def to_hypothesis(window: DecodedWindow, tokenizer: Tokenizer, language: str, n_samples: int) -> Hypothesis:
    """Turn tokens without timestamps into words with times, for a window of `n_samples`."""
    spellings = tokenizer.split_to_words(window.tokens, language)
    if spellings and spellings[-1][0].isspace():
        del spellings[-1]  # the beginning of a word that has not come
    words = time_words(window, spellings, n_samples)
    ratio = compression_ratio("".join(word.text for word in words))
    return Hypothesis(tuple(words), language, window.no_speech_prob, window.avg_logprob, ratio, window.looped)


def time_words(window: DecodedWindow, words: Sequence[Spelling], n_samples: int) -> list[TimedWord]:
    """Give the words that a window decoded without timestamps their times and probabilities."""
    n_text = sum(len(tokens) for _, tokens in words)
    attention = window.attention[:, : window.n_start + n_text]
    spans = word_spans(attention, window.n_start, [len(tokens) for _, tokens in words], n_samples)
    timed: list[TimedWord] = []
    position = 0
    for (text, tokens), (start, end) in zip(words, spans, strict=True):
        log_probs = window.log_probs[position : position + len(tokens)]
        position += len(tokens)
        timed.append(TimedWord(text, tokens, start, end, float(np.exp(np.mean(log_probs)))))
    return timed


def loop_length(tokens: Sequence[int]) -> int:
    """Return the length of the run that the tokens end with again and again, 0 where there is no loop.

    A loop is `LOOP_REPEATS` rounds in a row, more where they would be fewer than `LOOP_TOKENS` tokens.
    """
    for length in range(1, min(LOOP_LONGEST_TOKENS, len(tokens) // LOOP_REPEATS) + 1):
        n_tokens = length * _loop_repeats(length)
        # A sequence has a period where it equals itself moved on by it.
        if n_tokens <= len(tokens) and tokens[-n_tokens + length :] == tokens[-n_tokens:-length]:
            return length
    return 0


def compression_ratio(text: str) -> float:
    """Return how much smaller zlib makes a text; above 2.4 openai-whisper takes it for a loop."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


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


def _loop_repeats(length: int) -> int:
    return max(LOOP_REPEATS, -(-LOOP_TOKENS // length))


def _log_prob(logits: FloatArray, token: int) -> float:
    """Return a token's log-probability. Raises InferenceError where the device gave no numbers."""
    log_prob = float(logits[token]) - _log_sum_exp(logits)
    if math.isnan(log_prob):
        raise InferenceError(
            "the decoder's logits are not finite, though they were when the model was loaded: update the device's"
            " driver, or choose another device with --device CPU"
        )
    return log_prob


def _log_sum_exp(logits: FloatArray) -> float:
    highest = logits.max()
    if not np.isfinite(highest):
        return float(highest)
    return float(highest + np.log(np.exp(logits - highest).sum()))


def _log_softmax(logits: FloatArray) -> FloatArray:
    result: FloatArray = logits - _log_sum_exp(logits)
    return result
