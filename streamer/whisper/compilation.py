"""A model's graphs compiled for devices, in parallel, each stage on the first of its devices that takes it."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import openvino as ov

from streamer.errors import ConfigError, InferenceError
from streamer.whisper.devices import (
    DEVICE_ORDER,
    StagePlan,
    cache_directory,
    check_properties,
    first_line,
    kind_of,
    properties_for,
)
from streamer.whisper.dims import ModelDimensions
from streamer.whisper.graphs import Heads, build_cross_kv, build_decoder, build_encoder, fix_sizes
from streamer.whisper.weights import Checkpoint

logger = logging.getLogger(__name__)

# Tokens of one call of the block decoder: the prompt and a known prefix go through in blocks. On a two-core machine
# a block of 16 costs 1.3 to 1.7 single steps.
BLOCK_TOKENS = 16

# The graphs of each stage.
GRAPHS_OF = {
    "encoder": ("encoder",),
    "cross_kv": ("cross_kv",),
    "decoder": ("decoder", "block_decoder", "beam_decoder"),
}


@dataclass(frozen=True, slots=True)
class ModelGraphs:
    """The graphs of one model, each built or read when it is asked for. They may raise ModelError."""

    dims: ModelDimensions

    # Layer and head of each row that the decoder's cross-attention is asked for, in this order.
    alignment_heads: Heads
    encoder: Callable[[], ov.Model]
    cross_kv: Callable[[], ov.Model]

    # For any number of tokens and slots, or for one token (see `graphs.build_decoder`).
    decoder: Callable[[], ov.Model]

    @classmethod
    def of(cls, checkpoint: Checkpoint, alignment_heads: Heads) -> "ModelGraphs":
        """Return the graphs that we build from a checkpoint's weights."""
        dims, tensors = checkpoint.dims, checkpoint.tensors
        return cls(
            dims,
            alignment_heads,
            encoder=lambda: build_encoder(dims, tensors),
            cross_kv=lambda: build_cross_kv(dims, tensors),
            decoder=lambda: build_decoder(dims, tensors, alignment_heads),
        )


