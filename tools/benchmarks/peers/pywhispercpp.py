"""The driver of pywhispercpp: whisper.cpp on a file of 8-bit blocks (q8_0)."""

import importlib.metadata

import _pywhispercpp
import pywhispercpp.model

from tools.benchmarks.windows import Samples, Task, Transcribe, Window, serve


def load(task: Task) -> tuple[str, Transcribe]:
    """Load a `ggml` file."""
    model = pywhispercpp.model.Model(
        task.model,
        n_threads=task.n_threads,
        language="en",
        no_timestamps=True,
        single_segment=True,
        max_tokens=task.n_tokens - 1,  # it stops behind this many
        temperature_inc=0.0,
        greedy={"best_of": 1},
        print_progress=False,
    )

    def transcribe(samples: Samples) -> Window:
        model.transcribe(samples)
        segments = range(_pywhispercpp.whisper_full_n_segments(model._ctx))
        n_tokens = sum(_pywhispercpp.whisper_full_n_tokens(model._ctx, i) for i in segments)
        return Window(n_tokens=n_tokens)

    return importlib.metadata.version("pywhispercpp"), transcribe


if __name__ == "__main__":
    serve(load)
