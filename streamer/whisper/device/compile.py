"""A model's graphs compiled for devices, in parallel, and kept in the cache."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import openvino as ov

from streamer.errors import InferenceError
from streamer.whisper import cache
from streamer.whisper.device.devices import (
    DeviceSettings,
    StagePlan,
    check_properties,
    device_facts,
    plan_stages,
    properties_for,
    remedy_for,
    the_core,
)
from streamer.whisper.device.places import Place, Places, choose, places_of
from streamer.whisper.device.sizes import WHOLE_WINDOW, Sizes, build_graphs, has_lookup, sizes_of, with_whole
from streamer.whisper.device.types import keep_in_bfloat16, mark_half_weights
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs, lookup_of
from streamer.whisper.ir import first_line, write_graph

logger = logging.getLogger(__name__)

# Receives how many graphs of how many are compiled.
OnCompiled = Callable[[int, int], None]

# Graphs that are compiled at a time, unless a device computes meanwhile.
_AT_A_TIME = 4

# Held while graphs are built: the weights of one stage at a time are in memory.
_building = threading.Lock()

_LOOKUP_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What graphs of a model are to be compiled, and for which devices."""

    graphs: ModelGraphs
    plans: Mapping[str, StagePlan]

    # Lengths of audio, in seconds, that all graphs are made for, the shortest first; the last is 30.
    windows_s: tuple[int, ...]

    # Sequences that beam search follows at once, at most, on devices whose graphs have fixed sizes.
    n_beams: int = 1

    # Directory of compiled graphs; None: they are not kept.
    cache_dir: Path | None = None

    # The files of which the graphs are made, and what their weights become.
    model: str = ""

    # What changes if these files or this program do (see `cache.facts_of`).
    facts: str = ""

    def sizes_of(self, stage: str, place: Place) -> list[Sizes]:
        """Return the graphs that a stage has at a place."""
        return sizes_of(self.graphs, stage, place.device, self.windows_s, self.n_beams)

    def properties(self, sizes: Sizes, place: Place) -> dict[str, object]:
        """Return the properties that a graph is compiled with."""
        group_size = self.graphs.dims.n_audio_state if self.graphs.has_integers else None
        return properties_for(place.device, self.plans[sizes.stage], group_size, precise=place.precise)

    @property
    def takes_bfloat16(self) -> bool:
        """Whether keys and values, which are read at every call, are to take half of the memory.

        Only if weights are rounded more than that, on a processor that multiplies in bfloat16, and no other device can
        come to use them.
        """
        plans = [self.plans[stage] for stage in ("cross_kv", "decoder")]
        if any(plan.candidates != ("CPU",) or "INFERENCE_PRECISION_HINT" in plan.properties for plan in plans):
            return False
        return self.graphs.has_integers and "BF16" in the_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    def entry(self, sizes: Sizes, place: Place) -> Path:
        """Return the name of a graph's directory in the cache: what holds of a graph there holds for these facts."""
        properties = sorted(self.properties(sizes, place).items())
        graph = [self.model, repr(sizes), self.takes_bfloat16]
        return cache.entry(Path(), place.device, [*device_facts(the_core(), place.device), properties, *graph])

    def directory(self, sizes: Sizes, place: Place) -> Path | None:
        """Return a graph's directory in the cache; None if it is not kept."""
        # What the NPU plugin reads back for a CPU has forgotten that it is to compute in full precision.
        if self.cache_dir is None or self.plans[sizes.stage].npu_through_cpu:
            return None
        return self.cache_dir / self.entry(sizes, place)


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A graph that a device can run."""

    graph: ov.CompiledModel
    from_cache: bool
    compile_s: float


@dataclass(frozen=True, slots=True)
class CompiledStage:
    """A stage's graphs on its device."""

    place: Place
    graphs: Mapping[Sizes, CompiledGraph]

    # What makes vectors of tokens, on the CPU, for decoders that take these.
    lookup: ov.CompiledModel | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """All graphs of a model."""

    dims: ModelDimensions
    stages: Mapping[str, CompiledStage]

    # Lengths of windows in seconds, the shortest first, and beams of graphs of fixed sizes: as in the recipe.
    windows_s: tuple[int, ...]
    n_beams: int

    # Whether another device than the CPU computes or may take over: windows and beams have to suit its graphs, too.
    others_may_come: bool

    @property
    def devices(self) -> dict[str, str]:
        return {name: stage.place.device for name, stage in self.stages.items()}

    @property
    def graphs(self) -> dict[Sizes, ov.CompiledModel]:
        stages = self.stages.values()
        return {sizes: compiled.graph for stage in stages for sizes, compiled in stage.graphs.items()}

    @property
    def from_cache(self) -> bool:
        """Whether all graphs were found compiled."""
        return all(compiled.from_cache for stage in self.stages.values() for compiled in stage.graphs.values())


