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

from streamer.audio.constants import CHUNK_LENGTH_S
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
from streamer.whisper.graphs.build import ModelGraphs, fix_sizes
from streamer.whisper.graphs.ports import (
    BLOCK_TOKENS,
    MAX_WINDOWS,
    MOST_TOKENS,
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
    ) -> None:
        """Compile nothing yet.

        n_beams : sequences that beam search follows at once, at most, on devices whose graphs have fixed sizes
        windows_s : lengths of audio, in seconds, that all graphs are made for; those of 30 s are always made
        cache_dir : directory of compiled graphs; None: they are not kept
        model : what the graphs are of, such as a path; compiled graphs of each are kept apart
        """
        self.graphs = graphs
        self.compiled: dict[Sizes, ov.CompiledModel] = {}
        self.plans = dict(plans)
        self.n_beams = n_beams
        # Seconds, shortest first.
        self.windows_s = sorted({*windows_s, CHUNK_LENGTH_S})
        self._cache_dir = cache_dir
        self._model = model
        self._core = the_core()
        # How many of a stage's devices did not work.
        self._failed = dict.fromkeys(plans, 0)
        # Stages that failed in half precision, and devices that they did so on.
        self._precise: set[tuple[str, str]] = set()

    @property
    def devices(self) -> dict[str, str]:
        return {stage: plan.candidates[self._failed[stage]] for stage, plan in self.plans.items()}

    @property
    def others_may_come(self) -> bool:
        """Whether another device than the CPU may take over: windows and beams have to suit its graphs, too."""
        return any(plan.candidates != ("CPU",) for plan in self.plans.values())

    def awaits_npu(self) -> bool:
        """Return whether an NPU's graphs are not all in the cache: to compile them takes minutes."""
        return any(
            kind_of(self.devices[stage]) == "NPU"
            and not plan.npu_through_cpu
            and not all(self._is_cached(graph, model) for graph, model in self.models(stage).items())
            for stage, plan in self.plans.items()
        )

    def check_properties(self) -> None:
        """Raise ConfigError for a property that a device does not know."""
        for stage, plan in self.plans.items():
            check_properties(self._core, self.devices[stage], plan)

    def compile(self, n_threads: int = 4, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Compile what is not compiled.

        n_threads : how many graphs are compiled at once
        on_progress : receives how many graphs of how many are compiled

        Raises InferenceError if a stage's last device cannot compile it, ConfigError for a property that a device
        does not know, and what the graphs' readers raise.
        """
        self.check_properties()
        with ThreadPoolExecutor(n_threads, "compile") as pool:
            tasks: dict[Sizes, Future[ov.CompiledModel]] = {}
            missing = [stage for stage in self.plans if stage not in {graph.stage for graph in self.compiled}]
            models = {stage: self.models(stage) for stage in missing}
            if self._keeps_bfloat16(models):
                for model in (*models["cross_kv"].values(), *models["decoder"].values()):
                    keep_in_bfloat16(model)
            for graphs in models.values():
                tasks |= {graph: pool.submit(self._compile, graph, model) for graph, model in graphs.items()}
            on_progress(0, len(tasks))
            for done, _ in enumerate(as_completed(tasks.values()), 1):
                on_progress(done, len(tasks))
        errors: dict[str, InferenceError] = {}
        for stage in missing:
            try:
                self.compiled |= {graph: task.result() for graph, task in tasks.items() if graph.stage == stage}
            except InferenceError as error:
                errors[stage] = error
        if errors:
            self.reject(errors)
            self.compile(n_threads, on_progress)

    def give_back(self) -> None:
        """Give back the memory of what was read to compile, which the graphs have copies of once they have computed."""
        give_back_mapped(Path(place) for place in (self._cache_dir, self._model) if place)

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
        moved: dict[str, list[str]] = {}
        for stage, error in errors.items():
            plan = self.plans[stage]
            self.compiled = {graph: compiled for graph, compiled in self.compiled.items() if graph.stage != stage}
            device = plan.candidates[self._failed[stage]]
            if has_choice(device, plan) and (stage, device) not in self._precise:
                self._precise.add((stage, device))
                logger.warning("%s; trying %s in full precision for %s", error, device, stage)
                continue
            if self._failed[stage] + 1 >= len(plan.candidates):
                raise error
            self._failed[stage] += 1
            moved.setdefault(f"{device} {plan.candidates[self._failed[stage]]}", []).append(stage)
        for devices, stages in moved.items():
            # What is wrong with a device is the same for all of its stages: one line for all.
            logger.warning("%s; trying %s for %s", errors[stages[0]], devices.split()[1], ", ".join(stages))

    def models(self, stage: str) -> dict[Sizes, ov.Model]:
        """Build a stage's graph, and fix its sizes to those that it is used with."""
        whole = self.graphs.build[stage]()
        if stage == "decoder":
            return self._decoders(whole)
        short = whole
        if stage == "encoder" and self.graphs.build_short_encoder and len(self.windows_s) > 1:
            short = self.graphs.build_short_encoder()
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
        if not whole.is_dynamic():  # of others, for one token a call
            return {Sizes("decoder", n_tokens=1, n_slots=dims.cache_size): whole}
        if self.devices["decoder"] == "CPU":
            n_slots = beam_slots(dims, MAX_BEAMS) + SLOTS_STEP
            smallest = self._ports(Sizes("decoder", MIN_WINDOW_S))
            largest = ports(
                "decoder", dims, self._n_heads, n_tokens=MOST_TOKENS, n_slots=n_slots, n_windows=MAX_WINDOWS
            )
            return {Sizes("decoder", None): fix_sizes(whole, smallest.inputs, largest.inputs)}
        calls = [(1, dims.cache_size), (BLOCK_TOKENS, dims.cache_size)]
        if self.n_beams > 1:
            calls.append((BLOCK_TOKENS, beam_slots(dims, self.n_beams)))
        found = [Sizes("decoder", window_s, *call) for window_s in self.windows_s for call in calls]
        return {sizes: self._fixed(sizes, whole) for sizes in found}

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

    def _compile(self, graph: Sizes, model: ov.Model) -> ov.CompiledModel:
        mark_half_weights(model)
        device = self.devices[graph.stage]
        properties, directory = self._properties(graph, model), self._entry(graph, model)
        if self.plans[graph.stage].npu_through_cpu or not may_abort(model, device):
            return self._compile_for(device, graph, model, properties, directory)
        with written(model) as path:
            if directory is None:
                compile_apart(path, device, properties)
            elif not any(directory.glob("*.blob")):
                with cache.replacing(directory) as kept:
                    compile_apart(path, device, {**properties, "CACHE_DIR": str(kept)})
            return self._compile_for(device, graph, read_graph(path), properties, directory)

    def _properties(self, graph: Sizes, model: ov.Model) -> dict[str, object]:
        stage, device = graph.stage, self.devices[graph.stage]
        group_size = self.graphs.dims.n_audio_state if has_integer_weights(model) else None
        return properties_for(device, self.plans[stage], group_size, precise=(stage, device) in self._precise)

    def _entry(self, graph: Sizes, model: ov.Model) -> Path | None:
        """Return the cache's directory of a graph for its device; None if it is not kept."""
        device = self.devices[graph.stage]
        # What the NPU plugin reads back for a CPU has forgotten that it is to compute in full precision.
        if self._cache_dir is None or self.plans[graph.stage].npu_through_cpu:
            return None
        shapes = [port.partial_shape for port in model.inputs]
        properties = sorted(self._properties(graph, model).items())
        return cache.entry(
            self._cache_dir, device, [*device_facts(self._core, device), properties, self._model, graph, shapes]
        )

    def _is_cached(self, graph: Sizes, model: ov.Model) -> bool:
        directory = self._entry(graph, model)
        return directory is not None and any(directory.glob("*.blob"))

    def _compile_for(
        self, device: str, graph: Sizes, model: ov.Model, properties: Mapping[str, object], directory: Path | None
    ) -> ov.CompiledModel:
        begin = time.monotonic()
        if directory is not None:
            try:
                with cache.replacing(directory) as kept:
                    compiled = self._core.compile_model(model, device, {**properties, "CACHE_DIR": str(kept)})
            except RuntimeError as error:
                # The cache may be the reason: a full disk, a blob of another driver. Without it is the test.
                logger.debug("%s for %s with the cache: %s", graph, device, first_line(error))
            else:
                logger.debug("%s for %s in %.1f s", graph, device, time.monotonic() - begin)
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
