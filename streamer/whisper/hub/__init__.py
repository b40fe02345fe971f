"""Models from the Hugging Face Hub, kept in its usual cache where other programs find them too.

A model counts as here when all files that its loader needs are in the cache and each was once held against the digest
that the hub promised; a record beside the snapshot says so. Such a model is used without asking anybody. Layout of the
cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache; `huggingface_hub` gives the list of files, the
user's token, and what the environment says (HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE, ...).
"""

import difflib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from huggingface_hub import constants

from streamer import __version__
from streamer.errors import ModelError, PeerError, StreamerError
from streamer.whisper.hub.files import choose, some_of
from streamer.whisper.hub.published import ALIASES, PUBLISHED, SHORT_NAMES
from streamer.whisper.shipped import shipped

if TYPE_CHECKING:
    from streamer.whisper.hub.download import RemoteFile


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the fetching of a model is."""

    # What is being done, in a few words; mostly the name of a file.
    doing: str

    # Bytes of the model that are here, and in all; 0 of 0 while that is not known.
    n_here: int = 0
    n_all: int = 0


OnProgress = Callable[[Progress], None]

# Without these a snapshot that another program left may be half of one.
_SURE_SIGNS = {"config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json"}

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:/(?P<file>(?:{_WORD}/){{0,8}}{_WORD}\.(?:bin|pt)))?")
_FILE_NAME = re.compile(rf"(?:{_WORD}/){{0,8}}{_WORD}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_RECORDS = ".streamer"
_PARTIAL = ".streamer.incomplete"

# Largest record that is read: there are a few dozen files in a model.
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A model from the hub that is here."""

    # As `pull` takes it: owner/repo or owner/repo/file.
    name: str

    path: Path
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A model in a repository, or one file of it."""

    repository: str
    file: str | None = None

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.file}" if self.file else self.repository

    @property
    def folder(self) -> Path:
        """Where the cache keeps the repository."""
        return Path(constants.HF_HUB_CACHE) / f"models--{self.repository.replace('/', '--')}"

    @property
    def record(self) -> Path:
        """The file that says that all is here and was right when it came."""
        return self.folder / _RECORDS / f"{(self.file or 'model').replace('/', '--')}.json"

    def at(self, snapshot: Path) -> Path:
        return snapshot / self.file if self.file else snapshot


def repository(name: str) -> str | None:
    """Return the repository that a name means, a short one (`base.en`), `owner/repo` or `owner/repo/file.bin`.

    None where it cannot be a name on the hub.
    """
    wanted = _parse(name)
    return wanted.repository if wanted else None


def cached(name: str) -> Path | None:
    """Return the directory of a model (or the one file) where it is here, whole and once found right; asks nobody."""
    wanted = _parse(name)
    return _cached(wanted) if wanted else None


def pull(name: str, *, on_progress: OnProgress = lambda progress: None) -> Path:
    """Fetch a model unless it is here, and return its directory (of `owner/repo/file.bin`: the file).

    Raises ModelError where there is no such model, it may not be had, or it is not what was promised; PeerError where
    the hub cannot be reached (what has arrived is kept, the next call goes on from there); StreamerError where there is
    no room for it.
    """
    wanted = _parse(name)
    if wanted is None:
        near = difflib.get_close_matches(name, SHORT_NAMES, 1)
        raise ModelError(
            f"there is no model {name!r:.100}{f' (did you mean {near[0]}?)' if near else ''}: expected one of"
            f" {', '.join(SHORT_NAMES)}, or OWNER/REPO on the hub"
        )
    return _pull(wanted, on_progress)


def fetch_tokenizer(repository: str) -> Path:
    """Fetch the `tokenizer.json` of a repository unless it is here. Raises as `pull` does."""
    whole = _cached(_Wanted(repository))
    if whole and (whole / "tokenizer.json").is_file():
        return whole / "tokenizer.json"
    return _pull(_Wanted(repository, "tokenizer.json"), lambda progress: None)


def downloaded() -> list[Downloaded]:
    """Return the models from the hub that are here, by name."""
    found = []
    for record in Path(constants.HF_HUB_CACHE).glob(f"models--*--*/{_RECORDS}/*.json"):
        owner, _, name = record.parent.parent.name.removeprefix("models--").partition("--")
        file = None if record.name == "model.json" else record.name.removesuffix(".json").replace("--", "/")
        wanted = _parse(f"{owner}/{name}/{file}" if file else f"{owner}/{name}")
        path = _cached(wanted) if wanted else None
        if wanted and path:
            found.append(Downloaded(wanted.name, path, sum(_read_record(wanted.record)[1].values())))
    return sorted(found, key=lambda model: model.name)


def _parse(name: str) -> _Wanted | None:
    name = ALIASES.get(name, name)
    if name in PUBLISHED:
        return _Wanted(PUBLISHED[name].repository)
    match = _NAME.fullmatch(name)
    # As the hub has it; `--` stands for the slash in the cache.
    if match is None or len(match["repository"]) > 96 or match["repository"].endswith(".git"):
        return None
    if "--" in name or ".." in name:
        return None
    return _Wanted(match["repository"], match["file"])


def _cached(wanted: _Wanted) -> Path | None:
    try:
        commit, sizes = _read_record(wanted.record)
        snapshot = wanted.folder / "snapshots" / commit
        whole = all((snapshot / name).stat().st_size == n_bytes for name, n_bytes in sizes.items())
    except (OSError, ValueError, RecursionError):
        return None
    return wanted.at(snapshot) if whole else None


def _read_record(path: Path) -> tuple[str, dict[str, int]]:
    """Return the commit and the sizes of the files. Raises OSError or ValueError where there is no record."""
    with path.open("rb") as file:
        data = json.loads(file.read(_MAX_RECORD_BYTES))
    commit, sizes = (data.get("commit"), data.get("files")) if isinstance(data, dict) else (None, None)
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit) or not isinstance(sizes, dict) or not sizes:
        raise ValueError("not a record")
    for name, n_bytes in sizes.items():
        if not _FILE_NAME.fullmatch(name) or not isinstance(n_bytes, int):
            raise ValueError("not a record")
    return commit, sizes


def _pull(wanted: _Wanted, on_progress: OnProgress) -> Path:
    if found := _cached(wanted) or _adopt(wanted):
        return found
    if constants.HF_HUB_OFFLINE:
        raise PeerError(
            f"{wanted.name} is not here, and HF_HUB_OFFLINE is set, so that {_endpoint()} was not asked; on this"
            f" machine: {_what_is_here()}; use one of these, or unset HF_HUB_OFFLINE"
        )
    commit, files = _list_files(wanted)
    try:
        with ExitStack() as stack:
            _lock(wanted, stack, on_progress)
            # Another program may have fetched it while this one waited.
            return _cached(wanted) or _fetch(wanted, commit, files, on_progress)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StreamerError(
            f"{wanted.name} cannot be kept in {constants.HF_HUB_CACHE} ({reason}): make room there and see that you may"
            " write there, or choose another place with HF_HOME"
        ) from None


def _lock(wanted: _Wanted, stack: ExitStack, on_progress: OnProgress) -> None:
    """Hold the repository until the stack ends, so that two programs do not write to one file."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    path = Path(constants.HF_HUB_CACHE) / ".locks" / wanted.folder.name / "streamer.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        stack.enter_context(WeakFileLock(path, timeout=1))
    except TimeoutError:
        on_progress(Progress("waiting for another program that fetches it"))
        stack.enter_context(WeakFileLock(path))


