"""A Whisper ready for use: found, read, compiled for its devices, and checked there."""

import contextlib
import functools
import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from weakref import ReferenceType, WeakSet, ref

from streamer.errors import ConfigError, InferenceError, LostDeviceError, ModelError, StreamerError
from streamer.outside import one_line
from streamer.whisper import adapters
from streamer.whisper.cache import open_cache
from streamer.whisper.check import Check, require
from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.device.allocator import give_back_mapped
from streamer.whisper.device.busy import busy_checks, npu_busy_us
from streamer.whisper.device.checks import check_decoder, check_freshness, run_stages
from streamer.whisper.device.compile import WHOLE_WINDOW, Compilation, Sizes
from streamer.whisper.device.devices import (
    DeviceSettings,
    StagePlan,
    available_devices,
    kind_of,
    plan_stages,
    until_npu,
    with_last_resorts,
)
from streamer.whisper.device.masks import find_convention
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.speech import TOLERANCE, check_speech, distance_of, exact_plans, mel_of, read_speech
from streamer.whisper.device.stage import no_op
from streamer.whisper.device.verdicts import Verdicts
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.generation import DEFAULT_WINDOWS_S
from streamer.whisper.heads import are_known
from streamer.whisper.hub.progress import OnProgress
from streamer.whisper.locate import find_or_pull, name_of
from streamer.whisper.shipped import speech
from streamer.whisper.source import ModelSource, read_model

logger = logging.getLogger(__name__)

OnCompiled = Callable[[int, int], None]

T = TypeVar("T")

# A device that fails again within this time is given up.
FAILS_AGAIN_WITHIN_S = 600.0

# How often a watched model is tried out: it takes the time of one window.
WATCH_EVERY_S = 60.0

# Seconds of silence behind the sound of windows of less than 30 s, without an adapter and with one (docs/streaming.md).
SILENCE_S, ADAPTED_SILENCE_S = 2.0, 1.0

# Width and numbers of layers of the published sizes that `auto` computes in int8: tiny and base, of which int8 was
# measured on people (docs/models.md).
INT8_SIZES = {(384, 4, 4), (512, 6, 6)}