def compile_on_cpu(
    graphs: ModelGraphs,
    windows_s: Sequence[int] = WHOLE_WINDOW,
    properties: Sequence[str] = (),
) -> Compiled:
    """Compile a model for the CPU, without a cache. Raises InferenceError if that fails.

    windows_s : see `Recipe`
    properties : OpenVINO's, such as `NUM_STREAMS=1`
    """
    plans = plan_stages(DeviceSettings("CPU", properties=properties), ["CPU"])
    recipe = Recipe(graphs, plans, with_whole(windows_s))
    places = places_of(plans)
    stages, errors = compile_stages(recipe, choose(plans, places), {})
    for error in errors.values():
        raise error
    return compiled_of(recipe, places, stages)


def compiled_of(recipe: Recipe, places: Places, stages: Mapping[str, CompiledStage]) -> Compiled:
    """Return all stages of a recipe, compiled at one of their places, in the order of the data."""
    others = any(place.device != "CPU" for left in places.values() for place in left)
    ordered = {stage: stages[stage] for stage in recipe.plans}
    return Compiled(recipe.graphs.dims, ordered, recipe.windows_s, recipe.n_beams, others)


def compile_stages(
    recipe: Recipe,
    chosen: Mapping[str, Place],
    here: Mapping[str, CompiledStage],
    on_compiled: OnCompiled = lambda done, total: None,
    *,
    at_a_time: int = _AT_A_TIME,
) -> tuple[dict[str, CompiledStage], dict[str, InferenceError]]:
    """Compile the stages that are not compiled at their places yet; return those that are, and errors of the others.

    chosen : where each stage is to compute
    here : stages that are compiled, perhaps elsewhere

    Raises ConfigError for a property that a device does not know, and what the graphs' readers raise.
    """
    for stage, place in chosen.items():
        check_properties(the_core(), place.device, recipe.plans[stage])
    found = {stage: here[stage] for stage, place in chosen.items() if stage in here and here[stage].place == place}
    built = {stage: _Built(recipe, stage, place) for stage, place in chosen.items() if stage not in found}
    pool = ThreadPoolExecutor(at_a_time, "compile")
    try:
        tasks = {
            sizes: pool.submit(_compile, recipe, sizes, chosen[stage], graphs)
            for stage, graphs in built.items()
            for sizes in graphs.sizes
        }
        on_compiled(0, len(tasks))
        for done, _ in enumerate(as_completed(tasks.values()), 1):
            on_compiled(done, len(tasks))
    finally:
        # Ctrl-C does not wait for a compiler, which may take minutes.
        pool.shutdown(wait=False, cancel_futures=True)
    errors: dict[str, InferenceError] = {}
    for stage, graphs in built.items():
        try:
            compiled = {sizes: tasks[sizes].result() for sizes in graphs.sizes}
            lookup = None
            if has_lookup(stage, chosen[stage].device):
                model = lookup_of(recipe.graphs.build[stage]())
                lookup = compile_graph(model, Sizes(stage, None), "CPU", _LOOKUP_PROPERTIES)
            found[stage] = CompiledStage(chosen[stage], compiled, lookup)
        except InferenceError as error:
            errors[stage] = error
    return found, errors


