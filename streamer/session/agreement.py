"""Which words of successive hypotheses can be relied on. No I/O, no clock.

Source: LocalAgreement-n, Liu et al., "Low-Latency Sequence-to-Sequence Speech Recognition and Translation by Partial
Hypothesis Selection" (2020): what n hypotheses in a row begin with is stable.
"""

import itertools
from collections.abc import Sequence

# The unstable words of the last hypotheses, oldest first.
Partners = tuple[tuple[str, ...], ...]


def agree(
    partners: Partners, words: Sequence[str], n_agreeing: int, n_eligible: int, n_certain: int = 0
) -> tuple[int, Partners]:
    """Return how many of a new hypothesis' first words become stable, and the partners of the next one.

    words : those after the stable ones. After the first `n_eligible` they may be cut off by the end of the audio: they
        do not become stable, but count in the next comparison. The first `n_certain` become stable in any case.
    n_agreeing : how many hypotheses in a row have to agree; 1 takes each as it is
    """
    agreed = n_eligible if len(partners) >= n_agreeing - 1 else 0
    for partner in partners:
        agreed = min(agreed, _common_prefix(partner, words))
    agreed = max(agreed, n_certain)
    newest = (*partners, tuple(words))[max(0, len(partners) + 2 - n_agreeing) :]
    return agreed, tuple(partner[agreed:] for partner in newest)


def _common_prefix(a: Sequence[str], b: Sequence[str]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