class WhisperModel:
    """What decoding needs, loaded once and shared by all sessions."""

    def __init__(self, parts: "_Parts") -> None:
        """Take what was read of a model, whose graphs `start` compiles."""
        source = parts.source
        self.name = source.name
        # What it is published as, such as openai/whisper-base.en; empty if that is not known.
        self.origin = source.origin
        self.tokenizer = source.tokenizer
        self.generation = source.generation
        self.n_beams = parts.n_beams
        # Without graphs while it is unloaded.
        self.runtime: Runtime
        self.weights = parts.weights
        # Whether all graphs were found compiled.
        self.from_cache = False
        # The adapter of windows of less than 30 s.
        self.adapter = source.adapter.path if source.adapter else None
        # Whether it is being started again, after a device failed or it was unloaded, which may take minutes.
        self.recovering = False
        # What `runtime` was made of; None while it is unloaded. `_read_again` returns it again, and what to move to;
        # None: it cannot be unloaded.
        self._parts: _Parts | None = None
        self._read_again: Callable[[], tuple[_Parts, _Parts | None]] | None = None
        self._forks: WeakSet[_Fork] = WeakSet()
        # Whether it is to move to other devices, see `move_to`.
        self._moving = False
        self._before: Callable[[], None] = no_op
        self._before_trial: Callable[[], None] = no_op
        # When each stage failed last, in seconds of the monotonic clock.
        self._failed_s: dict[str, float] = {}
        self._lock = threading.RLock()

    @property
    def dims(self) -> ModelDimensions:
        return self.runtime.dims

    @property
    def silence_s(self) -> float:
        """Seconds of silence behind the sound of a short window, without which the model does not end its text."""
        if self.adapter is not None:
            return ADAPTED_SILENCE_S
        return 0.0 if self.generation.windows_s else SILENCE_S  # it may have been trained without

    @property
    def knows_heads(self) -> bool:
        """Whether it is known which attention heads follow the audio; if not, many are averaged."""
        return are_known(self.generation.alignment_heads, self.dims)

    def choose_language(self, wanted: str, task: str, languages: Sequence[str] = ()) -> str:
        """Return the language to decode in (see `Tokenizer.choose_language`); warn of a task it was not trained for.

        languages : that `auto` may find; empty: all

        Raises ConfigError if the model does not know the language, or cannot translate.
        """
        if task == "both" and self.tokenizer.known_languages == ["en"]:
            raise ConfigError(f"task is both, and {self.name} knows English only: choose a multilingual model")
        known_task = "translate" if task == "both" else task
        for code in languages:
            self.tokenizer.start_sequence(code, known_task)
        only = wanted == "auto" and len(languages) == 1
        language = self.tokenizer.choose_language(languages[0] if only else wanted, known_task)
        dims = self.dims
        # large-v3-turbo, distil-whisper. A warning: what they were fine-tuned for since, no file says.
        if task != "transcribe" and dims.n_text_layer < dims.n_audio_layer // 2:
            warn_of_translation(self.name, dims.n_text_layer, dims.n_audio_layer)
        return language

    def start(self, parts: "_Parts") -> None:
        """Compile graphs and try them out, on the next device if one fails; compute with them from then on.

        A computation that has begun ends with the graphs that it began with, and frees them then.

        Raises ModelError or InferenceError if they pass all checks on no device; then all stays as it is.
        """
        runtime = _checked_runtime(parts)
        with self._lock:
            runtime.call_before(self._before)
            self._parts, self.runtime = parts, runtime

    def move_to(self, parts: "_Parts") -> None:
        """Start with other devices in a thread, which the end of the process does not wait for."""
        self._moving = True
        threading.Thread(target=self._move_to, args=(parts,), name="compile", daemon=True).start()

    def watch(self, before: Callable[[], None] = no_op) -> None:
        """Try accelerators out in a thread from now on: one that begins to compute nonsense or to hang is given up.

        before : called before each run of a graph for that; it may wait
        """
        self._before_trial = before
        if self.runtime.compilation.others_may_come:
            threading.Thread(target=_watch, args=(ref(self),), name="watch", daemon=True).start()

    @property
    def loaded(self) -> bool:
        return bool(self.runtime.stages)

    @property
    def state(self) -> str:
        """Whether it is loaded, unloaded or loading, in a word."""
        return "loaded" if self.loaded else "loading" if self.recovering else "unloaded"

    def unload(self) -> bool:
        """Free its graphs and those of its forks, if it can be loaded again; return whether any were freed.

        It does not wait for a load. `wake` loads the model again.
        """
        if self._read_again is None or not self._lock.acquire(blocking=False):
            return False
        try:
            if not self.loaded or self._moving:
                return False
            self._parts = None
            for model in (self, *self._forks):
                model.runtime = model.runtime.without_graphs()
            self.tokenizer.pack()
            gc.collect()
            give_back_mapped(libraries=True)
            return True
        finally:
            self._lock.release()

    def wake(self) -> Runtime:
        """Return the present runtime; load the model again if it is unloaded.

        Raises what `load_model` raises, and ModelError if there is another model now.
        """
        runtime = self.runtime
        if runtime.stages:
            return runtime
        with self._lock:
            if not self.loaded and self._read_again is not None:
                with self._loading():
                    self._load(*self._read_again())
            return self.runtime

    def run(self, compute: Callable[[Runtime], T]) -> T:
        """Compute with the present runtime, and if its device fails, once more with a new one.

        `compute` has to begin anew when it is called again: of the failed runtime only windows that it has encoded are
        good. Raises InferenceError if the device fails again, or no other is left, and what `wake` raises.
        """
        runtime = self.wake()
        try:
            return compute(runtime)
        except InferenceError as error:
            self.recover(runtime, error)
            return compute(self.wake())

    def recover(self, failed: Runtime, error: InferenceError) -> None:
        """Start anew after a device failed: on the same one, or on the next if it is hopeless or failed lately, too.

        Windows that `failed` has encoded stay good. Raises InferenceError if no device is left.
        """
        with self._lock:
            parts = self._parts
            if self.runtime is failed and parts is not None:  # else another thread has started it again
                with self._loading():
                    self._restart(parts, error)

    def call_before(self, before: Callable[[], None]) -> None:
        """Have something called before each run of a graph from now on; what it raises ends the computation."""
        with self._lock:
            self._before = before
            self.runtime.call_before(before)

    def fork(self, windows_s: Sequence[int] = WHOLE_WINDOW, n_beams: int = 1, n_buffers: int = 1) -> "WhisperModel":
        """Return the model once more, for another thread: compiled graphs are shared, caches and buffers are not.

        n_beams : that it may follow, if the graphs can
        n_buffers : windows that it has room for; an engine needs `N_BUFFERS`
        """
        return _Fork(self, windows_s, n_beams, n_buffers)

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        self.recovering = True
        try:
            yield
        finally:
            self.recovering = False

    def _move_to(self, parts: "_Parts") -> None:
        begin = time.monotonic()
        try:
            self.start(parts)
        except Exception as error:  # a compiler may raise anything, and the model works as it is
            devices = " and ".join({*self.runtime.devices.values()})
            unexpected = None if isinstance(error, StreamerError) else error
            logger.warning("%s; %s stays on %s", one_line(error), self.name, devices, exc_info=unexpected)
        else:
            where, took_s = _where(self.runtime), time.monotonic() - begin
            logger.info("%s runs on %s from now on, compiled in %.0f s", self.name, where, took_s)
        finally:
            self._moving = False

    def try_out(self) -> None:
        """Give up a device that computes something else from speech than when it was first tried out, or hangs."""
        sample = speech()
        with self._lock:
            runtime = self.runtime
            if sample is None or {stage.device for stage in runtime.stages} <= {"CPU"}:
                return
            if runtime.trial is None:
                # For the shortest windows: what it needs is small, and is kept for the next time.
                runtime.trial = runtime.another(runtime.windows_s[:1])
                runtime.trial.call_before(self._before_trial)
        mel = mel_of(read_speech(sample), runtime.windows_s[0], self.dims)
        try:
            found = run_stages(runtime.trial, mel, self.tokenizer.special.start_of_transcript)
        except InferenceError as error:
            self.recover(runtime, error)
            return
        runtime.tried = runtime.tried or found
        for stage, expected in runtime.tried.items():
            distance, device = distance_of(expected, found[stage]), runtime.devices[stage]
            if device != "CPU" and not distance <= TOLERANCE:
                text = (
                    f"{device} computes the {stage} wrongly by now: in speech it differs from what it computed before"
                    f" by {distance:.2g}, expected at most {TOLERANCE}; see `streamer doctor`"
                )
                self.recover(runtime, InferenceError(text, stage, hopeless=True))
                return

    def _load(self, parts: "_Parts", later: "_Parts | None") -> None:
        begin, source = time.monotonic(), parts.source
        if source.graphs.dims != self.dims or source.tokenizer.n_vocab != self.tokenizer.n_vocab:
            raise ModelError(
                f"{source.path} is another model than the one that was unloaded: expected {self.name} as it was;"
                " start the daemon again to use the new one"
            )
        # Sessions have the tokenizer that there was: one is enough.
        self.start(replace(parts, source=replace(source, tokenizer=self.tokenizer)))
        if later is not None:
            self.move_to(later)
        logger.info("%s is loaded again, in %.1f s", self.name, time.monotonic() - begin)

    def _restart(self, parts: "_Parts", error: InferenceError) -> None:
        compilation, now_s = parts.compilation, time.monotonic()
        lately = now_s - self._failed_s.get(error.stage, -math.inf) < FAILS_AGAIN_WITHIN_S
        self._failed_s[error.stage] = now_s
        logger.warning("%s; starting the model again, nothing is lost", error)
        compilation.renew(available_devices())
        if lately or error.hopeless:
            stages = compilation.sharing(error.stage) if error.hopeless else [error.stage]
            parts.verdicts.forget(stages)
            with contextlib.suppress(InferenceError):  # there is no other: the last one is started again, too
                compilation.reject(dict.fromkeys(stages, error))
        self.start(parts)
        devices = ", ".join(f"{device} ({stage})" for stage, device in self.runtime.devices.items())
        logger.warning("the model is back on %s", devices)