def _fetch(wanted: _Wanted, commit: str, files: Sequence["RemoteFile"], on_progress: OnProgress) -> Path:
    """Fetch what is missing, check all, and write the record."""
    import httpx
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    from streamer.whisper.hub.download import DamagedError, DownloadError, download

    snapshot, blobs = wanted.folder / "snapshots" / commit, wanted.folder / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True, exist_ok=True)
    n_all = sum(file.n_bytes for file in files)
    missing: list[RemoteFile] = []
    n_here = 0
    for file in files:
        if (blobs / file.digest).is_file() or (snapshot / file.name).is_file():
            on_progress(Progress(f"checking {file.name}", n_here, n_all))
        if _is_here(file, blobs, snapshot):
            n_here += file.n_bytes
        else:
            missing.append(file)
    _check_room(wanted, sum(file.n_bytes - _size(_partial(blobs, file)) for file in missing))

    headers = build_hf_headers(library_name="streamer", library_version=__version__)
    timeout = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with httpx.Client(headers=headers, timeout=timeout, follow_redirects=True) as client:
        for file in missing:

            def on_bytes(n_bytes: int, name: str = file.name, before: int = n_here) -> None:
                on_progress(Progress(name, before + n_bytes, n_all))

            url = f"{constants.ENDPOINT}/{wanted.repository}/resolve/{commit}/{quote(file.name)}"
            try:
                download(client, url, file, blobs / file.digest, _partial(blobs, file), on_bytes)
            except DownloadError as error:
                raise _refusal(wanted, file.name, error.status, error.reason) from None
            except DamagedError:
                raise ModelError(
                    f"{file.name} of {wanted.repository} from {_endpoint()} is not what was promised (its digest is"
                    f" not {file.digest:.12}...): it was damaged on the way and has been deleted; pull it again"
                ) from None
            _link(blobs / file.digest, snapshot / file.name)
            n_here += file.n_bytes
    _write(wanted.folder / "refs" / "main", commit)
    _write_record(wanted, commit, {file.name: file.n_bytes for file in files})
    for left in blobs.glob(f"*{_PARTIAL}"):  # of an older version of the model
        left.unlink(missing_ok=True)
    return wanted.at(snapshot)


