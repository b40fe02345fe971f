"""A driver that does what the name of its model says."""

import os
import time

from tools.benchmarks.windows import Samples, Task, Transcribe, Window, serve


def load(task: Task) -> tuple[str, Transcribe]:
    if task.model == "mute":
        os._exit(3)
    if task.model not in ("well", "talks", "breaks", "hangs", "short"):
        raise ValueError(task.model)
    if task.model == "talks":
        print("loading, please wait")
        os.write(1, b"and from below\n")

    def transcribe(samples: Samples) -> Window:
        if task.model == "breaks":
            raise RuntimeError("out of memory")
        if task.model == "hangs":
            time.sleep(600)
        n_tokens = task.n_tokens - (task.model == "short")
        return Window(n_tokens=n_tokens, encode_s=float(samples.sum()))

    return "1.0", transcribe


if __name__ == "__main__":
    serve(load)