def _watch(watched: ReferenceType[WhisperModel]) -> None:
    while (model := watched()) is not None:
        try:
            model.try_out()
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and may work again later
            logger.warning("the devices of %s could not be tried out: %s", model.name, one_line(error))
        del model
        time.sleep(WATCH_EVERY_S)


class _Fork(WhisperModel):
    """A model that computes with the graphs of another."""

    def __init__(self, parent: WhisperModel, windows_s: Sequence[int], n_beams: int, n_buffers: int) -> None:
        with parent._lock:
            parent.wake()
            assert parent._parts is not None, "it is loaded"
            super().__init__(parent._parts)
            self._parent = parent
            self._windows_s, self._n_buffers = windows_s, n_buffers
            self._follow()
            compilation = self.runtime.compilation
            most = compilation.n_beams if compilation.others_may_come else self.runtime.decoder.max_beams
            self.n_beams = min(max(n_beams, parent.n_beams), most)
            parent._forks.add(self)

    def wake(self) -> Runtime:
        """Return a runtime of the parent's present graphs (see `WhisperModel.wake`)."""
        runtime = self.runtime
        if self._parent.wake() is self._runs_beside() and runtime.stages:
            return runtime
        with self._lock:
            self._follow()
            return self.runtime

    def unload(self) -> bool:
        """Free its caches and buffers, and no graphs (see `WhisperModel.unload`)."""
        self.runtime = self.runtime.without_graphs()
        return True

    def recover(self, failed: Runtime, error: InferenceError) -> None:
        """Have the parent start anew (see `WhisperModel.recover`)."""
        with self._lock:
            if self.runtime is failed:
                if (beside := self._runs_beside()) is not None:
                    self._parent.recover(beside, error)
                self._follow()

    def _follow(self) -> None:
        """Make a runtime of the parent's present graphs."""
        with self._parent._lock:
            beside = self._parent.wake()
            self._runs_beside = ref(beside)
            self.runtime = beside.another(self._windows_s, self._n_buffers)
            self.runtime.call_before(self._before)