def _list_files(wanted: _Wanted) -> tuple[str, list["RemoteFile"]]:
    """Ask the hub for the newest version of a model, and choose the files to fetch."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    from streamer.whisper.hub.download import RemoteFile, reason_of

    # In this process alone: else the library tells the hub what else is installed and running here.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    # What goes wrong is said below, in one line.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    api = HfApi(endpoint=constants.ENDPOINT, library_name="streamer", library_version=__version__)
    try:
        info = api.model_info(
            wanted.repository, revision="main", files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        )
        commit = str(info.sha)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    except HfHubHTTPError as error:
        status = 403 if isinstance(error, GatedRepoError) else getattr(error.response, "status_code", None)
        raise _refusal(wanted, None, status, f"it answered {status}") from None
    except Exception as error:  # noqa: BLE001 - its HTTP library was requests, then httpx, then httpx2
        raise _refusal(wanted, None, None, reason_of(error)) from None

    if not _COMMIT.fullmatch(commit):
        raise _refusal(wanted, None, None, f"it names the version {commit!r:.60}, which is no commit")
    if wanted.file and wanted.file not in siblings:
        raise ModelError(
            f"{wanted.repository} on {_endpoint()} has no {wanted.file}: it has {some_of(siblings)}; check the name"
        )
    files = []
    for name in [wanted.file] if wanted.file else choose(siblings, wanted.repository):
        sibling = siblings[name]
        digest, n_bytes = (sibling.lfs.sha256, sibling.lfs.size) if sibling.lfs else (sibling.blob_id, sibling.size)
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or not isinstance(n_bytes, int) or n_bytes < 0:
            raise _refusal(wanted, None, None, f"it promises no size and digest of {name}, by which to check it")
        files.append(RemoteFile(name, n_bytes, digest))
    return commit, files


def _is_here(file: "RemoteFile", blobs: Path, snapshot: Path) -> bool:
    """Whether a file lies in the cache already; one that is not what it should be is deleted."""
    blob, path = blobs / file.digest, snapshot / file.name
    for place in (blob, path):  # without symbolic links, the content is in the snapshot
        if not place.is_file():
            continue
        if file.is_at(place):
            if place == blob:
                _link(blob, path)
            return True
        place.unlink()
    return False


def _link(blob: Path, path: Path) -> None:
    """Show a blob in a snapshot, as a symbolic link where the system has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        blob.replace(path)


def _partial(blobs: Path, file: "RemoteFile") -> Path:
    return blobs / f"{file.digest}{_PARTIAL}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _check_room(wanted: _Wanted, n_bytes: int) -> None:
    free = shutil.disk_usage(wanted.folder).free
    if free < n_bytes:
        raise StreamerError(
            f"{wanted.name} needs {n_bytes / 1e6:.0f} MB more in {constants.HF_HUB_CACHE}, where {free / 1e6:.0f} MB"
            " are free: make room, or choose another place with HF_HOME"
        )


def _adopt(wanted: _Wanted) -> Path | None:
    """Take what another program fetched, if it is whole and right.

    The cache names content by its digest, so that nobody need be asked.
    """
    from streamer.whisper.hub.download import has_digest

    if wanted.file:
        return None
    try:
        commit = (wanted.folder / "refs" / "main").read_text(encoding="utf-8").strip()
        if not _COMMIT.fullmatch(commit):
            return None
        snapshot = wanted.folder / "snapshots" / commit
        names = choose([path.name for path in snapshot.iterdir()], wanted.repository)
        if not _SURE_SIGNS.issubset(names):
            return None
        for name in names:
            digest = (snapshot / name).readlink().name
            if not _DIGEST.fullmatch(digest) or not has_digest(snapshot / name, digest):
                return None
        sizes = {name: (snapshot / name).stat().st_size for name in names}
    except (OSError, ValueError, ModelError):
        return None
    with suppress(OSError):  # a cache that may only be read serves as well
        _write_record(wanted, commit, sizes)
    return snapshot


def _write_record(wanted: _Wanted, commit: str, sizes: Mapping[str, int]) -> None:
    _write(wanted.record, json.dumps({"commit": commit, "files": sizes}, indent=1))


def _write(path: Path, text: str) -> None:
    """Write a small file at one stroke."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def _refusal(wanted: _Wanted, file: str | None, status: int | None, reason: str) -> StreamerError:
    """Return the error of a hub that gave no list of files, or not the one file."""
    if status == 403 or (status == 401 and file):
        return ModelError(
            f"{wanted.name} on {_endpoint()} is only for those whom its owner admits (it answered {status}): accept the"
            f" licence on {_endpoint()}/{wanted.repository} and set HF_TOKEN to a token of yours"
        )
    if status in (401, 404):
        what = f"{file} of {wanted.repository}" if file else wanted.repository
        return ModelError(
            f"there is no {what} on {_endpoint()} (it answered {status}): check the name; a private model wants"
            " HF_TOKEN, and one that is set may be wrong"
        )
    part = f"{file} of {wanted.repository}" if file else wanted.name
    kept = "; what has arrived is kept" if file else ""
    return PeerError(
        f"{part} cannot be fetched from {_endpoint()} ({reason}){kept}; on this machine: {_what_is_here()}; use"
        " one of these, or see to the network (HF_ENDPOINT names another hub) and try again"
    )


def _endpoint() -> str:
    """The hub's address, without the password that may be in it."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _what_is_here() -> str:
    return ", ".join([*shipped(), *(model.name for model in downloaded())]) or "no models"
