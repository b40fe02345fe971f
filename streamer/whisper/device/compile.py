"""A model's graphs compiled for devices, in parallel, each stage on the first of its devices that takes it."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import openvino as ov
from openvino import opset13

from streamer.constants import CHUNK_LENGTH_S
from streamer.errors import InferenceError
from streamer.whisper import cache
from streamer.whisper.device.allocator import give_back_mapped
from streamer.whisper.device.apart import compile_apart, may_abort, written
from streamer.whisper.device.devices import (
    DEVICE_ORDER,
    StagePlan,
    check_properties,
    device_facts,
    has_choice,
    kind_of,
    properties_for,
    remedy_for,
    the_core,
)
from streamer.whisper.dims import MAX_BEAMS, ModelDimensions
from streamer.whisper.generation import MIN_WINDOW_S
from streamer.whisper.graphs.build import ModelGraphs, fix_sizes, lookup_of, without_lookup
from streamer.whisper.graphs.ports import (
    BLOCK_TOKENS,
    MAX_WINDOWS,
    MOST_TOKENS,
    NPU_BLOCK_TOKENS,
    SLOTS_STEP,
    Ports,
    beam_slots,
    ports,
)
from streamer.whisper.ir import first_line, read_graph

logger = logging.getLogger(__name__)

# Windows that there are graphs for, in seconds, if nothing else is asked for.
WHOLE_WINDOW = (CHUNK_LENGTH_S,)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Which calls a compiled graph computes. CPUs have graphs for any size, other devices one for each."""

    stage: str

    # Length of its windows, in seconds; None: any.
    window_s: int | None = CHUNK_LENGTH_S

    # Of a decoder: tokens of a call, and slots of its cache; None: any.
    n_tokens: int | None = None
    n_slots: int | None = None

    def __str__(self) -> str:
        """Return the stage, with what is not usual: `encoder`, `encoder (7 s)`, `decoder (16 tokens, 447 slots)`."""
        sizes = [f"{self.window_s} s"] if self.window_s not in (None, CHUNK_LENGTH_S) else []
        if self.n_tokens is not None:
            sizes += [f"{self.n_tokens} token{'s' if self.n_tokens > 1 else ''}", f"{self.n_slots} slots"]
        return f"{self.stage} ({', '.join(sizes)})" if sizes else self.stage

    def ports(self, dims: ModelDimensions, n_heads: int) -> Ports:
        """Return its ports, those of a graph for any size as one of its calls has them."""
        window_s, n_tokens, n_slots = self.window_s or CHUNK_LENGTH_S, self.n_tokens or 1, self.n_slots or 1
        return ports(self.stage, dims, n_heads, window_s=window_s, n_tokens=n_tokens, n_slots=n_slots)


