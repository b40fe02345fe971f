"""A corpus of a few utterances, for tests."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Said:
    """One utterance to be written into a shard."""

    text: str
    words: list[tuple[float, float]]
    phones: list[tuple[str, float]]
    samples: NDArray[np.int16]


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
            "words": said.words,
            "phones": said.phones,
        }
        lines.append(json.dumps(entry) + "\n")
        position += len(said.samples)
    (folder / f"{name}.pcm").write_bytes(np.concatenate([said.samples for said in utterances]).astype("<i2").tobytes())
    (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
