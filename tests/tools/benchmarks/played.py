"""A corpus of two recordings, and a scripted system."""

import json
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamer.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tools.benchmarks.timeline import Revision, Timeline

SPOKEN = (("Good", 0.2, 0.5), ("morning,", 0.5, 1.0), ("all.", 1.1, 1.5))


def write_corpus(folder: Path) -> None:
    """Write a recording with three words, and one of silence."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [{"word": word, "start": start, "end": end} for word, start, end in SPOKEN]
    for name, spoken in (("spoken", words), ("silence", [])):
        path = folder / f"{name}.flac"
        soundfile.write(path, np.zeros(2 * SAMPLE_RATE, dtype=np.float32), SAMPLE_RATE)
        path.with_suffix(".txt").write_text(" ".join(str(word["word"]) for word in spoken), encoding="utf-8")
        path.with_suffix(".json").write_text(json.dumps({"words": spoken}), encoding="utf-8")


class Shows:
    """Displays each word `delay_s` after it was said and promises it as long after that; nothing without speech."""

    def __init__(self, name: str, delay_s: float = 0.5, *, fails_at: str = "", fails_to_start: bool = False) -> None:
        self.name = name
        self._delay_s = delay_s
        self._fails_at = fails_at
        self._fails_to_start = fails_to_start
        self.stopped = False

    def start(self) -> None:
        if self._fails_to_start:
            raise StreamerError(f"{self.name} cannot be had here")

    def stream(self, recording: str, samples: NDArray[np.float32]) -> Timeline:
        if recording == self._fails_at:
            raise StreamerError(f"{self.name} went away")
        spoken = () if "silence" in recording else SPOKEN
        words = tuple(word for word, _, _ in spoken)
        seen = [(end + self._delay_s, i + 1, i) for i, (_, _, end) in enumerate(spoken)]
        promised = [(end + 2 * self._delay_s, i + 1, i + 1) for i, (_, _, end) in enumerate(spoken)]
        revisions = []
        n_shown = n_stable = 0
        for wall_s, shown, stable in sorted(seen + promised):
            n_shown, n_stable = max(n_shown, shown), max(n_stable, stable)
            revisions.append(Revision(wall_s, words[:n_shown], min(n_stable, n_shown)))
        return Timeline(
            system=self.name,
            recording=recording,
            audio_s=len(samples) / SAMPLE_RATE,
            revisions=revisions,
            cpu_s=0.5,
            peak_rss_mb=100.0,
            encoder_calls=4,
            decoder_calls=8,
        )

    def stop(self) -> None:
        self.stopped = True
