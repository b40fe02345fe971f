"""Which words of successive hypotheses can be relied on. No I/O, no clock.

Source: LocalAgreement-n, Liu et al., "Low-Latency Sequence-to-Sequence Speech Recognition and Translation by Partial
Hypothesis Selection" (2020): what n hypotheses in a row begin with is stable.
"""

from collections import deque
from collections.abc import Sequence


class LocalAgreement:
    """Remembers the unsettled ends of the last hypotheses."""

    def __init__(self, n_agreeing: int) -> None:
        """Ask for `n_agreeing` hypotheses in a row that agree; with 1 each is believed at once."""
        # The last n - 1 hypotheses behind the settled words, newest last.
        self._partners: deque[tuple[str, ...]] = deque(maxlen=n_agreeing - 1)

    def update(self, words: Sequence[str], n_eligible: int, n_certain: int = 0) -> int:
        """Take a new hypothesis behind the settled words; return how many of its first words are settled now.

        Words behind the first `n_eligible` were cut off by the end of the audio, or nearly: they do not settle, though
        they are remembered for the next comparison. The first `n_certain` settle whatever was said before.
        """
        agreed = n_eligible if len(self._partners) == self._partners.maxlen else 0
        for partner in self._partners:
            agreed = min(agreed, _common_prefix(partner, words))
        agreed = max(agreed, n_certain)
        self._partners.append(tuple(words))
        self._partners = deque((partner[agreed:] for partner in self._partners), self._partners.maxlen)
        return agreed

    @property
    def partners(self) -> tuple[tuple[str, ...], ...]:
        """The hypotheses that are remembered, oldest first."""
        return tuple(self._partners)

    def remember(self, partners: Sequence[tuple[str, ...]]) -> None:
        """Take over what was remembered elsewhere."""
        self._partners = deque(partners, self._partners.maxlen)

    def reset(self) -> None:
        """Forget all partners: the next hypothesis is the first."""
        self._partners.clear()


def _common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    for i, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return i
    return min(len(a), len(b))
