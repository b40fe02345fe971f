"""OpenVINO graphs from elsewhere, read so that a broken or hostile file is one error.

OpenVINO itself checks syntax, offsets and lengths, but not whether they overflow, and crashes on some graphs (an
operation that lacks an input).
"""

import subprocess
import sys
from collections.abc import Sequence
from math import prod
from pathlib import Path
from xml.parsers import expat

import openvino as ov

from streamer.errors import ModelError
from streamer.whisper.files import readable

MAX_XML_BYTES = 64 << 20  # of a graph; the decoder of a large Whisper has some megabytes, without its weights
MAX_ELEMENTS = 1 << 32  # of a tensor inside of a graph; many times large-v3's
READ_TIMEOUT_S = 300.0  # some seconds are usual

# Reads graphs and ignores errors: the parent reads them again and reports these.
_PROBE = """
import sys
import openvino
for i, path in enumerate(sys.argv[1:]):
    print(i, flush=True)
    try:
        openvino.Core().read_model(path)
    except RuntimeError:
        pass
"""


def probe_graphs(paths: Sequence[Path]) -> None:
    """Read graphs in a process that may crash. Raises ModelError where it does, and where a file is no graph."""
    for path in paths:
        _scan(path)
    command = [sys.executable, "-P", "-c", _PROBE, *map(str, paths)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=False)  # noqa: S603
        output, problem = done.stdout, f"crashes (code {done.returncode})" if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"needs more than {READ_TIMEOUT_S:g} s"
    if problem:
        path = paths[int((output.split() or [b"0"])[-1])]
        raise ModelError(
            f"{path} cannot be read (OpenVINO {problem}): it is damaged, or made to do harm; fetch it again from a"
            " place that you trust"
        )


def read_graph(path: Path) -> ov.Model:
    """Read a graph, its weights in the `.bin` file beside it; they stay on disk until they are used.

    A graph from elsewhere needs `probe_graphs` first. Raises ModelError if one of the two is missing, truncated or not
    what it should be.
    """
    n_bytes = _scan(path)
    try:
        model = ov.Core().read_model(path)
        # A name that is not UTF-8 is a ValueError.
        nodes = [(node.get_friendly_name(), node) for node in model.get_ops()]
        _ = [port.names for port in (*model.inputs, *model.outputs)]
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"{path} cannot be read ({first_line(error)}): it is damaged, or of a newer OpenVINO; fetch it again, or"
            " update openvino"
        ) from None
    for name, node in nodes:
        for output in node.outputs():
            if output.partial_shape.is_dynamic:
                continue
            n_elements = prod(output.shape)
            stored = node.get_type_name() == "Constant"
            if n_elements > MAX_ELEMENTS or (stored and n_elements * output.element_type.bitwidth > 8 * n_bytes):
                raise ModelError(
                    f"{path} has {name!r:.60} of shape {output.partial_shape!s:.60}: more than its"
                    " weights hold; fetch it again"
                )
    return model


def first_line(error: Exception) -> str:
    """Return what an OpenVINO exception says, without its stack of source locations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = (line for line in reversed(lines) if not line.startswith(("Exception from", "Check")))
    return next(found, "no reason given")[:200]


def _scan(path: Path) -> int:
    """Return the size of a graph's weights in bytes. Raises ModelError unless both files are there and fit."""
    weights = path.with_suffix(".bin")
    needed = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal needed
        if name == "data" and "offset" in attributes and "size" in attributes:
            offset, size = int(attributes["offset"]), int(attributes["size"])
            if min(offset, size) < 0 or max(offset, size) >= 1 << 63:
                raise ValueError("a constant outside of all weights")
            needed = max(needed, offset + size)

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    with readable(path):
        for file in (path, weights):
            if not file.is_file():  # reading a pipe would wait
                raise ModelError(f"{file} is missing: expected a graph of OpenVINO in two files; fetch both again")
        if path.stat().st_size > MAX_XML_BYTES:
            raise ModelError(
                f"{path} has more than {MAX_XML_BYTES >> 20} MiB: expected a graph of some megabytes; fetch it again"
            )
        n_bytes = weights.stat().st_size
        try:
            with path.open("rb") as opened:
                parser.ParseFile(opened)
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise ModelError(
                f"{path} is not an OpenVINO graph ({error!s:.120}): expected XML that describes a net; fetch it again"
            ) from None
    if n_bytes < needed:
        raise ModelError(
            f"{weights} has {n_bytes} bytes, {path.name} needs {needed}: it is truncated, or of another graph; fetch"
            " both again"
        )
    return n_bytes
