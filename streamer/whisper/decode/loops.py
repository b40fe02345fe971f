"""Text that repeats itself: what a decoder gives when it has lost the audio."""

import zlib
from collections.abc import Sequence

# A run of tokens that comes this often in a row, and so fills this many tokens, is a loop. People do say "no, no, no,
# no": a short run has to go on for longer.
LOOP_REPEATS = 4
LOOP_TOKENS = 16
LOOP_LONGEST_TOKENS = 24  # of one run


def loop_length(tokens: Sequence[int]) -> int:
    """Return the length of the run that the tokens end with again and again, 0 where there is no loop.

    A loop is `LOOP_REPEATS` rounds in a row, more where they would be fewer than `LOOP_TOKENS` tokens.
    """
    for length in range(1, min(LOOP_LONGEST_TOKENS, len(tokens) // LOOP_REPEATS) + 1):
        n_tokens = length * loop_repeats(length)
        # A sequence has a period where it equals itself moved on by it.
        if n_tokens <= len(tokens) and tokens[-n_tokens + length :] == tokens[-n_tokens:-length]:
            return length
    return 0


def compression_ratio(text: str) -> float:
    """Return how much smaller zlib makes a text; above 2.4 openai-whisper takes it for a loop."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def loop_repeats(length: int) -> int:
    """Return how often a run of this length has to come in a row to be a loop."""
    return max(LOOP_REPEATS, -(-LOOP_TOKENS // length))