class Compilation:
    """Compiles a model's graphs; a stage that turns out not to work on a device can be moved to its next one."""

    def __init__(
        self,
        graphs: ModelGraphs,
        plans: Mapping[str, StagePlan],
        *,
        n_beams: int = 1,
        cache_dir: Path | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Compile nothing yet.

        n_beams : sequences that beam search follows at once; where they are several, a graph is made for them
        on_progress : is told how many graphs of how many are compiled
        """
        self.graphs = graphs
        # By name: `encoder`, `cross_kv`, `decoder`; where the decoder takes several tokens also `block_decoder`, and
        # `beam_decoder` for several beams.
        self.compiled: dict[str, ov.CompiledModel] = {}
        self._plans = dict(plans)
        self._n_beams = n_beams
        self._cache_dir = cache_dir
        self._on_progress = on_progress
        self._core = ov.Core()
        # How many of a stage's devices did not work.
        self._failed = dict.fromkeys(plans, 0)

    @property
    def devices(self) -> dict[str, str]:
        """Device of each stage."""
        return {stage: plan.candidates[self._failed[stage]] for stage, plan in self._plans.items()}

    def compile(self) -> None:
        """Compile what is not compiled.

        Raises InferenceError where a stage's last device cannot compile it, ConfigError for a property that a device
        does not know, and what the graphs' readers raise.
        """
        for stage, plan in self._plans.items():
            check_properties(self._core, self.devices[stage], plan)
        with ThreadPoolExecutor(4, "compile") as pool:
            tasks: dict[str, Future[ov.CompiledModel]] = {}
            missing = [stage for stage in self._plans if not set(GRAPHS_OF[stage]) & set(self.compiled)]
            for stage in ("encoder", "cross_kv"):
                if stage in missing:
                    tasks[stage] = pool.submit(self._compile, stage, stage, getattr(self.graphs, stage))
            if "decoder" in missing:
                for name, model in self._decoders().items():
                    tasks[name] = pool.submit(self._compile, "decoder", name, partial(_same, model))
            self._on_progress(0, len(tasks))
            for done, _ in enumerate(as_completed(tasks.values()), 1):
                self._on_progress(done, len(tasks))
        errors: dict[str, InferenceError] = {}
        for stage in missing:
            try:
                self.compiled |= {name: tasks[name].result() for name in GRAPHS_OF[stage] if name in tasks}
            except InferenceError as error:
                errors[stage] = error
        if errors:
            self.reject(errors)
            self.compile()

    def renew(self, spare_devices: Sequence[str]) -> None:
        """Forget what is compiled, for devices that were lost; those not planned for become the last resort."""
        self.compiled.clear()
        self._core = ov.Core()
        for stage, plan in self._plans.items():
            if not plan.npu_through_cpu:
                new = [device for device in spare_devices if device not in plan.candidates]
                spare = sorted(new, key=lambda device: DEVICE_ORDER.index(kind_of(device)))
                self._plans[stage] = dataclasses.replace(plan, candidates=(*plan.candidates, *spare))

    def reject(self, errors: Mapping[str, InferenceError]) -> None:
        """Give up the devices of stages that failed. Raises the error of a stage that has no other."""
        told: dict[str, list[str]] = {}
        for stage, error in errors.items():
            plan = self._plans[stage]
            for name in GRAPHS_OF[stage]:
                self.compiled.pop(name, None)
            device = plan.candidates[self._failed[stage]]
            if self._failed[stage] + 1 >= len(plan.candidates):
                raise error
            self._failed[stage] += 1
            told.setdefault(f"{device} {plan.candidates[self._failed[stage]]}", []).append(stage)
        for devices, stages in told.items():
            # What is wrong with a device is the same for all of its stages: it is told once.
            logger.warning("%s; trying %s for %s", errors[stages[0]], devices.split()[1], ", ".join(stages))

    def _decoders(self) -> dict[str, ov.Model]:
        model = self.graphs.decoder()
        if not model.is_dynamic():
            if self._n_beams > 1:
                raise ConfigError(
                    f"beam_size {self._n_beams} needs a decoder for several tokens a call, this one takes one: use a"
                    " checkpoint instead of exported graphs, or leave beam_size at 1"
                )
            return {"decoder": model}
        n_slots = self.graphs.dims.cache_size
        decoders = {"decoder": fix_sizes(model, 1, n_slots), "block_decoder": fix_sizes(model, BLOCK_TOKENS, n_slots)}
        if self._n_beams > 1:
            decoders["beam_decoder"] = fix_sizes(model, self._n_beams, beam_slots(self.graphs.dims, self._n_beams))
        return decoders

    def _compile(self, stage: str, name: str, build: Callable[[], ov.Model]) -> ov.CompiledModel:
        model = build()
        mark_half_weights(model)
        device = self.devices[stage]
        properties = properties_for(device, self._plans[stage])
        begin = time.monotonic()
        # What the NPU plugin reads back for a CPU has forgotten that it is to compute in full precision.
        cache_dir = None if self._plans[stage].npu_through_cpu else self._cache_dir
        if cache_dir is not None:
            directory = cache_directory(cache_dir, self._core, device, properties)
            try:
                compiled = self._core.compile_model(model, device, {**properties, "CACHE_DIR": str(directory)})
            except RuntimeError as error:
                # The cache may be the reason: a full disk, a blob of another driver. Without it is the test.
                logger.debug("%s for %s with the cache: %s", name, device, first_line(error))
            else:
                logger.debug("%s for %s in %.1f s", name, device, time.monotonic() - begin)
                return compiled
        try:
            compiled = self._core.compile_model(model, device, properties)
        except RuntimeError as error:
            raise InferenceError(
                f"{device} cannot compile the {name} graph ({first_line(error)}): update its driver,"
                " or choose another device with --device CPU"
            ) from None
        if cache_dir is not None:
            logger.warning(
                "the cache of compiled graphs in %s cannot be used for the %s graph: delete that directory",
                cache_dir,
                name,
            )
        return compiled


def beam_slots(dims: ModelDimensions, n_beams: int) -> int:
    """Return the cache slots of beam search: a prompt, and half a context of text for each beam, none in common."""
    return (n_beams + 1) * (dims.n_text_ctx // 2) + 8


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


def _same(model: ov.Model) -> ov.Model:
    return model
