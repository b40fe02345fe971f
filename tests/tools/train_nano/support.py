"""What the tests of several parts need: a corpus of a few utterances, and a look at when a voice spoke."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE
from tools.train_nano.speech import Speech

COMMAS = "Now, as all men know, a dog, a bird, and a man, may be seen here."


@dataclass(frozen=True)
class Said:
    """One utterance to be written into a shard."""

    text: str
    words: list[tuple[float, float]]
    phones: list[tuple[str, float]]
    samples: NDArray[np.int16]
    before: str = ""


def write_shard(folder: Path, name: str, utterances: Sequence[Said]) -> None:
    """Write a shard as tools.train_nano.synthesise describes it: `name` is the voice, a hyphen and a number."""
    folder.mkdir(exist_ok=True)
    lines = []
    position = 0
    for said in utterances:
        entry = {
            "start": position,
            "samples": len(said.samples),
            "text": said.text,
            "before": said.before,
            "words": said.words,
            "phones": said.phones,
        }
        lines.append(json.dumps(entry) + "\n")
        position += len(said.samples)
    (folder / f"{name}.pcm").write_bytes(np.concatenate([said.samples for said in utterances]).astype("<i2").tobytes())
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


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
