"""Words that stand twice and were said once."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from streamer.audio.constants import SAMPLE_RATE
from streamer.engine.settings import SessionSettings
from streamer.events import Event, Final, Word
from tests.engine.test_session import SETTINGS
from tools.benchmarks.corpus import Recording
from tools.benchmarks.doubling import doubled_stretches, measure_doubling
from tools.benchmarks.measure import SpokenWord as Said
from tools.benchmarks.recorder import Recorder
from tools.benchmarks.timeline import Timeline


@pytest.mark.parametrize(
    ("text", "said", "found"),
    [
        ("a b c d", "a b c d", []),
        ("a b c a b c d", "a b c d", [(0, 6)]),
        ("x a b c d a b c d e", "x a b c d e", [(1, 9)]),
        # Two words are no stretch; what is said twice was not doubled, also where a word between is lost.
        ("a b a b c", "a b c", []),
        ("a b c x a b c", "a b c y z a b c", []),
        # Too far apart to have been doubled.
        ("a b c 1 2 3 4 5 6 7 8 9 10 a b c", "a b c", []),
        ("a b c a b c d e f d e f", "a b c d e f", [(0, 6), (6, 12)]),
    ],
)
def test_what_stands_twice_is_found(text: str, said: str, found: list[tuple[int, int]]) -> None:
    assert doubled_stretches(text.split(), said.split()) == found


class Stutters:
    """Says of each recording that it was said twice, in two finals; the model does so where there is much of it."""

    def play(
        self,
        name: str,
        samples: NDArray[np.float32],
        settings: SessionSettings,
        *,
        pace: float,
        on_event: Callable[[Event], object],
    ) -> Timeline:
        recorder = Recorder(settings.gate.min_silence_s)
        for number, start in enumerate((0.0, 1.0)):
            final = Final(
                segment=number + 1,
                start=start,
                end=start + 1.0,
                text="so far away",
                words=tuple(
                    Word(word=f" {word}", start=start, end=start + 1.0, probability=0.9, stable=True)
                    for word in ("so", "far", "away")
                ),
                language="en",
                no_speech_prob=0.0,
                avg_logprob=-0.1,
            )
            recorder.take(final, start + 1.0)
            on_event(final)
        return recorder.timeline("simulated", name, 2.0, cpu_s=0.0, peak_rss_mb=0.0)

    def transcribe(self, samples: NDArray[np.float32], settings: SessionSettings) -> str:
        assert len(samples) == 2 * SAMPLE_RATE
        return "so far away" if not samples.any() else "so far away, so far away"


def recording_of(name: str, level: float) -> Recording:
    words = tuple(Said(word, i / 2, i / 2 + 0.5) for i, word in enumerate(("so", "far", "away")))
    samples = np.full(2 * SAMPLE_RATE, level, np.float32)
    return Recording(name, samples, "so far away", words, half="held", kind="clean", voice="", synthesiser="", seed=1)


def test_who_has_doubled_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    recordings = [("one", recording_of("quiet", 0.0)), ("one", recording_of("loud", 0.5))]
    figures = measure_doubling(Stutters(), recordings, SETTINGS, [8.0], Console(width=160))  # type: ignore[arg-type]
    assert [(one["recording"], one["at_cut"], one["by_model"]) for one in figures["doubled"]] == [
        ("quiet", True, False),
        ("loud", True, True),
    ]
    assert figures["paces"]["8"]["doubled_by_stream"] == 1
    assert "one/quiet 0.0-2.0 s, at a cut, by the stream: so far away so far away" in capsys.readouterr().out
