"""The spoken sentences as the trainer reads them; synthesise.py writes them shard by shard, even while this reads."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamer.audio.constants import SAMPLE_RATE


def shard_voice(voice: str) -> str:
    """The name of one of VOICES as the files of its shards begin with it, and Corpus.voices has it."""
    return voice.replace(":", "-")


@dataclass(frozen=True)
class Utterance:
    """One spoken sentence. Times are in seconds from its first sample."""

    voice: str
    text: str
    before: str  # what may have been said before
    words: list[tuple[float, float]]  # of each of text.split()
    phones: list[tuple[str, float]]  # names and ends
    samples: NDArray[np.int16]  # mapped from the file, read when needed

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE


class Corpus:
    """Every utterance of the finished shards in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[str] = set()
        self.voices: dict[str, list[Utterance]] = {}

    def refresh(self) -> None:
        """Take in the shards that were finished since the last call."""
        for index in sorted(self._folder.glob("*.jsonl")):
            if index.name not in self._read:
                self._read.add(index.name)
                self._add(index)

    def _add(self, index: Path) -> None:
        voice = index.stem.rpartition("-")[0]
        samples = np.memmap(index.with_suffix(".pcm"), dtype="<i2", mode="r")
        utterances = self.voices.setdefault(voice, [])
        for line in index.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            utterances.append(
                Utterance(
                    voice,
                    entry["text"],
                    entry["before"],
                    [(start, end) for start, end in entry["words"]],
                    [(name, end) for name, end in entry["phones"]],
                    samples[entry["start"] : entry["start"] + entry["samples"]],
                )
            )
