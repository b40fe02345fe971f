"""From a model's name to graphs that compute: name -> files -> checkpoint -> graphs -> compiled -> trusted.

`load` goes all the way for `streamer run` and whatever else computes, and `verify_model` says what it finds on it.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamer.errors import InferenceError, LostDeviceError
from streamer.whisper import adapters
from streamer.whisper.cache import facts_of, open_cache
from streamer.whisper.check import Check, require
from streamer.whisper.choices import choose_beams, choose_weights, choose_windows
from streamer.whisper.decode.window import FILE_BEAMS
from streamer.whisper.device.allocator import give_back_mapped
from streamer.whisper.device.busy import busy_checks, npu_busy_us
from streamer.whisper.device.compile import Compiled, CompiledStage, OnCompiled, Recipe, compile_stages, compiled_of
from streamer.whisper.device.devices import (
    DeviceSettings,
    StagePlan,
    available_devices,
    check_properties,
    kind_of,
    plan_stages,
    the_core,
    until_npu,
    with_last_resorts,
)
from streamer.whisper.device.places import Place, Places, choose, give_up, places_of, with_spares
from streamer.whisper.device.runtime import Runtime
from streamer.whisper.device.sizes import WHOLE_WINDOW, with_whole
from streamer.whisper.hub.progress import OnProgress
from streamer.whisper.locate import find_or_pull, name_of
from streamer.whisper.source import ModelSource, read_model
from streamer.whisper.trust import Verdicts, accelerated, self_checks, speech_checks

logger = logging.getLogger(__name__)


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

    # Beams of live captions. None: as many as the model names, or five if it is not for `live` captions.
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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that was read, and what is to be compiled of it."""

    source: ModelSource
    recipe: Recipe
    verdicts: Verdicts

    # How many beams captions follow if the settings do not say otherwise.
    n_beams: int

    # What its weights are, and why.
    weights: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model whose graphs are compiled and trusted."""

    prepared: Prepared

    # Where each stage may compute; where it does is `choose`'s.
    places: Places
    runtime: Runtime


def load(
    name: str,
    options: LoadOptions,
    on_download: OnProgress = lambda progress: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> tuple[Loaded, Prepared | None]:
    """Go from a model's name to graphs that compute; return what the model is to move to, too (see `LoadOptions`).

    name : a path, the name of a model that is here, or one of the Hub's

    Raises ModelError if there is no such model, or a part is missing or does not fit; PeerError if it cannot be
    fetched; ConfigError if a device is not there; InferenceError if it cannot compile or run the graphs.
    """
    plans = plan_stages(options.devices, available_devices())
    cache_dir = open_cache(options.cache_dir)
    source = read(name, options, on_download)
    require(source.checks)
    if options.at_once:
        plans = with_last_resorts(plans, available_devices())
    prepared, later = _for_now(prepare(source, options, plans, cache_dir), at_once=options.at_once)
    chosen = choose(prepared.recipe.plans, places_of(prepared.recipe.plans))
    for device in dict.fromkeys(place.device for place in accelerated(chosen).values()):
        logger.info("compiling the model for %s: the first time this takes up to some minutes", device)
    return start(prepared, on_compiled=on_compiled), later


def verify_model(
    name: str,
    options: LoadOptions,
    *,
    on_download: OnProgress = lambda progress: None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> Iterator[Check]:
    """Yield every check of a model on the devices that it would run on. Raises what `load` does."""
    plans = plan_stages(options.devices, available_devices())
    cache_dir = open_cache(options.cache_dir)
    source = read(name, options, on_download)
    yield from source.checks
    if not all(check.passed for check in source.checks):
        return  # what does not belong together is not worth compiling
    prepared = prepare(source, options, plans, cache_dir)
    recipe, tokenizer = prepared.recipe, prepared.source.tokenizer
    places = places_of(plans)
    stages: dict[str, CompiledStage] = {}
    while stages.keys() != plans.keys():
        stages, errors = compile_stages(recipe, choose(plans, places), stages, on_compiled)
        places = give_up(plans, places, errors)
    runtime = Runtime(compiled_of(recipe, places, stages))
    for stage, device in runtime.devices.items():
        first = plans[stage].candidates[0]
        yield Check(f"{stage}: device", device, first, device == first, f"{first} cannot compile the {stage}", stage)
    busy_us = npu_busy_us()
    tried = list(self_checks(runtime, tokenizer, everywhere=True))
    yield from tried
    compared = list(speech_checks(recipe, runtime, tokenizer, [*accelerated(choose(plans, places))]))
    yield from compared
    on_npu = [stage for stage, device in runtime.devices.items() if kind_of(device) == "NPU"]
    yield from busy_checks(busy_us, () if options.devices.npu_through_cpu else on_npu)
    problems = {stage: str(error) for stage, error in _errors([*tried, *compared]).items()}
    prepared.verdicts.keep(recipe, stages, {**{check.stage: "" for check in compared}, **problems})


def read(name: str, options: LoadOptions, on_download: OnProgress) -> ModelSource:
    """Find a model's files or fetch them, and read what they hold. Raises ModelError, and PeerError for the Hub."""
    path = find_or_pull(name, on_download)
    tokenizer = Path(options.tokenizer).expanduser() if options.tokenizer else None
    lora = find_or_pull(options.lora, on_download) if options.lora else None
    return read_model(path, name_of(path, name), tokenizer, lora)


