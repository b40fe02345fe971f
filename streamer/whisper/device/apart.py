"""Graphs that may abort the process that compiles them, compiled in another one first.

Compilers of NPUs reject some weights of 4 bits, and one ends the process instead. This process then loads what the
other one has compiled from the cache.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import openvino as ov

from streamer.errors import InferenceError
from streamer.whisper.ir import first_line

_COMPILE = """
import json, sys
import openvino
path, device, properties = sys.argv[1:]
core = openvino.Core()
core.compile_model(core.read_model(path), device, json.loads(properties))
"""


def may_abort(model: ov.Model, device: str) -> bool:
    """Return whether a device's compiler is known to end the process at graphs like this one."""
    small = {ov.Type.i4, ov.Type.u4}
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    return device.startswith("NPU") and any(node.get_element_type() in small for node in constants)


@contextmanager
def written(model: ov.Model) -> Iterator[Path]:
    """Write a graph to a file while it is compiled: OpenVINO's cache knows it by what is read from there.

    Raises InferenceError if it cannot be written.
    """
    # OpenVINO numbers operations through all graphs of a process, and its cache compares these names.
    for i, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"{node.get_type_name()}_{i}")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "graph.xml"
        try:
            ov.save_model(model, path, compress_to_fp16=False)
        except RuntimeError as error:
            raise InferenceError(f"{path} cannot be written ({first_line(error)}): make room") from None
        yield path


def compile_apart(path: Path, device: str, properties: Mapping[str, object]) -> None:
    """Compile a graph in a process of its own. Raises InferenceError if that fails, or ends the process."""
    command = [sys.executable, "-P", "-c", _COMPILE, str(path), device, json.dumps(properties)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        reason = first_line(RuntimeError(done.stderr.decode("utf-8", "replace")))
        problem = reason if done.returncode == 1 else f"its compiler ends the process, code {done.returncode}"
        raise InferenceError(
            f"{device} cannot compile weights of 4 bits ({problem}): update its driver, or use the original"
            " checkpoint with --weights int8-sym"
        )
