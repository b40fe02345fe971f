"""Loads models while the program runs: the daemon's own, and others when a recording first asks for them."""

import asyncio
import dataclasses
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from streamer.errors import BusyError, UnknownModelError
from streamer.protocols.recordings import ModelInfo
from streamer.protocols.text import OPENAI_MODELS, note_model
from streamer.settings.table import AUTO, ModelSettings
from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.files import size_of
from streamer.whisper.hub import cache
from streamer.whisper.locate import find_model
from streamer.whisper.model import WhisperModel
from streamer.whisper.shipped import shipped
from streamer.whisper.weights import lora

logger = logging.getLogger(__name__)

T = TypeVar("T")

# In `model.also`: every model on this machine.
ALL = "all"

# Memory that a model takes: for each byte of its files, and any model.
MEMORY_PER_FILE_BYTE = 1.5
MEMORY_BYTES = 300e6


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A model on this machine: its name for `load_model`, and its path."""

    name: str
    path: Path

    @property
    def shown(self) -> str:
        """What requests call it: of a path the last part."""
        return Path(self.name).name if Path(self.name).exists() else self.name


class Models:
    """Models by name. One thread calls `get`; any thread may call the other methods."""

    def __init__(
        self,
        settings: ModelSettings,
        load: Callable[[str], WhisperModel],
        available: Callable[[], float] = lambda: psutil.virtual_memory().available,
    ) -> None:
        """Serve the models that the settings name. `load` loads one by name, `available` returns free bytes."""
        self._settings = settings
        self._load = load
        self._available = available
        # The daemon's own, and its path; None before it is loaded.
        self._own: WhisperModel | None = None
        self._own_path: Path | None = None
        # By path, the last used at the end; of the daemon's own a fork.
        self._loaded: dict[Path, WhisperModel] = {}

    def serve_with(self, model: WhisperModel) -> None:
        """Take the daemon's own model."""
        if self._settings.name == AUTO:
            self._settings = msgspec.structs.replace(self._settings, name=model.name)
        path = find_model(self._settings.name)
        self._own, self._own_path = model, path.resolve() if path is not None else Path(self._settings.name)

    def all(self) -> list[ModelInfo]:
        """Return the models that a request may name: of several with one name the first, which the name stands for."""
        models: dict[str, Known] = {}
        for known in self._named():
            models.setdefault(known.shown, known)
        return [self.describe(known) for known in models.values()]

    def describe(self, known: Known) -> ModelInfo:
        model = self._own if known.path == self._own_path else self._loaded.get(known.path)
        loaded = model is not None and model.loaded
        return ModelInfo(name=known.shown, created=int(known.path.stat().st_mtime), loaded=loaded)

    def find(self, name: str) -> Known:
        """Return the model that a request names. Nothing is fetched. Raises UnknownModelError.

        It looks through directories, unless the daemon's own model is meant.
        """
        if self._own is not None and self._own_path is not None and name in (*OPENAI_MODELS, "", self._own.origin):
            if name in OPENAI_MODELS:
                note_model(name)
            return Known(self._settings.name, self._own_path)
        named = self._named()
        known = next((known for known in named if name in (known.shown, known.name)), None)
        if known is None and ALL in self._settings.also and (path := cache.cached(name)):
            known = Known(name, path.resolve())  # by another of its names
        if known is None:
            shown = ", ".join(dict.fromkeys(model.shown for model in named))
            raise UnknownModelError(
                f"model {name!r:.100} is not here: expected one of {shown:.500};"
                " `streamer models pull` fetches others, and model.also names them"
            )
        return known

    def get(self, known: Known) -> WhisperModel:
        """Return a model; load it first if it is not loaded, and unload others to make room for it.

        Raises BusyError if there is not enough memory, and what `load` raises.
        """
        model = self._loaded.pop(known.path, None)
        if model is None and self._own is not None and known.path == self._own_path:
            model = self._own.fork(n_beams=FILE_BEAMS)
        elif model is None:
            self._make_room(known)
            model = self._load(known.name)
        self._loaded[known.path] = model
        return model

    def unload(self) -> None:
        """Forget what `get` has loaded: it is freed when it is no longer used, and loaded anew when it is asked for."""
        self._loaded = {}

    def _make_room(self, known: Known) -> None:
        needed = MEMORY_BYTES + MEMORY_PER_FILE_BYTE * size_of(known.path)
        while (free := self._available()) < needed:
            oldest = next((path for path in self._loaded if path != self._own_path), None)
            if oldest is None:
                raise BusyError(
                    f"{known.shown} needs about {needed / 1e6:.0f} MB of memory, {free / 1e6:.0f} MB are free:"
                    " try again later, or choose a smaller model"
                )
            logger.info("unloading %s to make room for %s", self._loaded.pop(oldest).name, known.shown)
            gc.collect()

    def _named(self) -> list[Known]:
        """Return the models on this machine that the settings allow, the daemon's own first."""
        names = [self._settings.name, *(name for name in self._settings.also if name != ALL)]
        if ALL in self._settings.also:
            names += [*shipped(), *(name for name, path in cache.downloaded().items() if not lora.is_alone(path))]
        found: dict[Path, Known] = {}
        for name in names:
            if path := find_model(name):
                found.setdefault(path.resolve(), Known(name, path.resolve()))
        return list(found.values())


def in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Work in a thread that the end of the program does not wait for: loading and compiling may take minutes."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # the thread cannot be cancelled

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised again by `Future.result`
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


async def unless_stopped(load: Callable[[], T], stop: asyncio.Event) -> T | None:
    """Load in a thread that is left behind, for None, when `stop` is set."""
    loaded, stopped = asyncio.wrap_future(in_thread("load", load)), asyncio.ensure_future(stop.wait())
    await asyncio.wait((loaded, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if loaded.done():
        return loaded.result()
    loaded.cancel()
    return None
