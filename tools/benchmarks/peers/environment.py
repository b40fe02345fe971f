"""A virtual environment for each peer, so that its packages never meet ours."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import psutil

from streamer.errors import StreamerError
from tools.benchmarks import processes
from tools.benchmarks.processes import ServerFailure

# The build for CPUs; a later or an unpinned one brings gigabytes for graphics cards.
TORCH = "torch==2.13.0"

INSTALL_TIMEOUT_S = 1800.0  # for one call of pip, or of what converts a model
RUN_TIMEOUT_S = 600.0  # for one program of a peer's


class PeerUnavailable(StreamerError):  # noqa: N818 - a state of the world, not a fault of ours
    """A peer that cannot be installed or started; the message says why."""

    code = "peer_unavailable"


def default_folder() -> Path:
    """Return the folder of the environments if none is named."""
    return platformdirs.user_cache_path("streamer") / "peers"


@dataclass(frozen=True, slots=True)
class Environment:
    """What is installed for a peer: pinned, by one call of `pip install` after the other."""

    name: str

    # The arguments of each call.
    installs: tuple[tuple[str, ...], ...]

    def python(self, folder: Path) -> Path:
        """Return the environment's interpreter; it is installed unless `folder` holds it. Raises PeerUnavailable."""
        place = folder / self.name
        interpreter = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
        record = place / "installed.json"  # what was installed, once that is complete
        wanted = json.dumps({"python": sys.version.split()[0], "installs": self.installs})
        if interpreter.is_file() and record.is_file() and record.read_text(encoding="utf-8") == wanted:
            return interpreter
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if place.exists():
                shutil.rmtree(place)
        except OSError as error:
            raise PeerUnavailable(
                f"{self.name}: cannot write {place} ({error.strerror}); name another folder with --peers-folder DIR"
            ) from None
        run(f"venv of {self.name}", [sys.executable, "-m", "venv", str(place)])
        for packages in self.installs:
            command = [str(interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *packages]
            run(f"pip install {' '.join(packages)}", command, INSTALL_TIMEOUT_S)
        record.write_text(wanted, encoding="utf-8")
        return interpreter


def run(what: str, command: Sequence[str], timeout_s: float = RUN_TIMEOUT_S) -> None:
    """Run a program of a peer's, or one that installs it, to its end.

    Raises PeerUnavailable if it fails; the message begins with `what`.
    """
    try:
        processes.run(what, command, variables_of_peer(), timeout_s)
    except ServerFailure as failure:
        raise PeerUnavailable(str(failure)) from None


def variables_of_peer(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that a peer runs with: all the cores we have, and no downloads."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("STREAMER_", "PYTHONPATH"))},
        "OMP_NUM_THREADS": str(n_cores()),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        **(more or {}),
    }


def n_cores() -> int:
    """Return how many processor cores this process, and what it starts, may use."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return len(process.cpu_affinity())
    return os.cpu_count() or 1
