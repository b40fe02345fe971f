"""Pauses that are taken for the end of a turn."""

import math
from dataclasses import replace

import pytest
from rich.console import Console

from streamer.arrays import Float32Array
from streamer.constants import SAMPLE_RATE
from streamer.settings.table import SpeechSettings
from tests.daemon import SAMPLE
from tools.benchmarks.recordings import Recording, SpokenWord
from tools.benchmarks.turns import GATE, Pause, judge, pauses_of, show

PAUSES = (Pause(0.5, False, 0.2), Pause(0.7, False, 0.9), Pause(0.9, True, 0.8), Pause(math.inf, True, 0.1))


def test_silence_cuts_longer_pauses_and_finds_ends_before_speech_goes_on() -> None:
    alone = judge(PAUSES, 0.6, 0.6, 0.0)
    assert (alone.cut, alone.ends, alone.wait_s) == (0.5, 1.0, 0.6)
    assert judge(PAUSES, 1.0, 1.0, 0.0).ends == 0.5
    held = judge(PAUSES, 0.4, 2.0, 0.5)
    assert (held.cut, held.ends, held.wait_s) == (0.5, 1.0, 1.2)
    assert len(show(PAUSES, SpeechSettings(), Console(quiet=True))) == 7


def test_a_turn_ends_where_a_sentence_does_and_at_the_end_of_the_recording() -> None:
    asked: list[float] = []

    def probability(samples: Float32Array) -> float:
        asked.append(len(samples) / SAMPLE_RATE)
        return 0.5

    # Two sentences of the sample, of which the first ends after 5.4 s.
    words = (SpokenWord("stops,", 1.0, 2.0), SpokenWord("danger.”", 4.7, 5.3), SpokenWord("measures", 12.0, 12.4))
    recording = Recording(SAMPLE, "stops, danger.” measures", "en", words)
    pauses = pauses_of(recording, probability)
    first = next(i for i, pause in enumerate(pauses) if pause.ends)
    assert asked[first] == pytest.approx(5.4 - 0.7, abs=0.4)
    assert all(not pause.ends for pause in pauses[:first])
    # The second turn begins with its own speech.
    assert asked[first + 1] < 12.5 - 5.4
    assert [pause.length_s for pause in pauses if pause.length_s < GATE.min_silence_s] == []
    assert pauses[-1] == replace(pauses[-1], length_s=math.inf, ends=True)
