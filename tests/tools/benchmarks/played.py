"""A corpus of two recordings, and a system that shows what it is told to."""

import json
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from streamer.errors import StreamerError
from tools.benchmarks.timeline import Revision, Timeline

SPOKEN = (("Good", 0.2, 0.5), ("morning,", 0.5, 1.0), ("all.", 1.1, 1.5))


def write_corpus(folder: Path) -> None:
    """Write a recording with three words, and one of silence."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [{"word": word, "start": start, "end": end} for word, start, end in SPOKEN]
    for name, kind, spoken in (("held-clean-1", "clean", words), ("held-silence", "silence", [])):
        soundfile.write(folder / f"{name}.flac", np.zeros(2 * SAMPLE_RATE, dtype=np.float32), SAMPLE_RATE)
        about = {
            "text": " ".join(str(word["word"]) for word in spoken),
            "words": spoken,
            "half": "held",
            "kind": kind,
            "voice": "",
            "synthesiser": "",
            "seed": 1,
        }
        (folder / f"{name}.json").write_text(json.dumps(about), encoding="utf-8")


class Shows:
    """Shows each word a while after it was said, and promises it a while later; nothing where nobody speaks."""

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
            revisions.append(Revision(wall_s, min(2.0, wall_s), words[:n_shown], min(n_stable, n_shown)))
        return Timeline(
            system=self.name,
            recording=recording,
            audio_s=len(samples) / SAMPLE_RATE,
            revisions=revisions,
            speech=[],
            gaps=[],
            cpu_s=0.5,
            peak_rss_mb=100.0,
            encoder_calls=4,
            decoder_calls=8,
            decoder_tokens=16,
        )

    def stop(self) -> None:
        self.stopped = True
