"""Stand-ins for people: directions in space, and vectors near them."""

import numpy as np

from streamer.after.speakers.clusters import VoiceWindow
from streamer.after.speakers.diarization import Diarization
from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE

N_VALUES = 192


def voice(person: int) -> Float32Array:
    """Return somebody's vector; all are equally far apart, with a similarity of 0."""
    vector = np.zeros(N_VALUES, dtype=np.float32)
    vector[person] = 1.0
    return vector


def heard(shares: dict[int, float], noise: float = 0.6, seed: int = 0) -> Float32Array:
    """Return the vector of a window in which people speak, each for a share of it."""
    rng = np.random.default_rng(seed)
    other = rng.standard_normal(N_VALUES)
    vector = sum(share * voice(person) for person, share in shares.items()) + noise * other / np.linalg.norm(other)
    unit: Float32Array = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit


def window(start_s: float, person: int, seed: int = 0) -> VoiceWindow:
    return VoiceWindow(start_s, start_s + 1.5, heard({person: 1.0}, seed=seed))


def converse(
    diarization: Diarization, turns: list[tuple[int, float, float]], pauses: bool = True
) -> list[tuple[str, str]]:
    """Hear turns of people, (who, from, to) in seconds: one region, or with `pauses` one each. Return merged labels."""
    regions = [[turn] for turn in turns] if pauses else [turns]
    for number, region in enumerate(regions):
        end = round(region[-1][2] * SAMPLE_RATE)
        diarization.begin(round(region[0][1] * SAMPLE_RATE))
        diarization.end(end)
        while (due := diarization.next_window(end)) is not None:
            a, b = due[0] / SAMPLE_RATE, due[1] / SAMPLE_RATE
            shares: dict[int, float] = {}
            for who, start, stop in region:
                shares[who] = shares.get(who, 0.0) + max(0.0, min(b, stop) - max(a, start)) / (b - a)
            loud = np.ones(due[1] - due[0], dtype=np.float32)
            diarization.take(due, loud, heard(shares, seed=1000 * number + due[0]))
    return diarization.take_merged()
