"""How far words come behind a speaker of even pace: AL and LAAL over a recording, LongYAAL utterance by utterance.

LongYAAL is for recordings of any length. SoftSegmenter aligns the transcript with the reference, which says where
utterances begin and end, by how alike the characters of the words are. Each utterance's lag then is its own, so that
neither its place in the recording nor the pauses before it count.

Source: Polák et al. 2025, https://arxiv.org/abs/2509.17349. Gives what omnisteval 0.1.10 gives (`longform`, words).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# What an alignment does with a word, in the order in which equal scores are resolved.
_MATCH, _DELETE, _INSERT = range(3)


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


def long_yaal(
    reference: Sequence[tuple[str, float, float]],
    begins: Sequence[int],
    text: Sequence[str],
    emitted_s: Sequence[float],
) -> list[float]:
    """Return the lag of each utterance in seconds; those without a word before the last one ends have none.

    Args:
        reference: the words that are said, with the seconds at which each starts and ends.
        begins: index of the first word of each utterance.
        text: the transcript's words.
        emitted_s: for each of them, the audio position or the time at which it came.
    """
    if not reference:
        return []
    opposite = soft_align([word for word, _, _ in reference], text)
    recording_end_s = reference[-1][2]
    lags = []
    for first, behind in pairwise([*begins, len(reference)]):
        start_s, length_s = reference[first][1], reference[behind - 1][2] - reference[first][1]
        emitted = [at_s for at_s, i in zip(emitted_s, opposite, strict=True) if first <= i < behind]
        counted = next((k for k, at_s in enumerate(emitted) if at_s >= recording_end_s), len(emitted))
        step_s = length_s / max(len(emitted), behind - first)
        if counted:
            lags.append(sum(at_s - start_s - k * step_s for k, at_s in enumerate(emitted[:counted])) / counted)
    return lags


def soft_align(reference: Sequence[str], text: Sequence[str]) -> list[int]:
    """Return for each word of a text the index of the reference's word beside which it is said.

    The alignment has the largest sum of similarities; a word put in or left out costs nothing. Words that are put in
    go to the word before them, but from the first one that is more like the next word, to that.
    """
    similarity = _similarity(reference, text)
    moves = np.empty(similarity.shape, dtype=np.uint8)
    above = np.zeros(len(text) + 1)
    for i, row in enumerate(similarity):
        match, delete = above[:-1] + row, above[1:]
        above = np.maximum.accumulate([0.0, *np.maximum(match, delete)])
        insert = above[:-1]
        moves[i] = np.where((match >= delete) & (match >= insert), _MATCH, np.where(delete >= insert, _DELETE, _INSERT))
    opposite = [0] * len(text)
    inserted = [True] * len(text)  # before the reference's word that is noted, or behind the last one
    i, j = len(reference), len(text)
    while j:
        move = moves[i - 1, j - 1] if i else _INSERT
        i -= move != _INSERT
        if move != _DELETE:
            j -= 1
            opposite[j], inserted[j] = i, move == _INSERT
    for j, i in enumerate(opposite):
        if inserted[j] and i:
            begun = j > 0 and inserted[j - 1] and opposite[j - 1] == i
            alike = i < len(reference) and similarity[i, j] > similarity[i - 1, j]
            opposite[j] = i if begun or alike else i - 1
    return opposite


def _similarity(reference: Sequence[str], text: Sequence[str]) -> NDArray[np.float64]:
    """Return for each two words how many of their different characters both have (Jaccard's index)."""
    letters = {letter: k for k, letter in enumerate(sorted(set("".join([*reference, *text]))))}

    def has(words: Sequence[str]) -> NDArray[np.float64]:
        found = np.zeros((len(words), len(letters)))
        for row, word in zip(found, words, strict=True):
            row[[letters[letter] for letter in set(word)]] = 1
        return found

    a, b = has(reference), has(text)
    both = a @ b.T
    either: NDArray[np.float64] = a.sum(axis=1)[:, None] + b.sum(axis=1) - both
    return np.divide(both, either)
