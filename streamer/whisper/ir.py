"""OpenVINO graphs in files. OpenVINO checks most of what it reads, but some broken graphs crash it."""

import os
import re
import subprocess
import sys
import tempfile
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


# How a layer begins in a file of OpenVINO's, with its name, and what may follow.
_LAYER = re.compile(r'<layer id="\d+" name="([^"]*)" type="Convert"[^>]*>')
_MARK = '<rt_info><attribute name="decompression" version="0" /></rt_info>'


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


def write_graph(model: ov.Model, path: Path) -> None:
    """Write a graph, and its weights beside it in a `.bin` file; the graph has the same time whenever it is written.

    Other processes see whole files. Raises OSError or RuntimeError if it cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as directory:
        written = Path(directory) / path.name
        ov.serialize(model, written)
        # OpenVINO forgets what Python has marked (see `types.mark_half_weights`).
        marked = {node.get_friendly_name() for node in model.get_ops() if "decompression_0" in node.get_rt_info()}
        text = _LAYER.sub(
            lambda layer: layer[0] + (_MARK if layer[1] in marked else ""), written.read_text(encoding="utf-8")
        )
        written.write_text(text, encoding="utf-8", newline="\n")
        os.utime(written, (0, 0))
        for file in (written.with_suffix(".bin"), written):
            file.replace(path.with_suffix(file.suffix))


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
