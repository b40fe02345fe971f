"""Recordings through another program, as its own command transcribes them: five beams, and fallback.

    python -P whole_file.py SYSTEM '{"model": PATH, "language": "en", "audio": FOLDER, "output": FOLDER}'

Run by the interpreter of the system's own environment, so it imports nothing of ours. Reads each NAME.wav (16 kHz mono,
16 bits), and writes its text to NAME.txt, which appears when it is complete.
"""

import json
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Transcribe = Callable[[NDArray[np.float32], str], list[str]]


def faster_whisper(model: str) -> Transcribe:
    """Transcribe with the filter of its speech detector."""
    import faster_whisper

    loaded = faster_whisper.WhisperModel(model, device="cpu", local_files_only=True)

    def transcribe(samples: NDArray[np.float32], language: str) -> list[str]:
        segments, _ = loaded.transcribe(samples, language=language, beam_size=5, vad_filter=True)
        return [segment.text for segment in segments]

    return transcribe


def openai_whisper(model: str) -> Transcribe:
    """Transcribe with the defaults of the command `whisper`."""
    import whisper

    loaded = whisper.load_model(model, device="cpu")

    def transcribe(samples: NDArray[np.float32], language: str) -> list[str]:
        found = whisper.transcribe(loaded, samples, language=language, beam_size=5, best_of=5, fp16=False)
        return [segment["text"] for segment in found["segments"]]

    return transcribe


def mlx_whisper(model: str) -> Transcribe:
    """Transcribe greedily, which is all that it can."""
    import mlx_whisper

    def transcribe(samples: NDArray[np.float32], language: str) -> list[str]:
        found = mlx_whisper.transcribe(samples, path_or_hf_repo=model, language=language, fp16=False, temperature=0.0)
        return [segment["text"] for segment in found["segments"]]

    return transcribe


def pywhispercpp(model: str) -> Transcribe:
    """Transcribe greedily."""
    import pywhispercpp.model

    def transcribe(samples: NDArray[np.float32], language: str) -> list[str]:
        loaded = pywhispercpp.model.Model(model, language=language, temperature_inc=0.0, print_progress=False)
        return [segment.text for segment in loaded.transcribe(samples)]

    return transcribe


SYSTEMS = {
    "faster-whisper": faster_whisper,
    "openai-whisper": openai_whisper,
    "mlx-whisper": mlx_whisper,
    "pywhispercpp": pywhispercpp,
}

if __name__ == "__main__":
    task = json.loads(sys.argv[2])
    transcribe = SYSTEMS[sys.argv[1]](task["model"])
    for path in sorted(Path(task["audio"]).glob("*.wav")):
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / np.float32(
                32768
            )
        lines = [text.strip() for text in transcribe(samples, task["language"])]
        partial = Path(task["output"]) / f"{path.stem}.partial"
        partial.write_text("\n".join([*lines, ""]), encoding="utf-8")
        partial.replace(partial.with_suffix(".txt"))
