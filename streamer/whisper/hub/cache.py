"""The Hub's usual cache, where other programs find models too: which of them are here, whole and right.

A model counts as here when all files that its loader needs are in the cache and each was once held against the digest
that the hub promised; a record beside the snapshot says so. Such a model is used without asking anybody. Layout of the
cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
from huggingface_hub import constants

from streamer.errors import ModelError, StreamerError
from streamer.wheels import INDEX
from streamer.whisper.files import write_text
from streamer.whisper.hub.files import choose
from streamer.whisper.hub.published import ALIASES, PACKAGED, PUBLISHED

# Without one of these sets a snapshot that another program left may be half of one; the second is faster-whisper's.
_SURE_SIGNS = (
    {"config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"},
    {"config.json", "model.bin", "tokenizer.json"},
)

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:/(?P<file>(?:{_WORD}/){{0,8}}{_WORD}\.(?:bin|pt)))?")
_COMMIT = r"[0-9a-f]{40}"
COMMIT = re.compile(_COMMIT)
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_RECORDS = ".streamer"


class _Record(msgspec.Struct):
    """Says that files of a version are here, with their sizes, and were right when they came."""

    commit: Annotated[str, msgspec.Meta(pattern=rf"\A{_COMMIT}\Z")]
    files: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern=rf"\A(?:{_WORD}/){{0,8}}{_WORD}\Z")], int], msgspec.Meta(min_length=1)
    ]


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A model that was fetched."""

    name: str  # as `pull` takes it: owner/repo or owner/repo/file, or the short name of a model out of wheels
    path: Path
    n_bytes: int
    origin: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model in a repository, or one file of it."""

    repository: str
    file: str | None = None

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.file}" if self.file else self.repository

    @property
    def folder(self) -> Path:
        """Directory of the repository in the cache."""
        return Path(constants.HF_HUB_CACHE) / f"models--{self.repository.replace('/', '--')}"

    @property
    def record(self) -> Path:
        """File of the record that all is here; see `_Record`."""
        return self.folder / _RECORDS / f"{(self.file or 'model').replace('/', '--')}.json"

    def at(self, snapshot: Path) -> Path:
        return snapshot / self.file if self.file else snapshot


def repository(name: str) -> str | None:
    """Return the repository that a name means: `base.en`, `owner/repo` or `owner/repo/file.bin`; else None."""
    wanted = parse(name)
    return wanted.repository if wanted else None


def cached(name: str) -> Path | None:
    """Return the directory of a model (or the one file) if it is here, whole and checked before; uses no network."""
    return next(filter(None, map(find, _meanings(name))), None) or packaged(name)


def adopted(name: str, on_file: Callable[[str], None] = lambda name: None) -> Path | None:
    """Return the directory of a model that another program fetched, if it is whole and right.

    on_file : called with the name of each file before it is read, which takes seconds for a large one
    """
    return next(filter(None, (_adopt(wanted, on_file) for wanted in _meanings(name) if not wanted.file)), None)


def _meanings(name: str) -> list[Wanted]:
    """Return the repositories that a name stands for: of a short name also the one that faster-whisper fetches."""
    short = ALIASES.get(name, name)
    names = [name, f"Systran/faster-whisper-{short}"] if short in PUBLISHED else [name]
    return [wanted for wanted in map(parse, names) if wanted]


def models_folder() -> Path:
    """Return the folder of models out of wheels, each in a directory with its short name."""
    return platformdirs.user_cache_path("streamer") / "models"


def packaged(name: str) -> Path | None:
    """Return the directory of a model out of wheels if it is here; its files were checked when it came."""
    folder, files = models_folder() / name, PACKAGED.get(name, ())
    try:
        whole = all((folder / file.name).stat().st_size == file.n_bytes for file in files)
    except OSError:
        return None
    return folder if files and whole else None


def downloaded() -> list[Downloaded]:
    """Return the models that were fetched and are here, by name."""
    found = [
        Downloaded(name, path, sum(file.n_bytes for file in files), INDEX)
        for name, files in PACKAGED.items()
        if (path := packaged(name))
    ]
    for path in Path(constants.HF_HUB_CACHE).glob(f"models--*--*/{_RECORDS}/*.json"):
        name = path.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
        file = "" if path.name == "model.json" else "/" + path.name.removesuffix(".json").replace("--", "/")
        wanted = parse(f"{name}{file}")
        if wanted and (here := find(wanted)):
            n_bytes = sum(_read_record(path).files.values())
            found.append(Downloaded(wanted.name, here, n_bytes, wanted.name))
    return sorted(found, key=lambda model: model.name)


def parse(name: str) -> Wanted | None:
    """Return what a name means; None if it cannot be one on the hub."""
    name = ALIASES.get(name, name)
    if name in PUBLISHED:
        return Wanted(PUBLISHED[name].repository)
    match = _NAME.fullmatch(name)
    # As the hub has it; `--` stands for the slash in the cache.
    if match is None or len(match["repository"]) > 96 or match["repository"].endswith(".git"):
        return None
    if "--" in name or ".." in name:
        return None
    return Wanted(match["repository"], match["file"])


def find(wanted: Wanted) -> Path | None:
    """Return the path of a model whose record says that it is here and whole, as `cached`."""
    try:
        record = _read_record(wanted.record)
        snapshot = wanted.folder / "snapshots" / record.commit
        whole = all((snapshot / name).stat().st_size == n_bytes for name, n_bytes in record.files.items())
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return wanted.at(snapshot) if whole else None


def _read_record(path: Path) -> _Record:
    return msgspec.json.decode(path.read_bytes(), type=_Record)


def _adopt(wanted: Wanted, on_file: Callable[[str], None]) -> Path | None:
    """Check the files of a model, which the cache names by their digests, and record that they are right."""
    from streamer.whisper.hub.download import has_digest

    try:
        commit = (wanted.folder / "refs" / "main").read_text(encoding="utf-8").strip()
        if not COMMIT.fullmatch(commit):
            return None
        snapshot = wanted.folder / "snapshots" / commit
        names = choose([path.name for path in snapshot.iterdir()], wanted.repository)
        if not any(signs.issubset(names) for signs in _SURE_SIGNS):
            return None
        for name in names:
            on_file(name)
            digest = (snapshot / name).readlink().name
            if not DIGEST.fullmatch(digest) or not has_digest(snapshot / name, digest):
                return None
        sizes = {name: (snapshot / name).stat().st_size for name in names}
    except (OSError, ValueError, ModelError):
        return None
    with suppress(OSError):  # a cache that may only be read serves as well
        write_record(wanted, commit, sizes)
    return snapshot


def check_room(name: str, folder: Path, n_bytes: int, remedy: str) -> None:
    """Raise StreamerError unless there is room for this much of a model."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise StreamerError(
            f"{name} needs {n_bytes / 1e6:.0f} MB more in {folder}, where {free / 1e6:.0f} MB are free: {remedy}"
        )


def write_record(wanted: Wanted, commit: str, sizes: Mapping[str, int]) -> None:
    """Write down that these files of a version, with their sizes, are here and were right."""
    write_text(wanted.record, msgspec.json.encode(_Record(commit, dict(sizes))).decode())


def link(blob: Path, path: Path) -> None:
    """Show a blob in a snapshot, as a symbolic link if the system has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        blob.replace(path)
