"""When a window's text has failed, and what is tried then: decoding again at a higher temperature.

Source: openai-whisper's `transcribe.py` (`decode_with_fallback`); the entropy of the last tokens is whisper.cpp's, the
choice among texts that all failed faster-whisper's.
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
    """Temperatures, and the thresholds that a text has to meet. A threshold of None is not applied."""

    temperatures: tuple[float, ...]

    # A text that becomes shorter by more than this when compressed is a loop.
    compression_ratio_threshold: float | None

    # A text whose tokens have a lower mean log-probability is improbable.
    logprob_threshold: float | None

    # An improbable text is silence, and no failure, if "no speech" is more probable than this.
    no_speech_threshold: float | None

    # A text whose last tokens have a lower entropy, in nats, is a loop.
    entropy_threshold: float | None

    # Whether the text of the last temperature is kept if all have failed, as openai-whisper does, and not the best.
    keep_last: bool = False


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
    """Decode a window at one temperature after another until a text meets the thresholds.

    cancelled : ends further attempts; an attempt that it cuts off does not count
    first : the result of the first temperature, if it was tried already

    If all texts fail, returns the most probable of those that are no loops, else the most probable loop.
    """
    best, rank = None, (False, -math.inf)
    for temperature in fallback.temperatures:
        attempt = at_temperature(options, temperature)
        window = first or decode_window(decoder, tokenizer, config, attempt, cancelled, draw)
        first = None
        if best is not None and cancelled():
            break
        loops = is_loop(window, tokenizer, fallback)
        window.failed = has_failed(window, loops=loops, fallback=fallback)
        if not window.failed:
            return window
        if best is None or fallback.keep_last or (not loops, window.avg_logprob) > rank:
            best, rank = window, (not loops, window.avg_logprob)
    assert best is not None, "there are no temperatures"
    return best


def at_temperature(options: WindowOptions, temperature: float) -> WindowOptions:
    """Return the options for an attempt at a temperature: several beams are only for 0."""
    if temperature == 0:
        return dataclasses.replace(options, temperature=0.0)
    return dataclasses.replace(options, temperature=temperature, n_beams=1, patience=1.0)


def is_loop(window: DecodedWindow, tokenizer: Tokenizer, fallback: FallbackOptions) -> bool:
    """Return whether a text repeats itself."""
    highest, lowest = fallback.compression_ratio_threshold, fallback.entropy_threshold
    return (
        window.looped
        or (highest is not None and compression_ratio(tokenizer.decode(window.tokens).strip()) > highest)
        or (lowest is not None and token_entropy(window.tokens) < lowest)
    )


def has_failed(window: DecodedWindow, *, loops: bool, fallback: FallbackOptions) -> bool:
    """Return whether a text fails its thresholds; it does not if it is improbable because no speech is likely."""
    least, most = fallback.logprob_threshold, fallback.no_speech_threshold
    improbable = least is not None and window.avg_logprob < least
    is_silence = improbable and most is not None and window.no_speech_prob > most
    return (loops or improbable) and not is_silence


def compression_ratio(text: str) -> float:
    """Return how much smaller zlib makes a text; above 2.4 openai-whisper takes it for a loop."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def token_entropy(tokens: Sequence[int]) -> float:
    """Return the entropy of the last tokens in nats: low if few different ones repeat."""
    last = tokens[-ENTROPY_TOKENS:]
    return -sum(n / len(last) * math.log(n / len(last)) for n in Counter(last).values())
