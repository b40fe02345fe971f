"""Archives as `torch.save` writes them, around any pickle."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(
    path: Path, program: bytes, storages: Mapping[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("model/data.pkl", program)
        archive.writestr("model/byteorder", "little")
        for key, data in (storages or {}).items():
            archive.writestr(f"model/data/{key}", data)
        archive.writestr("model/version", "3\n")
    return path


def change_archive(path: Path, changes: Mapping[str, bytes | None]) -> Path:
    """Replace members, by their name without the folder, add them, or take them out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    folder = next(iter(members)).partition("/")[0]
    changed = {**members, **{f"{folder}/{name}": data for name, data in changes.items()}}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in changed.items():
            if data is not None:
                archive.writestr(name, data)
    return path
