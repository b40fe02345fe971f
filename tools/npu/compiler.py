"""Intel's NPU compiler as the Windows wheel of openvino carries it, run under wine64."""

import contextlib
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from streamer.errors import PeerError, StreamerError
from streamer.wheels import Wheel, download
from tools.benchmarks.processes import Meter, Server, ServerFailure

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


@dataclass(frozen=True, slots=True)
class Compiler:
    """A folder with the unpacked wheel, the program that calls it, and wine's files."""

    folder: Path

    @classmethod
    def install(cls, folder: Path) -> "Compiler":
        """Fetch and unpack the wheel, and build the program, unless that is done. Raises Unavailable."""
        for name, package in (("wine", "wine64"), (MINGW, "gcc-mingw-w64-x86-64")):
            if shutil.which(name) is None:
                raise Unavailable(f"{name} is not installed: it runs Intel's compiler; apt install {package}")
        program = folder / "openvino" / "libs" / "compile.exe"
        if not program.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            try:
                wheel = download(WHEEL, folder)
            except PeerError as error:
                raise Unavailable(f"{error}: Intel's compiler cannot be installed") from None
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if name.startswith("openvino/libs/")])
            wheel.unlink()
            command = [MINGW, "-O1", "-o", str(program), str(SOURCE), str(program.with_name("openvino_c.lib"))]
            built = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
            if built.returncode != 0:
                last = (built.stderr.strip() or "it printed nothing").splitlines()[-1]
                raise Unavailable(f"{MINGW} failed ({last:.200}): Intel's compiler cannot be installed")
        return cls(folder)

    def compile(self, model: Path, platform: str, properties: Mapping[str, object]) -> Compiled:
        """Compile a saved graph for an NPU; its blob is deleted. Raises Unavailable if the compiler does not start."""
        blob = model.with_suffix(f".{platform}.blob")
        # LOG_INFO prints the estimate.
        given = {"NPU_PLATFORM": platform, "NPU_COMPILER_TYPE": "PLUGIN", "LOG_LEVEL": "LOG_INFO", **properties}
        words = [str(word) for pair in given.items() for word in pair]
        program = self.folder / "openvino" / "libs" / "compile.exe"
        for attempt in range(ATTEMPTS):
            begin_s = time.monotonic()
            command = ["wine", str(program), _windows_path(model), _windows_path(blob), *words]
            peak_mb, printed = self._call(command)
            seconds = round(time.monotonic() - begin_s, 1)
            if blob.is_file():
                blob_mb = round(blob.stat().st_size / 1e6, 1)
                blob.unlink()
                found = re.findall(r"Estimated inference latency: ([\d.]+)", printed)
                return Compiled(float(found[-1]) if found else None, blob_mb, seconds, peak_mb)
            if "FAILED" in printed and not re.search(OUT_OF_MEMORY, printed):
                return Compiled(seconds=seconds, peak_mb=peak_mb, refused=why_refused(printed))
            if attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE_S)
        raise Unavailable(f"Intel's compiler ended without a result {ATTEMPTS} times: {printed[-300:]!r}")

    def _call(self, command: list[str]) -> tuple[float, str]:
        """Return the peak memory of a program in MB, and what it printed; it is killed after TIMEOUT_S."""
        wine = {"WINEPREFIX": str(self.folder / "wine"), "WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml="}
        variables = {**os.environ, **wine, "WINEPATH": _windows_path(self.folder / "openvino" / "libs")}
        process = Server("Intel's compiler", command, variables)
        try:
            with Meter(process) as meter, contextlib.suppress(ServerFailure):  # what it printed says why it failed
                process.wait_ended(TIMEOUT_S)
            return round(meter.peak_rss_mb, 1), process.log()
        finally:
            process.stop()


def why_refused(printed: str) -> str:
    """Return why the compiler refused a graph: what its passes reported, else the end of its message."""
    reasons = re.findall(r"\[ERROR\] [\d:.]+ (.+)", printed) or [printed.rpartition("FAILED ")[2]]
    return " ".join(reasons[0].split())[-300:]


def _windows_path(path: Path) -> str:
    """Return a path as programs under wine see it."""
    return "Z:" + str(path.absolute()).replace("/", "\\")
