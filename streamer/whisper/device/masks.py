"""How a decoder's attention mask says which slots are filled, and the experiment that finds it out.

Exports of Whisper differ in this, a file does not say it, and a wrong guess gives fluent nonsense. So each convention
is tried on the running graph: what it hides must not move the logits, and what it shows must.

What is found is heeded where the mask is written, not put into the graph: the graph would have to be compiled a second
time at every load, which takes an NPU minutes at first.
"""

from collections.abc import Iterator, Mapping, Sequence
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

# What must move the logits moves them this many times as far as what must not. Measured where the convention is right:
# more than 1000 times, for trained weights and random ones.
MOVED_OVER_SAME = 4.0

# Numbers of cached tokens that are tried.
_CACHED = (0, 1, 3)

# Spread of noise in an empty slot: strong, so that it shows. That of cached tokens is 1: none takes all attention.
_NOISE_SCALE = 4.0


@dataclass(frozen=True, slots=True)
class MaskConvention:
    """What a mask of P + T values holds, for P cache slots and the T tokens of a call."""

    name: str

    # Values of a slot that is attended to, and of one that is not.
    shown: float
    hidden: float

    # Whether the mask is added to the scores, and not a matter of yes and no.
    additive: bool = False

    # Whether the current tokens are at the first free slot (index n), or behind all slots (index P).
    in_place: bool = False

    def write(self, mask: NDArray[Any], n_cached: int, n_tokens: int, n_slots: int) -> None:
        """Show `n_cached` filled slots of `n_slots` and the `n_tokens` current tokens; mask : shape = (P + T,)"""
        mask[:] = self.hidden
        mask[:n_cached] = self.shown
        first = self.first_token(n_cached, n_slots)
        mask[first : first + n_tokens] = self.shown

    def first_token(self, n_cached: int, n_slots: int) -> int:
        """Return the index of the first current token."""
        return n_cached if self.in_place else n_slots


# Added to the score of a hidden slot: the largest round number that float16 holds.
_MINUS_LARGE = -65500.0

# Of our own graphs.
OURS = MaskConvention("1 = attend, current token last", 1.0, 0.0)

CONVENTIONS = (
    OURS,
    MaskConvention("0 = attend, current token last", 0.0, 1.0),
    MaskConvention("1 = attend, current token in place", 1.0, 0.0, in_place=True),
    MaskConvention("0 = attend, current token in place", 0.0, 1.0, in_place=True),
    MaskConvention("0 = attend, -65500 = hide, current token last", 0.0, _MINUS_LARGE, additive=True),
    MaskConvention(
        "0 = attend, -65500 = hide, current token in place", 0.0, _MINUS_LARGE, additive=True, in_place=True
    ),
)


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

    @property
    def cross(self) -> Sequence[FloatArray]:
        """The cross-attention keys and values that `compute` reads, each of shape (1, n_head, 1500, head)."""

    def compute(self, token: int, position: int) -> FloatArray:
        """Return the logits after a token at a position as a copy, shape (n_vocab,), and change nothing else."""


def find_convention(decoder: MaskedDecoder, where: str, token: int) -> MaskConvention:
    """Find the mask convention of a decoder by experiment.

    `where` names the graph in messages, `token` is what is fed. Caches and cross-attention are all zeros afterwards.
    Raises ModelError where no convention passes, and where two pass that give different logits.
    """
    experiment = _Experiment(decoder, token)
    failures: dict[str, tuple[int, str]] = {}
    passed: list[MaskConvention] = []
    for convention in CONVENTIONS:
        if convention.additive and decoder.mask.dtype.kind != "f":
            continue  # no such mask can hold its values
        for i, (success, problem) in enumerate(experiment.try_out(convention)):
            if not success:
                failures[convention.name] = i, problem
                break
        else:
            passed.append(convention)
    logits = [experiment.run(convention, 3) for convention in passed]
    experiment.clear()
    if not passed:
        closest = max(failures, key=lambda name: failures[name][0])
        _, problem = failures[closest]
        raise ModelError(
            f"{where} obeys none of the {len(failures)} known mask conventions (with {closest!r}, {problem}):"
            " its text would be nonsense; export it again, or use the original checkpoint"
        )
    for other, found in zip(passed[1:], logits[1:], strict=True):
        if distance(logits[0], found) > SAME_LOGITS:
            raise ModelError(
                f"{where} obeys two mask conventions ({passed[0].name!r} and {other.name!r}) and gives other logits"
                " with each: expected one that is right; export it again, or use the original checkpoint"
            )
    return passed[0]