class Compilation:
    """Compiles a model's graphs; a stage that turns out not to work on a device can be moved to its next one."""

    def __init__(
        self,
        graphs: ModelGraphs,
        plans: Mapping[str, StagePlan],
        *,
        n_beams: int = 1,
        windows_s: Sequence[int] = WHOLE_WINDOW,
        cache_dir: Path | None = None,
        model: str = "",
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Compile nothing yet.

        n_beams : sequences that beam search follows at once, at most, on devices whose graphs have fixed sizes
        windows_s : lengths of audio, in seconds, that all graphs are made for; those of 30 s are always made
        cache_dir : directory of compiled graphs; None: they are not kept
        model : names what the graphs are of; compiled graphs of each are kept apart
        on_progress : receives how many graphs of how many are compiled
        """
        self.graphs = graphs
        self.compiled: dict[Sizes, ov.CompiledModel] = {}
        # What makes vectors of tokens, on the CPU, for decoders that take these.
        self.lookup: ov.CompiledModel | None = None
        self.plans = dict(plans)
        self.n_beams = n_beams
        # Seconds, shortest first.
        self.windows_s = sorted({*windows_s, CHUNK_LENGTH_S})
        self.cache_dir = cache_dir
        self._model = model
        self._on_progress = on_progress
        self._core = the_core()
        # How many of a stage's devices did not work.
        self._failed = dict.fromkeys(plans, 0)
        # Seconds that each compiled graph took; one that is in the cache takes few.
        self.compile_s: dict[Sizes, float] = {}
        # Stages that failed in half precision, and devices that they did so on.
        self._precise: set[tuple[str, str]] = set()
        # What computes while this compiles (see `go_beside`).
        self._beside: Compilation | None = None
        # Directories in the cache of the stages' graphs.
        self.entries: dict[Sizes, Path] = {}

    @property
    def devices(self) -> dict[str, str]:
        return {stage: plan.candidates[self._failed[stage]] for stage, plan in self.plans.items()}

    def sharing(self, stage: str) -> list[str]:
        """Return the stages that are on the device of one."""
        devices = self.devices
        return [other for other, device in devices.items() if device == devices[stage]]

    @property
    def others_may_come(self) -> bool:
        """Whether another device than the CPU may take over: windows and beams have to suit its graphs, too."""
        return any(plan.candidates != ("CPU",) for plan in self.plans.values())

    def facts(self, stage: str) -> list[object]:
        """Return what a verdict on a stage's results there holds for: device, driver, properties, model and beams."""
        return [*self._facts(stage, self._properties(stage)), self.n_beams]

    def check_properties(self) -> None:
        """Raise ConfigError for a property that a device does not know."""
        for stage, plan in self.plans.items():
            check_properties(self._core, self.devices[stage], plan)

    def compile(self) -> None:
        """Compile what is not compiled.

        Raises InferenceError if a stage's last device cannot compile it, ConfigError for a property that a device
        does not know, and what the graphs' readers raise.
        """
        self.check_properties()
        self._take_from_beside()
        pool = ThreadPoolExecutor(1 if self._beside else 4, "compile")
        try:
            tasks: dict[Sizes, Future[ov.CompiledModel]] = {}
            missing = [stage for stage in self.plans if stage not in {graph.stage for graph in self.compiled}]
            models = {stage: self.models(stage) for stage in missing}
            if self._keeps_bfloat16(models):
                for model in (*models["cross_kv"].values(), *models["decoder"].values()):
                    keep_in_bfloat16(model)
            for graphs in models.values():
                tasks |= {graph: pool.submit(self._timed, graph, model) for graph, model in graphs.items()}
            self._on_progress(0, len(tasks))
            for done, _ in enumerate(as_completed(tasks.values()), 1):
                self._on_progress(done, len(tasks))
        finally:
            # Ctrl-C does not wait for a compiler, which may take minutes.
            pool.shutdown(wait=False, cancel_futures=True)
        errors: dict[str, InferenceError] = {}
        for stage in missing:
            try:
                self.compiled |= {graph: task.result() for graph, task in tasks.items() if graph.stage == stage}
            except InferenceError as error:
                errors[stage] = error
        if errors:
            self.reject(errors)
            self.compile()

    def go_beside(self, computing: "Compilation") -> None:
        """Have graphs compiled one at a time, and none of stages that another compilation has on the same device."""
        self._beside, self._on_progress = computing, lambda done, total: None

    def _take_from_beside(self) -> None:
        if self._beside is not None:
            for graph, compiled in [*self._beside.compiled.items()]:
                if self._beside.devices[graph.stage] == self.devices[graph.stage]:
                    self.compiled[graph] = compiled
                    if graph.stage == "decoder":
                        self.lookup = self._beside.lookup

    def give_back(self) -> None:
        """Give back the memory of what was read to compile, which the graphs have copies of once they have computed."""
        self._beside = None
        give_back_mapped()

    def renew(self, spare_devices: Sequence[str]) -> None:
        """Forget what is compiled, for devices that were lost; those not planned for become the last resort."""
        self.compiled.clear()
        self._core = the_core(renewed=True)
        for stage, plan in self.plans.items():
            if not plan.npu_through_cpu:
                new = [device for device in spare_devices if device not in plan.candidates]
                spare = sorted(new, key=lambda device: DEVICE_ORDER.index(kind_of(device)))
                self.plans[stage] = dataclasses.replace(plan, candidates=(*plan.candidates, *spare))

    def reject(self, errors: Mapping[str, InferenceError]) -> None:
        """Give up the devices of stages that failed, or half precision on them. Raises the error of a stage's last."""
        moved: dict[tuple[str, str], list[str]] = {}  # stages, by their device and what they are tried on next
        for stage, error in errors.items():
            plan = self.plans[stage]
            self.compiled = {graph: compiled for graph, compiled in self.compiled.items() if graph.stage != stage}
            self.compile_s = {graph: seconds for graph, seconds in self.compile_s.items() if graph.stage != stage}
            self.entries = {graph: entry for graph, entry in self.entries.items() if graph.stage != stage}
            device = plan.candidates[self._failed[stage]]
            if has_choice(device, plan) and not error.hopeless and (stage, device) not in self._precise:
                self._precise.add((stage, device))
                place = f"{device} in full precision"
            elif self._failed[stage] + 1 >= len(plan.candidates):
                raise error
            else:
                self._failed[stage] += 1
                place = plan.candidates[self._failed[stage]]
            moved.setdefault((device, place), []).append(stage)
        for (_, place), stages in moved.items():
            # What is wrong with a device is the same for all of its stages: one line for all.
            logger.warning("%s; trying %s for %s", errors[stages[0]], place, ", ".join(stages))

    def models(self, stage: str) -> dict[Sizes, ov.Model]:
        """Build a stage's graph, and fix its sizes to those that it is used with."""
        whole = self.graphs.build[stage]()
        if stage == "decoder":
            return self._decoders(whole)
        short = whole
        if stage in self.graphs.build_short and len(self.windows_s) > 1:
            short = self.graphs.build_short[stage]()
        models = {Sizes(stage): self._fixed(Sizes(stage), whole) if whole.is_dynamic() else whole}
        *shorter_s, _ = self.windows_s
        if self.devices[stage] != "CPU":
            return models | {Sizes(stage, length): self._fixed(Sizes(stage, length), short) for length in shorter_s}
        if not shorter_s:
            return models
        any_length = {Sizes(stage, None): self._fixed(Sizes(stage, MIN_WINDOW_S), short, Sizes(stage))}
        # OpenVINO 2026.4 copies the outputs of a cross-KV graph for any length, which are large: 30 s apart.
        return any_length if stage == "encoder" and short is whole else models | any_length

    def _decoders(self, whole: ov.Model) -> dict[Sizes, ov.Model]:
        dims = self.graphs.dims
        self.lookup = None
        if not whole.is_dynamic():  # of others, for one token a call
            return {Sizes("decoder", n_tokens=1, n_slots=dims.cache_size): whole}
        if self.devices["decoder"] == "CPU":
            n_slots = beam_slots(dims, MAX_BEAMS) + SLOTS_STEP
            smallest = self._ports(Sizes("decoder", MIN_WINDOW_S))
            largest = ports(
                "decoder", dims, self._n_heads, n_tokens=MOST_TOKENS, n_slots=n_slots, n_windows=MAX_WINDOWS
            )
            return {Sizes("decoder", None): fix_sizes(whole, smallest.inputs, largest.inputs)}
        on_npu = kind_of(self.devices["decoder"]) == "NPU"
        block = NPU_BLOCK_TOKENS if on_npu else BLOCK_TOKENS
        calls = [(1, dims.cache_size), (block, dims.cache_size)]
        if self.n_beams > 1:
            calls.append((BLOCK_TOKENS, beam_slots(dims, self.n_beams)))
        found = [Sizes("decoder", window_s, *call) for window_s in self.windows_s for call in calls]
        fixed = {sizes: self._fixed(sizes, whole) for sizes in found}
        if not on_npu:
            return fixed
        lookup = lookup_of(whole)
        # An NPU's compiler would unpack the table of tokens to float16, in each graph, beside that of the logits.
        mark_half_weights(lookup)
        self.lookup = self._core.compile_model(lookup, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return {sizes: without_lookup(model) for sizes, model in fixed.items()}

    def _fixed(self, sizes: Sizes, whole: ov.Model, largest: Sizes | None = None) -> ov.Model:
        """Return a graph for calls of these sizes, and for all up to the largest."""
        return fix_sizes(whole, *(self._ports(each).inputs for each in (sizes, largest) if each))

    @property
    def _n_heads(self) -> int:
        return len(self.graphs.alignment_heads)

    def _ports(self, sizes: Sizes) -> Ports:
        return sizes.ports(self.graphs.dims, self._n_heads)

    def _keeps_bfloat16(self, models: Mapping[str, Mapping[Sizes, ov.Model]]) -> bool:
        """Return whether keys and values, which are read at every call, are to take half of the memory.

        Only if weights are rounded more than that, in graphs of ours, on a processor that multiplies in bfloat16, and
        no other device can come to use them.
        """
        decoders = models.get("decoder", {})
        ours = "cross_kv" in models and Sizes("decoder", None) in decoders
        if not ours or not all(has_integer_weights(model) for model in decoders.values()):
            return False
        plans = [self.plans[stage] for stage in ("cross_kv", "decoder")]
        if any(plan.candidates != ("CPU",) or "INFERENCE_PRECISION_HINT" in plan.properties for plan in plans):
            return False
        return "BF16" in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    def _timed(self, graph: Sizes, model: ov.Model) -> ov.CompiledModel:
        begin = time.monotonic()
        compiled = self._compile(graph, model)
        self.compile_s[graph] = time.monotonic() - begin
        logger.debug("%s for %s in %.1f s", graph, self.devices[graph.stage], self.compile_s[graph])
        return compiled

    def _properties(self, stage: str, group_size: int | None = None) -> dict[str, object]:
        device = self.devices[stage]
        return properties_for(device, self.plans[stage], group_size, precise=(stage, device) in self._precise)

    def _facts(self, stage: str, properties: Mapping[str, object]) -> list[object]:
        return [*device_facts(self._core, self.devices[stage]), sorted(properties.items()), self._model]

    def _compile(self, graph: Sizes, model: ov.Model) -> ov.CompiledModel:
        mark_half_weights(model)
        stage = graph.stage
        device = self.devices[stage]
        group_size = self.graphs.dims.n_audio_state if has_integer_weights(model) else None
        properties = self._properties(stage, group_size)
        through_cpu = self.plans[stage].npu_through_cpu
        # What the NPU plugin reads back for a CPU has forgotten that it is to compute in full precision.
        directory = None
        if self.cache_dir is not None and not through_cpu:
            shapes = [port.partial_shape for port in model.inputs]
            directory = cache.entry(self.cache_dir, device, [*self._facts(stage, properties), graph, shapes])
            self.entries[graph] = directory
        if through_cpu or not may_abort(model, device):
            return self._compile_for(device, graph, model, properties, directory)
        with written(model) as path:
            if directory is None:
                compile_apart(path, device, properties)
            elif not any(directory.glob("*.blob")):
                with cache.replacing(directory) as kept:
                    compile_apart(path, device, {**properties, "CACHE_DIR": str(kept)})
            return self._compile_for(device, graph, read_graph(path), properties, directory)

    def _compile_for(
        self, device: str, graph: Sizes, model: ov.Model, properties: Mapping[str, object], directory: Path | None
    ) -> ov.CompiledModel:
        if directory is not None:
            try:
                with cache.replacing(directory) as kept:
                    compiled = self._core.compile_model(model, device, {**properties, "CACHE_DIR": str(kept)})
            except RuntimeError as error:
                # The cache may be the reason: a full disk, a blob of another driver. Without it is the test.
                logger.debug("%s for %s with the cache: %s", graph, device, first_line(error))
            else:
                return compiled
        try:
            compiled = self._core.compile_model(model, device, properties)
        except RuntimeError as error:
            raise InferenceError(
                f"{device} cannot compile the {graph} graph ({first_line(error)}): {remedy_for(device, error)},"
                " or choose another device with --device CPU"
            ) from None
        if directory is not None:
            logger.warning(
                "the cache of compiled graphs in %s cannot be used for the %s graph: delete that directory",
                directory.parent,
                graph,
            )
        return compiled


def has_integer_weights(model: ov.Model) -> bool:
    """Return whether weights were compressed to 8 or 4 bits."""
    integers = {ov.Type.i8, ov.Type.u8, ov.Type.i4, ov.Type.u4}
    return any(node.get_type_name() == "Constant" and node.get_element_type() in integers for node in model.get_ops())


def keep_in_bfloat16(model: ov.Model) -> None:
    """Have a cross-KV graph or a decoder hold keys and values in bfloat16, and multiply with them in it.

    All else stays in float32. A key has the same bits in the call that computes it and in those that find it cached, so
    that tokens in a block get the logits that they get one by one.
    """
    for parameter in model.get_parameters():
        old = parameter.output(0)
        if "key_values." in old.get_any_name():
            new = opset13.parameter(parameter.get_output_partial_shape(0), ov.Type.bf16)
            new.output(0).set_names(old.get_names())
            new.set_friendly_name(parameter.get_friendly_name())
            _multiply_with(new.output(0), old)
            model.replace_parameter(model.get_parameter_index(parameter), new)
    for result in model.get_results():
        if "key_values." in result.output(0).get_any_name():
            old = result.input(0).get_source_output()
            users = old.get_target_inputs()
            _multiply_with(opset13.convert(old, "bf16").output(0), old, users)
    model.validate_nodes_and_infer_types()


def _multiply_with(new: ov.Output, old: ov.Output, users: Iterable[ov.Input] | None = None) -> None:
    """Put a bfloat16 output in the place of a float32 one that is the second factor of products."""
    for user in users or old.get_target_inputs():
        node = user.get_node()
        if node.get_type_name() != "MatMul":
            user.replace_source_output(new)
            continue
        query = opset13.convert(node.input(0).get_source_output(), "bf16")
        how = node.get_attributes()
        product = opset13.matmul(query, new, how["transpose_a"], how["transpose_b"])
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(opset13.convert(product, "f32").output(0))


def mark_half_weights(model: ov.Model) -> None:
    """Say of float16 weights that they are such for their size alone.

    Otherwise the CPU unpacks them to float32, repacks that, and keeps both: a third more memory.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Convert":
            continue
        weight = node.input(0).get_source_output().get_node()
        consumers = {target.get_node().get_type_name() for target in node.output(0).get_target_inputs()}
        # Scales of compressed integers are float16 too, and belong to a pattern that must stay as it is.
        half = weight.get_type_name() == "Constant" and weight.get_element_type() == ov.Type.f16
        if half and not consumers & {"Multiply", "Subtract"}:
            node.get_rt_info()["decompression_0"] = ""
