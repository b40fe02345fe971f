"""Recordings through another program, as its own command transcribes them: five beams, and fallback.

    python -P whole_file.py SYSTEM '{"model": PATH, "language": "en", "audio": FOLDER, "output": FOLDER}'

Run by the interpreter of the system's own environment, so it imports nothing of ours. Reads each NAME.wav (16 kHz mono,
16 bits), and writes its text to NAME.txt, which appears when it is complete.
"""

import json
import sys
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Recordings = Iterable[NDArray[np.float32]]


def faster_whisper(model: str, language: str, recordings: Recordings) -> Iterator[list[str]]:
    """Transcribe with the filter of its speech detector."""
    import faster_whisper

    loaded = faster_whisper.WhisperModel(model, device="cpu", local_files_only=True)
    for samples in recordings:
        segments, _ = loaded.transcribe(samples, language=language, beam_size=5, vad_filter=True)
        yield [segment.text for segment in segments]


def openai_whisper(model: str, language: str, recordings: Recordings) -> Iterator[list[str]]:
    """Transcribe with the defaults of the command `whisper`."""
    import whisper

    loaded = whisper.load_model(model, device="cpu")
    for samples in recordings:
        found = whisper.transcribe(loaded, samples, language=language, beam_size=5, best_of=5, fp16=False)
        yield _texts(found)


def mlx_whisper(model: str, language: str, recordings: Recordings) -> Iterator[list[str]]:
    """Transcribe greedily, which is all that it can."""
    import mlx_whisper

    options = {"path_or_hf_repo": model, "language": language, "fp16": False, "temperature": 0.0}
    for samples in recordings:
        yield _texts(mlx_whisper.transcribe(samples, **options))


def pywhispercpp(model: str, language: str, recordings: Recordings) -> Iterator[list[str]]:
    """Transcribe greedily."""
    import pywhispercpp.model

    for samples in recordings:
        loaded = pywhispercpp.model.Model(model, language=language, temperature_inc=0.0, print_progress=False)
        yield [segment.text for segment in loaded.transcribe(samples)]


def _texts(found: dict[str, Any]) -> list[str]:
    return [segment["text"] for segment in found["segments"]]


def _read(path: Path) -> NDArray[np.float32]:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return samples.astype(np.float32) / np.float32(32768)


if __name__ == "__main__":
    system = globals()[sys.argv[1].replace("-", "_")]
    task = json.loads(sys.argv[2])
    paths = sorted(Path(task["audio"]).glob("*.wav"))
    texts = system(task["model"], task["language"], map(_read, paths))
    for path, lines in zip(paths, texts, strict=True):
        partial = Path(task["output"]) / f"{path.stem}.partial"
        partial.write_text("\n".join([*(line.strip() for line in lines), ""]), encoding="utf-8")
        partial.replace(partial.with_suffix(".txt"))
