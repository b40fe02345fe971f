"""Average lagging, as in simultaneous translation."""

from collections.abc import Sequence


def average_lagging(delays_s: Sequence[float], audio_s: float, n_reference: int, *, adaptive: bool) -> float | None:
    """Return how far, on average, words come behind a speaker who says all words at an even pace; None without words.

    Only words up to the first one that came when all the audio had been heard count. With `adaptive` the pace is that
    of the longer of both texts, so that a text that is too long gains nothing (LAAL).

    Args:
        delays_s: for each word, in order, the audio position or the time at which it came.
        audio_s: length of the audio.
        n_reference: words of the reference.

    Source: Ma et al. 2019, https://arxiv.org/abs/1810.08398; for speech Ma et al. 2020,
    https://arxiv.org/abs/2011.02048; LAAL: Papi et al. 2022, https://arxiv.org/abs/2206.05807
    """
    if not delays_s or not n_reference:
        return None
    n_words = max(n_reference, len(delays_s)) if adaptive else n_reference
    counted = next((i + 1 for i, delay in enumerate(delays_s) if delay >= audio_s), len(delays_s))
    return sum(delay - i * audio_s / n_words for i, delay in enumerate(delays_s[:counted])) / counted
