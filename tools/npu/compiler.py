"""Intel's NPU compiler as the Windows wheel of openvino carries it, run under wine64."""

import contextlib
import os
import re
import shutil
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from streamer.errors import PeerError, StreamerError
from streamer.wheels import Wheel, download
from tools.benchmarks.processes import Meter, Server, ServerFailure, run

WHEEL = Wheel(
    "openvino==2026.4.1",
    "openvino-2026.4.1-22982-cp312-cp312-win_amd64.whl",
    84_964_415,
    "4e04316abff1b99e29b8cbd38deaef9bde4739eba216d982d4b3981e456ecd87",
    ("--platform=win_amd64", "--python-version=3.12"),
)

# Meteor and Arrow Lake, Lunar Lake, Panther Lake.
PLATFORMS = ("3720", "4000", "5010")

# An encoder of large models takes minutes on a quiet machine.
TIMEOUT_S = 3600.0

# A compiler that ends without an answer, such as one that the system killed for its memory, is started again.
ATTEMPTS = 2
PAUSE_S = 60.0
OUT_OF_MEMORY = r"(?i)bad_alloc|bad allocation|out of memory|not enough memory"

SOURCE = Path(__file__).with_name("compile.c")
MINGW = "x86_64-w64-mingw32-gcc"
PROGRAM = Path("openvino", "libs", "compile.exe")  # in the folder


class Unavailable(StreamerError):  # noqa: N818 - the machine lacks something
    """Wine, mingw or the wheel is missing; the message says which."""


class Compiled(msgspec.Struct, frozen=True, omit_defaults=True):
    """What compiling one graph for one platform gave."""

    # The compiler's own cost model; None if it refused the graph or prints none.
    estimate_us: float | None = None
    blob_mb: float | None = None

    # Of the compiler, on the machine that ran it.
    seconds: float = 0.0
    peak_mb: float = 0.0

    # Why the graph was refused; empty if it was not.
    refused: str = ""


def install(folder: Path) -> None:
    """Fetch and unpack the wheel, and build the program, unless that is done. Raises Unavailable."""
    for name, package in (("wine", "wine64"), (MINGW, "gcc-mingw-w64-x86-64")):
        if shutil.which(name) is None:
            raise Unavailable(f"{name} is not installed: it runs Intel's compiler; apt install {package}")
    program = folder / PROGRAM
    if program.is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        wheel = download(WHEEL, folder)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith("openvino/libs/")])
        wheel.unlink()
        command = [MINGW, "-O1", "-o", str(program), str(SOURCE), str(program.with_name("openvino_c.lib"))]
        run(MINGW, command, os.environ, TIMEOUT_S)
    except (PeerError, ServerFailure) as error:
        raise Unavailable(f"{error}: Intel's compiler cannot be installed") from None


def compile_graph(folder: Path, model: Path, platform: str, properties: Mapping[str, object]) -> Compiled:
    """Compile a saved graph for an NPU; its blob is deleted. Raises Unavailable if the compiler does not start.

    folder : in which the compiler was installed
    """
    blob = model.with_suffix(f".{platform}.blob")
    # LOG_INFO prints the estimate.
    given = {"NPU_PLATFORM": platform, "NPU_COMPILER_TYPE": "PLUGIN", "LOG_LEVEL": "LOG_INFO", **properties}
    paths = [_windows_path(path) for path in (model, blob)]
    command = ["wine", str(folder / PROGRAM), *paths, *(str(word) for pair in given.items() for word in pair)]
    wine = {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
    variables = {**os.environ, **wine, "WINEPATH": _windows_path((folder / PROGRAM).parent)}
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_S if attempt else 0.0)
        begin_s = time.monotonic()
        process = Server("Intel's compiler", command, variables)
        try:
            with Meter(process) as meter, contextlib.suppress(ServerFailure):  # what it printed says why it failed
                process.wait_ended(TIMEOUT_S)
            printed = process.log()
        finally:
            process.stop()
        seconds, peak_mb = round(time.monotonic() - begin_s, 1), round(meter.peak_rss_mb, 1)
        if blob.is_file():
            blob_mb = round(blob.stat().st_size / 1e6, 1)
            blob.unlink()
            found = re.findall(r"Estimated inference latency: ([\d.]+)", printed)
            return Compiled(float(found[-1]) if found else None, blob_mb, seconds, peak_mb)
        if "FAILED" in printed and not re.search(OUT_OF_MEMORY, printed):
            return Compiled(seconds=seconds, peak_mb=peak_mb, refused=why_refused(printed))
    raise Unavailable(f"Intel's compiler ended without a result {ATTEMPTS} times: {printed[-300:]!r}")


def why_refused(printed: str) -> str:
    """Return why the compiler refused a graph: what its passes reported, else the end of its message."""
    reasons = re.findall(r"\[ERROR\] [\d:.]+ (.+)", printed) or [printed.rpartition("FAILED ")[2]]
    return " ".join(reasons[0].split())[-300:]


def _windows_path(path: Path) -> str:
    """Return a path as programs under wine see it."""
    return "Z:" + str(path.absolute()).replace("/", "\\")