@functools.cache  # said once, however many sessions and recordings ask for it
def warn_of_translation(name: str, n_text_layer: int, n_audio_layer: int) -> None:
    logger.warning(
        "%s has %d layers in its decoder, %d in its encoder, as turbo has, which was not trained to translate:"
        " the text may be in the language that is spoken; choose medium or large-v3 for English",
        name,
        n_text_layer,
        n_audio_layer,
    )


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is read, and what it is compiled for."""

    devices: DeviceSettings = field(default_factory=DeviceSettings)

    # File of a tokenizer that replaces the model's own; empty: its own.
    tokenizer: str = ""

    # LoRA adapter that goes into the model's weights, a directory or one of the Hub's names; empty: none.
    lora: str = ""

    # Directory of compiled graphs; empty: the usual one.
    cache_dir: str = ""

    # Beams of live captions. None: as many as the model names, or five if it is not for `live` captions. One if the
    # decoder takes one token a call.
    n_beams: int | None = 1
    live: bool = True

    # Whether the GPU or CPU computes while graphs for an NPU are compiled, which takes minutes, or if the NPU fails.
    at_once: bool = False

    # What a checkpoint's weights become: f32, f16, int8 or int8-sym; auto: for INT8_SIZES int8, or int8-sym if a device
    # is an NPU; empty, and auto otherwise: as they are.
    weights: str = ""

    # Lengths of audio, in seconds, to make graphs for besides 30 s. None: those of the model or its adapter, else 15.
    windows_s: Sequence[int] | None = WHOLE_WINDOW

    # Adapter of windows of less than 30 s; see `adapters.find`.
    adapter: str = adapters.NONE


def load_model(
    name: str,
    options: LoadOptions | None = None,
    *,
    on_download: OnProgress = lambda progress: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> WhisperModel:
    """Find a model or fetch it, check that its parts belong together, compile it, and try it out.

    name : a path, the name of a model that is here, or one of the Hub's

    Raises ModelError if there is no such model, or a part is missing or does not fit; PeerError if it cannot be
    fetched; ConfigError if a device is not there; InferenceError if it cannot compile or run the graphs.
    """
    options = options or LoadOptions()
    begin = time.monotonic()
    parts, later = _read_for(name, options, on_download, on_compiled)
    compilation = parts.compilation
    for device in dict.fromkeys(compilation.devices.values()):
        if device != "CPU":
            logger.info("compiling the model for %s: the first time this takes up to some minutes", device)
    model = WhisperModel(parts)
    model._read_again = lambda: _read_for(name, options)
    model.start(parts)
    model.from_cache = all(graph.get_property("LOADED_FROM_CACHE") for graph in compilation.compiled.values())
    where, lengths = _where(model.runtime), ", ".join(map(str, model.runtime.windows_s))
    adapter, took_s = " with an adapter" if model.adapter else "", time.monotonic() - begin
    logger.info(
        "model %s on %s, weights %s, windows of %s s%s, ready in %.1f s",
        *(model.name, where, model.weights, lengths, adapter, took_s),
    )
    if later is not None:
        model.move_to(later)
    return model


@dataclass(frozen=True, slots=True)
class _Parts:
    """A model that was read, and its graphs for some devices."""

    source: ModelSource
    compilation: Compilation
    verdicts: Verdicts

    # How many beams captions follow if the settings do not say otherwise.
    n_beams: int

    # What its weights are, and why.
    weights: str


def _read_for(
    name: str,
    options: LoadOptions,
    on_download: OnProgress = lambda progress: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> tuple[_Parts, _Parts | None]:
    """Read a model for the devices that the options name; return it, and what it is to move to."""
    plans = plan_stages(options.devices, available_devices())
    if options.at_once:
        plans = with_last_resorts(plans, available_devices())
    cache = open_cache(options.cache_dir)
    source = _read(name, options, on_download)
    require(source.checks)
    source, why = choose_weights(source.with_adapter(options.adapter), options.weights, plans)
    n_beams = _n_beams(source, options.n_beams, live=options.live)
    windows_s = window_lengths(source, plans, options.windows_s)

    def parts(plans: Mapping[str, StagePlan]) -> _Parts:
        compilation = _compilation(source, plans, n_beams, windows_s, cache, on_compiled)
        return _Parts(source, compilation, _verdicts(source, compilation), n_beams, why)

    wanted = parts(plans)
    if not options.at_once or not any(plans[stage].is_for_npu for stage in wanted.verdicts.unjudged()):
        return wanted, None
    wanted.compilation.check_properties()
    at_first = parts(until_npu(plans))
    wanted.compilation.go_beside(at_first.compilation)
    return at_first, wanted


def verify_model(
    name: str,
    options: LoadOptions,
    *,
    on_download: OnProgress = lambda progress: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> Iterator[Check]:
    """Yield every check of a model on the devices that it would run on. Raises what `load_model` does."""
    plans = plan_stages(options.devices, available_devices())
    cache = open_cache(options.cache_dir)
    source = _read(name, options, on_download)
    source, _ = choose_weights(source.with_adapter(options.adapter), options.weights, plans)
    yield from source.checks
    if not all(check.passed for check in source.checks):
        return  # what does not belong together is not worth compiling
    compilation = _compilation(source, plans, 1, window_lengths(source, plans, options.windows_s), cache, on_compiled)
    compilation.compile()
    runtime = _start(source, compilation)
    for stage, device in compilation.devices.items():
        first = compilation.plans[stage].candidates[0]
        yield Check(f"{stage}: device", device, first, device == first, f"{first} cannot compile the {stage}", stage)
    busy_us = npu_busy_us()
    tried = list(_device_checks(source, compilation, runtime, everywhere=True))
    yield from tried
    verdicts = _verdicts(source, compilation)
    compared = list(_speech_checks(source, compilation, runtime, verdicts.accelerated()))
    yield from compared
    on_npu = [stage for stage, device in compilation.devices.items() if kind_of(device) == "NPU"]
    yield from busy_checks(busy_us, () if options.devices.npu_through_cpu else on_npu)
    problems = {stage: str(error) for stage, error in _errors([*tried, *compared]).items()}
    verdicts.keep({**{check.stage: "" for check in compared}, **problems})


def choose_weights(source: ModelSource, weights: str, plans: Mapping[str, StagePlan]) -> tuple[ModelSource, str]:
    """Return a model with the weights that the settings want, and say what they are and why."""
    if weights not in ("", "auto"):
        return source.with_weights(weights), f"{weights} (as asked for)"
    dims = source.graphs.dims
    is_known = (dims.n_text_state, dims.n_audio_layer, dims.n_text_layer) in INT8_SIZES
    kinds = {kind_of(device) for plan in plans.values() for device in plan.candidates}
    if weights == "auto" and source.checkpoint is not None and is_known:
        # With zero points an NPU computes no faster than in float16 (docs/npu.md).
        chosen = "int8-sym" if "NPU" in kinds else "int8"
        return source.with_weights(chosen), f"{chosen} (auto)"
    return source, "as they are"


def _read(name: str, options: LoadOptions, on_download: OnProgress) -> ModelSource:
    path = find_or_pull(name, on_download)
    tokenizer = Path(options.tokenizer).expanduser() if options.tokenizer else None
    lora = find_or_pull(options.lora, on_download) if options.lora else None
    return read_model(path, name_of(path, name), tokenizer, lora)


def _compilation(
    source: ModelSource,
    plans: Mapping[str, StagePlan],
    n_beams: int,
    windows_s: Sequence[int],
    cache: Path | None,
    on_compiled: OnCompiled,
) -> Compilation:
    adapter = str(source.adapter.path) if source.adapter else ""
    return Compilation(
        source.graphs,
        plans,
        # Recordings may be transcribed beside captions.
        n_beams=max(n_beams, FILE_BEAMS),
        windows_s=windows_s,
        cache_dir=cache,
        model=" ".join(
            str(part) for part in (source.path.resolve(), source.lora or "", adapter, source.weights) if part
        ),
        on_progress=on_compiled,
    )


def _n_beams(source: ModelSource, wanted: int | None, *, live: bool) -> int:
    """Return the beams of captions, or of files. Raises ConfigError if the model's graphs cannot follow that many."""
    if source.foreign_decoder is None:
        return wanted or (source.generation.stream_beams if live else FILE_BEAMS)
    if wanted not in (None, 1):
        raise ConfigError(
            f"beam_size is {wanted}, and the decoder of {source.name} was exported for one token a call: leave it out,"
            " or use the checkpoint that it was made from"
        )
    return 1