def prepare(
    source: ModelSource, options: LoadOptions, plans: Mapping[str, StagePlan], cache_dir: Path | None
) -> Prepared:
    """Decide what is compiled of a model: weights, adapter, lengths of windows and beams.

    Raises ConfigError or ModelError for options that it cannot follow.
    """
    source, why = choose_weights(source.with_adapter(options.adapter), options.weights, plans)
    n_beams = choose_beams(source, options.n_beams, live=options.live)
    files = [path for path in (source.path, source.lora, source.adapter and source.adapter.path) if path]
    recipe = Recipe(
        source.graphs,
        plans,
        with_whole(choose_windows(source, plans, options.windows_s)),
        # Recordings may be transcribed beside captions.
        max(n_beams, FILE_BEAMS),
        cache_dir=cache_dir,
        model=" ".join([*(str(path.resolve()) for path in files), source.weights]),
        facts=facts_of(files, source.generation.alignment_heads),
    )
    return Prepared(source, recipe, Verdicts(f"{source.origin} {source.weights}".strip()), n_beams, why)


def start(
    prepared: Prepared,
    places: Places | None = None,
    *,
    beside: Compiled | None = None,
    on_compiled: OnCompiled = lambda done, total: None,
) -> Loaded:
    """Compile graphs and try them out, those of a stage at its next place if they fail.

    places : where stages may still compute; None: nothing has failed yet
    beside : graphs that compute meanwhile; those for the same place are taken, others are compiled one at a time

    Raises ModelError if the model is to blame, InferenceError if a stage works nowhere.
    """
    recipe, plans, verdicts = prepared.recipe, prepared.recipe.plans, prepared.verdicts
    left = places_of(plans) if places is None else places
    stages: dict[str, CompiledStage] = {}
    while True:
        while refused := verdicts.refused(recipe, choose(plans, left)):
            left = give_up(plans, left, refused)
        here = {**(beside.stages if beside else {}), **stages}
        chosen = choose(plans, left)
        stages, wrong = compile_stages(recipe, chosen, here, on_compiled, at_a_time=1 if beside else 4)
        if not wrong:
            runtime, wrong = _try_out(prepared, compiled_of(recipe, left, stages))
            if runtime is not None:
                # The graphs have copies of what was read to compile them once they have computed; of the libraries most
                # was needed for that alone, such as plugins of devices that are not here.
                give_back_mapped(libraries=True)
                return Loaded(prepared, left, runtime)
        left = give_up(plans, left, wrong)
        stages = {stage: compiled for stage, compiled in stages.items() if stage not in wrong}


