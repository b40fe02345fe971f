"""People whose voices are known by name: one small file each, in a folder of the user's."""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import platformdirs

from streamer.arrays import Float32Array
from streamer.errors import ConfigError, UsageError

# Of a vector of this length are those of the one network that there is.
N_VALUES = 192

_SUFFIX = ".voice.json"
_MAX_FILE_BYTES = 1 << 16
_MAX_PEOPLE = 1000
_MAX_NAME = 60


class _Voice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file holds. `model` is the digest of the weights that the vector comes from."""

    name: str
    model: str
    vector: Annotated[list[float], msgspec.Meta(min_length=N_VALUES, max_length=N_VALUES)]


def enrolled_folder(setting: str) -> Path:
    """Return the folder that `speakers.enrolled` names."""
    return Path(setting).expanduser() if setting else platformdirs.user_data_path("streamer", appauthor=False) / "voices"


def read_enrolled(folder: Path, model: str) -> dict[str, Float32Array]:
    """Return each person's vector, of length 1, by name.

    model : digest of the weights; voices that were enrolled with others are refused

    Raises ConfigError where a file is damaged.
    """
    return {voice.name: _as_vector(voice, path, model) for path, voice in _read_all(folder)}


def names_of(folder: Path) -> list[str]:
    """Return who is enrolled. Raises ConfigError where a file is damaged."""
    return sorted(voice.name for _, voice in _read_all(folder))


def enrol(folder: Path, name: str, model: str, vector: Float32Array) -> None:
    """Keep a person's vector in place of the one that was. Raises UsageError where the name, or the folder, will not do."""
    if not name.isprintable() or not name.strip() or len(name) > _MAX_NAME or re.fullmatch(r"\s*S\d+\s*", name):
        raise UsageError(
            f"{name!r:.100} cannot be a speaker's name: expected up to {_MAX_NAME} characters that can be printed, and"
            " no label such as S1"
        )
    data = msgspec.json.encode(_Voice(name.strip(), model, [float(value) for value in vector]))
    path = _path(folder, name.strip())
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A voice is nobody else's business.
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to ({error.strerror}): name another in speakers.enrolled") from None


def forget(folder: Path, name: str) -> None:
    """Delete what is kept of a person. Raises UsageError where nothing is."""
    try:
        _path(folder, name.strip()).unlink()
    except FileNotFoundError:
        raise UsageError(f"nobody is enrolled as {name!r:.100}: `streamer speakers list` shows who is") from None
    except OSError as error:
        raise UsageError(f"what is kept of {name!r:.100} cannot be deleted ({error.strerror})") from None


def _path(folder: Path, name: str) -> Path:
    """Names may be anything, and so are no names of files."""
    return folder / f"{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}{_SUFFIX}"


def _read_all(folder: Path) -> list[tuple[Path, _Voice]]:
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"))[:_MAX_PEOPLE]
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read ({error.strerror}): see speakers.enrolled") from None
    return [(path, _read(path)) for path in paths]


def _read(path: Path) -> _Voice:
    try:
        with path.open("rb") as file:
            voice = msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=_Voice)
        if path != _path(path.parent, voice.name) or not voice.name.isprintable():
            raise ValueError("it is of another name")
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} holds no voice ({str(error)!r:.100}): expected what `streamer speakers enrol` writes; delete it and"
            " enrol the person again"
        ) from None
    return voice


def _as_vector(voice: _Voice, path: Path, model: str) -> Float32Array:
    vector = np.array(voice.vector, dtype=np.float64)
    length = float(np.linalg.norm(vector))
    if voice.model != model or not 0.5 < length < 2.0:
        raise ConfigError(f"{path} is of another model of speakers, or damaged: delete it and enrol the person again")
    return (vector / length).astype(np.float32)
