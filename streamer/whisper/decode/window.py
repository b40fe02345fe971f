"""Decoding of one window, as openai-whisper's `decoding.py`, with the model's own generation settings."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from streamer.arrays import FloatArray
from streamer.constants import N_SAMPLES_PER_TOKEN
from streamer.whisper.decode.filters import LogitFilter, SuppressAtBegin, SuppressTokens, TimestampRules
from streamer.whisper.decode.hotwords import HotWords
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.probabilities import log_prob, log_softmax
from streamer.whisper.decode.search import (
    Candidate,
    Draw,
    Search,
    TokenDecoder,
    best_of,
    drawer,
    follow,
    follow_beams,
    greedy,
    sampler,
)
from streamer.whisper.tokens.tokenizer import Tokenizer

# Beams, and draws at a temperature above 0, of the windows of files: those of openai-whisper's, whisper.cpp's and
# faster-whisper's commands.
FILE_BEAMS = 5
FILE_BEST_OF = 5


@dataclass(slots=True, kw_only=True)
class DecodedWindow:
    """The decoded tokens of one window."""

    # Tokens that the result begins with, then those that were sampled, without the end of text.
    tokens: list[int]

    # Log-probability of each token after filtering; for given tokens, after suppression. Given tokens for which the
    # sequence had no room get the mean of the others.
    log_probs: list[float]
    no_speech_prob: float

    # Rows of `attention` before the first text token.
    n_start: int

    # Mean log-probability of the sampled tokens, including the end of text; 0 if none was sampled.
    avg_logprob: float = 0.0

    # Alignment heads' attention from the start of the transcript on, shape (n_heads, n_rows, n_audio_ctx), if it is
    # kept. Given tokens for which the sequence had no room repeat the last row.
    attention: FloatArray = field(default_factory=lambda: np.empty((0, 0, 0), dtype=np.float32))
    looped: bool = False

    # Tokens sampled (see `Candidate`), tokens given (prompt, start, beginning), and how many of these begin the result.
    n_sampled: int = 0
    n_given: int = 0
    n_begins_with: int = 0
    temperature: float = 0.0

    # Whether it fails its thresholds; set by `fallback`.
    failed: bool = False


def decode_window(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    options: DecodeOptions,
    task: WindowTask,
    cancelled: Callable[[], bool] = lambda: False,
    draw: Draw | None = None,
) -> DecodedWindow:
    """Decode the single window that the decoder holds; see `decode_windows`."""
    (window,) = decode_windows(decoder, tokenizer, options, task, cancelled, draw)
    return window


def decode_windows(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    options: DecodeOptions,
    task: WindowTask,
    cancelled: Callable[[], bool] = lambda: False,
    draw: Draw | None = None,
) -> list[DecodedWindow]:
    """Decode all windows that the decoder holds; several only at a temperature of 0.

    Stops at the end of text, after `max_tokens`, if the sequence is full, at a loop, or if `cancelled` returns true.
    `draw` draws tokens if the temperature is above 0.
    """
    alone, drawn = decoder.n_windows == 1, task.temperature > 0
    assert alone or not drawn, "tokens are drawn for one window at a time"
    context = _context(decoder, tokenizer, options, task)
    one_by_one = alone and (drawn or options.n_beams == 1)
    # The last token is not fed: nothing comes after it.
    draft = task.draft[: max(0, context.limit - 1)] if one_by_one and not drawn else ()
    decoder.begin()
    logits, attention = decoder.feed([*context.tokens, *draft], context.n_prompt)
    n_rows = len(context.tokens) - context.n_prompt
    search = Search(
        rules=rules_for(tokenizer, options, task, logits.shape[-1]),
        end_of_text=tokenizer.special.end_of_text,
        limit=context.limit,
        begins_with=task.begins_with,
        stop_at_loop=options.live,
        cancelled=cancelled,
    )
    given = [_given_probabilities(rows, context, tokenizer, search.rules[0]) for rows in logits]
    # Those of the last given token and of the draft. A search changes them.
    last = logits[:, n_rows - 1 :]
    if drawn:
        candidates = [_drawn(decoder, last[0], search, options.best_of, sampler(task.temperature, draw or drawer(0)))]
    elif one_by_one:
        candidates = [[follow(decoder, last[0], search, greedy, draft, attention[0, :, n_rows:])]]
    else:
        patience = options.settings.patience or 1.0
        candidates = follow_beams(decoder, last[:, 0], search, n_beams=options.n_beams, patience=patience)
    best = [best_of(texts, options.settings.length_penalty) for texts in candidates]
    windows = [_decoded(text, probabilities, context, task) for text, probabilities in zip(best, given, strict=True)]
    if options.live and alone:
        windows[0].attention = _attention(decoder, attention[0, :, :n_rows], best[0], context)
    return windows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """The tokens before the sampled ones: prompt, start of the transcript, and text that the result begins with."""

    tokens: list[int]
    n_prompt: int
    n_start: int

    # Tokens of the text for which there is no room.
    n_left_out: int

    # Most tokens to sample.
    limit: int


def _context(decoder: TokenDecoder, tokenizer: Tokenizer, options: DecodeOptions, task: WindowTask) -> _Context:
    start = tokenizer.start_sequence(task.language, task.task)
    if not options.timestamps:
        start = [*start, tokenizer.special.no_timestamps]
    start += options.prefix
    # As in openai-whisper, half of the context is for the prompt, its newest part, and half for the text.
    room = decoder.capacity // 2 - 1
    if task.begins_with:
        room = min(room, (decoder.capacity - len(start) - len(task.begins_with) - 1) // 2)
    n_prompt = max(0, min(len(task.prompt), room))
    newest = task.prompt[len(task.prompt) - n_prompt :]
    prompt = [tokenizer.special.start_of_previous, *newest] if n_prompt else []
    fitting = task.begins_with[: decoder.capacity - len(start)]
    tokens = [*prompt, *start, *fitting]
    n_left_out = len(task.begins_with) - len(fitting)
    return _Context(
        tokens=tokens,
        n_prompt=len(prompt),
        n_start=len(start),
        n_left_out=n_left_out,
        limit=0 if n_left_out else min(task.max_tokens, decoder.capacity + 1 - len(tokens)),
    )


def _given_probabilities(
    logits: FloatArray, context: _Context, tokenizer: Tokenizer, suppress: LogitFilter
) -> tuple[list[float], float]:
    """Return the log-probabilities of the tokens that the result begins with, and the probability of no speech.

    logits : shape = (n, n_vocab)
        Those of the given tokens after the prompt.
    suppress : the only rule that applies; the others depend on where a text began, which may be in an earlier window
    """
    log_probs = []
    begins_with = context.tokens[context.n_prompt + context.n_start :]
    for row, token in zip(logits[context.n_start - 1 :], begins_with, strict=False):
        scored = row.copy()
        suppress.apply(scored, ())
        log_probs.append(log_prob(scored, token))
    if context.n_left_out:
        log_probs += [sum(log_probs) / len(log_probs)] * context.n_left_out
    return log_probs, math.exp(log_prob(logits[0], tokenizer.special.no_speech))


def _decoded(text: Candidate, given: tuple[list[float], float], context: _Context, task: WindowTask) -> DecodedWindow:
    """Return a text behind its given beginning; given : see `_given_probabilities`"""
    log_probs, no_speech_prob = given
    return DecodedWindow(
        tokens=[*task.begins_with, *text.tokens],
        log_probs=[*log_probs, *text.log_probs],
        no_speech_prob=no_speech_prob,
        n_start=context.n_start,
        avg_logprob=text.avg_logprob,
        looped=text.looped,
        n_sampled=text.n_sampled,
        n_given=len(context.tokens),
        n_begins_with=len(task.begins_with),
        temperature=task.temperature,
    )


def _drawn(
    decoder: TokenDecoder, logits: FloatArray, search: Search, n_texts: int, choose: Callable[[FloatArray], int]
) -> list[Candidate]:
    n_fed = decoder.n_fed
    candidates = []
    for _ in range(n_texts):
        decoder.rewind(n_fed)
        candidates.append(follow(decoder, logits.copy(), search, choose))
    return candidates


def _attention(decoder: TokenDecoder, given: FloatArray, text: Candidate, context: _Context) -> FloatArray:
    """Return the attention of a window; given : that of the given tokens, shape (n_heads, n, n_audio_ctx)"""
    rows = [given, *text.attention]
    if len(text.attention) < len(text.tokens) - 1:
        # Several texts were tried: feed this one again, a block at a time.
        decoder.rewind(len(context.tokens))
        rows.append(decoder.feed(text.tokens[: decoder.capacity - decoder.n_fed])[1][0])
    rows.append(np.repeat(given[:, -1:], context.n_left_out, axis=1))
    return np.concatenate(rows, axis=1)


def detect_language(
    decoder: TokenDecoder, tokenizer: Tokenizer, languages: Collection[str] = ()
) -> tuple[str, Mapping[str, float]]:
    """Return the language of the window that the decoder holds, and the probability of each: of some, or of all."""
    decoder.begin()
    ((logits,),), _ = decoder.feed([tokenizer.special.start_of_transcript])
    codes = [code for code in tokenizer.languages if not languages or code in languages]
    log_probs = log_softmax(logits[[tokenizer.languages[code] for code in codes]])
    probabilities = dict(zip(codes, np.exp(log_probs).tolist(), strict=True))
    return max(probabilities, key=probabilities.__getitem__), probabilities


def max_tokens_for(n_samples: int) -> int:
    """Return the most tokens that speech of this length can have: one for each encoder position, and a few."""
    return 16 + n_samples // N_SAMPLES_PER_TOKEN


def rules_for(tokenizer: Tokenizer, options: DecodeOptions, task: WindowTask, n_vocab: int) -> list[LogitFilter]:
    special, config = tokenizer.special, options.generation
    # Behind the times is padding of the vocabulary, or what a fine-tune has added, of which some is text.
    suppressed = {*config.suppress_tokens, *range(special.timestamp_end, n_vocab)} - tokenizer.added_text
    if options.live:
        # No special token belongs into a text, nor any time.
        suppressed.update(range(special.end_of_text + 1, special.timestamp_end))
    written_in = "en" if task.task == "translate" else task.language
    rules: list[LogitFilter] = [
        SuppressTokens(sorted(suppressed), n_vocab),
        SuppressAtBegin(config.begin_suppress_tokens),
        *(rule.in_language(written_in) if isinstance(rule, HotWords) else rule for rule in options.filters),
    ]
    if options.timestamps:
        rules.append(TimestampRules(special, config.max_initial_timestamp_index))
    return rules