def window_lengths(source: ModelSource, plans: Mapping[str, StagePlan], wanted: Sequence[int] | None) -> Sequence[int]:
    """Return the lengths of audio to make graphs for. Raises ConfigError if the model's are for 30 s alone."""
    if source.foreign_decoder is None:
        if wanted is not None or source.generation.windows_s:
            return source.generation.windows_s if wanted is None else wanted
        windows_s = source.adapter.windows_s if source.adapter else DEFAULT_WINDOWS_S
        # If each length has graphs of its own, with a copy of the weights, one has to do.
        return windows_s if all(plan.candidates[0] == "CPU" for plan in plans.values()) else windows_s[-1:]
    if wanted is not None and set(wanted) - set(WHOLE_WINDOW):
        raise ConfigError(
            f"model.windows_s is {list(wanted)}, and {source.name} consists of graphs that were exported for 30 s:"
            " leave it out, or use the checkpoint that they were made from"
        )
    return WHOLE_WINDOW


def _verdicts(source: ModelSource, compilation: Compilation) -> Verdicts:
    adapter = source.adapter.path if source.adapter else None
    files = [path for path in (source.path, source.lora, adapter) if path]
    return Verdicts(compilation, f"{source.origin} {source.weights}".strip(), files)


def _checked_runtime(parts: _Parts) -> Runtime:
    """Compile graphs and try them out, on the next device if one fails. Raises what `WhisperModel.start` does."""
    compilation = parts.compilation
    while True:
        while refused := parts.verdicts.refused():
            compilation.reject(refused)
        compilation.compile()
        runtime, wrong = _try_out(parts)
        if runtime is not None:
            compilation.give_back()
            return runtime
        compilation.reject(wrong)


