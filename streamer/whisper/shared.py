"""A model's compiled graphs, which all that computes with it shares: they fail, leave memory, come back and move."""

import contextlib
import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from weakref import WeakSet

from streamer.errors import InferenceError, ModelError, StreamerError
from streamer.outside import one_line
from streamer.whisper.device.allocator import give_back_mapped
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.stage import no_op
from streamer.whisper.loading import Loaded, LoadOptions, Prepared, load, restart, start, where

logger = logging.getLogger(__name__)

# A device that fails again within this time is given up.
FAILS_AGAIN_WITHIN_S = 600.0


class SharedGraphs:
    """A model's compiled graphs, which all its forks compute with: loaded, freed, started again, moved."""

    def __init__(self, name: str, options: LoadOptions, loaded: Loaded) -> None:
        """Take what `loading.load` returned for a name and options."""
        self._name, self._options = name, options
        self.prepared = loaded.prepared
        # None while they are freed.
        self.loaded: Loaded | None = loaded
        # Whether they are started again, after a device failed or they were freed, which may take minutes.
        self.recovering = False
        # What computes with them, and frees its own part of them when they are freed.
        self.users: WeakSet[GraphUser] = WeakSet()
        # Whether they are about to move to other devices.
        self._moving = False
        # When each stage failed last, in seconds of the monotonic clock.
        self._failed_s: dict[str, float] = {}
        # Held while what is loaded changes.
        self._lock = threading.RLock()

    def wake(self) -> Loaded:
        """Return the present graphs, loaded again if need be. Raises what `WhisperModel.wake` does."""
        if (loaded := self.loaded) is not None:
            return loaded
        with self._lock:
            return self.loaded or self._load()

    def free(self) -> bool:
        """Free all graphs; return whether any were. It does not wait for a load."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._moving:
                return False
            were_loaded, self.loaded = self.loaded is not None, None
            for user in [*self.users]:
                user.free()
            if were_loaded:
                self.prepared.source.tokenizer.pack()
                gc.collect()
                give_back_mapped(libraries=True)
            return were_loaded
        finally:
            self._lock.release()

    def recover(self, failed: Loaded, error: InferenceError) -> None:
        """Start what failed again (see `WhisperModel.recover`), unless another thread has."""
        with self._lock:
            if self.loaded is not failed:
                return
            now_s = time.monotonic()
            again = now_s - self._failed_s.get(error.stage, -math.inf) < FAILS_AGAIN_WITHIN_S
            self._failed_s[error.stage] = now_s
            logger.warning("%s; starting the model again, nothing is lost", error)
            with self._recovering():
                self.loaded = restart(failed, error, again=again)
            devices = self.loaded.runtime.devices
            logger.warning(
                "the model is back on %s", ", ".join(f"{device} ({stage})" for stage, device in devices.items())
            )

    def move_to(self, prepared: Prepared) -> None:
        """Start with other devices in a thread, which the end of the process does not wait for."""
        self._moving = True
        threading.Thread(target=self._move_to, args=(prepared,), name="compile", daemon=True).start()

    def _move_to(self, prepared: Prepared) -> None:
        begin, name, before = time.monotonic(), self.prepared.source.name, self.loaded
        assert before is not None, "it is not freed while it moves"
        try:
            moved = start(prepared, beside=before.runtime.compiled)
        except Exception as error:  # a compiler may raise anything, and the model works as it is
            devices = " and ".join({*before.runtime.devices.values()})
            unexpected = None if isinstance(error, StreamerError) else error
            logger.warning("%s; %s stays on %s", one_line(error), name, devices, exc_info=unexpected)
        else:
            with self._lock:
                self.loaded = moved
            logger.info("%s runs on %s from now on, compiled in %.0f s", name, where(moved), time.monotonic() - begin)
        finally:
            self._moving = False

    def _load(self) -> Loaded:
        begin, known = time.monotonic(), self.prepared.source
        with self._recovering():
            loaded, later = load(self._name, self._options)
        source = loaded.prepared.source
        if (source.graphs.dims, source.tokenizer.n_vocab) != (known.graphs.dims, known.tokenizer.n_vocab):
            raise ModelError(
                f"{source.path} is another model than the one that was unloaded: expected {known.name} as it was;"
                " start the daemon again to use the new one"
            )
        # Sessions have the tokenizer that there was: one is enough.
        source = replace(source, tokenizer=known.tokenizer)
        self.loaded = loaded = replace(loaded, prepared=replace(loaded.prepared, source=source))
        if later is not None:
            self.move_to(replace(later, source=source))
        logger.info("%s is loaded again, in %.1f s", known.name, time.monotonic() - begin)
        return loaded

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        self.recovering = True
        try:
            yield
        finally:
            self.recovering = False


class GraphUser:
    """What computes with shared graphs: the model that was loaded, or a fork of it with buffers of its own."""

    def __init__(self, graphs: SharedGraphs, windows_s: Sequence[int] = (), n_buffers: int = 0) -> None:
        """Compute with loaded graphs.

        windows_s : of a fork, the lengths of windows, in seconds, of which it has room for `n_buffers`
        """
        self._graphs, self._windows_s, self._n_buffers = graphs, windows_s, n_buffers
        self._before: Callable[[], None] = no_op
        # What it computes with; None when that was freed.
        self._of: Loaded | None = None
        self._runtime: Runtime
        self._lock = threading.RLock()
        loaded = graphs.wake()  # before the lock: who frees graphs waits for it
        with self._lock:
            graphs.users.add(self)
            self._use(loaded)

    @property
    def runtime(self) -> Runtime:
        """What computes, with the present graphs; without any while it is unloaded."""
        with self._lock:
            loaded, is_freed_fork = self._graphs.loaded, self._of is None and bool(self._windows_s)
            if loaded is not None and not is_freed_fork:
                self._use(loaded)
            return self._runtime

    @property
    def recovering(self) -> bool:
        """Whether it is being started again, after a device failed or it was unloaded, which may take minutes."""
        return self._graphs.recovering

    @property
    def loaded(self) -> bool:
        return bool(self.runtime.stages)

    def wake(self) -> Runtime:
        """Return the present runtime; load the model again if it is unloaded.

        Raises what `load_model` raises, and ModelError if there is another model now.
        """
        loaded = self._graphs.wake()
        with self._lock:
            self._use(loaded)
            return self._runtime

    def recover(self, failed: Runtime, error: InferenceError) -> None:
        """Start anew after a device failed: on the same one, or on the next if it is hopeless or failed lately, too.

        Windows that `failed` has encoded stay good. Raises InferenceError if no device is left.
        """
        if self._runtime is failed and (loaded := self._of) is not None:
            self._graphs.recover(loaded, error)

    def unload(self) -> bool:
        """Free its graphs and those of its forks, or what is a fork's own; return whether anything was freed.

        It does not wait for a load. `wake` loads the model again.
        """
        if not self._windows_s:
            return self._graphs.free()
        self.free()
        return True

    def free(self) -> None:
        """Free caches and buffers, and let go of the graphs."""
        with self._lock:
            if self._of is not None:
                self._of, self._runtime = None, self._runtime.without_graphs()

    def call_before(self, before: Callable[[], None]) -> None:
        """Have something called before each run of a graph from now on; what it raises ends the computation."""
        with self._lock:
            self._before = before
            self._runtime.call_before(before)

    def _use(self, loaded: Loaded) -> None:
        """Compute with these graphs. What has begun ends with those that it began with, and frees them then."""
        if loaded is not self._of:
            windows_s = self._windows_s
            runtime = loaded.runtime.another(windows_s, self._n_buffers) if windows_s else loaded.runtime
            runtime.call_before(self._before)
            self._of, self._runtime = loaded, runtime
