"""Checks that compiled graphs obey what we rely on.

Wrong masks, state that survives from window to window, and mixed-up files give fluent nonsense, not an error. So masks
and state are tried out on the device that will be used.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from streamer.arrays import FloatArray
from streamer.constants import CHUNK_LENGTH_S, FRAMES_PER_SECOND
from streamer.whisper.check import Check
from streamer.whisper.device.compile import Sizes
from streamer.whisper.device.decoder import Decoder
from streamer.whisper.device.masks import MOVED_LOGITS, SAME_LOGITS
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import to_float32

# Largest part of the difference between two windows that may be left of the first in the second: rounding.
STALE = 0.02

_NONSENSE = "its text would be nonsense"
_BROKEN = "the weights are broken, or the device's driver is"


def check_decoder(decoder: Decoder, token: int, about: str = "decoder") -> Iterator[Check]:
    """Try masks and cache of the decoder's graphs out, from `token` (the start of a transcript) on.

    about : what the checks are called

    Those for the length of the window that the decoder holds are tried; it is left at the start of a sequence.
    """
    block = [[token, 1, 2, 3, 4]]
    stepped, in_block = _feed(decoder, _steps(token)), _feed(decoder, block)
    # With an empty cache the current token is all there is to see: if it is hidden, noise in the cache shows up.
    stepped_in_noise, block_in_noise = _feed(decoder, _steps(token), noisy=True), _feed(decoder, block, noisy=True)
    stepped_after_another = _feed(decoder, _steps(token + 1))
    decoder.begin()

    def row(name: str, found: str, expected: str, passed: bool, problem: str) -> Check:
        return Check(f"{about}: {name}", found, expected, passed, f"the compiled decoder {problem}", "decoder")

    finite = bool(np.isfinite(stepped).all() and np.isfinite(in_block).all())
    found = "finite" if finite else "not finite"
    yield row("logits", found, "finite", finite, f"gives logits that are not finite: {_BROKEN}")
    if not finite:
        return  # nothing can be compared
    scale = float(np.abs(stepped).max()) + 1e-6
    leak = float(np.maximum(np.abs(stepped_in_noise - stepped).max(), np.abs(block_in_noise - in_block).max())) / scale
    difference = float(np.abs(in_block - stepped).max()) / scale
    moved = float(np.abs(stepped_after_another - stepped).max(axis=1).min()) / scale
    same = f"at most {SAME_LOGITS} of the largest logit"
    # Each comparison fails for NaN.
    yield row(
        "noise in hidden slots moves the logits by",
        f"{leak:.2g}",
        same,
        leak <= SAME_LOGITS,
        f"looks at cache slots that the mask hides, or hides the token being decoded: {_NONSENSE}",
    )
    yield row(
        "a block differs from single steps by",
        f"{difference:.2g}",
        same,
        difference <= SAME_LOGITS,
        f"gives other logits token by token than in a block: {_NONSENSE}",
    )
    yield row(
        "another first token moves the logits by",
        f"{moved:.2g}",
        f"more than {MOVED_LOGITS}",
        moved > MOVED_LOGITS,
        f"does not look at the tokens before the one being decoded: {_NONSENSE}",
    )


def check_freshness(used: Runtime, fresh: Runtime, token: int, window_s: int = CHUNK_LENGTH_S) -> Iterator[Check]:
    """See that nothing of one window is left in the next: A, then B, must give what B gives alone.

    used, fresh : runtimes of one compilation; nothing of this length has been encoded with `fresh`
    window_s : length of the windows
    """
    shape = (used.dims.n_mels, window_s * FRAMES_PER_SECOND)
    a, b = (np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32) for seed in (1, 2))
    first = run_stages(used, a, token)
    second, alone = run_stages(used, b, token), run_stages(fresh, b, token)
    for stage, of_a, after_a, by_itself in zip(first, first.values(), second.values(), alone.values(), strict=True):
        finite = bool(np.isfinite([of_a, after_a, by_itself]).all())
        moved = float(np.abs(of_a - by_itself).max()) if finite else 0.0
        left = float(np.abs(after_a - by_itself).max()) / (moved or 1.0) if finite else np.inf
        yield Check(
            f"{Sizes(stage, window_s)}: left of the window before",
            f"{left:.2g}" if finite and moved else "the same for every window" if finite else "not finite",
            f"at most {STALE}",
            finite and moved > 0 and left <= STALE,
            f"the compiled {stage} gives results that depend on the window before, or on nothing: {_NONSENSE}"
            if finite
            else f"the compiled {stage} gives numbers that are not finite: {_BROKEN}",
            stage,
        )


def run_stages(runtime: Runtime, mel: FloatArray, token: int) -> dict[str, FloatArray]:
    """Return what each stage makes of a window: the encoder's output, some keys, and logits from `token` on."""
    window = runtime.encode(mel, 0)
    cross = to_float32(next(iter(window.tensors.values())))
    hidden = runtime.last_hidden_state.astype(np.float32)
    decoder = runtime.decoder_of(window)
    return {"encoder": hidden, "cross_kv": cross, "decoder": _feed(decoder, _steps(token))}


def _steps(first: int) -> list[list[int]]:
    """Return five tokens in such calls that graphs for one token and for several meet an empty and a filled cache."""
    return [[first], [1, 2], [3], [4]]


def _feed(decoder: Decoder, calls: Sequence[Sequence[int]], *, noisy: bool = False) -> FloatArray:
    """Feed tokens from the start of a sequence, call by call; return the logits of each, shape (n, n_vocab).

    noisy : whether the empty cache slots hold noise
    """
    decoder.begin()
    if noisy:
        decoder.pollute_hidden_slots()
    return np.concatenate([decoder.feed(tokens)[0][0] for tokens in calls])
