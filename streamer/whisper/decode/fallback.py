"""When a window's text has failed, and what is tried then: decoding again at a higher temperature.

Source: openai-whisper's `transcribe.py` (`decode_with_fallback`); the entropy of the last tokens is whisper.cpp's, the
choice among texts that all failed faster-whisper's.
"""

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from streamer.settings.table import DecodingSettings
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.search import Draw, TokenDecoder
from streamer.whisper.decode.window import DecodedWindow, decode_window
from streamer.whisper.tokens.tokenizer import Tokenizer

# Tokens at the end of a text whose entropy is measured.
ENTROPY_TOKENS = 32


def decode_with_fallback(
    decoder: TokenDecoder,
    tokenizer: Tokenizer,
    options: DecodeOptions,
    task: WindowTask,
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
    settings = options.settings
    for temperature in options.temperatures:
        attempt = dataclasses.replace(task, temperature=temperature)
        window = first or decode_window(decoder, tokenizer, options, attempt, cancelled, draw)
        first = None
        if best is not None and cancelled():
            break
        loops = is_loop(window, tokenizer, settings)
        window.failed = has_failed(window, loops=loops, settings=settings)
        if not window.failed:
            return window
        if best is None or settings.keep_failed == "last" or (not loops, window.avg_logprob) > rank:
            best, rank = window, (not loops, window.avg_logprob)
    assert best is not None, "there are no temperatures"
    return best


def is_loop(window: DecodedWindow, tokenizer: Tokenizer, settings: DecodingSettings) -> bool:
    """Return whether a text repeats itself."""
    highest, lowest = settings.compression_ratio_threshold, settings.entropy_threshold
    return (
        window.looped
        or (highest is not None and compression_ratio(tokenizer.decode(window.tokens).strip()) > highest)
        or (lowest is not None and token_entropy(window.tokens) < lowest)
    )


def has_failed(window: DecodedWindow, *, loops: bool, settings: DecodingSettings) -> bool:
    """Return whether a text fails its thresholds; it does not if it is improbable because no speech is likely."""
    least, most = settings.logprob_threshold, settings.no_speech_threshold
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