def _try_out(parts: _Parts) -> tuple[Runtime | None, dict[str, InferenceError]]:
    """Start compiled graphs and check them. Returns None, and errors by stage, if devices are not to be used.

    Raises ModelError if the model is to blame.
    """
    source, compilation, verdicts = parts.source, parts.compilation, parts.verdicts
    unjudged = verdicts.unjudged()
    checks: list[Check] = []
    try:
        runtime = _start(source, compilation)
        require(_device_checks(source, compilation, runtime))
        checks = list(_speech_checks(source, compilation, runtime, unjudged))
        wrong = _errors(checks)
        runtime.warm_up()
    except LostDeviceError as error:
        wrong = dict.fromkeys(compilation.sharing(error.stage), error)
    except InferenceError as error:
        wrong = {error.stage: error}
    # A stage that has passed before may do so again: what went wrong now may pass, as after a computer's sleep.
    problems = {stage: str(error) for stage, error in wrong.items() if stage in unjudged}
    verdicts.keep({**{check.stage: "" for check in checks}, **problems})
    return (None, wrong) if wrong else (runtime, {})


def _speech_checks(
    source: ModelSource, compilation: Compilation, runtime: Runtime, stages: Sequence[str]
) -> Iterator[Check]:
    """Compare stages with the CPU, whose graphs are compiled for that and released."""
    sample = speech()
    if not stages or sample is None:
        return
    on_cpu = Compilation(source.graphs, exact_plans(), windows_s=compilation.windows_s)
    try:
        on_cpu.compile()
        exact = _start(source, on_cpu)
    except InferenceError as error:  # too little memory, of which no accelerator is guilty
        logger.warning("%s; the model is not compared with the CPU", error)
        return
    tokenizer = source.tokenizer
    language = "en" if "en" in tokenizer.known_languages else tokenizer.known_languages[0]
    start = tokenizer.start_sequence(language, "transcribe")
    yield from check_speech(runtime, exact, read_speech(sample), start, tokenizer.special.end_of_text, stages)


