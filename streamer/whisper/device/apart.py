"""Graphs that may abort the process that compiles them, compiled in another one first.

Compilers of NPUs reject some weights of 4 bits, and one ends the process instead. What the other process has compiled
lies in the cache, from where this one only loads it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import openvino as ov

from streamer.errors import InferenceError
from streamer.whisper.ir import first_line, read_graph

# A large decoder takes an NPU's compiler some minutes.
_TIMEOUT_S = 1800.0

_COMPILE = """
import json, sys
import openvino
path, device, properties = sys.argv[1:]
try:
    core = openvino.Core()
    core.compile_model(core.read_model(path), device, json.loads(properties))
except RuntimeError as error:
    sys.exit(str(error))
"""


def may_abort(model: ov.Model, device: str) -> bool:
    """Tell whether a device's compiler has been seen to end the process at graphs like this one."""
    small = {ov.Type.i4, ov.Type.u4}
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    return device.startswith("NPU") and any(node.get_element_type() in small for node in constants)


class WrittenGraph(AbstractContextManager["WrittenGraph"]):
    """A graph in a file while it is compiled: OpenVINO's cache knows it by what is read from there."""

    def __init__(self, model: ov.Model) -> None:
        """Write the graph. Raises InferenceError where that fails."""
        # OpenVINO numbers operations through all graphs of a process, and its cache looks at these names.
        for i, node in enumerate(model.get_ordered_ops()):
            node.set_friendly_name(f"{node.get_type_name()}_{i}")
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)
        self._path = Path(self._folder.name) / "graph.xml"
        try:
            ov.save_model(model, self._path, compress_to_fp16=False)
        except RuntimeError as error:
            self._folder.cleanup()
            raise InferenceError(f"{self._path} cannot be written ({first_line(error)}): make room") from None

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()

    def read(self) -> ov.Model:
        """Return the graph to be compiled in this process."""
        return read_graph(self._path)

    def try_out(self, device: str, properties: Mapping[str, object], directory: Path | None) -> None:
        """Compile the graph in a process of its own. Raises InferenceError where that fails, or ends the process.

        directory : where OpenVINO is to keep what is compiled; None: nowhere
        """
        given = {**properties, **({"CACHE_DIR": str(directory)} if directory else {})}
        command = [sys.executable, "-P", "-c", _COMPILE, str(self._path), device, json.dumps(given)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
            said = first_line(RuntimeError(done.stderr.decode("utf-8", "replace"))) if done.returncode == 1 else ""
            problem = said or (f"its compiler ends the process, code {done.returncode}" if done.returncode else "")
        except subprocess.TimeoutExpired:
            problem = f"its compiler needs more than {_TIMEOUT_S:g} s"
        if problem:
            raise InferenceError(
                f"{device} cannot compile weights of 4 bits ({problem}): update its driver, or convert the model with"
                " --weights int8-sym"
            )
