"""A model's graphs compiled for devices, in parallel, and kept in the cache."""

import logging
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
from streamer.whisper.device.sizes import WHOLE_WINDOW, Sizes, build_graphs, sizes_of, with_whole
from streamer.whisper.device.types import has_integer_weights, keep_in_bfloat16, mark_half_weights
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs.build import ModelGraphs
from streamer.whisper.ir import first_line

logger = logging.getLogger(__name__)

# Receives how many graphs of how many are compiled.
OnCompiled = Callable[[int, int], None]

# Graphs that are compiled at a time, unless a device computes meanwhile.
_AT_A_TIME = 4

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

    def sizes_of(self, stage: str, place: Place) -> list[Sizes]:
        """Return the graphs that a stage has at a place."""
        return sizes_of(self.graphs, stage, place.device, self.windows_s, self.n_beams)

    def entry(self, sizes: Sizes, place: Place) -> Path:
        """Return the name of a graph's directory in the cache: what holds of a graph there holds for these facts."""
        properties = properties_for(place.device, self.plans[sizes.stage], precise=place.precise)
        facts = [*device_facts(the_core(), place.device), sorted(properties.items()), self.model, repr(sizes)]
        return cache.entry(Path(), place.device, facts)

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
    built = {
        stage: build_graphs(recipe.graphs, recipe.sizes_of(stage, place), place.device)
        for stage, place in chosen.items()
        if stage not in found
    }
    if _takes_bfloat16(recipe, built):
        for model in (*built["cross_kv"][0].values(), *built["decoder"][0].values()):
            keep_in_bfloat16(model)
    pool = ThreadPoolExecutor(at_a_time, "compile")
    try:
        tasks = {
            sizes: pool.submit(_compile, recipe, sizes, model, chosen[stage])
            for stage, (models, _) in built.items()
            for sizes, model in models.items()
        }
        on_compiled(0, len(tasks))
        for done, _ in enumerate(as_completed(tasks.values()), 1):
            on_compiled(done, len(tasks))
    finally:
        # Ctrl-C does not wait for a compiler, which may take minutes.
        pool.shutdown(wait=False, cancel_futures=True)
    errors: dict[str, InferenceError] = {}
    for stage, (models, lookup) in built.items():
        try:
            found[stage] = CompiledStage(
                chosen[stage],
                {sizes: tasks[sizes].result() for sizes in models},
                None if lookup is None else compile_graph(lookup, Sizes(stage, None), "CPU", _LOOKUP_PROPERTIES, None),
            )
        except InferenceError as error:
            errors[stage] = error
    return found, errors


def compile_graph(
    model: ov.Model, sizes: Sizes, device: str, properties: Mapping[str, object], directory: Path | None
) -> ov.CompiledModel:
    """Compile a graph, or read it from its directory in the cache if it is there, and keep it there if it is not.

    Raises InferenceError if the device cannot compile it.
    """
    core = the_core()
    mark_half_weights(model)
    if directory is not None:
        try:
            with cache.replacing(directory) as kept:
                return core.compile_model(model, device, {**properties, "CACHE_DIR": str(kept)})
        except RuntimeError as error:
            # The cache may be the reason: a full disk, a blob of another driver. Without it is the test.
            logger.debug("%s for %s with the cache: %s", sizes, device, first_line(error))
    try:
        compiled = core.compile_model(model, device, properties)
    except RuntimeError as error:
        raise InferenceError(
            f"{device} cannot compile the {sizes} graph ({first_line(error)}): {remedy_for(device, error)},"
            " or choose another device with --device CPU",
            sizes.stage,
        ) from None
    if directory is not None:
        logger.warning(
            "the cache of compiled graphs in %s cannot be used for the %s graph: delete that directory",
            directory.parent,
            sizes,
        )
    return compiled


def _compile(recipe: Recipe, sizes: Sizes, model: ov.Model, place: Place) -> CompiledGraph:
    """Compile a graph of a recipe for a place, and measure how long it takes."""
    begin = time.monotonic()
    device, directory = place.device, recipe.directory(sizes, place)
    group_size = recipe.graphs.dims.n_audio_state if has_integer_weights(model) else None
    properties = properties_for(device, recipe.plans[sizes.stage], group_size, precise=place.precise)
    compile_it = partial(compile_graph, model, sizes, device, properties, directory)
    compiled = compile_it()
    from_cache = bool(compiled.get_property("LOADED_FROM_CACHE"))
    if device == "CPU" and not from_cache and directory is not None and any(directory.glob("*.blob")):
        # Read from the cache, it keeps no copies of the weights that it was compiled of: 100 MB less for base.
        del compiled
        compiled = compile_it()
    compile_s = time.monotonic() - begin
    logger.debug("%s for %s in %.1f s", sizes, device, compile_s)
    return CompiledGraph(compiled, from_cache, compile_s)


def _takes_bfloat16(recipe: Recipe, built: Mapping[str, tuple[Mapping[Sizes, ov.Model], ov.Model | None]]) -> bool:
    """Return whether keys and values, which are read at every call, are to take half of the memory.

    Only if weights are rounded more than that, on a processor that multiplies in bfloat16, and no other device can come
    to use them.
    """
    if not {"cross_kv", "decoder"} <= built.keys():
        return False
    plans = [recipe.plans[stage] for stage in ("cross_kv", "decoder")]
    if any(plan.candidates != ("CPU",) or "INFERENCE_PRECISION_HINT" in plan.properties for plan in plans):
        return False
    if not all(map(has_integer_weights, built["decoder"][0].values())):
        return False
    return "BF16" in the_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
