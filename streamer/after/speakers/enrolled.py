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
from streamer.packed_models import SPEAKERS

_N_VALUES = 192
_SUFFIX = ".voice.json"
_MAX_FILE_BYTES = 1 << 16
_NAME = re.compile(r"(?!S\d+$)\S(.{0,58}\S)?")


class _Voice(msgspec.Struct, frozen=True):
    """What a file holds. `model` is the digest of the weights that the vector was found with."""

    name: str
    model: str
    vector: Annotated[
        list[Annotated[float, msgspec.Meta(ge=-1.1, le=1.1)]], msgspec.Meta(min_length=_N_VALUES, max_length=_N_VALUES)
    ]


def enrolled_folder(setting: str) -> Path:
    """Return the folder that `speakers.enrolled` names."""
    return (
        Path(setting).expanduser() if setting else platformdirs.user_data_path("streamer", appauthor=False) / "voices"
    )


def path_of(folder: Path, name: str) -> Path:
    """Return the file of a person's vector. A name may be anything that can be printed: no file can be named so.

    Raises UsageError if it is no name.
    """
    if not name.isprintable() or not _NAME.fullmatch(name):
        raise UsageError(
            f"invalid speaker's name {name!r:.100}: expected 1 to 60 printable characters without spaces around them,"
            " and not a label such as S1"
        )
    return folder / f"{hashlib.sha256(name.encode('utf-8')).hexdigest()[:32]}{_SUFFIX}"


def read_enrolled(folder: Path) -> dict[str, Float32Array]:
    """Return each person's vector, of length 1, by name. Raises ConfigError if a file is damaged."""
    return dict(sorted(_read(path) for path in folder.glob(f"*{_SUFFIX}")))


def enrol(folder: Path, name: str, vector: Float32Array) -> None:
    """Keep a person's vector in place of the one that was. Raises UsageError if it cannot be written."""
    path = path_of(folder, name)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Readable by the user alone.
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(_Voice(name, SPEAKERS.file.sha256, vector.tolist())))
        partial.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder} ({error.strerror}): expected a folder of yours; choose another with"
            " speakers.enrolled"
        ) from None


def forget(folder: Path, name: str) -> None:
    """Delete the file of a person. Raises UsageError if it is missing."""
    try:
        path_of(folder, name).unlink()
    except OSError as error:
        raise UsageError(
            f"cannot forget {name!r:.100} in {folder} ({error.strerror}): expected an enrolled speaker; `streamer"
            " speakers list` shows them"
        ) from None


def _read(path: Path) -> tuple[str, Float32Array]:
    try:
        with path.open("rb") as file:
            voice = msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=_Voice)
        vector = np.array(voice.vector, dtype=np.float64)
        if path != path_of(path.parent, voice.name) or not 0.9 < np.linalg.norm(vector) < 1.1:
            raise ValueError("changed since it was written")
        if voice.model != SPEAKERS.file.sha256:
            raise ValueError("made with another model")
    except (OSError, ValueError, RecursionError, UsageError) as error:
        raise ConfigError(
            f"cannot read the voice in {path} ({str(error)!r:.100}): expected a file of `streamer speakers enrol`;"
            " delete it, and enrol the person again"
        ) from None
    return voice.name, vector.astype(np.float32)
