"""Checks that a decoder obeys what decoding relies on, run once at load.

A wrong mask gives fluent nonsense, not an error. So it is tried out: tokens hidden in the cache must not move the
logits, and the token being decoded must.
"""

import numpy as np

from streamer.errors import InferenceError
from streamer.whisper.runtime import DecoderRuntime

# Largest difference between logits that counts as "did not move": rounding of float16 accelerators.
SAME_LOGITS = 0.05


def check_masking(decoder: DecoderRuntime, token: int) -> None:
    """Check masks and cache of both decoder graphs.

    Raises InferenceError where hidden slots leak into the logits, where the current token is hidden, or where the
    one-token and the block graph disagree.
    """
    decoder.begin()
    reference = decoder.feed([token, token])[0][-1]
    decoder.begin()
    decoder.pollute_hidden_slots()
    polluted = decoder.feed([token, token])[0][-1]
    decoder.begin()
    decoder.feed([token])
    stepped = decoder.feed([token])[0][-1]
    decoder.begin()
    other = decoder.feed([token, (token + 1) % len(reference)])[0][-1]
    decoder.begin()

    scale = float(np.abs(reference).max()) + 1e-6
    if not np.isfinite(reference).all():
        _refuse("gives logits that are not finite")
    if np.abs(polluted - reference).max() > SAME_LOGITS * scale:
        _refuse("looks at cache slots that the mask hides")
    if np.abs(stepped - reference).max() > SAME_LOGITS * scale:
        _refuse("gives other logits token by token than in a block")
    if np.array_equal(other, reference):
        _refuse("does not look at the token being decoded")


def _refuse(what: str) -> None:
    raise InferenceError(
        f"the compiled decoder {what}: its text would be nonsense; update the device's driver, or choose another"
        " device with --device CPU"
    )
