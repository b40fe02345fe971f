"""Recordings to measure with: NAME.flac with what is said in NAME.txt beside it, empty for sounds without speech.

NAME.json may have the times of the words: `{"words": [{"word": ..., "start": ..., "end": ...}, ...]}`, in seconds.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import numpy as np
import soundfile

from streamer.arrays import Float32Array
from streamer.audio.sources.file import read_audio
from streamer.errors import AudioFileError, UsageError
from streamer.languages import LANGUAGE_NAMES

SAMPLE = Path(__file__).resolve().parents[2] / "models" / "nano.en" / "sample.flac"


class SpokenWord(msgspec.Struct, frozen=True):
    """A word of the reference and when it is said, in seconds of the audio."""

    word: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording and what is said in it."""

    path: Path
    text: str  # empty for sounds without speech
    language: str
    words: tuple[SpokenWord, ...] = ()  # of `text.split()`; empty if their times are unknown

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def group(self) -> str:
        """The row of a table: the folder, with the language unless it is English."""
        return self.path.parent.name + ("" if self.language == "en" else f" ({self.language})")

    @property
    def audio_s(self) -> float:
        """The duration in seconds."""
        return float(soundfile.info(self.path).duration)

    def samples(self) -> Float32Array:
        """Read the audio: 16 kHz mono, shape (n_samples,). Raises AudioFileError."""
        return np.concatenate(list(read_audio(self.path)))


def find(folder: Path | None, only: Sequence[str] = ("*",), language: str = "en") -> list[Recording]:
    """Return the recordings below a folder whose names match one of some patterns, by language and path.

    folder : None: nano.en's sample
    language : of recordings whose names do not end with one, as `fleurs-de-01` does

    Raises UsageError if no recording matches or two have the same name, AudioFileError if NAME.json is damaged.
    """
    found: dict[str, Recording] = {}
    for path in [SAMPLE] if folder is None else sorted(folder.rglob("*.flac")):
        if not path.with_suffix(".txt").is_file() or not any(fnmatch(path.stem, pattern) for pattern in only):
            continue
        if other := found.get(path.stem):
            raise UsageError(f"{other.path} and {path} have the same name: rename one of them")
        code = re.search(r"-([a-z]{2})(-\d+)?$", path.stem)
        spoken = code[1] if code and code[1] in LANGUAGE_NAMES else language
        text = " ".join(path.with_suffix(".txt").read_text(encoding="utf-8").split())
        found[path.stem] = Recording(path, text, spoken, _read_words(path.with_suffix(".json")))
    if not found:
        raise UsageError(
            f"{folder or SAMPLE} has no {' or '.join(only)} (.flac, with a .txt beside it): check --corpus and --only"
        )
    return sorted(found.values(), key=lambda recording: (recording.language, recording.path))


def _read_words(path: Path) -> tuple[SpokenWord, ...]:
    """Return the words of NAME.json; none without it, or if it has times of sentences, as nano.en's sample."""
    try:
        known = json.loads(path.read_bytes()) if path.is_file() else []
        return () if isinstance(known, list) else msgspec.convert(known["words"], tuple[SpokenWord, ...])
    except (ValueError, TypeError, KeyError) as error:
        raise AudioFileError(f"{path} has no word times ({error}): correct or delete it") from None