def _errors(checks: Iterable[Check]) -> dict[str, InferenceError]:
    """Return the error of each stage's first check that did not pass."""
    errors: dict[str, InferenceError] = {}
    for check in checks:
        error = check.error()
        if not check.passed and isinstance(error, InferenceError):
            errors.setdefault(check.stage, error)
    return errors


def _start(source: ModelSource, compilation: Compilation) -> Runtime:
    """Start compiled graphs. Raises ModelError if a decoder of others obeys no known mask."""
    runtime = Runtime(compilation)
    if source.foreign_decoder is not None:
        token = source.tokenizer.special.start_of_transcript
        runtime.decoder.mask = find_convention(runtime.decoder.open_step, str(source.foreign_decoder), token)
    return runtime


def _device_checks(
    source: ModelSource, compilation: Compilation, runtime: Runtime, *, everywhere: bool = False
) -> Iterator[Check]:
    """Check the compiled graphs.

    What is left of one window in the next is looked for on accelerators, or everywhere: it takes time.
    """
    token = source.tokenizer.special.start_of_transcript
    mask = runtime.decoder.mask.name
    yield Check("decoder: mask", mask, "a known convention" if source.foreign_decoder else mask)
    for window_s in reversed(runtime.windows_s):
        decoder = runtime.decoder_of(runtime.window(window_s))
        yield from check_decoder(decoder, token, str(Sizes("decoder", window_s)))
    if everywhere or any(device != "CPU" for device in compilation.devices.values()):
        fresh = runtime.another()
        for window_s in reversed(runtime.windows_s):
            yield from check_freshness(runtime, fresh, token, window_s)


def _where(runtime: Runtime) -> str:
    """Return the devices of the stages and why they were chosen; one if it is the same for all."""
    available, plans = available_devices(), runtime.compilation.plans
    reasons = {stage: f"{device} ({plans[stage].why(device, available)})" for stage, device in runtime.devices.items()}
    if len(set(reasons.values())) == 1:
        return reasons["encoder"]
    return ", ".join(f"{stage}: {reason}" for stage, reason in reasons.items())
