"""OpenVINO graphs in files. OpenVINO checks most of what it reads, but some broken graphs crash it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import openvino as ov

from streamer.errors import ModelError
from streamer.whisper.files import readable

_READ = """
import sys
import openvino
for path in sys.argv[1:]:
    openvino.Core().read_model(path)
"""


def probe_graphs(paths: Sequence[Path]) -> None:
    """Read graphs of other programs in a process that may crash. Raises ModelError if it does, or one is missing."""
    for path in paths:
        _expect_files(path)
    command = [sys.executable, "-P", "-c", _READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    if done.returncode not in (0, 1):  # 1 is an exception, which `read_graph` reports
        names = ", ".join(path.name for path in paths)
        raise ModelError(
            f"{paths[0].parent} has graphs that crash OpenVINO (one of {names}; code {done.returncode}): they are"
            " damaged, or made to do harm; fetch them again from a place that you trust"
        )


def read_graph(path: Path) -> ov.Model:
    """Read a graph, its weights in the `.bin` file beside it; they stay on disk until they are used.

    A graph of another program needs `probe_graphs` first. Raises ModelError if a file is missing, truncated or damaged.
    """
    _expect_files(path)
    try:
        model = ov.Core().read_model(path)
        # A name that is not UTF-8 is a ValueError.
        _ = [node.get_friendly_name() for node in model.get_ops()]
        _ = [port.names for port in (*model.inputs, *model.outputs)]
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read ({first_line(error)}): it or {path.stem}.bin is damaged, or of a newer OpenVINO;"
            " fetch both again, or update openvino"
        ) from None
    return model


def first_line(error: Exception) -> str:
    """Return what an OpenVINO exception says, without its stack of source locations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = (line for line in reversed(lines) if not line.startswith(("Exception from", "Check")))
    return next(found, "no reason given")[:200]


def _expect_files(path: Path) -> None:
    for file in (path, path.with_suffix(".bin")):
        with readable(file):
            if not file.is_file():  # reading a pipe would wait
                raise ModelError(f"{file} is missing: expected a graph of OpenVINO in two files; fetch both again")
