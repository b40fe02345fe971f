"""A long recording through faster-whisper's batched pipeline, or through openvino-genai's `WhisperPipeline`.

    python -P whole_file.py SYSTEM '{"model": ..., "audio": ..., "output": ..., "n_threads": ..., "n_beams": ...}'

Run by the interpreter of the system's own environment, so it imports nothing of ours. Writes the text to a file, and
prints how long it loaded.
"""

import json
import sys
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH_SIZE = 8


def faster_whisper(task: dict[str, Any], samples: NDArray[np.float32]) -> tuple[str, float]:
    """Transcribe with silence cut away first, in windows of up to 30 s, eight at once, in 8-bit arithmetic."""
    import faster_whisper

    begin_s = time.perf_counter()
    model = faster_whisper.WhisperModel(
        task["model"], device="cpu", compute_type="int8", cpu_threads=task["n_threads"], local_files_only=True
    )
    pipeline = faster_whisper.BatchedInferencePipeline(model)
    loaded_s = time.perf_counter() - begin_s
    segments, _ = pipeline.transcribe(
        samples, batch_size=BATCH_SIZE, vad_filter=True, language="en", beam_size=task["n_beams"]
    )
    return " ".join(segment.text for segment in segments), loaded_s


def openvino_genai(task: dict[str, Any], samples: NDArray[np.float32]) -> tuple[str, float]:
    """Transcribe window after window of 30 s; it has neither beams nor batches for Whisper."""
    import openvino_genai

    begin_s = time.perf_counter()
    pipeline = openvino_genai.WhisperPipeline(task["model"], "CPU", INFERENCE_NUM_THREADS=task["n_threads"])
    loaded_s = time.perf_counter() - begin_s
    config = pipeline.get_generation_config()
    config.language = "<|en|>"
    config.task = "transcribe"
    return str(pipeline.generate(samples, config)), loaded_s


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    with wave.open(asked["audio"]) as file:
        heard = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / np.float32(32768)
    transcribe = {"faster-whisper": faster_whisper, "openvino-genai": openvino_genai}[sys.argv[1]]
    text, load_s = transcribe(asked, heard)
    Path(asked["output"]).write_text(text, encoding="utf-8")
    print(f"loaded in {load_s:.2f} s")
