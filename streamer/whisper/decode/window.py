"""Decoding of one window, as openai-whisper's `decoding.py`, with the model's own generation settings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamer.arrays import FloatArray
from streamer.audio.constants import N_SAMPLES_PER_TOKEN
from streamer.whisper.decode.filters import LogitFilter, SuppressAtBegin, SuppressTokens, TimestampRules
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.probabilities import log_prob, log_softmax
from streamer.whisper.decode.search import (
    Draw,
    Found,
    Guess,
    Search,
    TokenDecoder,
    best_of,
    drawer,
    follow,
    follow_beams,
    greedy,
    sampler,
)
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.tokens.tokenizer import Tokenizer

# Beams, and draws at a temperature above 0, of the windows of files: those of openai-whisper's, whisper.cpp's and
# faster-whisper's commands.
FILE_BEAMS = 5
FILE_BEST_OF = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """How to decode one window."""

    language: str
    task: str = "transcribe"
    timestamps: bool = False

    # Text that came before, as tokens; never part of the result.
    prompt: tuple[int, ...] = ()

    # Text that the window is known to begin with; no part of the result either.
    prefix: tuple[int, ...] = ()

    # Text that the result begins with, as if it had been sampled. Without room for all of it, nothing follows.
    begins_with: tuple[int, ...] = ()

    # What may well follow, such as what was said of this audio before. It changes no result: it saves calls where it is
    # right. Only heeded where the likeliest token is taken, along one beam.
    draft: tuple[int, ...] = ()

    # Most tokens to sample.
    max_tokens: int = 10_000

    # Whether to stop at a loop; not along beams.
    stop_at_loop: bool = False

    # Above 0 tokens are drawn, `best_of` texts of them; at 0 the likeliest is taken, along `n_beams` beams.
    temperature: float = 0.0
    best_of: int = 1
    n_beams: int = 1

    # How many texts have to end, in beams, before a search along beams ends.
    patience: float = 1.0

    # 0 to 1; None: texts are compared by their mean log-probability.
    length_penalty: float | None = None

    # Further rules on what may come next.
    filters: tuple[LogitFilter | HotWords, ...] = ()

    # Whether to forbid all special tokens but timestamps, and not only those that the settings list.
    text_only: bool = True

    # Whether to keep the attention, which word times are made of.
    keep_attention: bool = True


@dataclass(slots=True, kw_only=True)
class DecodedWindow:
    """The tokens of one window and what was seen on the way."""

    # Sampled tokens behind those that the result begins with, without the end of text.
    tokens: list[int]

    # Log-probability of each token after filtering; for those that were given, after suppression. Given tokens that the
    # sequence had no room for get the mean of the others.
    log_probs: list[float]
    no_speech_prob: float

    # Rows of `attention` before the first text token.
    n_start: int

    # Mean log-probability of the sampled tokens, the end of text included; 0 if none was.
    avg_logprob: float = 0.0

    # Alignment heads' attention from the start of the transcript on, shape (n_heads, n_rows, n_audio_ctx), if it was
    # asked for. Given tokens that the sequence had no room for repeat the last row.
    attention: FloatArray = field(default_factory=lambda: np.empty((0, 0, 0), dtype=np.float32))
    looped: bool = False

    # Tokens sampled (see `Found`), given before (prompt, start, beginning), and how many of these begin the result.
    n_sampled: int = 0
    n_given: int = 0
    n_begins_with: int = 0

    # Temperature that it was decoded at.
    temperature: float = 0.0

    # Whether it fails its thresholds, once they were applied (see `fallback`).
    failed: bool = False

    def add(self, found: Found) -> None:
        """Add what was sampled."""
        self.tokens += found.tokens
        self.log_probs += found.log_probs
        self.avg_logprob = found.avg_logprob if found.n_sampled else 0.0
        self.looped = found.looped
        self.n_sampled = found.n_sampled


def decode_window(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    options: WindowOptions,
    cancelled: Callable[[], bool] = lambda: False,
    draw: Draw | None = None,
) -> DecodedWindow:
    """Decode the window whose cross-attention keys and values the decoder holds.

    Stops at the end of text, after `max_tokens`, when the sequence is full, at a loop, or when `cancelled` says so.
    `draw` draws tokens where the temperature is above 0.
    """
    given = _Given.of(decoder, tokenizer, options)
    # The last token is not fed: nothing comes after it.
    draft = options.draft[: max(0, given.limit - 1)] if options.temperature == 0 and options.n_beams == 1 else ()
    decoder.begin()
    (logits,), (attention,) = decoder.feed([*given.tokens, *draft], given.n_prompt)
    # Rows of what was given behind the prompt.
    n_rows = len(given.tokens) - given.n_prompt
    guesses = [Guess(token, logits[i], attention[:, i : i + 1]) for i, token in enumerate(draft, n_rows)]
    search = _search(tokenizer, config, options, given.limit, logits.shape[-1], cancelled)
    window = _begun(given, logits, tokenizer, options, search)
    found = _found(decoder, logits[n_rows - 1], guesses, search, options, draw)
    window.add(found)
    if options.keep_attention:
        rows = [attention[:, :n_rows], *found.attention]
        if len(found.attention) < len(found.tokens) - 1:
            # Several texts were tried: this one is fed once more, a block at a time.
            decoder.rewind(len(given.tokens))
            rows.append(decoder.feed(found.tokens[: decoder.capacity - decoder.n_fed])[1][0])
        rows.append(np.repeat(attention[:, -1:], given.n_left_out, axis=1))
        window.attention = np.concatenate(rows, axis=1)
    return window


def decode_windows(
    decoder: TokenDecoder, tokenizer: Tokenizer, config: GenerationConfig, options: WindowOptions
) -> list[DecodedWindow]:
    """Decode all windows that the decoder holds, at a temperature of 0 and without their attention."""
    given = _Given.of(decoder, tokenizer, options)
    decoder.begin()
    logits, _ = decoder.feed(given.tokens, given.n_prompt)
    search = _search(tokenizer, config, options, given.limit, logits.shape[-1])
    windows = [_begun(given, rows, tokenizer, options, search) for rows in logits]
    found = follow_beams(decoder, logits[:, -1], search, n_beams=options.n_beams, patience=options.patience)
    for window, texts in zip(windows, found, strict=True):
        window.add(best_of(texts, options.length_penalty))
    return windows


@dataclass(frozen=True, slots=True)
class _Given:
    """The tokens before those that are sampled."""

    # Prompt, start of the transcript, and text that the result begins with.
    tokens: list[int]
    n_prompt: int
    n_start: int

    # Tokens of the text that there is no room for.
    n_left_out: int

    # Most tokens to sample.
    limit: int

    @classmethod
    def of(cls, decoder: TokenDecoder, tokenizer: Tokenizer, options: WindowOptions) -> "_Given":
        start = tokenizer.start_sequence(options.language, options.task)
        if not options.timestamps:
            start = [*start, tokenizer.special.no_timestamps]
        start += options.prefix
        # As in openai-whisper, half of the context is for the prompt, its newest part, and half for what is said next.
        room = decoder.capacity // 2 - 1
        if options.begins_with:
            room = min(room, (decoder.capacity - len(start) - len(options.begins_with) - 1) // 2)
        n_prompt = max(0, min(len(options.prompt), room))
        newest = options.prompt[len(options.prompt) - n_prompt :]
        prompt = [tokenizer.special.start_of_previous, *newest] if n_prompt else []
        fitting = options.begins_with[: decoder.capacity - len(start)]
        tokens = [*prompt, *start, *fitting]
        n_left_out = len(options.begins_with) - len(fitting)
        limit = min(options.max_tokens, decoder.capacity + 1 - len(tokens)) if not n_left_out else 0
        return cls(tokens, len(prompt), len(start), n_left_out, limit)


def _search(
    tokenizer: Tokenizer,
    config: GenerationConfig,
    options: WindowOptions,
    limit: int,
    n_vocab: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Search:
    return Search(
        rules=_filters(tokenizer, config, options, n_vocab),
        end_of_text=tokenizer.special.end_of_text,
        limit=limit,
        begins_with=options.begins_with,
        stop_at_loop=options.stop_at_loop,
        cancelled=cancelled,
    )


def _begun(
    given: _Given, logits: FloatArray, tokenizer: Tokenizer, options: WindowOptions, search: Search
) -> DecodedWindow:
    """Return a window of which nothing is sampled yet.

    logits : shape = (n, n_vocab)
        Those of the given tokens behind the prompt.
    """
    # What was sampled before; the other rules depend on where a text began, which may have been elsewhere.
    suppress, *_ = search.rules
    log_probs = []
    begins_with = given.tokens[given.n_prompt + given.n_start :]
    for row, token in zip(logits[given.n_start - 1 :], begins_with, strict=False):
        scored = row.copy()
        suppress.apply(scored, ())
        log_probs.append(log_prob(scored, token))
    if given.n_left_out:
        log_probs += [sum(log_probs) / len(log_probs)] * given.n_left_out
    return DecodedWindow(
        tokens=list(options.begins_with),
        log_probs=log_probs,
        no_speech_prob=math.exp(log_prob(logits[0], tokenizer.special.no_speech)),
        n_start=given.n_start,
        n_given=len(given.tokens),
        n_begins_with=len(options.begins_with),
        temperature=options.temperature,
    )


def _found(
    decoder: TokenDecoder,
    logits: FloatArray,
    guesses: Sequence[Guess],
    search: Search,
    options: WindowOptions,
    draw: Draw | None,
) -> Found:
    if options.temperature > 0:
        choose = sampler(options.temperature, draw or drawer(0))
        n_fed = decoder.n_fed
        candidates = []
        for _ in range(options.best_of):
            decoder.rewind(n_fed)
            candidates.append(follow(decoder, logits.copy(), search, choose))
        return best_of(candidates, options.length_penalty)
    if options.n_beams > 1 and search.limit > 0:
        (texts,) = follow_beams(decoder, logits[np.newaxis], search, n_beams=options.n_beams, patience=options.patience)
        return best_of(texts, options.length_penalty)
    return follow(decoder, logits, search, greedy, guesses)


def detect_language(decoder: TokenDecoder, tokenizer: Tokenizer) -> tuple[str, Mapping[str, float]]:
    """Return the language of the window that the decoder holds, and the probability of each."""
    decoder.begin()
    ((logits,),), _ = decoder.feed([tokenizer.special.start_of_transcript])
    codes = list(tokenizer.languages)
    log_probs = log_softmax(logits[[tokenizer.languages[code] for code in codes]])
    probabilities = dict(zip(codes, np.exp(log_probs).tolist(), strict=True))
    return max(probabilities, key=probabilities.__getitem__), probabilities


def max_tokens_for(n_samples: int) -> int:
    """Return the most tokens that speech of this length can have: one for each encoder position, and a few."""
    return 16 + n_samples // N_SAMPLES_PER_TOKEN


def _filters(tokenizer: Tokenizer, config: GenerationConfig, options: WindowOptions, n_vocab: int) -> list[LogitFilter]:
    special = tokenizer.special
    # Behind the times is padding of the vocabulary, or what a fine-tune has added, of which some is text.
    suppressed = {*config.suppress_tokens, *range(special.timestamp_end, n_vocab)} - tokenizer.added_text
    if options.text_only:
        # No special token belongs into a text.
        suppressed.update(range(special.end_of_text + 1, special.timestamp_begin))
        if not options.timestamps:
            suppressed.update(range(special.timestamp_begin, special.timestamp_end))
    written_in = "en" if options.task == "translate" else options.language
    filters: list[LogitFilter] = [
        SuppressTokens(sorted(suppressed), n_vocab),
        SuppressAtBegin(config.begin_suppress_tokens),
        *(rule.in_language(written_in) if isinstance(rule, HotWords) else rule for rule in options.filters),
    ]
    if options.timestamps:
        filters.append(TimestampRules(special, config.max_initial_timestamp_index))
    return filters
