"""Who says a word, from the windows around it. Pure."""

from bisect import bisect_left, bisect_right
from operator import attrgetter

import numpy as np

from streamer.speakers.clusters import Clusters

# A window tells of the time near its middle: less and less up to this distance, nothing beyond.
REACH_S = 0.75

# How far from speech a word may lie: times of words are not exact.
_BESIDE_S = 0.5

# Where no speaker is more similar than this, nobody knows who speaks.
UNSURE_BELOW = 0.3

_middle = attrgetter("middle_s")


def speaker_of(clusters: Clusters, start_s: float, end_s: float) -> str | None:
    """Return the label of who speaks from one second to another; None where that is not sure.

    The speaker to whom the windows around it are most similar on average, each by its nearness.
    """
    windows, middle_s = clusters.windows, (start_s + end_s) / 2
    first = bisect_right(windows, middle_s - REACH_S, key=_middle)
    last = bisect_left(windows, middle_s + REACH_S, key=_middle)
    near = windows[first:last]
    if not near:
        # At the ends of a region: any window that has it, or nearly.
        around = windows[max(first - 1, 0) : last + 1]
        near = [w for w in around if w.start_s - _BESIDE_S <= middle_s <= w.end_s + _BESIDE_S]
    similar = clusters.similarities(near)
    if not similar.size:
        return None
    weights = np.array([max(REACH_S - abs(window.middle_s - middle_s), 0.01) for window in near], dtype=np.float32)
    means = weights @ similar / weights.sum()
    best = int(np.argmax(means))
    return clusters.speakers[best].label if means[best] >= UNSURE_BELOW else None