class _Experiment:
    """Runs of one decoder with chosen masks, cached tokens and noise."""

    def __init__(self, decoder: MaskedDecoder, token: int) -> None:
        self._decoder = decoder
        self._token = token
        self._n_slots = len(decoder.mask) - 1
        random = np.random.default_rng(0)
        for tensor in decoder.cross:
            tensor[...] = random.standard_normal(tensor.shape, dtype=np.float32)

    def try_out(self, convention: MaskConvention) -> Iterator[tuple[bool, str]]:
        """Yield for each trial of a convention whether it passed, and what is wrong if it did not."""
        for n in _CACHED:
            yield from self._try_out(convention, n)

    def _try_out(self, convention: MaskConvention, n: int) -> Iterator[tuple[bool, str]]:
        base = self.run(convention, n)
        yield bool(np.isfinite(base).all()), "its logits are not finite"
        present = [tensor.copy() for tensor in self._decoder.present]

        # What must not move the logits.
        drift = 0.0
        for seed in (1, None):
            drift = max(drift, distance(base, self.run(convention, n, noise=seed)))
            yield drift <= SAME_LOGITS, "what a hidden slot holds changes its logits"
        # The token's own keys and values, put in an empty slot that is shown in its stead. This tells a mask that
        # shows the token from one that shows something else, such as a graph's own padding.
        current, free = convention.first_token(n, self._n_slots), n + 1
        swap = {current: convention.hidden, free: convention.shown}
        drift = max(drift, distance(base, self.run(convention, n, copies={free: present}, values=swap)))
        yield drift <= SAME_LOGITS, "the current token does not see itself"

        # What must. With nothing cached, hiding the current token hides all there is: what then comes is no matter.
        moved = max(MOVED_LOGITS, MOVED_OVER_SAME * drift)
        for slot in (current, *range(n)) if n else ():
            without = self.run(convention, n, values={slot: convention.hidden})
            what = "the current token" if slot == current else "a cached token"
            yield moved < distance(base, without) < np.inf, f"hiding {what} does not change its logits"
            # A graph for 1 = attend that adds `(1 - mask) * -large` hides what an additive mask hides, and adds a
            # large number to all other scores, whose precision is lost. What it cannot do is hide a little.
            if convention.additive:
                faint = self.run(convention, n, values={slot: -1.0})
                yield moved < distance(without, faint) < np.inf, "-1 in the mask hides as much as -65500"
        with_empty = self.run(convention, n, values={free: convention.shown})
        yield moved < distance(base, with_empty) < np.inf, "showing an empty slot does not change its logits"

    def run(
        self,
        convention: MaskConvention,
        n: int,
        *,
        noise: int | None = 0,
        copies: Mapping[int, Sequence[FloatArray]] | None = None,
        values: Mapping[int, float] | None = None,
    ) -> FloatArray:
        """Return the logits behind n cached tokens, always the same.

        Empty slots hold noise of a seed, zeros for None, or `copies` of other keys and values by slot; `values` by slot
        are put into the mask against the convention.
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
        convention.write(decoder.mask, n, 1, self._n_slots)
        for slot, value in (values or {}).items():
            decoder.mask[slot] = value
        return decoder.compute(self._token, n).astype(np.float32)

    def clear(self) -> None:
        for tensor in (*self._decoder.cache, *self._decoder.cross):
            tensor[...] = 0


def distance(base: FloatArray, other: FloatArray) -> float:
    """Return the largest difference of two rows of logits over the largest of `base`, infinite for NaN and infinity."""
    if not (np.isfinite(base).all() and np.isfinite(other).all()):
        return np.inf
    return float(np.abs(base - other).max() / (np.abs(base).max() + 1e-6))
