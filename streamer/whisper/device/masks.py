"""How a decoder's attention mask says which slots are filled, and the experiment that finds it out.

Exports of Whisper differ in this, a file does not say it, and a wrong guess gives fluent nonsense. So each known
convention is tried on the running graph: what it hides must not move the logits, and what it shows must.

The mask is written as the experiment says. To put a conversion into the graph instead, the graph would have to be
compiled a second time at every load, which takes an NPU minutes at first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.arrays import FloatArray
from streamer.errors import ModelError

# Largest difference between logits, over the largest logit, that counts as "did not move": float16 accelerators round.
SAME_LOGITS = 0.05

# Smallest one that counts as "moved". Logits that do not depend on something differ by nothing but rounding.
MOVED_LOGITS = 1e-4

# What must move the logits moves them this many times as far as what must not. Measured with the right convention:
# more than 1000 times, for trained weights and random ones.
MOVED_OVER_SAME = 4.0

# Numbers of cached tokens that are tried.
_CACHED = (0, 1, 3)

# Spread of noise in an empty slot: strong, so that it shows. That of cached tokens is 1: none takes all attention.
_NOISE_SCALE = 4.0


@dataclass(frozen=True, slots=True)
class MaskConvention:
    """The values in a mask, whose slots are those of the cache, and behind them those of the tokens of a call."""

    name: str

    # Values of a slot that is attended to, and of one that is not.
    shown: float
    hidden: float

    def write(self, mask: NDArray[Any], n_cached: int) -> None:
        """Show the first slots, as many as are filled, and the one current token; mask : shape = (P + 1,)"""
        mask[:] = self.hidden
        mask[:n_cached] = self.shown
        mask[-1] = self.shown


# Of our own graphs.
OURS = MaskConvention("1 = attend, 0 = hide", 1.0, 0.0)

# The first that a graph follows is right. A graph that adds `(1 - mask) * -65504` to the scores follows both of these,
# and loses precision with the second. -65500 is the largest round number that float16 holds.
CONVENTIONS = (OURS, MaskConvention("0 = attend, -65500 = hide", 0.0, -65500.0))


class MaskedDecoder(Protocol):
    """A decoder of one token a call, its tensors open to the experiment."""

    @property
    def mask(self) -> NDArray[Any]:
        """The mask that `compute` reads, shape (P + 1,)."""

    @property
    def cache(self) -> Sequence[FloatArray]:
        """The cached keys and values that `compute` reads, each of shape (1, n_head, P, head)."""

    @property
    def present(self) -> Sequence[FloatArray]:
        """Keys and values of the token of the last `compute`, in the order of `cache`, (1, n_head, 1, head)."""

    def compute(self, token: int, position: int) -> FloatArray:
        """Return the logits after a token at a position as a copy, shape (n_vocab,), and change nothing else."""


def find_convention(decoder: MaskedDecoder, where: str, token: int) -> MaskConvention:
    """Find the mask convention of a decoder by experiment; its cache is all zeros afterwards.

    where : name of the graph in messages
    token : the token that is fed

    Raises ModelError if the decoder follows no known convention.
    """
    problems = []
    for convention in CONVENTIONS:
        if convention.hidden < 0 and decoder.mask.dtype.kind != "f":
            continue  # no such mask can hold its values
        problem = _Trial(decoder, convention, token).problem()
        for tensor in decoder.cache:
            tensor[...] = 0
        if not problem:
            return convention
        problems.append(f"with {convention.name!r}, {problem}")
    raise ModelError(
        f"{where} uses its attention mask in an unknown way ({'; '.join(problems)}): its text would be nonsense; export"
        " it again, or use the original checkpoint"
    )


class _Trial:
    """Runs of one decoder under one convention, with chosen masks, cached tokens and noise."""

    def __init__(self, decoder: MaskedDecoder, convention: MaskConvention, token: int) -> None:
        self._decoder = decoder
        self._convention = convention
        self._token = token
        self._n_slots = len(decoder.mask) - 1

    def problem(self) -> str:
        """Return how the decoder deviates from the convention, empty if it follows it."""
        hidden, shown = self._convention.hidden, self._convention.shown
        for n in _CACHED:
            base = self._run(n)
            if not np.isfinite(base).all():
                return "its logits are not finite"
            current, free = self._n_slots, n + 1
            own = [tensor.copy() for tensor in self._decoder.present]

            leak = max(_distance(base, self._run(n, noise=seed)) for seed in (1, None))
            if leak > SAME_LOGITS:
                return "what a hidden slot holds changes its logits"
            # The current token is hidden, and its own keys and values shown in an empty slot.
            swapped = self._run(n, {current: hidden, free: shown}, {free: own})
            if _distance(base, swapped) > SAME_LOGITS:
                return "the current token does not see itself"

            moved = max(MOVED_LOGITS, MOVED_OVER_SAME * max(leak, _distance(base, swapped)))
            # With nothing cached, to hide the current token is to hide everything.
            for slot in (current, *range(n)) if n else ():
                if not moved < _distance(base, self._run(n, {slot: hidden})) < np.inf:
                    return f"hiding {'the current' if slot == current else 'a cached'} token does not change its logits"
            if not moved < _distance(base, self._run(n, {free: shown})) < np.inf:
                return "showing an empty slot does not change its logits"
        return ""

    def _run(
        self,
        n: int,
        values: Mapping[int, float] | None = None,
        copies: Mapping[int, Sequence[FloatArray]] | None = None,
        *,
        noise: int | None = 0,
    ) -> FloatArray:
        """Return the logits after n cached tokens, always the same.

        values : by slot, put into the mask against the convention
        copies : by slot, keys and values that the slot holds
        noise : seed of the noise in all other empty slots; None: zeros
        """
        decoder = self._decoder
        cached = np.random.default_rng(n)
        empty = np.random.default_rng(1000 + (noise or 0))
        for i, slots in enumerate(decoder.cache):
            _, n_head, _, head_size = slots.shape
            slots[:, :, :n] = cached.standard_normal((1, n_head, n, head_size), dtype=np.float32)
            # The same in every slot: attention that averages many of them would average white noise away.
            pattern = _NOISE_SCALE * empty.standard_normal((1, n_head, 1, head_size), dtype=np.float32)
            slots[:, :, n:] = 0 if noise is None else pattern
            for slot, tensors in (copies or {}).items():
                slots[:, :, slot] = tensors[i][:, :, 0]
        self._convention.write(decoder.mask, n)
        for slot, value in (values or {}).items():
            decoder.mask[slot] = value
        return decoder.compute(self._token, n).astype(np.float32)


def _distance(base: FloatArray, other: FloatArray) -> float:
    """Return the largest difference of two rows of logits over the largest of `base`, infinite for NaN and infinity."""
    if not (np.isfinite(base).all() and np.isfinite(other).all()):
        return np.inf
    return float(np.abs(base - other).max() / (np.abs(base).max() + 1e-6))
