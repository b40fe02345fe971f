"""When a window's text is not to be trusted, and what is tried then: decoding again at a higher temperature.

Source: openai-whisper's `transcribe.py` (`decode_with_fallback`); the entropy of the last tokens is whisper.cpp's.
"""

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streamer.whisper.decode.search import Draw, TokenDecoder
from streamer.whisper.decode.window import DecodedWindow, WindowOptions, decode_window
from streamer.whisper.generation import GenerationConfig
from streamer.whisper.tokens.tokenizer import Tokenizer

# Tokens at the end of a text whose entropy is measured.
ENTROPY_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackOptions:
    """Temperatures, and what a text must be like for the next of them not to be tried. None: that is not looked at."""

    temperatures: tuple[float, ...]

    # A text that becomes shorter by more than this when compressed is a loop.
    compression_ratio_threshold: float | None

    # A text whose tokens have a lower mean log-probability has failed.
    logprob_threshold: float | None

    # Where it failed so, and nobody speaking is likelier than this, it is silence, and no failure.
    no_speech_threshold: float | None

    # A text whose last tokens have a lower entropy, in nats, is a loop.
    entropy_threshold: float | None


def decode_with_fallback(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    config: GenerationConfig,
    options: WindowOptions,
    fallback: FallbackOptions,
    cancelled: Callable[[], bool] = lambda: False,
    draw: Draw | None = None,
    first: DecodedWindow | None = None,
) -> DecodedWindow:
    """Decode a window at one temperature after another until its text can be trusted; the last text counts anyway.

    Several texts are drawn above temperature 0, where that is asked for.

    first : what the first temperature gave, where it was tried
    """
    for temperature in fallback.temperatures:
        attempt = at_temperature(options, temperature)
        window = first or decode_window(decoder, tokenizer, config, attempt, cancelled, draw)
        first = None
        if not has_failed(window, compression_ratio(tokenizer.decode(window.tokens).strip()), fallback):
            break
    return window


def at_temperature(options: WindowOptions, temperature: float) -> WindowOptions:
    """Return the options for an attempt at a temperature: beams are followed at 0 alone."""
    if temperature > 0:
        return dataclasses.replace(options, temperature=temperature, n_beams=1, patience=1.0)
    return dataclasses.replace(options, temperature=temperature)


def has_failed(window: DecodedWindow, ratio: float, fallback: FallbackOptions) -> bool:
    """Return whether a text, whose compression ratio is given, is not to be trusted."""
    highest, logprob = fallback.compression_ratio_threshold, fallback.logprob_threshold
    failed = window.looped or (highest is not None and ratio > highest)
    failed = failed or (logprob is not None and window.avg_logprob < logprob)
    entropy = fallback.entropy_threshold
    failed = failed or (entropy is not None and token_entropy(window.tokens) < entropy)
    is_silence = (
        fallback.no_speech_threshold is not None
        and window.no_speech_prob > fallback.no_speech_threshold
        and logprob is not None
        and window.avg_logprob < logprob
    )
    return failed and not is_silence


def compression_ratio(text: str) -> float:
    """Return how much smaller zlib makes a text; above 2.4 openai-whisper takes it for a loop."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def token_entropy(tokens: Sequence[int]) -> float:
    """Return the entropy of the last tokens in nats: low where few of them come again and again."""
    last = tokens[-ENTROPY_TOKENS:]
    return -sum(n / len(last) * math.log(n / len(last)) for n in Counter(last).values())
