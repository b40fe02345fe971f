"""Checks that a decoder obeys what decoding relies on, run once at load.

A wrong mask gives fluent nonsense, not an error. So it is tried out: what the mask hides must not move the logits, and
what it shows must.
"""

import numpy as np
from numpy.typing import NDArray

from streamer.errors import InferenceError
from streamer.whisper.runtime import DecoderRuntime

# Largest difference between logits, over the largest logit, that counts as "did not move": float16 accelerators round.
SAME_LOGITS = 0.05

# Smallest one that counts as "moved". Logits that do not depend on something differ by nothing but rounding.
MOVED_LOGITS = 1e-4


def check_masking(decoder: DecoderRuntime, token: int) -> None:
    """Check masks and cache of both decoder graphs, from `token` (the start of a transcript) on.

    Raises InferenceError where the logits are not finite, where hidden slots leak into them, where the cached tokens or
    the current one are hidden, or where the one-token and the block graph disagree. The decoder is left at the start
    of a sequence.
    """
    decoder.begin()
    stepped = _step(decoder, token)
    decoder.begin()
    block = _block(decoder, token)
    # With an empty cache the current token is all there is to see: where it is hidden, noise in the cache shows up.
    decoder.begin()
    decoder.pollute_hidden_slots()
    stepped_in_noise = _step(decoder, token)
    decoder.begin()
    decoder.pollute_hidden_slots()
    block_in_noise = _block(decoder, token)
    decoder.begin()
    stepped_after_another = _step(decoder, token + 1)
    decoder.begin()

    if not (np.isfinite(stepped).all() and np.isfinite(block).all()):
        _refuse("gives logits that are not finite", "the weights are broken, or the device's driver is")
    scale = float(np.abs(stepped).max()) + 1e-6
    same, moved = SAME_LOGITS * scale, MOVED_LOGITS * scale
    for quiet, noisy in ((stepped, stepped_in_noise), (block, block_in_noise)):
        # Written so that NaN counts as a difference.
        if not np.abs(noisy - quiet).max() <= same:
            _refuse("looks at cache slots that the mask hides, or hides the token being decoded", _NONSENSE)
    if not np.abs(block - stepped).max() <= same:
        _refuse("gives other logits token by token than in a block", _NONSENSE)
    if not (np.abs(stepped_after_another - stepped).max(axis=1) > moved).all():
        _refuse("does not look at the tokens before the one being decoded", _NONSENSE)


_NONSENSE = "its text would be nonsense"


def _step(decoder: DecoderRuntime, first: int) -> NDArray[np.floating]:
    """Feed five tokens so that both graphs meet an empty and a filled cache; return the logits of each."""
    return np.concatenate([decoder.feed(tokens)[0] for tokens in ([first], [1, 2], [3], [4])])


def _block(decoder: DecoderRuntime, first: int) -> NDArray[np.floating]:
    return decoder.feed([first, 1, 2, 3, 4])[0]


def _refuse(what: str, consequence: str) -> None:
    raise InferenceError(
        f"the compiled decoder {what}: {consequence}; update the device's driver, or choose another device with"
        " --device CPU"
    )