def restart(loaded: Loaded, error: InferenceError, *, again: bool) -> Loaded:
    """Compile a model anew after a device failed: for the same one, or for the next one if it failed `again`.

    A hopeless error gives up its device for all stages at once. Raises what `start` raises.
    """
    prepared, available = loaded.prepared, available_devices()
    plans, places = prepared.recipe.plans, with_spares(prepared.recipe.plans, loaded.places, available)
    the_core(renewed=True)
    if again or error.hopeless:
        chosen = choose(plans, loaded.places)
        failed = _sharing(chosen, error.stage) if error.hopeless else {error.stage: chosen[error.stage]}
        prepared.verdicts.forget(prepared.recipe, failed)
        with contextlib.suppress(InferenceError):  # there is no other: the last one is started again, too
            places = give_up(plans, places, dict.fromkeys(failed, error))
    return start(prepared, places)


def where(loaded: Loaded) -> str:
    """Return the devices of the stages and why they were chosen; one if it is the same for all."""
    plans, available = loaded.prepared.recipe.plans, available_devices()
    devices = loaded.runtime.devices.items()
    reasons = {stage: f"{device} ({plans[stage].why(device, available)})" for stage, device in devices}
    if len(set(reasons.values())) == 1:
        return reasons["encoder"]
    return ", ".join(f"{stage}: {reason}" for stage, reason in reasons.items())


def _for_now(prepared: Prepared, *, at_once: bool) -> tuple[Prepared, Prepared | None]:
    """Return what is compiled first, and what then: for an NPU, whose compiler is not to be waited for."""
    recipe, plans = prepared.recipe, prepared.recipe.plans
    chosen = choose(plans, places_of(plans))
    if not at_once or not any(plans[stage].is_for_npu for stage in prepared.verdicts.unjudged(recipe, chosen)):
        return prepared, None
    for stage, place in chosen.items():
        check_properties(the_core(), place.device, plans[stage])
    return replace(prepared, recipe=replace(recipe, plans=until_npu(plans))), prepared


def _try_out(prepared: Prepared, compiled: Compiled) -> tuple[Runtime | None, dict[str, InferenceError]]:
    """Start compiled graphs and check them. Returns None, and errors by stage, if devices are not to be used.

    Raises ModelError if the model is to blame.
    """
    recipe, tokenizer, verdicts = prepared.recipe, prepared.source.tokenizer, prepared.verdicts
    places = {name: stage.place for name, stage in compiled.stages.items()}
    unjudged = verdicts.unjudged(recipe, places)
    checks: list[Check] = []
    try:
        runtime = Runtime(compiled)
        require(self_checks(runtime, tokenizer))
        checks = list(speech_checks(recipe, runtime, tokenizer, unjudged))
        wrong = _errors(checks)
        runtime.warm_up()
    except LostDeviceError as error:
        wrong = dict.fromkeys(_sharing(places, error.stage), error)
    except InferenceError as error:
        wrong = {error.stage: error}
    # A stage that has passed before may do so again: what went wrong now may pass, as after a computer's sleep.
    problems = {stage: str(error) for stage, error in wrong.items() if stage in unjudged}
    verdicts.keep(recipe, compiled.stages, {**{check.stage: "" for check in checks}, **problems})
    return (None, wrong) if wrong else (runtime, {})


def _sharing(chosen: Mapping[str, Place], stage: str) -> dict[str, Place]:
    """Return the stages that are on the device of one."""
    return {other: place for other, place in chosen.items() if place.device == chosen[stage].device}


def _errors(checks: Iterable[Check]) -> dict[str, InferenceError]:
    """Return the error of each stage's first check that did not pass."""
    errors: dict[str, InferenceError] = {}
    for check in checks:
        error = check.error()
        if not check.passed and isinstance(error, InferenceError):
            errors.setdefault(check.stage, error)
    return errors
