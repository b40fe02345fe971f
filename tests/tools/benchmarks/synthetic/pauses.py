"""A look at when a voice spoke."""

import numpy as np

from streamer.audio.constants import SAMPLE_RATE
from tools.benchmarks.synthetic.speech import Speech

COMMAS = "Now, as all men know, a dog, a bird, and a man, may be seen here."


def check_pauses(speech: Speech) -> None:
    """COMMAS was spoken, loud within its words and quiet between them."""
    assert speech.samples.dtype == np.int16
    assert len(speech.words) == len(COMMAS.split())
    times = np.arange(len(speech.samples)) / SAMPLE_RATE
    within = np.zeros(len(times), bool)
    for start, end in speech.words:
        within |= (times >= start) & (times < end)
    power = speech.samples.astype(np.float64) ** 2
    words, pauses = (10 * np.log10(power[where].mean()) for where in (within, ~within))
    assert words > pauses + 20
