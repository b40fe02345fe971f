"""One step of what a model takes in memory, in a process of its own: prints what was read as JSON, and ends.

A step has nothing of another's: what was freed may stay with the process, and what was compiled may be shared.
"""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import openvino as ov

from streamer.audio.constants import SAMPLE_RATE
from streamer.audio.mel import log_mel
from streamer.whisper.device.compile import Compilation
from streamer.whisper.device.devices import DeviceSettings, available_devices, plan_stages
from streamer.whisper.model import LoadOptions, load_model
from streamer.whisper.source import read_model

PAGE_BYTES = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096

# Tokens to decode of each window.
N_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Step:
    """What to do."""

    # A directory of saved graphs.
    model: str

    # "graphs" compiles all, and keeps the one of that name, or none; "model" loads it and uses it.
    what: str
    graph: str = ""

    # Where compiled graphs are kept.
    cache_dir: str = ""

    # None: the model's own.
    windows_s: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process, in MB of 2^20 bytes."""

    # Of no file: nobody else can have it.
    private: float

    # Pages of mapped files that are in memory: programs, libraries, weights.
    mapped: float

    @classmethod
    def of(cls, pid: int | str = "self") -> "Memory":
        """Read that of a process. Raises OSError where the system does not tell, as only Linux does."""
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.endswith("kB")}
        return cls(kilobytes["Anonymous"] / 1024, (kilobytes["Rss"] - kilobytes["Anonymous"]) / 1024)


def run(step: Step) -> dict[str, object]:
    """Do a step; return what was read of memory, by what had been done, and more."""
    readings = {"program": _settled()}
    if step.what == "graphs":
        return _graphs(step, readings)
    return _model(step, readings)


def _graphs(step: Step, readings: dict[str, Memory]) -> dict[str, object]:
    compilation = _compilation(step)
    compilation.compile()
    names = [str(graph) for graph in compilation.compiled]
    compiled = next((c for graph, c in compilation.compiled.items() if str(graph) == step.graph), None)
    del compilation
    readings["compiled"] = _settled()
    if compiled is not None:
        request = _use(compiled)
        readings["used"] = _settled()
        del request
    return {"readings": _as_json(readings), "graphs": names}


def _model(step: Step, readings: dict[str, Memory]) -> dict[str, object]:
    devices = DeviceSettings("CPU")
    model = load_model(
        step.model, LoadOptions(devices, cache_dir=step.cache_dir, n_beams=None, windows_s=step.windows_s)
    )
    readings["loaded"] = _settled()
    runtime = model.runtime
    for window_s in runtime.windows_s:
        mel = log_mel(np.zeros(window_s * SAMPLE_RATE, dtype=np.float32), model.dims.n_mels)
        decoder = runtime.decoder_of(runtime.encode(mel, 0))
        decoder.feed([model.tokenizer.special.start_of_transcript] * N_TOKENS)
        decoder.feed([model.tokenizer.special.start_of_transcript])
    readings["used"] = _settled()
    return {"readings": _as_json(readings)}


def _compilation(step: Step) -> Compilation:
    source = read_model(Path(step.model), "measured")
    return Compilation(
        source.graphs,
        plan_stages(DeviceSettings("CPU"), available_devices()),
        n_beams=source.generation.stream_beams,
        windows_s=source.generation.windows_s if step.windows_s is None else step.windows_s,
        cache_dir=Path(step.cache_dir),
        model=step.model,
    )


def _use(compiled: ov.CompiledModel) -> ov.InferRequest:
    """Compute once for one window, at the largest other sizes that a graph takes."""
    request = compiled.create_infer_request()
    # Of a batch. Windows, or their tokens, come first in all inputs.
    n_windows = min(port.partial_shape.get_max_shape()[0] for port in compiled.inputs)
    for port in compiled.inputs:
        first, *others = port.partial_shape.get_max_shape()
        tensor = ov.Tensor(port.element_type, ov.Shape([first // n_windows, *others]))
        # Large ones are the caller's, and take nothing until somebody writes to them.
        if tensor.byte_size < PAGE_BYTES:
            tensor.data[:] = 0
        request.set_tensor(port, tensor)
    request.infer()
    return request


def _settled() -> Memory:
    """Read the memory that is in use, without what was freed and not given back."""
    gc.collect()
    if sys.platform == "linux":
        trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)  # glibc's
        trim(0)
    return Memory.of()


def _as_json(readings: dict[str, Memory]) -> dict[str, object]:
    return {done: asdict(memory) for done, memory in readings.items()}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(run(Step(**{**given, "windows_s": given["windows_s"] and tuple(given["windows_s"])}))))