class _Built:
    """A stage's graphs before they are compiled: built all at once, since they share weights, if one is not kept."""

    def __init__(self, recipe: Recipe, stage: str, place: Place) -> None:
        self.sizes = recipe.sizes_of(stage, place)
        self._recipe, self._device = recipe, place.device
        self._models: dict[Sizes, ov.Model] = {}

    def take(self, sizes: Sizes) -> ov.Model:
        """Return a graph, which is kept no longer. Raises what the graphs' readers raise."""
        with _building:
            if sizes not in self._models:
                self._models = build_graphs(self._recipe.graphs, self.sizes, self._device)
            model = self._models.pop(sizes)
        if sizes.stage != "encoder" and not sizes.logits and self._recipe.takes_bfloat16:
            keep_in_bfloat16(model)
        mark_half_weights(model)
        return model


def compile_graph(model: ov.Model, sizes: Sizes, device: str, properties: Mapping[str, object]) -> ov.CompiledModel:
    """Compile a graph. Raises InferenceError if the device cannot compile it."""
    try:
        return the_core().compile_model(model, device, properties)
    except RuntimeError as error:
        raise InferenceError(
            f"{device} cannot compile the {sizes} graph ({first_line(error)}): {remedy_for(device, error)},"
            " or choose another device with --device CPU",
            sizes.stage,
        ) from None


def _compile(recipe: Recipe, sizes: Sizes, place: Place, built: _Built) -> CompiledGraph:
    """Compile a graph of a recipe for a place, or read it from the cache, and measure how long it takes."""
    begin = time.monotonic()
    device, directory = place.device, recipe.directory(sizes, place)
    properties = recipe.properties(sizes, place)
    compiled, from_cache = None, False
    if directory is not None:
        path = cache.entry(directory, "graph", [recipe.facts]).with_suffix(".xml")
        try:
            compiled, from_cache = _compile_kept(path, device, properties, partial(built.take, sizes))
        except (OSError, RuntimeError) as error:
            # The cache may be the reason: a full disk, a blob of another driver. Without it is the test.
            logger.debug("%s for %s with the cache: %s", sizes, device, first_line(error))
    if compiled is None:
        compiled = compile_graph(built.take(sizes), sizes, device, properties)
        if directory is not None:
            logger.warning(
                "the cache of compiled graphs in %s cannot be used for the %s graph: delete that directory",
                directory.parent,
                sizes,
            )
    compile_s = time.monotonic() - begin
    logger.debug("%s for %s in %.1f s", sizes, device, compile_s)
    return CompiledGraph(compiled, from_cache, compile_s)


def _compile_kept(
    path: Path, device: str, properties: Mapping[str, object], build: Callable[[], ov.Model]
) -> tuple[ov.CompiledModel, bool]:
    """Return a graph as it was compiled before, and True; else compile it and keep that, and return False, too.

    path : the graph's file, by whose name and time OpenVINO finds what it has compiled of it, and reads nothing
        else; its weights are there only while it is compiled
    build : returns the graph

    Raises OSError if it cannot be written, RuntimeError if it cannot be compiled.
    """
    weights = path.with_suffix(".bin")
    with cache.replacing(path.parent) as kept:
        compile_it = partial(the_core().compile_model, path, device, {**properties, "CACHE_DIR": str(kept)})
        try:
            if path.is_file():
                # It fails if what was compiled is damaged or deleted, since there are no weights.
                with contextlib.suppress(RuntimeError):
                    compiled = compile_it()
                    return compiled, bool(compiled.get_property("LOADED_FROM_CACHE"))
            for old in (*path.parent.glob("*.xml"), *path.parent.glob("*.bin")):
                old.unlink(missing_ok=True)
            write_graph(build(), path)
            compiled = compile_it()
            if device == "CPU" and any(kept.glob("*.blob")):
                # Read from the cache, it keeps no copies of the weights that it was compiled of: 100 MB less for base.
                del compiled
                compiled = compile_it()
            return compiled, False
        finally:
            with contextlib.suppress(OSError):  # another program may have it open
                weights.unlink(missing_ok=True)
